"""Three loaders of one thread that may use 0.4, 0.4 and 0.1 of a core, as containers get them, and photos whose sizes have a
heavy tail: together they deliver what each of them delivers alone, added up. A plan that gives each loader the same share
would take as long as the slowest one needs for its third.

    PENSTOCK_FULL=1 quotas_test.py      # on a machine with nothing beside it: what they deliver, measured

By default only the stream is looked at, and that the report says who is slow.
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
PERIOD_US = 100_000
SEED = int(os.environ.get("SEED", 7))
PHOTOS, LINKS = (200, 12) if FULL else (40, 6)  # each photo is read under several names: an epoch of some ten seconds
EPOCHS = 4 if FULL else 2
LEAST_MP, MOST_MP, SHAPE = 0.4, 12, 1.5  # megapixels, of a truncated Pareto distribution
PATTERNS = os.path.join(os.environ["PENSTOCK_BUILD"], "patterns")
work = tempfile.TemporaryDirectory(prefix="quotas_test-")
job = os.path.join(work.name, "job.yaml")

JOB = """\
seed: 3
roles: {{trainers: 1}}
loader: {{threads: 1, memory_gb: 0.25, chunk_samples: 4}}
trainer: {{timeout_s: 60, grace_s: 2}}
splits:
  train:
    mode: train
    dataset: {{folder: {data}}}
    pipeline:
      - RandomResizedCrop: {{size: 224}}
      - RandomHorizontalFlip: {{}}
      - ToDtype: {{dtype: float32, scale: true}}
    sampler: {{shuffle: true}}
    batch_size: 32
    tail: pad
"""


def a_group(quota):
    quota_us = round(quota * PERIOD_US)
    return ControlGroup("cpu", v1={"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota_us},
                        v2={"cpu.max": f"{quota_us} {PERIOD_US}"})


def pareto_mp(draw):
    """By the inverse of the distribution's function."""
    most = 1 - (LEAST_MP / MOST_MP) ** SHAPE
    return LEAST_MP * (1 - draw.random() * most) ** (-1 / SHAPE)


def make_photos():
    draw = random.Random(SEED)
    source = os.path.join(demo_photos(), "train")
    pictures = sorted(os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names
                      if name.endswith(".jpg"))
    data = os.path.join(work.name, "data")
    for link in range(LINKS):
        os.makedirs(os.path.join(data, f"class{link}"))
    for number in range(PHOTOS):
        mp = pareto_mp(draw)
        width = round((mp * 1e6 * 4 / 3) ** 0.5)
        first = os.path.join(data, "class0", f"{number:04}.jpg")
        with Image.open(draw.choice(pictures)) as picture:
            picture.convert("RGB").resize((width, round(mp * 1e6 / width)), Image.BILINEAR).save(first, quality=90)
        for link in range(1, LINKS):
            os.link(first, os.path.join(data, f"class{link}", f"{number:04}.jpg"))
    with open(job, "w") as file:
        file.write(JOB.format(data=json.dumps(data)))


def run_under(quotas):
    """(images a second after the first epoch, report) of a job of so many loaders, which are limited once all of them run."""
    groups = [a_group(quota) for quota in quotas]
    images = PHOTOS * LINKS
    with no_leftovers(wait_s=8) as env, open(os.path.join(work.name, "err"), "w+") as err:
        process = subprocess.Popen(
            [PENSTOCK, "launch", "--run", "-n", str(1 + len(quotas)), job, "--json", "--quiet", "--", PATTERNS, "counted", job,
             os.path.join(work.name, "%r.json")],
            env=dict(env, PATTERNS_EPOCHS=str(1 + EPOCHS)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, text=True)
        pids, passed, last = None, [], ""
        for line in process.stdout:
            if pids is None:
                pids = ranks(env)  # with the first batch
                for number, group in enumerate(groups):
                    group.take(pids[1 + number])
            if line.startswith("epochs"):
                passed.append(time.monotonic())
            last = line
        code = process.wait(60)
        err.seek(0)
        assert code == 0, err.read()[-4000:]
    for group in groups:
        group.close()
    assert len(passed) == 1 + EPOCHS, passed
    return images * EPOCHS / (passed[-1] - passed[0]), json.loads(last)


def skip_without_groups():
    group = a_group(0.4)
    group.close()
    if group.kind is None:
        print("SKIP: no control group of processors can be made here")
        sys.exit(77)


def test_loaders_under_quotas_deliver_what_they_deliver_alone_added_up():
    options = [f"--epochs={1 + EPOCHS}"]
    with no_leftovers() as env:
        expected = run_job(job, options=options, env=env, timeout=200).hashes() if not FULL else None
    turns = []
    for _ in range(3 if FULL else 1):
        together, report = run_under(QUOTAS)
        balance = next(rank["balance"] for rank in report["ranks"] if "balance" in rank)
        print(f"  together {together:.1f} images/s; {json.dumps(balance['loaders'])}", flush=True)
        if not FULL:
            assert hashes_of(report) == expected
            return
        alone = [run_under((quota,))[0] for quota in QUOTAS]
        print(f"  alone {', '.join(f'{rate:.1f}' for rate in alone)}; {together / sum(alone):.3f} of their sum; with equal shares "
              f"it would be {len(alone) * min(alone) / sum(alone):.3f}", flush=True)
        turns.append(together / sum(alone))
    assert statistics.median(turns) >= 0.95, turns


if __name__ == "__main__":
    skip_without_groups()
    make_photos()
    run_tests(globals())
