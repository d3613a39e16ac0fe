#!/usr/bin/env bash
# Makes the virtual environment of the frameworks' tests: PyPI's torch, torchvision, Lightning, Accelerate, transformers
# and torchdata for the Python that the package was built for, and nothing of Debian's packages.
#
#   tests/frameworks/make_venv.sh build/release/frameworks [PYTHON]
#
# Done already with the same requirements, it does nothing. Without PENSTOCK_FULL=1, or where PyPI is out of reach, it ends
# well and leaves no environment: the tests then skip themselves.
set -euo pipefail
folder=$1
python=${2:-/usr/bin/python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ "${PENSTOCK_FULL:-}" != 1 ]]; then
  echo "only with PENSTOCK_FULL=1"
  exit 0
fi
cmp -s "$here/requirements.txt" "$folder/requirements.txt" && exit 0
rm -rf "$folder"
"$python" -m venv "$folder"
if ! "$folder/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir -r "$here/requirements.txt"; then
  echo "pip could not install the frameworks: their tests are skipped" >&2
  rm -rf "$folder"
  exit 0
fi
cp "$here/requirements.txt" "$folder/requirements.txt"
