"""Where the demo model is kept, when a finished checkpoint is reused, and atomic publishing.

Standard library only: a second start must answer in well under a second without numpy.

A checkpoint folder carries demo.json with the size and sha256 of each of its files and the recipe
(a hash over everything that decides the contents) it was made by. `.verified` beside it remembers
the sizes and times of the files whose sums were found right, so that they are hashed only once.
"""

import contextlib
import hashlib
import json
import os
import shutil

MANIFEST = "demo.json"
STAMP = ".verified"
HERE = os.path.dirname(os.path.abspath(__file__))
REPOSITORY = os.path.dirname(os.path.dirname(HERE))
REQUIREMENTS = os.path.join(REPOSITORY, "packaging", "demo-requirements.txt")
PERPLEXITY_TEXT = os.path.join(REPOSITORY, "tests", "data", "ppl.txt")
# Modules that only carry out the work and do not decide what is written.
_NOT_IN_RECIPE = {"__init__.py", "cache.py", "environment.py", "progress.py"}


class DemoError(Exception):
    """A message for the user: what is wrong, what was expected, what to do."""


def cache_folder():
    """$XDG_CACHE_HOME/rota/demo or ~/.cache/rota/demo; relative values do not count."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "rota", "demo")


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recipe():
    """A hash over the modules, the pinned packages and the text that decide what is written."""
    files = [REQUIREMENTS, PERPLEXITY_TEXT]
    files += [
        os.path.join(HERE, name)
        for name in sorted(os.listdir(HERE))
        if name.endswith(".py") and name not in _NOT_IN_RECIPE
    ]
    total = hashlib.sha256()
    for path in files:
        total.update(os.path.basename(path).encode() + b"\0" + sha256_of(path).encode() + b"\n")
    return total.hexdigest()


def _read_json(path):
    """The parsed file, or nothing where it is missing or broken."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def _file_times(folder, names):
    stats = {name: os.stat(os.path.join(folder, name)) for name in names}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def is_finished(folder, form, wanted_recipe):
    """Whether `folder` holds the checkpoint of that format and recipe with the right sums."""
    manifest = _read_json(os.path.join(folder, MANIFEST))
    if not isinstance(manifest, dict):
        return False
    if manifest.get("format") != form or manifest.get("recipe") != wanted_recipe:
        return False
    files = manifest.get("files", {})
    try:
        times = _file_times(folder, [*files, MANIFEST])
    except OSError:
        return False
    if times == _read_json(os.path.join(folder, STAMP)):
        return True
    for name, entry in files.items():
        if (
            times[name][0] != entry["bytes"]
            or sha256_of(os.path.join(folder, name)) != entry["sha256"]
        ):
            return False
    write_stamp(folder, files)
    return True


def write_stamp(folder, names):
    """Remembers that the sums are right; a folder that cannot be written is checked each time."""
    with (
        contextlib.suppress(OSError),
        open(os.path.join(folder, STAMP), "w", encoding="utf-8") as file,
    ):
        json.dump(_file_times(folder, [*names, MANIFEST]), file)


def check_replaceable(folder):
    """Refuses to replace a folder that this tool did not make."""
    if not os.path.lexists(folder):
        return
    if not os.path.isdir(folder):
        raise DemoError(f"{folder} exists and is no folder: give another --out")
    if os.listdir(folder) and not os.path.exists(os.path.join(folder, MANIFEST)):
        raise DemoError(f"{folder} is not empty and holds no {MANIFEST}: give another --out")


def partial_folder(folder):
    """An empty folder beside `folder` to build in; what an earlier run left there is removed."""
    partial = os.path.normpath(folder) + ".partial"
    shutil.rmtree(partial, ignore_errors=True)
    os.makedirs(partial)
    return partial


def publish(partial, folder):
    """Puts the finished folder in place: readers see the old one or the new one, never a half."""
    old = os.path.normpath(folder) + ".old"
    shutil.rmtree(old, ignore_errors=True)
    if os.path.isdir(folder):
        os.rename(folder, old)
    os.rename(partial, folder)
    shutil.rmtree(old, ignore_errors=True)


def check_free_space(path, needed, what):
    """An error before the work rather than in the middle of it."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or os.sep
    free = shutil.disk_usage(path).free
    if free < needed:
        raise DemoError(
            f"{what} needs {needed >> 20} MiB on the disk of {path}, {free >> 20} MiB are free: "
            "free some space, or set XDG_CACHE_HOME to a folder on another disk"
        )
