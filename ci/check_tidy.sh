#!/usr/bin/env bash
# clang-tidy over the sources of the program (not its tests), with the compile commands of a build folder.
#   ci/check_tidy.sh BUILD_FOLDER [FILE...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
build=$1
shift
files=("$@")
[ ${#files[@]} -gt 0 ] || mapfile -t files < <(git ls-files 'src/*.cc' 'apps/*.cc' | grep -vE '_(test|fuzz)\.cc$')
printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -n 4 clang-tidy-19 -p "$build" --quiet --warnings-as-errors='*'
echo "clang-tidy: ${#files[@]} files clean"
