#!/usr/bin/env bash
# From a fresh clone to the report of a job: 2 trainers and 2 loaders, 2 epochs of training and 1 of validation.
#
#   launch/quickstart.sh [PHOTO_FOLDER]
#
# PHOTO_FOLDER holds one folder of photos a class, or train/ and val/ with such folders each. Without one, photo-like
# pictures are made in build/quickstart. About 3 minutes on 2 cores, most of it compiling.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
photos=""
case "${1:-}" in
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
  "") ;;
  *)
    [[ -d "$1" ]] || { echo "quickstart: '$1' is not a folder" >&2; exit 4; }
    photos=$(cd "$1" && pwd)
    ;;
esac

echo "== packages" >&2
"$top/launch/install_packages.sh"

echo "== build: about 2 minutes on 2 cores the first time" >&2
cd "$top"
mkdir -p build
log=build/quickstart.log
# A first build needs neither tests nor what they need; a build folder that has them keeps them.
[[ -f build/release/CMakeCache.txt ]] && options=() || options=(-DPENSTOCK_TESTS=OFF -DPENSTOCK_BENCH=OFF)
cmake --preset release "${options[@]}" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
# A terminal shows one line that moves; anything else a line for every tenth of the steps, and what goes wrong.
tenths() {
  local line now tenth=0
  while IFS= read -r line; do
    if [[ "$line" =~ ^\[([0-9]+)/([0-9]+)\]\  ]]; then
      now=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2]))
      if ((now > tenth && now < 10)); then echo "   step ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]}"; fi
      if ((now > tenth)); then tenth=$now; fi
    elif [[ "$line" != ninja:* ]]; then
      echo "$line"
    fi
  done
}
# All that `cmake --install` takes, but no tests.
targets=()
if grep -q '^PENSTOCK_TESTS:BOOL=ON' build/release/CMakeCache.txt; then targets=(--target penstock_program consume); fi
if [[ -t 2 ]]; then
  cmake --build --preset release "${targets[@]}" >&2
else
  NINJA_STATUS="[%f/%t] " cmake --build --preset release "${targets[@]}" 2>&1 | tenths >&2
fi

penstock="$top/build/release/penstock"
work="$top/build/quickstart"
mkdir -p "$work"
echo "== photos" >&2
if [[ -z "$photos" ]]; then
  photos="$work/photos"
  "$penstock" demo-data "$photos" --count 1000 --val-count 200
fi
train="$photos"
val="$photos"
if [[ -d "$photos/train" ]]; then
  train="$photos/train"
  val="$photos/train"
  [[ -d "$photos/val" ]] && val="$photos/val"
fi
if [[ "$train" == "$val" ]]; then
  echo "no val/ folder: validating on the training photos" >&2
fi
"$penstock" init --data "$train" --val "$val" >"$work/job.yaml"

echo "== check" >&2
"$penstock" check "$work/job.yaml" on_error=substitute --most 200

echo "== the main job: 2 trainers, 2 loaders" >&2
# A photo folder from the wild holds files that do not decode: they are replaced, and listed in the report.
"$penstock" launch --run "$work/job.yaml" on_error=substitute -n 4 -- "$top/build/release/consume" "$work/job.yaml" on_error=substitute
cat >&2 <<END

The job file is $work/job.yaml. Once more, or with your own program instead of build/release/consume:
  build/release/penstock launch --run build/quickstart/job.yaml on_error=substitute -n 4 -- \\
    build/release/consume build/quickstart/job.yaml on_error=substitute
What a batch looks like (contact sheet, .npy files, manifest):
  build/release/penstock inspect build/quickstart/job.yaml --out build/quickstart/batch
END
