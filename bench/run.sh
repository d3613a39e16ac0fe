#!/bin/sh
# The whole benchmark in one command: the peers' environments where they are missing (setup.sh), then run.py.
#
#   bench/run.sh --data PHOTOS [OPTIONS OF run.py]     one run on your photos, class folders of JPEG files
#   bench/run.sh [OPTIONS OF run.py]                   three runs on pictures made here: delivery on a 4:2:0 and on a
#                                                      4:4:4 set, hires on photos of 2 to 24 MP; roughly an hour
#
# penstock has to be built: cmake --preset release && cmake --build --preset release. Pictures are made in build/bench
# (BENCH_DATA is another folder for them), 0.8 GB, and stay there. Every option is given to each run; results are in
# bench/results.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
case " $* " in *" -h "* | *" --help "*)
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p;}' "$0"
  echo "Options of run.py:"
  exec "$here/run.py" --help ;;
esac
data=no
build=$root/build/release
previous=
for argument in "$@"; do
  case $argument in --data | --data=*) data=yes ;; --build=*) build=${argument#--build=} ;; esac
  if [ "$previous" = --build ]; then build=$argument; fi
  previous=$argument
done
if [ ! -x "$build/penstock" ] || [ ! -x "$build/bench_consumer" ]; then
  echo "run.sh: $build/penstock or bench_consumer is missing: launch/install_packages.sh;" \
    "cmake --preset release -DPENSTOCK_TESTS=OFF -DPENSTOCK_BENCH=ON && cmake --build --preset release" >&2
  exit 2
fi
"$here/setup.sh" >&2
if [ "$data" = yes ]; then
  exec "$here/run.py" "$@"
fi

photos=${BENCH_DATA:-$root/build/bench}
mkdir -p "$photos"
"$build/penstock" demo-data "$photos/photos-420" --count 2000 --val-count 0 --subsampling 4:2:0
"$build/penstock" demo-data "$photos/photos-444" --count 2000 --val-count 0 --subsampling 4:4:4
"$build/penstock" demo-data "$photos/hires" --count 256 --val-count 0 --subsampling 4:2:0 --megapixels 2 24
status=0
"$here/run.py" --data "$photos/photos-420/train" --label 420 "$@" || status=1
"$here/run.py" --data "$photos/photos-444/train" --label 444 "$@" || status=1
only_hires=yes
for argument in "$@"; do
  case $argument in --only | --only=*) only_hires=no ;; esac
done
# Names given by --only are delivery's: large photos are run with those of their own.
if [ "$only_hires" = yes ]; then
  "$here/run.py" --workload hires --data "$photos/hires/train" "$@" || status=1
fi
exit $status
