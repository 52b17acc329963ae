#!/usr/bin/env bash
# clang-tidy over the sources of the program (not its tests), with the compile commands of a build folder.
#   ci/check_tidy.sh BUILD_FOLDER [FILE...]
# ROTA_FULL=1 adds the static analyzer's checks, which take several times as long.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
shift
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files 'src/*.cc' 'apps/*.cc' | grep -vE '_(test|fuzz)\.cc$')
# The compile commands are g++'s: its warning switches are no finding.
options=(--quiet --warnings-as-errors='*' --extra-arg=-Wno-unknown-warning-option)
[ -n "${ROTA_FULL:-}" ] || options+=("--checks=-clang-analyzer-*")
printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 2 clang-tidy-19 -p "$build" "${options[@]}" \
    2> >(grep -vE 'warnings? generated|Processing file' >&2)
echo "clang-tidy: ${#files[@]} files clean"
