"""Predict first, then run: jobs of the real runtime under mpirun whose loaders and programs wait on timers, for times drawn
from a recorded distribution, so that two cores hold a fleet of forty ranks.

    bench/predict/emulated.py calibrate DIR --times PROFILE   # a profile of real photos gives the times; a small job is profiled
    bench/predict/emulated.py predict DIR                     # writes DIR/predictions.jsonl: commit it before the next line
    bench/predict/emulated.py run DIR [--repeat 3] [--only WORD,…]   # appends to DIR/reports.jsonl; goes on where it stopped
    penstock validate DIR/predictions.jsonl DIR/reports.jsonl

PENSTOCK_BUILD names the build folder, build/release otherwise. Real photos' times are multiplied, to 40 ms in the mean."""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.setdefault("PENSTOCK_BUILD", os.path.join(SOURCE, "build", "release"))
os.environ.setdefault("PENSTOCK_SOURCE", SOURCE)
sys.path.insert(0, os.path.join(SOURCE, "tests", "support"))

from hosts import Hosts  # noqa: E402
from leftovers import no_leftovers  # noqa: E402
from watching import ranks  # noqa: E402

PENSTOCK = os.path.join(BUILD, "penstock")
PYTHON = os.path.join(SOURCE, "build", "venv", "bin", "python")
MEAN_MS = 40
SECONDS = 10  # that a run takes, about

# Each configuration has: trainers, loaders, threads a loader, batch, prefetch, step in ms and its spread; what happens.
USUAL = dict(trainers=2, loaders=4, threads=2, batch=16, prefetch=2, step_ms=60.0, spread=0.05, barrier=True, events=(), size=24,
             mbit=0, tail=1.0)
CONFIGS = {
    # loaders, from too few to too many: the programs need 13 threads
    **{f"loaders-{n}": dict(loaders=n, step_ms=100.0) for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)},
    # threads of two loaders
    **{f"threads-{n}": dict(loaders=2, threads=n, step_ms=100.0) for n in (1, 3, 4, 6, 8)},
    **{f"batch-{n}": dict(batch=n, step_ms=6.25 * n) for n in (4, 8, 32, 64)},
    **{f"prefetch-{n}": dict(prefetch=n, step_ms=90.0, spread=0.3) for n in (1, 2, 4, 8)},
    **{f"steps-{spread}": dict(loaders=8, step_ms=100.0, spread=spread) for spread in (0.0, 0.5)},
    "one-trainer": dict(trainers=1, step_ms=50.0),
    "four-trainers": dict(trainers=4, loaders=8, step_ms=150.0),
    "no-barrier": dict(barrier=False, spread=0.5, loaders=5, step_ms=80.0),
    "throttled": dict(events=("slow:1x0.25",), step_ms=50.0),
    "throttled-slack": dict(events=("slow:1x0.25",), step_ms=200.0),
    "stopped": dict(events=("stop:1@3+4",), step_ms=100.0),
    "killed": dict(events=("kill:2@4",), step_ms=50.0),
    "killed-two-of-six": dict(loaders=6, events=("kill:2@3", "kill:4@5"), step_ms=100.0),
    "heavy-tail": dict(tail=10.0, step_ms=80.0),
    "heavy-tail-slack": dict(tail=10.0, loaders=8, step_ms=160.0),
    "link-100": dict(trainers=1, loaders=2, threads=4, mbit=100, size=224, step_ms=20.0),
    "link-200": dict(trainers=1, loaders=2, threads=4, mbit=200, size=224, step_ms=20.0),
    "link-400": dict(trainers=1, loaders=2, threads=4, mbit=400, size=224, step_ms=20.0),
    "forty-ranks": dict(trainers=4, loaders=36, threads=1, batch=32, step_ms=100.0),
    "twenty-four-loaders": dict(trainers=8, loaders=24, threads=1, batch=8, step_ms=150.0),
}

# Those by which the model was looked at while it was made: of the gate's configurations none was run before its prediction
# was committed.
DEVELOPMENT = {
    "dev-loading": dict(trainers=3, loaders=3, threads=3, batch=10, step_ms=40.0),
    "dev-training": dict(trainers=3, loaders=5, threads=3, batch=10, step_ms=130.0, spread=0.1),
    "dev-knee": dict(trainers=1, loaders=2, threads=4, batch=20, step_ms=100.0),
    "dev-shallow": dict(trainers=2, loaders=3, threads=3, batch=24, prefetch=1, step_ms=80.0),
    "dev-stopped": dict(loaders=3, threads=3, events=("stop:0@2+5",), step_ms=70.0),
    "dev-killed": dict(loaders=3, threads=3, events=("kill:1@3",), step_ms=70.0),
    "dev-throttled": dict(loaders=3, threads=3, events=("slow:2x0.3",), step_ms=70.0),
    "dev-link": dict(trainers=1, loaders=3, threads=3, mbit=150, size=224, step_ms=30.0),
    "dev-thirty": dict(trainers=3, loaders=27, threads=1, batch=24, step_ms=110.0),
}

JOB = """\
seed: {seed}
loader: {{threads: {threads}, prefetch: {prefetch}, memory_gb: 0.1, read_ahead: 0}}
trainer: {{timeout_s: 60, grace_s: 2}}
python: {{interpreter: "{python}"}}
splits:
  train:
    mode: train
    dataset: {{python: "samples:Samples", args: {args}, path: "{path}"}}
    pipeline: [{{Resize: {{size: [{size}, {size}]}}}}]
    sampler: {{shuffle: true}}
    batch_size: {batch}
    tail: drop
"""


def config_of(name):
    return dict(USUAL, **(CONFIGS.get(name) or DEVELOPMENT[name]))


def names(only):
    """The gate's, and the others where they are named."""
    return [name for name in (DEVELOPMENT if only.startswith("dev") else CONFIGS)
            if any(one in name for one in only.split(","))]


def naive_rate(c):
    """Images a second, about: for the length of a run alone."""
    loading = c["loaders"] * c["threads"] * 1000 / MEAN_MS
    training = c["trainers"] * c["batch"] * 1000 / c["step_ms"]
    wire = c["mbit"] * 1e6 / 8 / (c["size"] ** 2 * 3) if c["mbit"] else 1e9
    return min(loading, training, wire)


def steps_of(c):
    return max(20, round(SECONDS * naive_rate(c) / c["trainers"] / c["batch"]))


def write_job(folder, name, c, times, slowness=None, samples=None, seed=7):
    count = samples or steps_of(c) * c["trainers"] * c["batch"]
    args = {"times": times, "count": count, "size": c["size"], "tail": c["tail"], "slowness": slowness or {}}
    path = os.path.join(folder, name + ".yaml")
    with open(path, "w") as file:
        file.write(JOB.format(seed=seed, threads=c["threads"], prefetch=c["prefetch"], python=PYTHON, args=json.dumps(args), path=HERE,
                              size=c["size"], batch=c["batch"]))
    return path, count


def write_cluster(folder, name, c):
    path = os.path.join(folder, name + ".cluster.yaml")
    gbit = c["mbit"] / 1000
    with open(path, "w") as file:
        if c["mbit"]:
            file.write(f"nodes:\n  far: {{cores: 64, loaders: {c['loaders']}, network_gbit: {gbit}}}\n"
                       f"  home: {{cores: 64, trainers: {c['trainers']}, loaders: 0, network_gbit: {gbit}}}\n")
        else:
            file.write(f"nodes:\n  here: {{cores: 64, trainers: {c['trainers']}, loaders: {c['loaders']}}}\n")
        file.write(f"program: {{step_ms: {c['step_ms']}, step_spread: {c['spread']}}}\n")
    return path


def profile_of(folder, c):
    return os.path.join(folder, f"profile-{c['size']}.json")


def calibrate(folder, times_from):
    with open(times_from) as file:
        recorded = json.load(file)
    total, points, mean = 0, [], recorded["sample_ns"]["sum"] / recorded["sample_ns"]["count"] / 1e9
    scale = MEAN_MS / 1000 / mean

    def end_of(bucket):  # runtime/base/histogram.h
        if bucket == 0:
            return 1023
        octave, part = 10 + (bucket - 1) // 16, (bucket - 1) % 16 + 17
        return (part << (octave - 4)) - 1

    for bucket, count in recorded["sample_ns"]["buckets"]:
        low = 0 if bucket == 0 else end_of(bucket - 1) + 1
        points.append([total / recorded["sample_ns"]["count"], low * 1e-9 * scale])
        total += count
        points.append([total / recorded["sample_ns"]["count"], min(end_of(bucket), recorded["sample_ns"]["most"]) * 1e-9 * scale])
    times = os.path.abspath(os.path.join(folder, "times.json"))
    with open(times, "w") as file:
        json.dump(points, file)
    # One loader and a program that never sleeps: the times of samples, and what the program's own work costs.
    for size in (24, 224):
        with tempfile.TemporaryDirectory() as work:
            job, _ = write_job(work, "calibration", dict(USUAL, threads=4, batch=8, size=size), times, samples=2000)
            profile = profile_of(folder, dict(size=size))
            subprocess.run([PENSTOCK, "launch", "--run", job, "-n", "2", "--quiet", f"--profile={profile}", "roles.trainers=1"],
                           check=True, timeout=300)
        with open(profile) as file:
            told = json.load(file)
        count = told["sample_ns"]["count"]
        print(f"{profile}: {count} samples, {told['sample_ns']['sum'] / count / 1e6:.2f} ms each")


def predict(folder, only=""):
    times = os.path.abspath(os.path.join(folder, "times.json"))
    with tempfile.TemporaryDirectory() as work, open(os.path.join(folder, "predictions.jsonl"), "w") as out:
        for name in names(only):
            c = config_of(name)
            job, count = write_job(work, name, c, times)
            words = [PENSTOCK, "simulate", job, write_cluster(work, name, c), "--profile", profile_of(folder, c),
                     "--json", "--quiet", "--seeds=20", f"--samples={count}"]
            words += [word for event in c["events"] for word in ("--what-if", event)]
            words += ["--what-if", f"tail:x{c['tail']:g}"] if c["tail"] != 1 else []
            words += [] if c["barrier"] else ["--no-barrier"]
            told = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, timeout=300).stdout)
            for key in ("job", "cluster"):
                told.pop(key)
            out.write(json.dumps(dict(name=name, config=c, **told)) + "\n")
            print(f"{name}: {told['prediction']['images_per_s']['mean']:.1f} images/s, stalled "
                  f"{told['prediction']['stalled']['mean']:.3f}", flush=True)


def happen(events, trainers, env, started):
    """Stops and kills loaders at their times; slow ones are so from the beginning."""
    for _ in range(1200):
        if os.path.exists(started):
            break
        time.sleep(0.05)
    with open(started) as file:
        begun = float(file.read())
    todo = []
    for event in events:
        kind, rest = event.split(":")
        if kind not in ("stop", "kill"):
            continue
        loader, at = rest.split("@")
        at, _, lasts = at.partition("+")
        todo.append((begun + float(at), signal.SIGSTOP if kind == "stop" else signal.SIGKILL, trainers + int(loader)))
        if kind == "stop":
            todo.append((begun + float(at) + float(lasts), signal.SIGCONT, trainers + int(loader)))
    pids = ranks(env)
    for when, number, rank in sorted(todo):
        time.sleep(max(0, when - time.time()))
        os.kill(pids[rank], number)


def run_job(work, job, name, c):
    """One run; what its programs measured, and the processor time of everything."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.monotonic()
    with no_leftovers(wait_s=10) as env:
        started = os.path.join(work, "started")
        program = [PYTHON, os.path.join(HERE, "trainer.py"), job, str(c["step_ms"]), str(c["spread"]), str(int(c["barrier"])), started]
        env = dict(env, PYTHONPATH=os.path.join(BUILD, "python"))
        words = [PENSTOCK, "launch", "--run", job, "--json", "--quiet"]
        if c.get("mbit"):
            words += [f"--trainer-host=host0:{c['trainers']}", f"--loader-host=host1:{c['loaders']}", "--", *program]
        else:
            words += ["-n", str(c["trainers"] + c["loaders"]), f"roles.trainers={c['trainers']}", "--", *program]
        watcher = threading.Thread(target=happen, args=(c["events"], c["trainers"], env, started), daemon=True)
        if any(event[:4] in ("stop", "kill") for event in c["events"]):
            watcher.start()
        if c.get("mbit"):
            with Hosts(2, env) as hosts:
                hosts.limit_link(1, c["mbit"])
                env = dict(hosts.environment(env), PYTHONPATH=env["PYTHONPATH"])
                done = subprocess.run(hosts.enter(0, words), env=env, capture_output=True, text=True, timeout=300)
        else:
            done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise SystemExit(f"{name}: exit {done.returncode}\n{done.stderr[-3000:]}")
        told = []
        for rank in range(c["trainers"]):
            with open(f"{started}.{rank}") as file:
                told.append(json.load(file))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    elapsed = sum(one["elapsed_s"] for one in told)
    return {"images_per_s": sum(one["images"] / one["elapsed_s"] for one in told),
            "stalled": sum(one["waited_s"] for one in told) / elapsed, "images": sum(one["images"] for one in told),
            "cores": cpu / (time.monotonic() - begun)}


def run_once(folder, name, times, seed):
    c = config_of(name)
    slowness = {}
    for event in c["events"]:
        if event.startswith("slow:"):
            loader, factor = event[5:].split("x")
            slowness[str(c["trainers"] + int(loader))] = 1 / float(factor)
    with tempfile.TemporaryDirectory() as work:
        job, _ = write_job(work, name, c, times, slowness, seed=seed)
        return dict(name=name, **run_job(work, job, name, c))


def run(folder, repeat, only):
    times = os.path.abspath(os.path.join(folder, "times.json"))
    path = os.path.join(folder, "reports.jsonl")
    done = {}
    if os.path.exists(path):
        with open(path) as file:
            for line in file:
                one = json.loads(line)
                done[one["name"]] = done.get(one["name"], 0) + 1
    for turn in range(repeat):  # by turns: what drifts, drifts for all; each with an order and times of its own
        for name in names(only):
            if done.get(name, 0) > turn:
                continue
            begun = time.time()
            one = run_once(folder, name, times, seed=turn)
            one.update(turn=turn, seed=turn, date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begun)), load=os.getloadavg()[0])
            with open(path, "a") as out:
                out.write(json.dumps(one) + "\n")
            print(f"{turn} {name}: {one['images_per_s']:.1f} images/s, stalled {one['stalled']:.3f}, {time.time() - begun:.1f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("calibrate", "predict", "run"))
    parser.add_argument("folder")
    parser.add_argument("--times", help="profile of real photos")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="")
    words = parser.parse_args()
    os.makedirs(words.folder, exist_ok=True)
    if words.what == "calibrate":
        calibrate(words.folder, words.times)
    elif words.what == "predict":
        predict(words.folder, words.only)
    else:
        run(words.folder, words.repeat, words.only)


if __name__ == "__main__":
    main()
