#!/usr/bin/env bash
# Builds penstock and runs its tests.
#
#   tests/run.sh                    # what every change must pass: 10 minutes at most on 2 cores
#   tests/run.sh --full             # and then the parts below, one after the other
#   tests/run.sh --full asan tsan   # these parts alone
#   tests/run.sh --full --resume    # those that have not passed yet on this commit
#   tests/run.sh -R sampler         # ctest's options to choose and repeat tests go to it; not with --full
#
# Parts of --full: default (what runs without it), long (larger matrices and more samples of the tests labelled `full`),
# clang (clang compiles everything, warnings being errors), fuzz (every target for a while), asan (addresses and undefined
# behaviour), tsan (threads). What each took and how it ended is printed at the end and kept in build/full.
# A test that skips itself must be listed in tests/expected_skips.txt with its condition; any other skip fails the run.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"

all_parts=(default long clang fuzz asan tsan)
# Before anything is installed or built. ctest passes over words that it does not know, and would run every test.
full=0
resume=0
parts=()
to_ctest=()
while (($#)); do
  case $1 in
    --full) full=1 ;;
    --resume) resume=1 ;;
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
      if ((!full)) || [[ " ${all_parts[*]} " != *" $1 "* ]]; then
        echo "tests/run.sh: '$1' is neither --full, one of its parts (${all_parts[*]}), nor one of ctest's options to choose and repeat tests" >&2
        echo "  help: tests/run.sh --help" >&2
        exit 2
      fi
      parts+=("$1")
      ;;
  esac
  shift
done
if ((resume && !full)); then
  echo "tests/run.sh: --resume goes on with --full" >&2
  exit 2
fi
# A part counts as passed once all of its tests have.
if ((full && ${#to_ctest[@]})); then
  echo "tests/run.sh: --full runs parts as a whole, and takes none of ctest's options ('${to_ctest[*]}')" >&2
  echo "  help: for some of the tests of part long: PENSTOCK_FULL=1 tests/run.sh ${to_ctest[*]}" >&2
  exit 2
fi
((full)) || parts=(default)
((${#parts[@]})) || parts=("${all_parts[@]}")
set -- "${to_ctest[@]}"

mkdir -p build
begun=$SECONDS

# Threads of torch that wait for each other leave the cores to the tests beside them.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"

# Where localhost is known to a name server alone (a bare root has no /etc/hosts), mpirun waits for it: see `penstock doctor`.
export HWLOC_COMPONENTS="${HWLOC_COMPONENTS:--gl}"

launch/install_packages.sh --tests

# The Python package is built against nanobind, which Debian does not have. Out of reach of PyPI its tests skip themselves.
python=("-DPENSTOCK_PYTHON=OFF")
if tests/make_venv.sh build/venv >build/venv.log 2>&1; then
  python=("-DPENSTOCK_PYTHON=ON" "-DPython_EXECUTABLE=$top/build/venv/bin/python")
else
  tail -n 5 build/venv.log >&2
  echo "no nanobind: the Python package is neither built nor tested" >&2
fi

# The same build runs under Open MPI 5, which Debian 12 does not have.
if tests/make_openmpi5.sh build/openmpi5 >build/openmpi5.log 2>&1; then
  export PENSTOCK_OPENMPI5=$top/build/openmpi5/bin/mpirun
else
  tail -n 5 build/openmpi5.log >&2
  echo "no Open MPI 5: its tests are left out" >&2
fi

packages_s=$((SECONDS - begun))

run_preset() {  # PRESET, then ctest's arguments
  local preset=$1
  local build_begun=$SECONDS
  shift
  echo "== build $preset" >&2
  rm -f "build/$preset/junit.xml"
  # Said outright, because launch/quickstart.sh configures the release folder without them.
  local package=("${python[@]}")
  [[ $preset == release ]] || package=("-DPENSTOCK_PYTHON=OFF")
  cmake --preset "$preset" -DPENSTOCK_TESTS=ON -DPENSTOCK_BENCH=ON "${package[@]}" >"build/$preset.configure.log" 2>&1 || { cat "build/$preset.configure.log" >&2; return 1; }
  local target=all
  [[ $preset != tsan ]] || target=penstock_unit_tests  # the other tests are left out below
  cmake --build --preset "$preset" --target "$target" -- --quiet || return 1
  build_s=$((SECONDS - build_begun))
  local tests_begun=$SECONDS
  echo "== test $preset" >&2
  # Eight at a time on two cores: tests of several ranks count as two, and spend most of their time waiting for mpirun.
  # A shell that runs this in the background, or under nohup, has it ignore Ctrl-C; programs under test must not.
  local status=0
  PENSTOCK_SHARED_MACHINE=1 env --default-signal=INT,QUIT ctest --test-dir "build/$preset" --output-on-failure --no-tests=error -j 8 \
    --output-junit "$top/build/$preset/junit.xml" "$@" || status=1
  tests_s=$((SECONDS - tests_begun))
  return $status
}

minutes() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }

run_part() {  # PART, then ctest's arguments, for `default` alone
  local part=$1
  local status=0
  shift
  case $part in
    default)
      run_preset release "$@" || status=1
      [[ ! -e build/release/junit.xml ]] || /usr/bin/python3 tests/check_skips.py build/release/junit.xml tests/expected_skips.txt || status=1
      [[ -z ${tests_s:-} ]] || echo "packages $(minutes $packages_s), build $(minutes $build_s), tests $(minutes $tests_s) minutes"
      ;;
    # The label `full`: tests that take a larger matrix, or more samples, with this variable.
    # What measures rates with it has the machine to itself.
    long)
      PENSTOCK_FULL=1 run_preset release -L full -LE measures || status=1
      PENSTOCK_FULL=1 run_preset release -L measures -j 1 || status=1
      ;;
    clang) cmake --preset analysis >/dev/null && cmake --build --preset analysis -- -k 0 --quiet || status=1 ;;
    # Longer runs by hand (tests/fuzz/run_fuzzers.py).
    fuzz)
      cmake --preset fuzz >/dev/null && cmake --build --preset fuzz --target fuzzers -- --quiet &&
        ctest --test-dir build/fuzz --output-on-failure --no-tests=error || status=1
      ;;
    # Instrumented, a test takes several times as long. Leaks are looked for where no MPI starts (tests/CMakeLists.txt).
    asan)
      ASAN_OPTIONS=detect_leaks=1 LSAN_OPTIONS=suppressions=$top/tests/support/lsan.supp:print_suppressions=0 \
        run_preset asan -LE "slow|analysis" || status=1
      ;;
    tsan) run_preset tsan -LE "slow|multirank|analysis|python|gpu" || status=1 ;;
  esac
  return $status
}

before=$(mktemp)
trap 'rm -f "$before"' EXIT
/usr/bin/python3 tests/support/leftovers.py before "$before"

status=0
if ((full)); then
  # A part that passed on this commit, with nothing changed since, need not be run once more.
  kept=build/full
  mkdir -p "$kept"
  state=$(git rev-parse HEAD 2>/dev/null)$(git status --porcelain --untracked-files=no 2>/dev/null | sha256sum)
  for part in "${parts[@]}"; do
    if ((resume)) && [[ "$(head -n 1 "$kept/$part" 2>/dev/null)" == "passed $state" ]]; then
      continue
    fi
    echo "== part $part" >&2
    part_begun=$SECONDS
    outcome=passed
    run_part "$part" || outcome=failed
    [[ $outcome == passed ]] || status=1
    printf '%s %s\n%s\n' "$outcome" "$state" "$(minutes $((SECONDS - part_begun))) minutes, $(date -u +%Y-%m-%d)" >"$kept/$part"
  done
  for part in "${parts[@]}"; do
    printf '%-8s %-7s %s\n' "$part" "$(head -n 1 "$kept/$part" | cut -d' ' -f1)" "$(sed -n 2p "$kept/$part")"
  done
else
  run_part default "$@" || status=1
fi
/usr/bin/python3 tests/support/leftovers.py after "$before" || status=1
exit $status
