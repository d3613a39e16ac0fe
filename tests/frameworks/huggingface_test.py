"""examples/train_huggingface.py: every sample once an epoch, finite losses, alone and under mpirun; accumulation of more
batches than the loader lends, and going on from a checkpoint in mid-epoch."""

import collections
import json
import math
import os
import re
import sys
import tempfile

from jobs import PENSTOCK, mpirun_words, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers, run
from photos import PHOTOS, WORK

skip_without_mpirun()
PROGRAM = os.path.join(os.environ["PENSTOCK_SOURCE"], "examples", "train_huggingface.py")
WATCHED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watched.py")
ALONE = write_job(WORK, PHOTOS, trainers=1, batch=8, name="alone.yaml")
TWO = write_job(WORK, PHOTOS, trainers=2, batch=8, name="two.yaml")  # 80 pictures: 5 steps of 2 x 8, and no padding
FIXED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def train(job, folder, *words, ranks=0, torchrun=False):
    """(losses of the steps, those of the evaluations, what was given: {(split, epoch, step): indices of all ranks})"""
    command = [sys.executable, WATCHED, folder, PROGRAM, job, "--output", os.path.join(folder, "out"), *words]
    if ranks:
        command = [*mpirun_words(ranks), PENSTOCK, "run", job, "--quiet", "--", *command]
    if torchrun:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d",
                   "--rdzv-endpoint=localhost:0", f"--log-dir={folder}", *command[1:]]
    with no_leftovers(wait_s=8) as env:
        done = run(command, 150, env={**env, **FIXED})
    assert done.returncode == 0, done.stderr[-4000:]
    losses, evaluations = (re.findall(rf"{{'{name}': '([^']*)'", done.stdout) for name in ("loss", "eval_loss"))
    assert losses and evaluations and all(math.isfinite(float(one)) for one in losses + evaluations), done.stdout
    given = collections.defaultdict(list)
    for rank in range(2 if ranks or torchrun else 1):
        path = os.path.join(folder, f"{rank}.jsonl")
        with open(path) as file:
            for line in file:
                split, epoch, step, indices = json.loads(line)
                given[split, epoch, step].extend(indices)
        os.remove(path)
    return losses, evaluations, given


def of(given, split, epoch):
    return sorted(index for (one, at, _), indices in given.items() if (one, at) == (split, epoch) for index in indices)


def check_once_an_epoch(given, epochs=2, evaluations=3):
    for epoch in range(epochs):
        assert of(given, "train", epoch) == list(range(80)), epoch
    assert {epoch for split, epoch, _ in given if split == "train"} == set(range(epochs))
    assert of(given, "val", 0) == sorted(list(range(26)) * evaluations)  # after each epoch, and at the end


def test_alone_and_resumed():
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        losses, evaluations, given = train(ALONE, folder, "--save-steps=4")
        check_once_an_epoch(given)
        assert len(losses) == 20 and len(evaluations) == 2
        again, evaluated, rest = train(ALONE, folder, "--resume", os.path.join(folder, "out", "checkpoint-4"))
        assert (again, evaluated) == (losses[4:], evaluations)
        wanted = {key: value for key, value in given.items() if key[0] == "train" and key[1:] >= (0, 4)}
        assert {key: value for key, value in rest.items() if key[0] == "train"} == wanted


def test_accumulation_of_more_batches_than_are_lent():
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        losses, _, given = train(ALONE, folder, "--accumulate=5", "--epochs=2")
        check_once_an_epoch(given)
        assert len(losses) == 4


def test_two_trainers_under_mpirun():
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        losses, evaluations, given = train(TWO, folder, ranks=4)
        check_once_an_epoch(given)
        assert len(losses) == 10 and len(evaluations) == 2
        again, _, rest = train(TWO, folder, "--resume", os.path.join(folder, "out", "checkpoint-5"), ranks=4)
        assert again == losses[5:] and of(rest, "train", 1) == list(range(80)) and of(rest, "train", 0) == []
        same, evaluated, _ = train(TWO, folder, torchrun=True)  # each loads for itself
        assert (same, evaluated) == (losses, evaluations)


if __name__ == "__main__":
    run_tests(globals())
