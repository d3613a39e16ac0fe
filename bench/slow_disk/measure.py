#!/usr/bin/python3
"""What reading ahead gives on a disk with latency, and costs where files come out of memory.

    bench/slow_disk/measure.py PHOTOS [--latency-us 5000] [--rounds 5] [--epochs 4] [--build build/release]

PHOTOS: a folder of class folders. Needs libfuse3-dev and fuse3 (the disk is slow_disk.cpp), and root. Ways are interleaved;
hashes of all runs are compared before anything is printed. CPU is user and system time of penstock with all its threads,
the kernel's readers included; the disk's own process is not counted, but shares the cores.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ALWAYS = {**os.environ, "PENSTOCK_READ_AHEAD": "always"}
WAYS = {
    "off": (["loader.read_ahead=0"], None),
    "by itself": ([], None),
    "by itself, threads": (["loader.read_method=threads"], None),
    "always, io_uring": (["loader.read_method=io_uring"], ALWAYS),
    "always, threads": (["loader.read_method=threads"], ALWAYS),
}
JOB = """\
seed: 1
loader: {{threads: 2, memory_gb: 1, index_memory_mb: 0}}
splits:
  train:
    mode: train
    dataset: {{folder: {folder}}}
    pipeline: [{{RandomResizedCrop: {{size: 224}}}}, {{RandomHorizontalFlip: {{}}}}, {{ToDtype: {{dtype: float32, scale: true}}}}]
    sampler: {{shuffle: true}}
    batch_size: 64
    tail: drop
"""


def run_once(penstock, folder, epochs, words, env):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as job:
        job.write(JOB.format(folder=json.dumps(folder)))
        job.flush()
        process = subprocess.Popen([penstock, "run", job.name, "--json", "--quiet", f"--epochs={epochs}", "roles.trainers=1", *words],
                                   env=env, stdout=subprocess.PIPE)
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        assert status == 0, status
    report = json.loads(out.splitlines()[-1])
    split = report["splits"]["train"]
    (loader,) = [rank for rank in report["ranks"] if rank["role"] == "loader"]
    return {"hash": split["pixel_hash"], "rate": split["images_per_s"], "cpu_us": (usage.ru_utime + usage.ru_stime) / split["images"] * 1e6,
            "ahead": loader["read_ahead"]["taken"] / split["images"], "method": loader["read_ahead"]["method"]}


def measure(title, penstock, ways, args, seen):
    """`ways`: the name of a row: (one of WAYS, the folder to read). Ratios are to the first row, round by round."""
    results = {way: [] for way in ways}
    for round_number in range(args.rounds):
        order = list(ways)
        for way in order[round_number % len(order):] + order[:round_number % len(order)]:
            name, folder = ways[way]
            results[way].append(run_once(penstock, folder, args.epochs, *WAYS[name]))
            seen.add(results[way][-1]["hash"])
    assert len(seen) == 1, f"hashes differ: {seen}"
    print(f"\n{title}")
    print(f"{'':20} {'images/s':>9} {'ratio':>6} {'CPU us/image':>13} {'ratio':>6}  read ahead")
    first = results[next(iter(ways))]
    for way in ways:
        mine = results[way]
        rate = statistics.median(a["rate"] / b["rate"] for a, b in zip(mine, first))
        cpu = statistics.median(a["cpu_us"] / b["cpu_us"] for a, b in zip(mine, first))
        print(f"{way:20} {statistics.median(r['rate'] for r in mine):9.0f} {rate:6.2f} {statistics.median(r['cpu_us'] for r in mine):13.0f} "
              f"{cpu:6.3f}  {statistics.mean(r['ahead'] for r in mine):.0%} {mine[-1]['method']}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos")
    parser.add_argument("--latency-us", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--build", default=os.path.join(HERE, "..", "..", "build", "release"))
    args = parser.parse_args()
    penstock = os.path.join(args.build, "penstock")
    seen = set()
    with tempfile.TemporaryDirectory(prefix="slow-disk-") as top:
        program = os.path.join(top, "slow_disk")
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"], check=True, capture_output=True, text=True).stdout.split()
        subprocess.run(["c++", "-std=c++20", "-O2", "-o", program, os.path.join(HERE, "slow_disk.cpp"), *flags], check=True)
        mount = os.path.join(top, "photos")
        os.mkdir(mount)
        disk = subprocess.Popen([program, args.photos, mount, str(args.latency_us)])
        try:
            deadline = time.monotonic() + 10
            while not os.path.ismount(mount):
                assert time.monotonic() < deadline, "the slow disk was not mounted within 10 s"
                time.sleep(0.01)
            memory = {way: (way, args.photos) for way in ("off", "by itself", "always, io_uring", "always, threads")}
            measure("files in memory", penstock, memory, args, seen)
            slow = {"off, from memory": ("off", args.photos),
                    **{way: (way, mount) for way in ("off", "by itself", "by itself, threads")}}
            measure(f"{args.latency_us / 1000:g} ms an open, {args.latency_us / 1000:g} ms a read", penstock, slow, args, seen)
        finally:
            subprocess.run(["fusermount3", "-u", mount], check=False)
            disk.wait(timeout=10)


if __name__ == "__main__":
    sys.exit(main())
