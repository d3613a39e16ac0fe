"""Lightning: Trainer.fit with penstock's loaders, alone and as DDP under mpirun and torchrun; sanity check, validation in
mid-epoch, gradient accumulation, checkpoints and going on from them in mid-epoch."""

import os
import tempfile

from jobs import run_tests, skip_without_mpirun, write_job
from photos import PHOTOS, WORK, digest
from trainers import seen_by

import penstock

skip_without_mpirun()
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lightning_program.py")
ALONE = write_job(WORK, PHOTOS, trainers=1, name="alone.yaml")
TWO = write_job(WORK, PHOTOS, trainers=2, name="two.yaml")


def fit(job, folder, *words, **start):
    """What each trainer wrote down: [{"seen": [[what, epoch, step, digest, loss], …], "state": …}, …]"""
    return seen_by(PROGRAM, job, folder, *words, **start)


def stream(job, split, epoch, replicas=1, rank=0):
    with penstock.DataLoader(job, split=split, num_replicas=replicas, rank=rank) as loader:
        loader.set_epoch(epoch)
        return [digest(batch[0]) for batch in loader]


def expected(job, epochs, replicas=1, rank=0):
    """(what, epoch, digest) of a run with validation after every second batch."""
    val = stream(job, "val", 0, replicas, rank)
    out = [("sanity", 0, val[0])]
    for epoch in range(epochs):
        for number, batch in enumerate(stream(job, "train", epoch, replicas, rank), start=1):
            out.append(("train", epoch, batch))
            if number % 2 == 0:
                out += [("val", epoch, one) for one in val]
    return out


def data(seen):
    return [(what, epoch, batch) for what, epoch, _, batch, _ in seen]


def test_alone_and_over_checkpoints():
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        (whole,) = fit(ALONE, folder, "--checkpoints")
        assert data(whole["seen"]) == expected(ALONE, 2)
        assert whole["place"] == [1, 0, True]
        for step in (3, 5, 8):  # in mid-epoch, at an epoch's end, after a validation in the second epoch
            (rest,) = fit(ALONE, folder, f"--resume={os.path.join(folder, f'step={step}.ckpt')}")
            trained = [one for one in rest["seen"] if one[0] == "train"]
            # Losses to the last digit: data, weights and their order are those of the uninterrupted run.
            assert trained == [one for one in whole["seen"] if one[0] == "train"][step:], step
            assert rest["state"] == whole["state"]


def test_two_trainers_under_mpirun():
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        whole = fit(TWO, folder, "--checkpoints", "--accumulate=2", ranks=4)
        assert [one["place"] for one in whole] == [[2, 0, False], [2, 1, False]]
        for rank, one in enumerate(whole):
            assert data(one["seen"]) == expected(TWO, 2, 2, rank), rank
        assert whole[0]["state"] == whole[1]["state"]
        # 3 batches an epoch and 2 of them a step: step 2 ends the first epoch, step 3 is in the second.
        rest = fit(TWO, folder, "--accumulate=2", f"--resume={os.path.join(folder, 'step=3.ckpt')}", ranks=4)
        for mine, theirs in zip(rest, whole):
            trained = [one for one in theirs["seen"] if one[0] == "train"]
            assert [one for one in mine["seen"] if one[0] == "train"] == trained[5:]


def test_two_trainers_under_torchrun():
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        both = fit(TWO, folder, torchrun=2)
        assert [one["place"] for one in both] == [[2, 0, True], [2, 1, True]]
        for rank, one in enumerate(both):
            assert data(one["seen"]) == expected(TWO, 2, 2, rank), rank


if __name__ == "__main__":
    run_tests(globals())
