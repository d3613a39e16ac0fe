#!/bin/sh
# Installs the benchmark's competitors, each in a virtual environment of this folder:
#
#   bench/.venv      torch + torchvision, DALI        about 6 GB
#   bench/.venv-tf   TensorFlow                       about 2 GB
#
#   bench/setup.sh            install what is missing, print the versions
#   bench/setup.sh --latest   ignore the pinned versions and take the newest
#   bench/setup.sh torch      only .venv   (or: tf)
#
# Running it again is cheap: an environment whose packages are all there is left alone. TensorFlow stands apart
# because it and torch pin different versions of the same NVIDIA packages. Everything runs on the CPU; that the CUDA
# builds are taken is only because they are what PyPI's plain names give, and so what users have.
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
  environment .venv requirements.txt
  versions .venv torch torchvision nvidia-dali-cuda130 nvidia-nvimgcodec-cu13 numpy pillow ;;
esac
case $only in all | tf)
  environment .venv-tf requirements-tf.txt
  versions .venv-tf tensorflow numpy ;;
esac
