"""Ten million draws are the same for every compiler and CPU level: builds draw_hash.cpp with g++ and clang++ for
x86-64-v2 and x86-64-v3 and compares what the four programs print. v3 has fused multiply-add, which is what would
change bits if -ffp-contract=off were forgotten; the last build checks that the test would notice.
Compiling is most of the time: without PENSTOCK_FULL=1 each compiler builds for one level, one million are drawn, and the last
build is left out."""
import os
import platform
import shutil
import subprocess
import sys
import tempfile

from jobs import FULL

SOURCE = os.environ.get("PENSTOCK_SOURCE", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def run(folder, compiler, level, *flags):
    program = os.path.join(folder, f"{os.path.basename(compiler)}_{level}_{len(flags)}")
    subprocess.run([compiler, "-std=c++20", "-O2", f"-march={level}", *flags, "-I", SOURCE,
                    os.path.join(SOURCE, "tests", "transforms", "draw_hash.cpp"), "-o", program], check=True)
    return subprocess.run([program, "10000000" if FULL else "1000000"], check=True, capture_output=True, text=True).stdout.strip()


def main():
    if platform.machine() != "x86_64":
        print("SKIP: the levels compared are those of x86-64")
        return 77
    missing = [name for name in ("g++", "clang++") if not shutil.which(name)]
    if missing:
        print(f"SKIP: not installed: {', '.join(missing)}")
        return 77
    with open("/proc/cpuinfo") as cpuinfo:
        has_v3 = {"avx2", "fma", "bmi2"} <= set(cpuinfo.read().split())
    levels = ["x86-64-v2"] + (["x86-64-v3"] if has_v3 else [])
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(compiler, level) for compiler in ("g++", "clang++") for level in levels]
        if not FULL:
            pairs = [("g++", levels[0]), ("clang++", levels[-1])]
        results = {(compiler, level): run(folder, compiler, level, "-ffp-contract=off") for compiler, level in pairs}
        for (compiler, level), line in results.items():
            print(f"{compiler:8} {level}: {line}")
        if len(set(results.values())) != 1:
            print("FAIL: the draws differ")
            return 1
        if not has_v3:
            print("SKIP: this CPU has no x86-64-v3; v2 agrees")
            return 77
        if not FULL:
            print("equal")
            return 0
        fused = run(folder, "g++", "x86-64-v3", "-ffp-contract=fast", "-DFUSED")
        if fused == results["g++", "x86-64-v3"]:
            print("FAIL: fusing multiplications changed nothing, so this test would not see a difference")
            return 1
    print("equal, and different when fused")
    return 0


if __name__ == "__main__":
    sys.exit(main())
