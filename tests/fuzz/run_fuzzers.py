"""Runs fuzz targets, each for some seconds, on seeds that are made here; says how many executions that were.

    PENSTOCK_BUILD=build/fuzz python3 tests/fuzz/run_fuzzers.py [--seconds N] [--corpus DIR] [NAME ...]

Seeds: files that tests/decode/formats_test.py generates, ../shared/data/odd where it is there, and parser_seeds.py. With --corpus what a
target finds is kept in DIR/NAME and used by the next run. A file that breaks a target stays in the build folder, named
in the output; run the target on it to see it again.
"""
import argparse
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(os.environ.get("PENSTOCK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("PENSTOCK_BUILD", SOURCE / "build" / "fuzz"))
ODD = SOURCE.parent / "shared" / "data" / "odd"
FOLDER = BUILD / "tests" / "fuzz"
LARGEST_SEED = 65536


def decode_seeds(kind, folder):
    """Files of one image format; the target throws away those of others."""
    sys.path.insert(0, str(SOURCE / "tests" / "decode"))
    import formats_test
    draw = random.Random(20)
    for maker in formats_test.MAKERS[kind]:
        for number in range(60):
            data = maker(draw)
            if kind in ("jpeg", "png") and number % 4 == 0:
                data = formats_test.with_exif(draw, data, kind)
            (folder / f"{maker.__name__}_{number}").write_bytes(data)
    for path in ODD.glob("*") if ODD.is_dir() else []:
        if path.suffix not in (".csv", ".md") and path.stat().st_size <= LARGEST_SEED:
            (folder / path.name).write_bytes(path.read_bytes())


def write_parser_seeds(target, folder):
    import parser_seeds
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as temporary:
        for number, data in enumerate(parser_seeds.seeds(temporary)[target]):
            (folder / f"seed_{number}").write_bytes(data)


# Target -> what fills a folder with its seeds.
SEEDS = {f"fuzz_{kind}": (lambda folder, kind=kind: decode_seeds(kind, folder))
         for kind in ("jpeg", "png", "pnm", "bmp", "gif", "webp", "tiff")}
SEEDS |= {f"fuzz_{kind}": (lambda folder, kind=kind: write_parser_seeds(f"fuzz_{kind}", folder))
          for kind in ("tar", "pixel_files", "csv", "mds", "tfrecord", "index", "pack", "job")}


def run(name, seconds, corpus):
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as temporary:
        seeds = pathlib.Path(temporary, "seeds")
        found = pathlib.Path(corpus or temporary, name)
        seeds.mkdir()
        found.mkdir(parents=True, exist_ok=True)
        SEEDS[name](seeds)
        command = [FOLDER / name, f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=2048", "-max_len=65536",
                   "-print_final_stats=1", f"-artifact_prefix={FOLDER}/{name}-", found, seeds]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        executed = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        if done.returncode != 0:
            print(done.stderr[-6000:])
            print(f"{name}: failed ({done.returncode})")
            return False
        coverage = re.findall(r"cov: (\d+)", done.stderr)
        print(f"{name}: {int(executed[1]):,} executions in {seconds} s, {coverage[-1] if coverage else '?'} edges", flush=True)
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--corpus")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    names = options.names or [name for name in SEEDS if (FOLDER / name).exists()]
    if not names:
        sys.exit(f"no fuzz targets under {FOLDER}: cmake --preset fuzz && cmake --build --preset fuzz --target fuzzers")
    missing = [name for name in names if name not in SEEDS or not (FOLDER / name).exists()]
    if missing:
        sys.exit(f"not built, or without seeds: {missing}")
    if not all([run(name, options.seconds, options.corpus) for name in names]):
        sys.exit(1)


if __name__ == "__main__":
    main()
