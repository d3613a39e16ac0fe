"""Runs fuzz targets, each for some seconds, on seeds that are made here; says how many executions that were.

    PENSTOCK_BUILD=build/fuzz python3 tests/fuzz/run_fuzzers.py [--seconds N] [--corpus DIR] [NAME ...]
    ... --until 10000000 --ledger tests/fuzz/ledger.jsonl    # on from where the ledger is; stops when each has as many
    ... --totals --ledger tests/fuzz/ledger.jsonl            # what was run so far
    ... --seeds                                              # how many seeds each target has; needs no build

Seeds: files that tests/decode/formats_test.py generates, ../shared/data/odd where it is there, and parser_seeds.py, as far
as they are no longer than LONGEST says: an execution takes as long as its input. With --corpus what a target finds is
kept in DIR/NAME and used by the next run. An input that breaks a target, or takes a second, stays in the build folder
and is named at the end; run the target on it to see it again. Broken: exit code 1. Slow: a line, and "slow" in the ledger.
"""
import argparse
import collections
import datetime
import json
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
# Bytes of an input at most. A lane of the JPEG decoder has 512 bytes of a scan at least; a member of a tar 1,024.
LONGEST = {"fuzz_jpeg": 3072, "fuzz_png": 768, "fuzz_progressive": 38, "fuzz_tar": 5121, "fuzz_mds": 1024, "fuzz_tfrecord": 768,
           "fuzz_index": 1024, "fuzz_csv": 256, "fuzz_pack": 2048, "fuzz_job": 448, "fuzz_pixel_files": 6200}
LONGEST_OTHERWISE = 4096
# A stack of every allocation, and memory that is kept from use for long, cost more than most of these targets do. A find
# is run again without this.
SANITIZER_OPTIONS = {"ASAN_OPTIONS": "malloc_context_size=0:quarantine_size_mb=4:thread_local_quarantine_size_kb=64"}


def longest(target):
    return LONGEST.get(target, LONGEST_OTHERWISE)


def decode_seeds(kind, folder):
    """Files of one image format; the target throws away those of others."""
    sys.path[:0] = [str(SOURCE / "tests" / folder) for folder in ("decode", "support")]
    import formats_test
    draw = random.Random(20)
    for maker in formats_test.MAKERS[kind]:
        for number in range(60):
            data = maker(draw)
            if kind in ("jpeg", "png") and number % 4 == 0:
                data = formats_test.with_exif(draw, data, kind)
            (folder / f"{maker.__name__}_{number}").write_bytes(data)
    for path in ODD.glob("*") if ODD.is_dir() else []:
        if path.suffix not in (".csv", ".md"):
            (folder / path.name).write_bytes(path.read_bytes())
    for path in folder.iterdir():
        if path.stat().st_size > longest(f"fuzz_{kind}"):
            path.unlink()


def write_parser_seeds(target, folder):
    import parser_seeds
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as temporary:
        for number, data in enumerate(parser_seeds.seeds(temporary)[target]):
            (folder / f"seed_{number}").write_bytes(data)


def write_progressive_seeds(folder):
    """A picture and a window by the first bytes, and edits, four bytes each, of the file."""
    draw = random.Random(21)
    for number in range(200):
        (folder / f"seed_{number}").write_bytes(draw.randbytes(6 + 4 * draw.choice([0, 0, 1, 2, 5])))


# Target -> what fills a folder with its seeds.
SEEDS = {f"fuzz_{kind}": (lambda folder, kind=kind: decode_seeds(kind, folder))
         for kind in ("jpeg", "png", "pnm", "bmp", "gif", "webp", "tiff")}
SEEDS["fuzz_progressive"] = write_progressive_seeds
SEEDS |= {f"fuzz_{kind}": (lambda folder, kind=kind: write_parser_seeds(f"fuzz_{kind}", folder))
          for kind in ("tar", "pixel_files", "csv", "mds", "tfrecord", "index", "pack", "job", "protocol")}


def count_seeds(name):
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as folder:
        SEEDS[name](pathlib.Path(folder))
        count = len(os.listdir(folder))
    if count == 0:
        sys.exit(f"{name} has no seeds")
    return count


def totals(ledger):
    """Executions a target, over all runs that the ledger holds."""
    sums = collections.Counter()
    if ledger and ledger.exists():
        for line in ledger.read_text().splitlines():
            entry = json.loads(line)
            sums[entry["target"]] += entry["executions"]
    return sums


def commit():
    return subprocess.run(["git", "-C", SOURCE, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()


def artifacts(name):
    return set(FOLDER.glob(f"{name}-*"))


def run(name, options):
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as temporary:
        seeds = pathlib.Path(temporary, "seeds")
        found = pathlib.Path(options.corpus or temporary, name)
        seeds.mkdir()
        found.mkdir(parents=True, exist_ok=True)
        SEEDS[name](seeds)
        command = [FOLDER / name, f"-max_total_time={options.seconds}", f"-timeout={options.wait_limit}", "-rss_limit_mb=2048",
                   f"-max_len={longest(name)}", "-report_slow_units=1", "-print_final_stats=1", "-reload=0",
                   "-entropic=0",  # how often each feature was seen, counted after each execution, is a fifth of the time
                   f"-artifact_prefix={FOLDER}/{name}-", found, seeds]
        if options.until:
            left = options.until - totals(options.ledger)[name]
            if left <= 0:
                print(f"{name}: {options.until:,} executions are in the ledger")
                return True
            command.insert(1, f"-runs={left}")
        before = artifacts(name)
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env={**SANITIZER_OPTIONS, **os.environ})
        kept = sorted(artifacts(name) - before)
        for path in kept:
            print(f"{name}: kept {path}; see it again with: {FOLDER / name} {path}")
        executed = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        if done.returncode != 0:
            print(done.stderr[-6000:])
            print(f"{name}: failed ({done.returncode})")
            return False
        edges = re.findall(r"cov: (\d+)", done.stderr)
        seconds = re.search(r"Done \d+ runs in (\d+) second", done.stderr)
        entry = {"target": name, "executions": int(executed[1]), "seconds": int(seconds[1]) if seconds else None,
                 "edges": int(edges[-1]) if edges else None, "date": datetime.date.today().isoformat(), "commit": commit()}
        if kept:
            entry["slow"] = len(kept)
        print(f"{name}: {entry['executions']:,} executions in {entry['seconds']} s, {entry['edges']} edges", flush=True)
        if options.ledger:
            with options.ledger.open("a") as ledger:
                ledger.write(json.dumps(entry) + "\n")
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=20, help="longest time a target")
    parser.add_argument("--wait-limit", type=int, default=20,
                        help="seconds that one input may take; more where the machine has other things to do")
    parser.add_argument("--corpus", help="folder where what is found is kept for the next run")
    parser.add_argument("--until", type=int, help="executions that the ledger shall reach")
    parser.add_argument("--ledger", type=pathlib.Path, help="file that notes each run that found nothing, a JSON object a line")
    parser.add_argument("--totals", action="store_true", help="print the ledger's sums, run nothing")
    parser.add_argument("--seeds", action="store_true", help="make the seeds alone, run nothing")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.totals:
        for name, executions in sorted(totals(options.ledger).items()):
            print(f"{name}: {executions:,}")
        return
    if options.seeds:
        print(", ".join(f"{name} {count_seeds(name)}" for name in options.names or SEEDS))
        return
    if options.until and not options.ledger:
        parser.error("--until counts in a --ledger")
    names = options.names or [name for name in SEEDS if (FOLDER / name).exists()]
    if not names:
        sys.exit(f"no fuzz targets under {FOLDER}: cmake --preset fuzz && cmake --build --preset fuzz --target fuzzers")
    missing = [name for name in names if name not in SEEDS or not (FOLDER / name).exists()]
    if missing:
        sys.exit(f"not built, or without seeds: {missing}")
    if not all([run(name, options) for name in names]):
        sys.exit(1)


if __name__ == "__main__":
    main()
