#!/usr/bin/env bash
# Installs the Debian 12 packages that penstock needs and that are missing; says which. Nothing else is touched.
#
#   launch/install_packages.sh          # to build and run
#   launch/install_packages.sh --tests  # and what the tests compare against
#   launch/install_packages.sh --wheel  # or what launch/wheel.sh builds with besides
set -euo pipefail

# zlib, zstd: compressed shards (.tar.gz, .mds.zstd, .gz).
packages=(clang g++ cmake ninja-build pkg-config ccache openmpi-bin libopenmpi-dev libyaml-cpp-dev nlohmann-json3-dev
  libcli11-dev libhwy-dev libspng-dev libjpeg62-turbo-dev libxxhash-dev zlib1g-dev libzstd-dev librandom123-dev libhwloc-dev
  # Formats that a build can leave out: the libraries that Pillow itself reads WebP and TIFF with.
  libwebp-dev libtiff-dev
  # OpenCV's resize, for arithmetic: opencv; a build can leave it out.
  libopencv-core-dev libopencv-imgproc-dev
  # liburing: reading ahead without a thread a file, where the kernel allows it; a build can leave it out.
  liburing-dev)
if [[ "${1:-}" == --tests ]]; then
  # libsimgrid: what the planner's network is compared with. iproute2: the tests over several nodes make them of network namespaces. shellcheck and PyYAML read what
  # `penstock launch --slurm` and `--k8s` write.
  packages+=(doctest-dev libsimgrid-dev iproute2 shellcheck python3 python3-yaml python3-dev python3-venv python3-numpy python3-pil python3-torch
    python3-torchvision python3-xxhash python3-mpi4py clang-format)
elif [[ "${1:-}" == --wheel ]]; then
  packages+=(dpkg-dev python3-dev python3-venv)
fi

missing=()
for package in "${packages[@]}"; do
  [[ "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" == "install ok installed" ]] || missing+=("$package")
done
((${#missing[@]} == 0)) && exit 0

as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || {
    echo "penstock needs these packages; install them as root: apt-get install ${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "installing: ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
}
# A fresh machine has no package lists, or old ones that name files no longer there.
if ! { "${as_root[@]}" apt-get update -q && install; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "apt-get failed; see above" >&2
  exit 1
fi
