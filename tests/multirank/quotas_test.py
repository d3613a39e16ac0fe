"""Loaders of unequal speed deliver together what each of them delivers alone, added up. A plan that gives each the same share
would take as long as the slowest one needs for its share.

    PENSTOCK_FULL=1 quotas_test.py      # on a machine with nothing beside it: what they deliver, measured

Quotas: three loaders of one thread that may use 0.4, 0.4 and 0.1 of a core, as containers get them, and photos whose sizes have
a heavy tail. Emulated: four loaders of four threads, of which one needs four times as long; a data set in Python that sleeps as
long as a sample takes, the times having a heavy tail.

By default only the stream is looked at. The batches made ahead are more than the fast loaders make while the slow one is at
its longest chunk: with fewer, everybody waits for that one.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

from PIL import Image

from control_groups import ControlGroup
from jobs import FULL, PENSTOCK, demo_photos, hashes_of, run_job, run_tests, skip_without_mpirun
from leftovers import no_leftovers
from watching import ranks

skip_without_mpirun()
QUOTAS = (0.4, 0.4, 0.1)
SLOWNESS = (1, 1, 1, 4)
PERIOD_US = 100_000
TURNS = 2 if FULL else 1
PHOTOS = 200 if FULL else 40
# Each photo is read under several names: epochs long enough that their ends, where the slowest loader's last chunk is waited
# for, do not count. Alone the slowest one would need minutes for them.
LINKS_TOGETHER, LINKS_ALONE = (48, 10) if FULL else (6, 2)
LEAST_MP, MOST_MP, SHAPE = 0.4, 12, 1.5  # megapixels, of a truncated Pareto distribution
GOAL = 0.95
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
os.environ["PENSTOCK_PYTHON"] = sys.executable
work = tempfile.TemporaryDirectory(prefix="quotas_test-")

JOB = """\
seed: 3
roles: {{trainers: 1}}
loader: {{threads: {threads}, memory_gb: 0.25, chunk_samples: 4, prefetch: 8}}
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


def run_loaders(job, count, overrides=(), quotas=()):
    """(images a second in its second epoch, report) of a job of so many loaders; quotas hold once all of them run."""
    groups = [a_group(quota) for quota in quotas]
    with no_leftovers(wait_s=8) as env, open(os.path.join(work.name, "err"), "w+") as err:
        process = subprocess.Popen(
            [PENSTOCK, "launch", "--run", "-n", str(1 + count), job, "--json", "--quiet", *overrides, "--", PATTERNS, "counted", job,
             os.path.join(work.name, "%r.json"), *overrides],
            env=dict(env, PATTERNS_EPOCHS="2", PYTHONPATH=work.name), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err,
            text=True)
        limited, passed, last = False, [], ""
        for line in process.stdout:
            if not limited:
                pids = ranks(env)  # with the first batch
                for number, group in enumerate(groups):
                    group.take(pids[1 + number])
                limited = True
            if line.startswith("epochs"):
                passed.append(time.monotonic())
            last = line
        code = process.wait(60)
        err.seek(0)
        assert code == 0, err.read()[-4000:]
    for group in groups:
        group.close()
    report = json.loads(last)
    assert len(passed) == 2, passed
    return report["splits"]["train"]["images"] / 2 / (passed[1] - passed[0]), report


def compare(what, together, alone):
    """`together()` and each of `alone` give (images a second, report); by turns, and the mean of what they show."""
    shares, equal = [], []
    for _ in range(TURNS):
        rate, report = together()
        rates = [run()[0] for run in alone]
        shares.append(rate / sum(rates))
        equal.append(len(rates) * min(rates) / sum(rates))
        balance = next(rank["balance"] for rank in report["ranks"] if "balance" in rank)
        made = ", ".join(f"{one['chunks']}{' (slow)' if one['slow'] else ''}" for one in balance["loaders"])
        print(f"  {what}: together {rate:.1f} images/s, alone {', '.join(f'{one:.1f}' for one in rates)}: {shares[-1]:.3f} of their "
              f"sum; equal shares would be {equal[-1]:.3f}; chunks {made}", flush=True)
    assert statistics.mean(shares) >= GOAL, shares


def test_three_loaders_under_quotas():
    group = a_group(0.4)
    group.close()
    if group.kind is None:
        print("SKIP: no control group of processors can be made here")
        sys.exit(77)
    folders = [make_photos(LINKS_ALONE)]
    folders.append(make_photos(LINKS_TOGETHER, folders[0]))
    job = write_job("photos.yaml", f"{{folder: {json.dumps(folders[1])}}}", threads=1, size=224)
    if FULL:
        short = [f"splits.train.dataset.folder={folders[0]}"]
        compare("quotas", lambda: run_loaders(job, 3, quotas=QUOTAS),
                [lambda quota=quota: run_loaders(job, 1, short, quotas=(quota,)) for quota in QUOTAS])
        return
    with no_leftovers() as env:
        expected = run_job(job, options=["--epochs=2"], env=env).hashes()
    assert hashes_of(run_loaders(job, 3, quotas=QUOTAS)[1]) == expected


def emulated(count, least_ms, slowness):
    args = json.dumps({"count": count, "least_ms": least_ms, "most_ms": 30 * least_ms, "shape": SHAPE, "slowness": slowness})
    return [f"splits.train.dataset.args={args}"]


def test_sixteen_executors_of_emulated_speed():
    with open(os.path.join(work.name, "emulated_samples.py"), "w") as file:
        file.write(EMULATED)
    job = write_job("emulated.yaml", '{python: "emulated_samples:Samples"}', threads=4, size=24)
    if FULL:
        alone = [lambda slow=slow: run_loaders(job, 1, emulated(1000, 8, [slow])) for slow in SLOWNESS]
        compare("emulated", lambda: run_loaders(job, len(SLOWNESS), emulated(6000, 8, SLOWNESS)), alone)
        return
    with no_leftovers() as env:
        expected = run_job(job, options=["--epochs=2"], overrides=emulated(400, 0.1, [1]),
                           env=dict(env, PYTHONPATH=work.name)).hashes()
    assert hashes_of(run_loaders(job, len(SLOWNESS), emulated(400, 0.1, SLOWNESS))[1]) == expected


if __name__ == "__main__":
    run_tests(globals())
