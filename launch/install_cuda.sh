#!/usr/bin/env bash
# Puts NVIDIA's CUDA compiler and runtime, and nvJPEG with its header, from PyPI, into build/cuda, for machines without a
# toolkit; builds find it there. A toolkit that has all but nvJPEG's header takes that from there, too.
#
#   launch/install_cuda.sh              # about 100 MB to fetch; then configure again: PENSTOCK_CUDA=AUTO sees it
#
# A toolkit of the machine (nvcc in PATH, or /usr/local/cuda) needs none of this. 13.0, the oldest of the 13 series:
# what it compiles runs with every driver of CUDA 13, as newer compilers' PTX does not.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$PWD/build/cuda
packages=(nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-cuda-crt nvidia-nvvm nvidia-nvjpeg)
if [[ -x $target/nvidia/cu13/bin/nvcc && -e $target/nvidia/cu13/include/nvjpeg.h ]]; then
  echo "build/cuda holds $("$target/nvidia/cu13/bin/nvcc" --version | grep -o 'release [0-9.]*')" >&2
  exit 0
fi
# Debian's python3 has pip with python3-venv only.
python=build/cuda-venv/bin/python
[[ -x $python ]] || /usr/bin/python3 -m venv build/cuda-venv
mkdir -p "$target"
"$python" -m pip install --quiet --upgrade --disable-pip-version-check --target "$target" "${packages[@]/%/==13.0.*}"
# The compiler looks for libraries in lib64.
[[ -e $target/nvidia/cu13/lib64 ]] || ln -s lib "$target/nvidia/cu13/lib64"
rm -rf build/cuda-venv
"$target/nvidia/cu13/bin/nvcc" --version | tail -n 2 >&2
