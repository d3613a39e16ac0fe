"""Runs fuzz targets, each for some seconds, on seeds that are made here; says how many executions that were.

    PENSTOCK_BUILD=build/fuzz python3 tests/fuzz/run_fuzzers.py [--seconds N] [--corpus DIR] [NAME ...]
    ... --until 10000000 --ledger tests/fuzz/ledger.jsonl    # on from where the ledger is; stops when each has as many
    ... --totals --ledger tests/fuzz/ledger.jsonl            # what was run so far

Seeds: files that tests/decode/formats_test.py generates, ../shared/data/odd where it is there, and parser_seeds.py. With --corpus what a
target finds is kept in DIR/NAME and used by the next run. A file that breaks a target stays in the build folder, named
in the output; run the target on it to see it again.
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


def write_progressive_seeds(folder):
    """A picture by its first bytes, and edits, four bytes each, of the file."""
    draw = random.Random(21)
    for number in range(200):
        (folder / f"seed_{number}").write_bytes(draw.randbytes(16 + 4 * draw.choice([0, 0, 1, 2, 5])))


# Target -> what fills a folder with its seeds.
SEEDS = {f"fuzz_{kind}": (lambda folder, kind=kind: decode_seeds(kind, folder))
         for kind in ("jpeg", "png", "pnm", "bmp", "gif", "webp", "tiff")}
SEEDS["fuzz_progressive"] = write_progressive_seeds
SEEDS |= {f"fuzz_{kind}": (lambda folder, kind=kind: write_parser_seeds(f"fuzz_{kind}", folder))
          for kind in ("tar", "pixel_files", "csv", "mds", "tfrecord", "index", "pack", "job")}


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


def run(name, options):
    with tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as temporary:
        seeds = pathlib.Path(temporary, "seeds")
        found = pathlib.Path(options.corpus or temporary, name)
        seeds.mkdir()
        found.mkdir(parents=True, exist_ok=True)
        SEEDS[name](seeds)
        command = [FOLDER / name, f"-max_total_time={options.seconds}", f"-timeout={options.patience}", "-rss_limit_mb=2048",
                   "-max_len=65536", "-print_final_stats=1", f"-artifact_prefix={FOLDER}/{name}-", found, seeds]
        if options.until:
            left = options.until - totals(options.ledger)[name]
            if left <= 0:
                print(f"{name}: {options.until:,} executions are in the ledger")
                return True
            command.insert(1, f"-runs={left}")
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        executed = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
        if done.returncode != 0:
            print(done.stderr[-6000:])
            print(f"{name}: failed ({done.returncode})")
            return False
        edges = re.findall(r"cov: (\d+)", done.stderr)
        seconds = re.search(r"Done \d+ runs in (\d+) second", done.stderr)
        entry = {"target": name, "executions": int(executed[1]), "seconds": int(seconds[1]) if seconds else None,
                 "edges": int(edges[-1]) if edges else None, "date": datetime.date.today().isoformat(), "commit": commit()}
        print(f"{name}: {entry['executions']:,} executions in {entry['seconds']} s, {entry['edges']} edges", flush=True)
        if options.ledger:
            with options.ledger.open("a") as ledger:
                ledger.write(json.dumps(entry) + "\n")
        return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=int, default=20, help="longest time a target")
    parser.add_argument("--patience", type=int, default=20,
                        help="seconds that one input may take; more where the machine has other things to do")
    parser.add_argument("--corpus", help="folder where what is found is kept for the next run")
    parser.add_argument("--until", type=int, help="executions that the ledger shall reach")
    parser.add_argument("--ledger", type=pathlib.Path, help="file that notes each run that found nothing, a JSON object a line")
    parser.add_argument("--totals", action="store_true", help="print the ledger's sums, run nothing")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.totals:
        for name, executions in sorted(totals(options.ledger).items()):
            print(f"{name}: {executions:,}")
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
