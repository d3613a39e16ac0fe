"""Jobs for tests of the whole program: data, a job file, a run here or under mpirun, its report.

    from jobs import demo_photos, run_job, write_job

    job = write_job(folder, demo_photos())
    result = run_job(job, ranks=4, options=["--epochs=2"], overrides=["loader.threads=3"], env=env)
    assert result.code == 0, result.log
    result.report["splits"]["train"]["order_hash"]

ranks=0 runs the whole job in one process, without mpirun. Data is made once per build folder.
"""

import contextlib
import fcntl
import json
import os
import random
import resource
import shutil
import socket
import sys

import leftovers

BUILD = os.environ.get("PENSTOCK_BUILD") or os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "release")
PENSTOCK = os.path.join(BUILD, "penstock")
FULL = os.environ.get("PENSTOCK_FULL") == "1"  # the whole matrix instead of a covering subset

_JOB = """\
seed: 3
{roles}loader: {{threads: 2, memory_gb: 0.25}}
trainer: {{timeout_s: 30, grace_s: 2}}
splits:
  train:
    mode: train
    dataset: {{folder: {train}}}
    pipeline:
      - RandomResizedCrop: {{size: 64}}
      - RandomHorizontalFlip: {{}}
      - ToDtype: {{dtype: float32, scale: true}}
      - Normalize: {{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}
    sampler: {{shuffle: true}}
    batch_size: {batch}
    tail: pad
  val:
    mode: eval
    dataset: {{folder: {val}}}
    pipeline:
      - Resize: {{size: 72}}
      - CenterCrop: {{size: 64}}
      - ToDtype: {{dtype: float32, scale: true}}
      - Normalize: {{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}
    batch_size: {batch}
    tail: pad
"""


def skip_without_mpirun():
    if shutil.which("mpirun") is None:
        print("SKIP: no mpirun in PATH")
        sys.exit(77)


def free_port():
    """A TCP port that nobody listens at, from below those that the kernel gives to whoever asks for any."""
    for number in random.SystemRandom().sample(range(20_000, 32_768), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", number))
            return number
    raise AssertionError("of 100 TCP ports none is free")


def demo_photos(count=80, val_count=26, classes=4, seed=5):
    """A folder with train/ and val/, made by `penstock demo-data` the first time somebody asks."""
    top = os.path.join(BUILD, "tests", "demo_photos")
    os.makedirs(top, exist_ok=True)
    folder = os.path.join(top, f"{count}_{val_count}_{classes}_{seed}")
    with open(folder + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run at the same time
        if not os.path.exists(folder + ".made"):
            result = leftovers.run([PENSTOCK, "demo-data", folder, f"--count={count}", f"--val-count={val_count}",
                                    f"--classes={classes}", f"--seed={seed}"], timeout=120)
            assert result.returncode == 0, result.stderr
            open(folder + ".made", "w").close()
    return folder


def small_pictures(folder, count=80, val_count=26):
    """As many pictures as demo_photos has, of a few pixels: where processes are looked at, most of a job's time would be decoding."""
    for split, number_of in (("train", count), ("val", val_count)):
        for number in range(number_of):
            cls = os.path.join(folder, split, f"class{number % 4}")
            os.makedirs(cls, exist_ok=True)
            with open(os.path.join(cls, f"{number:04}.ppm"), "wb") as file:
                file.write(b"P6 40 30 255\n" + bytes((number * 7 + i * i) % 251 for i in range(40 * 30 * 3)))
    return folder


def write_job(folder, photos, trainers=2, batch=16, name="job.yaml"):
    """The job file used by most tests: 80 and 26 pictures give 3 and 1 steps at a global batch of 32. Without `trainers`
    nothing is said of roles."""
    path = os.path.join(folder, name)
    roles = f"roles: {{trainers: {trainers}}}\n" if trainers else ""
    with open(path, "w") as file:
        file.write(_JOB.format(roles=roles, batch=batch, train=json.dumps(os.path.join(photos, "train")),
                               val=json.dumps(os.path.join(photos, "val"))))
    return path


# What launch's last line says of a rank that got SIGKILL: the signal, if mpirun was slower to collect its status.
KILLED = r"(killed by SIGKILL|killed, or cut off with its host): "


def hold_file(folder):
    """The path of a file that keeps programs whose OUT.json is in this folder from their last epoch until it is removed
    (multirank/patterns.cpp)."""
    path = os.path.join(folder, "hold")
    open(path, "w").close()
    return path


def mpirun_words(ranks, mca=()):
    words = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]
    if os.geteuid() == 0:
        words.append("--allow-run-as-root")
    for key, value in mca:
        words += ["--mca", key, value]
    return words


class Result:
    def __init__(self, completed):
        self.code = completed.returncode
        self.stdout = completed.stdout
        self.stderr = completed.stderr

    @property
    def log(self):
        return f"exit code {self.code}\n--- stdout\n{self.stdout[-3000:]}\n--- stderr\n{self.stderr[-6000:]}"

    @property
    def report(self):
        """The one JSON object of --json: the last line of stdout."""
        assert self.code == 0, self.log
        return json.loads(self.stdout.strip().splitlines()[-1])

    def hashes(self):
        return hashes_of(self.report)


def hashes_of(report):
    return {name: (split["order_hash"], split["pixel_hash"]) for name, split in report["splits"].items()}


def run_words(job, ranks=0, options=(), overrides=(), program=(), mca=()):
    words = mpirun_words(ranks, mca) if ranks else []
    words += [PENSTOCK, "run", job, *options, *overrides]
    return words + (["--", *program] if program else [])


def run_job(job, ranks=0, options=(), overrides=(), program=(), mca=(), env=None, timeout=60, **kwargs):
    options = ["--json", "--quiet", *options]
    return Result(leftovers.run(run_words(job, ranks, options, overrides, program, mca), timeout, env=env, **kwargs))


def left_to_full(stays):
    """Marks a test that `tests/run.sh` leaves to `--full`; `stays` says what checks the same without it. tests/README.md lists them."""
    def mark(test):
        test.stays = stays
        return test
    return mark


def _cpu_s():
    """Of this process and the children that it has waited for."""
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def run_tests(module_globals):
    """Runs every test_* function of a script, or those named on its command line. One that stands says where, now and then."""
    import faulthandler
    import time
    chosen = sys.argv[1:]
    tests = [(name, test) for name, test in module_globals.items() if name.startswith("test_")]
    unknown = set(chosen) - {name for name, _ in tests}
    assert not unknown and tests, f"no such test: {unknown}"
    for name, test in tests:
        if chosen and name not in chosen:
            continue
        if not (FULL or chosen) and hasattr(test, "stays"):
            print(f"left to --full: {name}")
            continue
        start, cpu_start = time.monotonic(), _cpu_s()
        faulthandler.dump_traceback_later(60, repeat=True)
        test()
        faulthandler.cancel_dump_traceback_later()
        print(f"ok {name} {time.monotonic() - start:.1f} s, {_cpu_s() - cpu_start:.1f} s of CPU time", flush=True)
