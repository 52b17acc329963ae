#!/usr/bin/env bash
# Sourced by ./run, ./test and .ci/run: what must be on the machine before anything is built.
#   setup_tools     checks git, python3 and cargo, installs the missing Debian packages
#   setup_python    a virtual environment for tests and tools, in the cache folder; sets ROTA_PYTHON
#   build PRESET [TARGET...]   configures where needed and builds
set -euo pipefail

ROTA_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ROTA_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/rota
MINIMUM_CARGO=1.87

say() { printf '\033[1m%s\033[0m\n' "$*" >&2; }
fail() {
  printf 'rota: %s\n' "$*" >&2
  exit 1
}

at_least() { # VERSION MINIMUM
  [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

check_tools() {
  command -v git >/dev/null || fail "git is missing: apt-get install git"
  command -v python3 >/dev/null || fail "python3 is missing: apt-get install python3"
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "python3 is $(python3 -V 2>&1 | cut -d' ' -f2), at least 3.11 is needed"
  command -v cargo >/dev/null ||
    fail "cargo is missing: install Rust $MINIMUM_CARGO or later with rustup (rustup toolchain install stable)"
  local found
  found=$(cargo --version | cut -d' ' -f2)
  at_least "$found" "$MINIMUM_CARGO" ||
    fail "cargo is $found, at least $MINIMUM_CARGO is needed: run 'rustup update stable'"
}

missing_packages() {
  local name
  while read -r name; do
    case $name in '' | '#'*) continue ;; esac
    dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || echo "$name"
  done <"$ROTA_ROOT/packaging/debian-packages.txt"
}

install_packages() {
  command -v dpkg-query >/dev/null ||
    fail "no dpkg here: rota's set-up knows Debian 12; elsewhere install what packaging/debian-packages.txt lists"
  local missing as_root=()
  missing=$(missing_packages)
  [ -z "$missing" ] && return 0
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "these packages are missing and there is neither root nor sudo to install them: "$missing
    as_root=(sudo)
  fi
  say "installing Debian packages: "$missing
  "${as_root[@]}" apt-get update -qq ||
    fail "apt-get update failed: is the network there? Missing packages: "$missing
  # shellcheck disable=SC2086
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends $missing >&2 ||
    fail "apt-get install failed; see the lines above. Missing packages: "$missing
}

setup_tools() {
  check_tools
  install_packages
}

setup_python() {
  local want stamp
  want=$(sha256sum "$ROTA_ROOT/packaging/python-requirements.txt" | cut -c1-16)
  ROTA_PYTHON=$ROTA_CACHE/python-$want/bin/python
  stamp=$ROTA_CACHE/python-$want/complete
  if [ ! -e "$stamp" ]; then
    say "setting up the Python environment for tests and tools"
    rm -rf "$ROTA_CACHE/python-$want"
    mkdir -p "$ROTA_CACHE"
    python3 -m venv "$ROTA_CACHE/python-$want" ||
      fail "python3 -m venv failed: apt-get install python3-venv"
    "$ROTA_PYTHON" -m pip install -q --disable-pip-version-check \
      -r "$ROTA_ROOT/packaging/python-requirements.txt" >&2 ||
      fail "pip could not install packaging/python-requirements.txt: is the network there?"
    touch "$stamp"
  fi
  export ROTA_PYTHON
}

build() {
  local preset=$1
  shift
  local log=$ROTA_ROOT/build/$preset.log
  mkdir -p "$ROTA_ROOT/build"
  if [ ! -e "$ROTA_ROOT/build/$preset/build.ninja" ]; then
    local strict=()
    # Under sanitizers g++ 12 warns of its own headers.
    [ -z "${CI:-}" ] || [ "$preset" = asan ] || strict=(-DROTA_WERROR=ON)
    (cd "$ROTA_ROOT" && cmake --preset "$preset" "${strict[@]}" >"$log" 2>&1) ||
      { tail -n 40 "$log" >&2; fail "cmake failed; the whole log is $log"; }
  fi
  (cd "$ROTA_ROOT" && ninja -C "build/$preset" "$@" >&2)
}
