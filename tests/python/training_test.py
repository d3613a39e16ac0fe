"""examples/train_ddp.py: the losses are equal to the last digit, whoever loads, and over a checkpoint."""

import os
import subprocess
import sys
import tempfile

from forked import Child
from jobs import FULL, PENSTOCK, demo_photos, free_port, mpirun_words, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers, run
from photos import WORK

skip_without_mpirun()
try:
    import torch
except ImportError as problem:
    print(f"SKIP: {problem}")
    sys.exit(77)

PROGRAM = os.path.join(os.environ["PENSTOCK_SOURCE"], "examples", "train_ddp.py")
job = write_job(WORK, demo_photos(), trainers=2, name="train.yaml")
# One thread: sums of floats in one order.
FIXED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
torch.set_num_threads(1)  # of forked trainers, too


def losses(text):
    return [line for line in text.splitlines() if line.startswith("epoch ")]


def by_themselves(*words, job=job, world=2):
    """Trainers as torchrun would start them, each loading in threads of its own."""
    port = str(free_port())
    sys.stdout.flush()
    with no_leftovers() as env:
        trainers = []
        for rank in range(world):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port}
            environment = {**env, **FIXED, **place}
            trainers.append(subprocess.Popen([sys.executable, PROGRAM, job, *words], env=environment, stdout=subprocess.PIPE,
                                             stderr=subprocess.PIPE, text=True) if FULL else
                            Child([sys.executable, PROGRAM, job, *words], environment))
        ends = [trainer.communicate(timeout=60) for trainer in trainers]
        assert all(trainer.returncode == 0 for trainer in trainers), ends
        assert all(losses(end[0]) == [] for end in ends[1:])
        return losses(ends[0][0])


def under_mpirun(*words, job=job, ranks=4):
    with no_leftovers() as env:
        done = run([*mpirun_words(ranks), PENSTOCK, "run", job, "--quiet", "--", sys.executable, PROGRAM, job, *words], 60,
                   env={**env, **FIXED})
    assert done.returncode == 0, done.stderr
    return losses(done.stdout)


def test_the_same_losses_whoever_loads():
    expected = by_themselves()
    assert len(expected) == 6 and len(set(expected)) == 6, expected  # 80 pictures, 2 x 16 a step, 2 epochs
    if FULL:
        assert under_mpirun() == expected
    else:  # one trainer under mpirun, as each of them imports torch
        alone = write_job(WORK, demo_photos(), trainers=1, name="alone.yaml")
        expected = by_themselves("--epochs=1", job=alone, world=1)
        assert len(set(expected)) == 5 and under_mpirun("--epochs=1", job=alone, ranks=2) == expected, expected


def test_a_checkpoint_goes_on_where_it_stopped():
    if not FULL:
        print("a checkpoint, begun alone and ended under mpirun: with PENSTOCK_FULL=1 only")
        return
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        words = ("--checkpoint", os.path.join(folder, "checkpoint.pt"))
        first = by_themselves("--epochs", "1", *words)
        assert first + under_mpirun("--epochs", "3", *words) == by_themselves("--epochs", "3")


if __name__ == "__main__":
    run_tests(globals())
