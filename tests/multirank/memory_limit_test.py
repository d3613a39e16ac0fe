"""A job whose data, and perhaps whose batches, are larger than the memory that it may use: 512 MiB for all its processes, in
a control group as a container or Slurm makes it. It runs to its end with the right hashes, or it ends by an error that says
which setting to change, or, where the kernel killed something, by a line of `launch` that says so. It is never gone without a
word; and with what the error advises it runs.

Where no control group can be made, each process has RLIMIT_DATA of 512 MiB instead (shared memory does not count there).
PENSTOCK_FULL=1: more data than memory, and more batch sizes, limits and transports.
"""

import functools
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile

from control_groups import ControlGroup
from jobs import FULL, PENSTOCK, Result, left_to_full, run_job, run_tests, skip_without_mpirun
from leftovers import no_leftovers

skip_without_mpirun()
MB = 1 << 20
LIMIT_MB = 512
PICTURES, PICTURE_MB = 192 if FULL else 48, 3  # 576 MB of data, or a quarter where batches alone are what does not fit
work = tempfile.TemporaryDirectory(prefix="memory_limit_test-")

JOB = """\
seed: 3
trainer: {{timeout_s: 60, grace_s: 2}}
roles: {{trainers: 2}}
splits:
  train:
    dataset: {{folder: {data}}}
    pipeline:
      - RandomResizedCrop: {{size: 224}}
      - RandomHorizontalFlip: {{}}
      - ToDtype: {{dtype: float32, scale: true}}
    sampler: {{shuffle: true}}
    batch_size: 16
    tail: pad
"""


def make_job():
    data = os.path.join(work.name, "data")
    block = random.Random(5).randbytes(1 << 16)
    side = 1024
    for number in range(PICTURES):
        folder = os.path.join(data, f"class{number % 2}")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, f"{number:04}.ppm"), "wb") as file:
            file.write(b"P6 1024 1024 255\n" + (block[number:] + block[:number]) * (side * side * 3 // len(block)))
    path = os.path.join(work.name, "job.yaml")
    with open(path, "w") as file:
        file.write(JOB.format(data=json.dumps(data)))
    return path


def evict_data():
    """Whoever reads it next has the pages on its account."""
    for folder, _, names in os.walk(os.path.join(work.name, "data")):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def memory_group(limit_mb):
    group = ControlGroup("memory", v1={"memory.limit_in_bytes": limit_mb * MB}, v2={"memory.max": limit_mb * MB})
    if group.has("memory.swap.max"):
        group.set("memory.swap.max", 0)
    return group


def enter(group, limit_mb):
    """In the child, before it becomes the job."""
    if group.kind:
        group.take(os.getpid())
    else:
        resource.setrlimit(resource.RLIMIT_DATA, (limit_mb * MB,) * 2)


def run_limited(overrides=(), limit_mb=LIMIT_MB):
    evict_data()
    group = memory_group(limit_mb)
    with no_leftovers(wait_s=8) as env, open(os.path.join(work.name, "out"), "w+") as out, open(os.path.join(work.name, "err"), "w+") as err:
        process = subprocess.Popen([PENSTOCK, "launch", "--run", "-n", "4", job, "--json", "--quiet", *overrides], env=env,
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, preexec_fn=lambda: enter(group, limit_mb))
        try:
            code = process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            code = "still there after 120 s"
        with open(out.name) as said, open(err.name, errors="replace") as errors:
            result = Result(subprocess.CompletedProcess([], code, said.read(), errors.read()))
    peak = group.number("memory.max_usage_in_bytes", "memory.peak")
    peak = None if peak is None else peak // MB
    group.close()
    how = {"v1": "control group (v1)", "v2": "control group (v2)", None: "RLIMIT_DATA of each process"}[group.kind]
    print(f"    {limit_mb} MiB by {how}, {' '.join(overrides) or 'default settings'}: exit {code}, peak {peak} MiB", flush=True)
    return result


# What may be lowered, from which default, and how far.
SETTINGS = {"splits.train.batch_size": (16, 8), "loader.prefetch": (2, 1), "trainer.hold": (2, 0), "loader.chunk_buffers": (16, 4),
            "loader.chunk_samples": (16, 4), "loader.memory_gb": (2, 0.05), "loader.threads": (2, 1), "loader.cache_gb": (0, 0)}
NAMED = re.compile(r"^  help: (.*(?:" + "|".join(re.escape(name) for name in SETTINGS) + r").*)$", re.MULTILINE)
KILLED = re.compile(r"on this host memory ran out and the kernel killed \d+ process.*; (lower .*)$", re.MULTILINE)


def outcome(result):
    """'ran', 'named' or 'killed'; anything else has no word for what happened."""
    if result.code == 0:
        return "ran"
    assert isinstance(result.code, int) and 0 < result.code <= 5, result.log
    if KILLED.search(result.stderr):
        return "killed"
    assert NAMED.search(result.stderr), f"nothing says what to set\n{result.log}"
    return "named"


def lowered(overrides, remedy):
    """Half of everything that is to be lowered."""
    now = dict(one.split("=") for one in overrides)
    for name in re.findall("|".join(re.escape(name) for name in [*SETTINGS, "batch_size"]), remedy.partition("lower ")[2]):
        name = "splits.train.batch_size" if name == "batch_size" else name
        default, least = SETTINGS[name]
        now[name] = max(least, float(now.get(name, default)) / 2)
        now[name] = now[name] if name.endswith("_gb") else int(now[name])
    return [f"{name}={value}" for name, value in now.items()]


def require_that_the_advice_helps(overrides, result, limit_mb):
    """Followed as often as it comes, at most six times."""
    for _ in range(6):
        remedy = (KILLED.search(result.stderr) or NAMED.search(result.stderr)).group(1)
        print(f"      {result.stderr[result.stderr.find('penstock: '):].splitlines()[0][:150]} | {remedy}", flush=True)
        following = lowered(overrides, remedy)
        assert following != overrides, f"nothing is left to be lowered\n{result.log}"
        overrides = following
        result = run_limited(overrides, limit_mb)
        what = outcome(result)
        if what == "ran":
            assert result.hashes() == hashes_without_a_limit(overrides), result.log
            return
    raise AssertionError(f"it still does not run\n{result.log}")


job = make_job()


def hashes_without_a_limit(overrides=()):
    return hashes_of_batch_size(next((one for one in overrides if "batch_size" in one), "splits.train.batch_size=16"))


@functools.cache
def hashes_of_batch_size(override):
    return run_job(job, overrides=[override]).hashes()


@left_to_full("test_batches_that_do_not_fit: it ends by name, and with the advice it runs, of fewer data")
def test_default_settings_with_more_data_than_memory():
    assert PICTURES * PICTURE_MB > LIMIT_MB, "this one is for PENSTOCK_FULL=1"
    expected = hashes_without_a_limit()
    for overrides in ([], ["transport=mpi"]) if FULL else ([],):
        result = run_limited(overrides)
        what = outcome(result)
        assert what != "killed", result.log
        if what == "ran":
            assert result.hashes() == expected, result.log
        else:
            require_that_the_advice_helps(overrides, result, LIMIT_MB)


def test_batches_that_do_not_fit():
    # A sample has 588 KB; batch, prefetch, hold and two trainers multiply that.
    found = {}
    cases = [["splits.train.batch_size=96", "loader.prefetch=16"]]
    if FULL:
        cases += [["splits.train.batch_size=96", "loader.prefetch=4"], ["splits.train.batch_size=96", "trainer.hold=20"],
                  ["splits.train.batch_size=48", "loader.prefetch=16", "transport=mpi"], ["splits.train.batch_size=96", "loader.threads=16"],
                  ["loader.cache_gb=1"], ["loader.memory_gb=0.01"]]
    for overrides in cases:
        for limit_mb in (LIMIT_MB, 256, 128, 64, 32) if FULL else (LIMIT_MB,):
            result = run_limited(overrides, limit_mb)
            what = outcome(result)
            found[what] = found.get(what, 0) + 1
            if what == "ran":
                assert result.hashes() == hashes_without_a_limit(overrides), result.log
            # A remedy that says to raise something has other cases here.
            if what != "ran" and limit_mb == LIMIT_MB and "memory_gb=0.01" not in overrides[-1]:
                require_that_the_advice_helps(overrides, result, limit_mb)
    print(f"    {found}")
    assert found.get("named"), found


if __name__ == "__main__":
    run_tests(globals())
