#!/usr/bin/env bash
# ThreadSanitizer over everything in which threads meet: the communicator of ranks as threads, the engine with its
# scheduler and rank loops, the front and its HTTP server.
#   ci/check_threads.sh [TEST...]      # default: all four, half an hour on two cores; .ci/run does comm_test alone
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../packaging/setup.sh"
cd "$ROTA_ROOT"

tests=("$@")
[ ${#tests[@]} -gt 0 ] || tests=(comm_test engine_test supervisor_test server_test)
build tsan "${tests[@]}"
# What is suppressed is MPI's alone.
export TSAN_OPTIONS="suppressions=$ROTA_ROOT/ci/tsan.supp halt_on_error=1 second_deadlock_stack=1"
for test in "${tests[@]}"; do
  say "threads: $test"
  "build/tsan/bin/$test" --gtest_brief=1
done
