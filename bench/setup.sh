#!/bin/sh
# Installs the benchmark's competitors, each in a virtual environment of this folder:
#
#   bench/.venv      torch + torchvision, DALI, FFCV, SPDL, WebDataset     about 6 GB
#   bench/.venv-tf   TensorFlow                                            about 2 GB
#
#   bench/setup.sh            install what is missing, print the versions
#   bench/setup.sh --latest   ignore the pinned versions and take the newest
#   bench/setup.sh torch      only .venv   (or: tf)
#
# Running it again is cheap: an environment whose packages are all there is left alone. TensorFlow stands apart
# because it and torch pin different versions of the same NVIDIA packages. Everything runs on the CPU; that the CUDA
# builds are taken is only because they are what PyPI's plain names give, and so what users have.
#
# Debian packages that are missing are installed as well (as root, or by sudo): FFCV is compiled against OpenCV and
# TurboJPEG, and SPDL opens the system's FFmpeg.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
latest=no
only=all
for argument in "$@"; do
  case $argument in
    --latest) latest=yes ;;
    torch | tf) only=$argument ;;
    -h | --help) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "$0"; exit 0 ;;
    *) echo "setup.sh: unknown argument '$argument' (try --help)" >&2; exit 2 ;;
  esac
done

# packages NAME...: installs those that are missing.
packages() {
  missing=
  for package in "$@"; do
    if [ "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" != "install ok installed" ]; then
      missing="$missing $package"
    fi
  done
  if [ -z "$missing" ]; then return; fi
  as_root=
  if [ "$(id -u)" -ne 0 ]; then
    as_root=sudo
    if ! command -v sudo > /dev/null; then
      echo "setup.sh: install these as root: apt-get install --no-install-recommends$missing" >&2
      exit 1
    fi
  fi
  echo "installing$missing ..." >&2
  log=$(mktemp)
  # A fresh machine has no package lists, or old ones that name files no longer there.
  if ! { $as_root apt-get update -q && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
      --no-install-recommends $missing; } > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    exit 1
  fi
  rm -f "$log"
}

# environment FOLDER REQUIREMENTS: makes the virtual environment and installs what the file lists, unless it is there.
environment() {
  folder=$here/$1
  requirements=$here/$2
  stamp=$folder/installed
  wanted=$(cat "$requirements"; echo "latest=$latest")
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    return
  fi
  if [ ! -x "$folder/bin/pip" ]; then
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
      echo "setup.sh: $python cannot make virtual environments; on Debian: apt-get install python3-venv" >&2
      exit 1
    fi
    "$python" -m venv "$folder"
  fi
  echo "installing $2 into bench/$1 ..." >&2
  if [ "$latest" = yes ]; then
    sed 's/==.*//' "$requirements" > "$folder/unpinned.txt"
    requirements=$folder/unpinned.txt
    set -- --upgrade
  else
    set --
  fi
  "$folder/bin/pip" install --quiet --disable-pip-version-check --no-input "$@" -r "$requirements"
  printf '%s\n' "$wanted" > "$stamp"
}

# FFCV comes as source alone. Its setup.py asks pkg-config for opencv4, whose file is in Debian's libopencv-dev with all
# of OpenCV, and it includes all of OpenCV's headers, though it calls nothing but cv::resize. So it gets a .pc file and
# an opencv.hpp of its own, with the two modules that it needs. It asks for opencv-python too, which is built with
# windows; the headless one is the same module. Its code is not touched.
ffcv() {
  folder=$here/.venv
  stamp=$folder/installed-ffcv
  wanted=$(cat "$here/requirements-ffcv.txt"; echo "latest=$latest")
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
    return
  fi
  echo "compiling FFCV into bench/.venv ..." >&2
  shim=$folder/ffcv-build
  mkdir -p "$shim/opencv2"
  printf '#include <opencv2/core.hpp>\n#include <opencv2/imgproc.hpp>\n' > "$shim/opencv2/opencv.hpp"
  cat > "$shim/opencv4.pc" << END
Name: opencv4
Description: OpenCV's modules core and imgproc
Version: 4
Libs: -lopencv_imgproc -lopencv_core
Cflags: -I$shim -I/usr/include/opencv4
END
  name=$(cat "$here/requirements-ffcv.txt")
  if [ "$latest" = yes ]; then name=${name%%==*}; fi
  PKG_CONFIG_PATH=$shim "$folder/bin/pip" install --quiet --disable-pip-version-check --no-input --no-deps "$name"
  printf '%s\n' "$wanted" > "$stamp"
}

# versions FOLDER PACKAGE...: one line a package, from the metadata (importing TensorFlow takes seconds).
versions() {
  folder=$here/$1
  shift
  "$folder/bin/python" - "$@" << 'END'
import importlib.metadata
import sys

for name in sys.argv[1:]:
    try:
        print(f"{name} {importlib.metadata.version(name)}")
    except importlib.metadata.PackageNotFoundError:
        print(f"{name} missing")
END
}

case $only in all | torch)
  # python3-venv, python3-dev, g++, pkg-config, OpenCV and TurboJPEG: to compile FFCV; libav*: what SPDL opens.
  packages python3-venv python3-dev g++ pkg-config libopencv-core-dev libopencv-imgproc-dev libturbojpeg0-dev \
    libavdevice59 libavfilter8
  environment .venv requirements.txt
  ffcv
  versions .venv torch torchvision nvidia-dali-cuda130 nvidia-nvimgcodec-cu13 ffcv numba spdl webdataset numpy pillow ;;
esac
case $only in all | tf)
  packages python3-venv
  environment .venv-tf requirements-tf.txt
  versions .venv-tf tensorflow numpy ;;
esac
