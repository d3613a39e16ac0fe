#!/usr/bin/python3
"""CPU time of two builds, stage by stage, in pairs by turns: does the new one take more of it?

    bench/pairs.py OLD_BUILD NEW_BUILD --data PHOTOS [--pairs 12] [--seconds 2] [--only stages|jobs] [--out RESULTS.jsonl]

OLD_BUILD and NEW_BUILD are build folders with `penstock` and `bench_stages`; PHOTOS is a folder of class folders. Of each
pair both builds run once, the first of them by turns, so that a machine that warms up or slows down meets both alike.
`bench_stages` gives the stages of a sample on one thread; a whole job under mpirun, with shared memory and with MPI
between loader and trainer, gives what all processes take for an image (user and system time).
Prints, of each stage, the mean of new / old with its 95 % interval (of the logarithms, Student's t), and says which one's
interval lies above --limit (1.02) as a whole; then the exit status is 1. Each pair is a line of --out, and those that are
there already count as well: where an interval is too wide, the same command adds more pairs.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile

# Student's t, two-sided 95 %, by degrees of freedom; from 30 on the normal distribution's is near enough.
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
       2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045)


def job_of(photos):
    return {
        "seed": 7, "roles": {"trainers": 1}, "loader": {"threads": 1, "memory_gb": 1},
        "splits": {"train": {
            "mode": "train", "dataset": {"folder": os.path.abspath(photos)}, "batch_size": 32,
            "pipeline": [{"RandomResizedCrop": {"size": 224}}, {"RandomHorizontalFlip": {}}, {"ToDtype": {"dtype": "float32", "scale": True}},
                         {"Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}]}},
    }


def stages(build, job, seconds):
    """{stage: CPU ms an image} of bench_stages."""
    command = [os.path.join(build, "bench_stages"), "--job", job, "--split", "train", "--seconds", str(seconds)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: value for name, value in json.loads(out).items() if name.endswith("_ms")}


def whole_job(build, job, transport):
    """CPU ms an image of all processes of a job, its start and end included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["mpirun", "-n", "2", os.path.join(build, "penstock"), "run", job, f"transport={transport}", "--quiet", "--json", "--epochs", "3"]
    if os.geteuid() == 0:
        command[1:1] = ["--allow-run-as-root", "--oversubscribe"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    images = sum(rank["splits"]["train"]["images"] for rank in json.loads(out)["ranks"] if rank["role"] == "trainer")
    return spent * 1e3 / images


def interval(ratios):
    """(mean, lower end, upper end) of ratios, by their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    t = T95[len(logs) - 2] if len(logs) - 2 < len(T95) else 1.96
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.mean(logs)
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def kept_pairs(path):
    """[(the old build's figures, the new one's)] of a file of earlier pairs."""
    if not path or not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [(pair["old"], pair["new"]) for pair in map(json.loads, file)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("builds", nargs=2, metavar="BUILD", help="the old and the new one")
    parser.add_argument("--data", required=True, help="class folders of photos")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2, help="of each run of bench_stages")
    parser.add_argument("--only", choices=("stages", "jobs"), help="small stages need more pairs than jobs, which take longer")
    parser.add_argument("--limit", type=float, default=1.02)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    if arguments.pairs + len(kept_pairs(arguments.out)) < 3:
        parser.error("fewer than 3 pairs have no interval")
    with tempfile.TemporaryDirectory() as folder:
        job = os.path.join(folder, "job.yaml")
        with open(job, "w", encoding="utf-8") as file:
            json.dump(job_of(arguments.data), file)
        measured = kept_pairs(arguments.out)
        for pair in range(len(measured), len(measured) + arguments.pairs):
            both = [None, None]
            for which in ((0, 1), (1, 0))[pair % 2]:
                build = arguments.builds[which]
                figures = {} if arguments.only == "jobs" else stages(build, job, arguments.seconds)
                for transport in () if arguments.only == "stages" else ("shm", "mpi"):
                    figures[f"job over {transport}, ms"] = whole_job(build, job, transport)
                both[which] = figures
            measured.append(both)
            if arguments.out:
                with open(arguments.out, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"pair": pair, "old": both[0], "new": both[1]}) + "\n")
    worse = []
    print(f"{'stage':24} {'old, ms':>9} {'new / old':>10}  95 % interval")
    for stage in measured[0][0]:
        pairs = [(old[stage], new[stage]) for old, new in measured if old.get(stage, 0) > 0 and new.get(stage, 0) > 0]
        if len(pairs) < 3:
            continue
        mean, low, high = interval([new / old for old, new in pairs])
        print(f"{stage:24} {statistics.median(old for old, _ in pairs):9.4f} {mean:10.4f}  {low:.4f} to {high:.4f}")
        if low > arguments.limit:
            worse.append(stage)
    if worse:
        print("worse: " + ", ".join(worse))
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
