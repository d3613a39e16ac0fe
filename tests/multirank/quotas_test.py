"""Loaders of unequal speed deliver together what each of them delivers alone, added up. A plan that gives each the same share
would take as long as the slowest one needs for its share.

    PENSTOCK_FULL=1 quotas_test.py      # on a machine with nothing beside it: what they deliver, measured

Quotas: three loaders of one thread that may use 0.4, 0.4 and 0.1 of a core, as containers get them, and photos whose sizes have
a heavy tail. Emulated: four loaders of four threads, of which one needs four times as long; a data set in Python that sleeps as
long as a sample takes, the times having a heavy tail.

By default only the stream is looked at. The batches made ahead are more than the fast loaders make while the slow one is at
its longest chunk: with fewer, everybody waits for that one. Where crops may be entered is not learned (index_memory_mb): a
loader that meets all photos alone would know that after an epoch, and be a sixth faster than one that meets a third of them.
"""

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from control_groups import ControlGroup
from jobs import FULL, PENSTOCK, demo_photos, hashes_of, hold_file, left_to_full, run_job, run_tests, skip_without_mpirun
from leftovers import no_leftovers
from watching import cpu_s, ranks

skip_without_mpirun()
QUOTAS = (0.4, 0.4, 0.1)
SLOWNESS = (1, 1, 1, 4)
PERIOD_US = 100_000
TURNS = 2 if FULL else 1
PHOTOS = 200 if FULL else 12
# Each photo is read under several names: epochs long enough that their ends, where the slowest loader's last chunk is waited
# for, do not count. Alone the slowest one would need minutes for them.
LINKS_TOGETHER, LINKS_ALONE = (48, 10) if FULL else (6, 2)
LEAST_MP, MOST_MP, SHAPE = 0.4, 12 if FULL else 3, 1.5  # megapixels, of a truncated Pareto distribution
GOAL = 0.95
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
os.environ["PENSTOCK_PYTHON"] = sys.executable
work = tempfile.TemporaryDirectory(prefix="quotas_test-")

JOB = """\
seed: 3
roles: {{trainers: 1}}
loader: {{threads: {threads}, memory_gb: 0.25, chunk_samples: 4, prefetch: 8, index_memory_mb: 0}}
trainer: {{timeout_s: 60, grace_s: 2}}
splits:
  train:
    mode: train
    dataset: {dataset}
    pipeline: [{{RandomResizedCrop: {{size: {size}}}}}, {{RandomHorizontalFlip: {{}}}}, {{ToDtype: {{dtype: float32, scale: true}}}}]
    sampler: {{shuffle: true}}
    batch_size: 128
    tail: pad
"""

# The time a sample takes is its own; how much slower this loader is, its rank's.
EMULATED = r'''
import os, random, re, time
import numpy as np

def rank():
    """Of the loader that this worker belongs to: workers are not told."""
    pid = os.getpid()
    while pid > 1:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = re.search(rb"OMPI_COMM_WORLD_RANK=([0-9]+)", file.read())
        if found:
            return int(found[1])
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return 1

class Samples:
    classes = ["a", "b"]

    def __init__(self, count, least_ms, most_ms, shape, slowness):
        draw = random.Random(7)
        cut = 1 - (least_ms / most_ms) ** shape
        slow = slowness[max(rank(), 1) - 1]
        self.seconds = [slow * least_ms / 1000 * (1 - draw.random() * cut) ** (-1 / shape) for _ in range(count)]

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, i):
        time.sleep(self.seconds[i])
        return {"image": np.full((24, 24, 3), i % 251, np.uint8), "label": i % 2}
'''


def write_job(name, dataset, threads, size):
    path = os.path.join(work.name, name)
    with open(path, "w") as file:
        file.write(JOB.format(dataset=dataset, threads=threads, size=size))
    return path


def a_group(quota):
    quota_us = round(quota * PERIOD_US)
    return ControlGroup("cpu", v1={"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota_us},
                        v2={"cpu.max": f"{quota_us} {PERIOD_US}"})


def pareto_mp(draw):
    """By the inverse of the distribution's function."""
    cut = 1 - (LEAST_MP / MOST_MP) ** SHAPE
    return LEAST_MP * (1 - draw.random() * cut) ** (-1 / SHAPE)


def make_photos(links, first_folder=None):
    """A folder with each photo under `links` names: its classes."""
    draw = random.Random(7)
    source = os.path.join(demo_photos(), "train")
    pictures = sorted(os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names
                      if name.endswith(".jpg"))
    data = os.path.join(work.name, f"data{links}")
    for link in range(links):
        os.makedirs(os.path.join(data, f"class{link:02}"))
    for number in range(PHOTOS):
        first = os.path.join(data, "class00", f"{number:04}.jpg")
        mp = pareto_mp(draw)
        width = round((mp * 1e6 * 4 / 3) ** 0.5)
        with Image.open(draw.choice(pictures)) as picture:
            if first_folder:
                os.link(os.path.join(first_folder, "class00", f"{number:04}.jpg"), first)
            else:
                picture.convert("RGB").resize((width, round(mp * 1e6 / width)), Image.BILINEAR).save(first, quality=90)
        for link in range(1, links):
            os.link(first, os.path.join(data, f"class{link:02}", f"{number:04}.jpg"))
    return data


def run_loaders(env, job, count, overrides=(), quotas=(), epochs=1):
    """(images a second in so many epochs after the first one, cores that the loaders used then, report) of a job of so many
    loaders; quotas hold once all of them run. `env` is no_leftovers'."""
    folder = tempfile.mkdtemp(dir=work.name)
    hold = hold_file(folder)  # so that loaders are there when their quotas come
    with contextlib.ExitStack() as at_the_end, tempfile.TemporaryFile("w+", dir=work.name) as err:
        groups = [a_group(quota) for quota in quotas]
        for group in groups:
            at_the_end.callback(group.close)
        process = subprocess.Popen(
            [PENSTOCK, "launch", "--run", "-n", str(1 + count), job, "--json", "--quiet", *overrides, "--", PATTERNS, "counted", job,
             os.path.join(folder, "%r.json"), *overrides],
            env=dict(env, PATTERNS_EPOCHS=str(1 + epochs), PYTHONPATH=work.name), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=err, text=True)
        limited, passed, used, last = False, [], [], ""
        for line in process.stdout:
            if not limited:
                pids = ranks(env, process.pid)  # with the first batch
                for number, group in enumerate(groups):
                    group.take(pids[1 + number])
                limited = True
                os.remove(hold)
            if line.startswith("epochs"):
                passed.append(time.monotonic())
                if FULL:  # behind the last epoch they may be gone, where this process had no core
                    used.append([cpu_s(pids[1 + number]) for number in range(count)])
            last = line
        code = process.wait(60)
        err.seek(0)
        assert code == 0, err.read()[-4000:]
    report = json.loads(last)
    assert len(passed) == 1 + epochs, passed
    took_s = passed[-1] - passed[0]
    cores = [(after - before) / took_s for before, after in zip(used[0], used[-1])] if FULL else []
    return report["splits"]["train"]["images"] * epochs / (1 + epochs) / took_s, cores, report


def compare(what, together, alone):
    """([what they deliver together, over the sum of what each does alone], [cores that the loaders used together]) by turns.
    `together(env)` and each of `alone` are run_loaders. Those that run alone do so at the same time: processors that share
    caches, or are two threads of one core, are as busy as before."""
    shares, used = [], []
    for _ in range(TURNS):
        with no_leftovers(wait_s=8) as env:
            rate, cores, report = together(env)
        with no_leftovers(wait_s=8) as env, ThreadPoolExecutor(len(alone)) as pool:
            rates = [one.result()[0] for one in [pool.submit(run, env) for run in alone]]
        shares.append(rate / sum(rates))
        balance = next(rank["balance"] for rank in report["ranks"] if "balance" in rank)
        made = ", ".join(f"{one['chunks']}{' (slow)' if one['slow'] else ''}" for one in balance["loaders"])
        print(f"  {what}: together {rate:.1f} images/s of {', '.join(f'{one:.3f}' for one in cores)} cores, "
              f"alone {', '.join(f'{one:.1f}' for one in rates)}: {shares[-1]:.3f} of their sum; "
              f"equal shares would be {len(rates) * min(rates) / sum(rates):.3f}; chunks {made}", flush=True)
        used.append(cores)
    return shares, used


def emulated(count, least_ms, slowness):
    args = json.dumps({"count": count, "least_ms": least_ms, "most_ms": 30 * least_ms, "shape": SHAPE, "slowness": slowness})
    return [f"splits.train.dataset.args={args}"]


@left_to_full("test_three_loaders_under_quotas: unequal loaders, one stream; python_dataset_test: data sets in Python")
def test_sixteen_executors_of_emulated_speed():
    with open(os.path.join(work.name, "emulated_samples.py"), "w") as file:
        file.write(EMULATED)
    job = write_job("emulated.yaml", '{python: "emulated_samples:Samples"}', threads=4, size=24)
    if FULL:
        alone = [lambda env, slow=slow: run_loaders(env, job, 1, emulated(1000, 8, [slow]), epochs=8 // slow) for slow in SLOWNESS]
        shares, _ = compare("emulated", lambda env: run_loaders(env, job, len(SLOWNESS), emulated(6000, 8, SLOWNESS)), alone)
        assert statistics.mean(shares) >= GOAL, shares
        return
    with no_leftovers() as env:
        expected = run_job(job, options=["--epochs=2"], overrides=emulated(400, 0.1, [1]),
                           env=dict(env, PYTHONPATH=work.name)).hashes()
    with no_leftovers(wait_s=8) as env:
        assert hashes_of(run_loaders(env, job, len(SLOWNESS), emulated(400, 0.1, SLOWNESS))[2]) == expected


def test_three_loaders_under_quotas():
    group = a_group(0.4)
    group.close()
    if group.kind is None and FULL:
        print("SKIP: no control group of processors can be made here")
        sys.exit(77)
    folders = [make_photos(LINKS_ALONE)]
    folders.append(make_photos(LINKS_TOGETHER, folders[0]))
    job = write_job("photos.yaml", f"{{folder: {json.dumps(folders[1])}}}", threads=1, size=224)
    if FULL:
        short = [f"splits.train.dataset.folder={folders[0]}"]
        alone = [lambda env, quota=quota: run_loaders(env, job, 1, short, (quota,), epochs=round(10 * quota)) for quota in QUOTAS]
        shares, used = compare("quotas", lambda env: run_loaders(env, job, 3, quotas=QUOTAS), alone)
        assert statistics.mean(shares) >= GOAL, shares
        assert all(cores >= GOAL * quota for turn in used for cores, quota in zip(turn, QUOTAS)), used
        return
    with no_leftovers() as env:
        expected = run_job(job, options=["--epochs=2"], env=env).hashes()
    with no_leftovers(wait_s=8) as env:
        assert hashes_of(run_loaders(env, job, 3, quotas=QUOTAS if group.kind else ())[2]) == expected


if __name__ == "__main__":
    run_tests(globals())
