#!/usr/bin/env bash
# Builds penstock and runs its tests.
#
#   tests/run.sh              # what every change must pass: 10 minutes at most on 2 cores
#   tests/run.sh --full       # and sanitizers, clang's analysis, and the long versions of the exactness tests
#   tests/run.sh -R sampler   # ctest's options to choose and repeat tests go to it
#
# A test that skips itself must be listed in tests/expected_skips.txt with its condition; any other skip fails the run.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"

# Before anything is installed or built. ctest passes over words that it does not know, and would run every test.
full=0
to_ctest=()
while (($#)); do
  case $1 in
    --full) full=1 ;;
    -h | --help)
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$top/tests/run.sh"
      exit 0
      ;;
    -R | -E | -L | -LE | -I | -j | --repeat | --timeout)
      (($# > 1)) || { echo "tests/run.sh: $1 needs a value" >&2; exit 2; }
      to_ctest+=("$1" "$2")
      shift
      ;;
    -j[0-9]* | -V | -VV | --verbose | --rerun-failed | --stop-on-failure | --schedule-random | --repeat=*)
      to_ctest+=("$1")
      ;;
    *)
      echo "tests/run.sh: '$1' is neither --full nor one of ctest's options to choose and repeat tests" >&2
      echo "  help: tests/run.sh --help" >&2
      exit 2
      ;;
  esac
  shift
done
set -- "${to_ctest[@]}"

mkdir -p build
launch/install_packages.sh --tests

# The Python package is built against nanobind, which Debian does not have. Out of reach of PyPI its tests skip themselves.
python=("-DPENSTOCK_PYTHON=OFF")
if tests/make_venv.sh build/venv >build/venv.log 2>&1; then
  python=("-DPENSTOCK_PYTHON=ON" "-DPython_EXECUTABLE=$top/build/venv/bin/python")
else
  tail -n 5 build/venv.log >&2
  echo "no nanobind: the Python package is neither built nor tested" >&2
fi

run_preset() {  # PRESET, then ctest's arguments
  local preset=$1
  shift
  echo "== build $preset" >&2
  mkdir -p build
  # Said outright, because launch/quickstart.sh configures the release folder without them.
  local package=("${python[@]}")
  [[ $preset == release ]] || package=("-DPENSTOCK_PYTHON=OFF")
  cmake --preset "$preset" -DPENSTOCK_TESTS=ON -DPENSTOCK_BENCH=ON "${package[@]}" >"build/$preset.configure.log" 2>&1 || { cat "build/$preset.configure.log" >&2; return 1; }
  local target=all
  [[ $preset != tsan ]] || target=penstock_unit_tests  # the other tests are left out below
  cmake --build --preset "$preset" --target "$target" -- --quiet
  echo "== test $preset" >&2
  # Eight at a time on two cores: tests of several ranks count as two, and spend most of their time waiting for mpirun.
  PENSTOCK_SHARED_MACHINE=1 ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j 8 \
    --output-junit "$top/build/$preset/junit.xml" "$@"
}

before=$(mktemp)
trap 'rm -f "$before"' EXIT
/usr/bin/python3 tests/support/leftovers.py before "$before"

status=0
run_preset release "$@" || status=1
/usr/bin/python3 tests/check_skips.py build/release/junit.xml tests/expected_skips.txt || status=1

if ((full)); then
  # The label `full`: tests that take a larger matrix, or more samples, with this variable.
  PENSTOCK_FULL=1 run_preset release -L full || status=1
  # clang compiles everything, warnings being errors.
  cmake --preset analysis >/dev/null && cmake --build --preset analysis -- -k 0 --quiet || status=1
  # Every fuzz target for a while; longer runs by hand (tests/fuzz/run_fuzzers.py).
  cmake --preset fuzz >/dev/null && cmake --build --preset fuzz --target fuzzers -- --quiet &&
    ctest --test-dir build/fuzz --output-on-failure --no-tests=error || status=1
  # Instrumented, a test takes several times as long. Leaks are looked for where no MPI starts (tests/CMakeLists.txt).
  export ASAN_OPTIONS=detect_leaks=1 LSAN_OPTIONS=suppressions=$top/tests/support/lsan.supp:print_suppressions=0
  run_preset asan -LE "slow|analysis" || status=1
  run_preset tsan -LE "full|slow|multirank|analysis|python" || status=1
fi
/usr/bin/python3 tests/support/leftovers.py after "$before" || status=1
exit $status
