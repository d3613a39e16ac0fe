#!/usr/bin/env bash
# Runs tests/run.sh again and again, to find tests that fail now and then: every second run has two busy loops beside it.
#
#   tests/again.sh 20          # or until build/again/stop is there; a line a run in build/again/log, its output beside it
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
kept=build/again
mkdir -p "$kept"
rm -f "$kept/stop"
commit=$(git rev-parse --short=8 HEAD)
busy=()
trap '[[ ${#busy[@]} = 0 ]] || kill "${busy[@]}"' EXIT
failed=0
for ((run = 1; run <= ${1:-20}; ++run)); do
  [[ ! -e $kept/stop ]] || break
  beside="nothing"
  if ((run % 2 == 0)); then
    beside="two busy loops"
    for _ in 1 2; do
      (while :; do :; done) &
      busy+=($!)
    done
  fi
  begun=$(date -u +%FT%TZ)
  output=$kept/$commit-$run.txt
  tests/run.sh >"$output" 2>&1
  status=$?
  [[ ${#busy[@]} = 0 ]] || kill "${busy[@]}"
  busy=()
  ((status == 0)) || failed=1
  {
    echo "$begun $commit beside $beside: exit $status; $(grep -E '^[0-9]+% tests passed' "$output"); $(grep '^packages' "$output")"
    grep -E '^\s+[0-9]+ - .*\((Failed|Timeout|SEGFAULT|Subprocess aborted)\)' "$output"
  } >>"$kept/log"
done
exit $failed
