"""kill -9 of random loaders at random moments: the stream must be the undisturbed one, and how long a trainer waits is told.

    kills_test.py                                     # a kill, as CI runs it, with pictures of a few pixels; PENSTOCK_FULL=1: three
    kills_test.py --kills 80 --log kills.jsonl [--ways shm,mpi,tcp,gpus,python] [--mpirun PATH]   # 80 in each way; goes on
    kills_test.py --summary kills.jsonl                                                           # where it stopped
With --kills it exits with 1 if a job was not as it must be.

Ways: `shm` joins the ranks of the node by shared memory, `mpi` by MPI's shared memory, `tcp` by MPI over TCP; `gpus` has
loaders with GPUs that are this CPU, `python` a data set whose loaders ask worker processes, and workers are killed as well
as loaders. Each job has two trainers and four loaders, of which one to three are killed while it runs. A line of the log is
a job: the commit, hashes and exit code as they must be (`same`), and for each kill (times in ms)
    detected  until the balancer hears of it (balancer.log)
    gap       the longest next() of any trainer in the two seconds after it, less the 99th percentile of undisturbed ones
    stall     the longest time in those seconds in which the machine kept a ticking thread waiting
"""

import argparse
import contextlib
import datetime
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from jobs import FULL, PENSTOCK, demo_photos, hold_file, run_job, skip_without_mpirun, small_pictures, write_job
from leftovers import BUSY_S, MARK, no_leftovers, python_workers
from watching import ranks as ranks_of

# environment, transport
WAYS = {"shm": ({}, "shm"), "mpi": ({}, "mpi"), "tcp": ({"OMPI_MCA_btl": "self,tcp"}, "mpi"),
        "gpus": ({"PENSTOCK_GPUS": "host"}, "auto"), "python": ({}, "auto")}
CI_WAYS = ("shm", "mpi", "tcp") if FULL else ("tcp",)  # endings_test kills one over shm, openmpi5_test one over mpi
SPLIT = ["splits.train.batch_size=4", "loader.chunk_samples=2", "loader.threads=1"]
LOADERS = 4
EPOCHS = 12
PYTHON_DATASET = """
import numpy

class Pictures:
    classes = ["even", "odd"]

    def __len__(self):
        return 80

    def __getitem__(self, i):
        return numpy.random.RandomState(i).randint(0, 256, (70 + i, 90, 3), numpy.uint8), i % 2
"""


class Kills:
    """With `small` of pictures of a few pixels."""

    def __init__(self, mpirun="mpirun", small=False):
        self.work = tempfile.TemporaryDirectory(prefix="kills_test-")
        os.environ["PENSTOCK_PYTHON"] = sys.executable
        with open(os.path.join(self.work.name, "killed_pictures.py"), "w") as file:
            file.write(PYTHON_DATASET)
        pictures = small_pictures(os.path.join(self.work.name, "pictures")) if small else demo_photos()
        files = write_job(self.work.name, pictures)
        in_python = os.path.join(self.work.name, "python.yaml")
        with open(files) as job, open(in_python, "w") as file:
            folder = os.path.join(pictures, "train")
            file.write(job.read().replace(f"{{folder: {json.dumps(folder)}}}", '{python: "killed_pictures:Pictures"}'))
        self.jobs = {way: in_python if way == "python" else files for way in WAYS}
        self.patterns = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
        self.mpirun = mpirun
        self.usual_ns = {}  # undisturbed next(), by way
        self.expected = {}

    def expect(self, way):
        job = self.jobs[way]
        if job not in self.expected:
            report = run_job(job, overrides=SPLIT, program=self.program(job, self.work.name)).report
            self.expected[job] = report["splits"]["train"]
            assert self.expected[job]["images"] == EPOCHS * 80
        return self.expected[job]

    def program(self, job, folder):
        return [self.patterns, "paced", job, os.path.join(folder, "%r.json"), *SPLIT]

    def run(self, way, kills, draw, held=False):
        """One job in which `kills` loaders, or workers of theirs, are killed; `held`: however late they are, it is not over before."""
        variables, transport = WAYS[way]
        job, expected = self.jobs[way], self.expect(way)
        more = ["loader.executor=gpu"] if way == "gpus" else []
        folder = tempfile.mkdtemp(dir=self.work.name)
        log = os.path.join(folder, "balancer.log")
        hold = hold_file(folder) if held else None
        with no_leftovers(wait_s=8) as env:
            env = dict(env, **variables)
            with open(os.path.join(folder, "stdout"), "w+") as out, open(os.path.join(folder, "stderr"), "w+") as err:
                process = subprocess.Popen(
                    [PENSTOCK, "launch", "--run", "--mpirun", self.mpirun, "-n", str(2 + LOADERS), job, "--json", "--quiet",
                     f"transport={transport}", f"balancer.log={log}", *SPLIT, *more, "--", *self.program(job, folder)],
                    env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True)
                killed = self.kill_some(process, env, out.name, kills, draw, way == "python")
                if held:
                    os.remove(hold)
                try:
                    code = process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    code = "still there after 60 s"
                out.seek(0), err.seek(0)
                said, errors = out.read(), err.read()
        result = {"way": way, "exit": code, "kills": self.measure(way, folder, log, killed)}
        last = said.strip().splitlines()[-1] if said.strip() else ""
        report = json.loads(last)["splits"]["train"] if last.startswith("{") else {}
        result["same"] = code == 0 and all(report.get(key) == expected[key] for key in ("images", "order_hash", "pixel_hash"))
        if not result["same"]:
            result["said"] = errors[-3000:]
        return result

    def require_same(self, way, draw):
        """A job in which one loader is killed, whose stream and exit code must be as ever."""
        result = self.run(way, 1, draw, held=True)
        print(json.dumps(result), flush=True)
        assert result["same"], result
        # Sooner than by silence: balancer.lost_after_s is 10 s.
        assert all(kill["detected"] is not None and kill["detected"] < (8000 if BUSY_S else 2000) for kill in result["kills"]), result

    def kill_some(self, process, env, out, kills, draw, workers):
        deadline = time.monotonic() + 60
        while True:
            with open(out) as file:
                if file.read().count("first batch") == 2:
                    break
            assert time.monotonic() < deadline and process.poll() is None, "no first batch"
            time.sleep(0.01)
        ranks = ranks_of(env)
        assert len(ranks) == 2 + LOADERS, ranks
        for rank, pid in ranks.items():
            self.require_pipe_signal_blocked(rank, pid)
        killed = []
        for rank in draw.sample(range(2, 2 + LOADERS), kills):
            time.sleep(draw.uniform(0.0, 0.9))
            target = ranks[rank]
            if workers and draw.random() < 0.7:
                living = sum(python_workers(env[MARK]), [])
                rank, target = ("worker", draw.choice(living)) if living else (rank, target)
            begun = time.monotonic_ns()
            try:
                os.kill(target, signal.SIGKILL)
            except ProcessLookupError:  # the job was over before; if not, the rank had no right to be gone
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                assert rank == "worker" or process.poll() is not None, f"rank {rank} was gone before it was killed"
                break
            killed.append((rank, begun))
        return killed

    def require_pipe_signal_blocked(self, rank, pid):
        """In every thread: MPI may write to a rank's connection before it has read that the rank is dead."""
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/task/{thread}/status") as status:
                blocked = int(re.search(r"^SigBlk:\s*(\w+)", status.read(), re.M).group(1), 16)
                assert blocked >> (signal.SIGPIPE - 1) & 1, f"rank {rank}, thread {thread}: SIGPIPE would end it"

    def measure(self, way, folder, log, killed):
        nexts, stalls = [], []
        for rank in range(2):
            path = os.path.join(folder, f"{rank}.json.times")
            if not os.path.exists(path):
                return [{"rank": rank_killed} for rank_killed, _ in killed]
            with open(path) as file:
                for kind, end, took in map(str.split, file):
                    (nexts if kind == "next" else stalls).append((int(end), int(took)))
        heard = {}
        with open(log) as file:
            for line in file:
                moment, _, event = line.partition("\t")
                if '"loader_lost"' in event:
                    heard[json.loads(event)["loader"]] = int(moment.split()[0])
        after = [(begun, begun + 2_000_000_000) for _, begun in killed]
        usual_ns = self.usual_ns.setdefault(way, [])
        usual_ns += [took for end, took in nexts if not any(begun <= end < until for begun, until in after)]
        usual = sorted(usual_ns)[len(usual_ns) * 99 // 100] if usual_ns else 0

        def longest(samples, window):
            return max((took for end, took in samples if window[0] <= end < window[1] + took), default=0)
        return [{"rank": rank, "detected": round((heard[rank] - begun) / 1e6, 2) if rank in heard else None,
                 "gap": round(max(0, longest(nexts, window) - usual) / 1e6, 2), "stall": round(longest(stalls, window) / 1e6, 2)}
                for (rank, begun), window in zip(killed, after)]


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def summary(path):
    by_way = {}
    with open(path) as file:
        for line in map(json.loads, file):
            by_way.setdefault((line["mpi"], line["way"]), []).append(line)
    print(f"{'mpi':8} {'way':6} {'kills':>5} {'same':>9} {'detected p50 p99':>18} {'gap p50 p99':>15} {'in stalls':>9}   (ms; stalls above 100 ms apart)")
    for (mpi, way), jobs in sorted(by_way.items()):
        kills = [kill for job in jobs for kill in job["kills"]]
        calm = [kill for kill in kills if kill.get("stall", 0) <= 100]
        detected = [kill["detected"] for kill in calm if kill.get("detected") is not None]
        gaps = [kill["gap"] for kill in calm if "gap" in kill]
        print(f"{mpi:8} {way:6} {len(kills):5} {sum(job['same'] for job in jobs):4}/{len(jobs):4} "
              f"{percentile(detected, 0.5):9.1f} {percentile(detected, 0.99):8.1f} {percentile(gaps, 0.5):7.1f} {percentile(gaps, 0.99):7.1f} "
              f"{len(kills) - len(calm):9}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int)
    parser.add_argument("--log", default="kills.jsonl")
    parser.add_argument("--ways", default="shm,mpi,tcp")
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--summary", metavar="LOG")
    options = parser.parse_args()
    if options.summary:
        return summary(options.summary)
    skip_without_mpirun()
    seed = random.randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    draw = random.Random(seed)
    kills = Kills(options.mpirun, small=options.kills is None and not FULL)
    if options.kills is None:  # CI
        for way in CI_WAYS:
            kills.require_same(way, draw)
        return None
    here = os.path.dirname(os.path.abspath(__file__))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True).stdout.strip()
    different = 0
    version = re.search(r"\d+\.\d+\.\d+", subprocess.run([options.mpirun, "--version"], capture_output=True, text=True).stdout).group()
    for way in options.ways.split(","):
        done = 0
        if os.path.exists(options.log):
            with open(options.log) as file:
                done = sum(len(line["kills"]) for line in map(json.loads, file) if (line["way"], line["mpi"]) == (way, version))
        while done < options.kills:
            result = kills.run(way, draw.randint(1, LOADERS - 1), draw)
            done += len(result["kills"])
            different += not result["same"]
            with open(options.log, "a") as file:
                print(json.dumps({"at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "commit": commit, "mpi": version,
                                  "seed": seed, **result}), file=file)
    summary(options.log)
    if different:
        print(f"{different} jobs were not as they must be")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
