#!/usr/bin/env bash
# Makes the virtual environment that the Python package is built and tested in: Debian's python3 with its torch, NumPy and
# Pillow; and from PyPI nanobind, what serves examples/serve, COCO's annotations, and OpenCV, which arithmetic: opencv is
# compared with (a version that takes Debian's NumPy).
#
#   tests/make_venv.sh build/venv
set -euo pipefail
folder=$1
[[ -x "$folder/bin/python" ]] || /usr/bin/python3 -m venv --system-site-packages "$folder"
"$folder/bin/python" -c "import cv2, fastapi, nanobind, pycocotools.coco, uvicorn" >/dev/null 2>&1 && exit 0
"$folder/bin/pip" install --quiet --disable-pip-version-check "nanobind>=2.4" fastapi uvicorn
"$folder/bin/pip" install --quiet --disable-pip-version-check --no-deps "opencv-python-headless==4.12.0.88" "pycocotools==2.0.11"
