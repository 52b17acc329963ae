#!/usr/bin/env bash
# Every C++ file as clang-format would write it, every Rust file as rustfmt would.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
git ls-files '*.h' '*.cc' | xargs -r clang-format-19 --dry-run -Werror
if [ -d src/text/rust ]; then (cd src/text/rust && cargo fmt --check); fi
echo "format: clean"
