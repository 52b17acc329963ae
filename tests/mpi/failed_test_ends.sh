#!/bin/sh
# failed_test_ends.sh PROGRAM: a test that fails on one rank, while the others wait for it, ends the
# job: with the failure's report, long before the time limits, and with no process left.
set -eu
report=$(mktemp)
trap 'rm -f "$report"' EXIT INT TERM
mark=ROTA_JOB_OF_$$
if timeout -k 1 100 env "$mark=1" "$(dirname "$0")/run_ranks.sh" 3 "$1" \
    --gtest_also_run_disabled_tests --gtest_filter='Failure.DISABLED_*' >"$report" 2>&1; then
  cat "$report"
  echo "a failed test passed"
  exit 1
else
  code=$?
fi
cat "$report"
[ $code -eq 1 ] || { echo "it ended with $code, expected 1"; exit 1; }
grep -q "rank 1, DISABLED_OfOneRankEndsTheJob" "$report" || { echo "no report of rank 1"; exit 1; }
looks=0
while grep -qz "^$mark=1" /proc/[0-9]*/environ 2>/dev/null; do
  looks=$((looks + 1))
  [ $looks -lt 60 ] || { echo "processes are left"; exit 1; }
  sleep 0.5
done
