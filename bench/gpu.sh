#!/bin/sh
# What only a GPU can answer, in one command: for a machine that is borrowed for minutes, has nvcc, torch and no network,
# and gets what it needs in one small file.
#
#   bench/gpu.sh bundle [--python PYTHON] [--cifar10]   here: build/gpu/penstock_gpu.tar.gz, 60 MiB at most
#   bench/gpu.sh rehearse [STEP …]                      here: unpacks the bundle and runs it with the GPU played by the CPU
#
#   tar xf penstock_gpu.tar.gz                          there, in any folder
#   penstock_gpu/source/bench/gpu.sh run [STEP …]       there: what is not done yet, for 9 minutes; then once more to go on
#   penstock_gpu/source/bench/gpu.sh list               there: the steps, what each answers, and which are done
#
# `run --help` has the options. Results: penstock_gpu/results.jsonl, and a copy in $OUT where that names a folder; one JSON
# object a line, with GPU, driver, date and command. bench/gpu/README.md says how to read them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
case ${1:-} in
  bundle) shift; exec /usr/bin/python3 "$here/gpu/bundle.py" "$@" ;;
  run | list | rehearse) exec "${PYTHON:-python3}" "$here/gpu/run.py" "$@" ;;
  -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "$0" ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "$0" >&2; exit 2 ;;
esac
