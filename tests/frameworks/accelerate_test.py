"""Accelerate: penstock.accelerate.prepare and accelerator.prepare, alone and with two processes under mpirun; gradient
accumulation, save_state in mid-epoch, and what is refused."""

import os
import tempfile
import types

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from jobs import run_tests, skip_without_mpirun, write_job
from photos import JOB, PHOTOS, WORK, digest, raises
from trainers import seen_by

import penstock
import penstock.accelerate

skip_without_mpirun()
PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "accelerate_program.py")
ALONE = write_job(WORK, PHOTOS, trainers=1, name="alone.yaml")
TWO = write_job(WORK, PHOTOS, trainers=2, name="two.yaml")


def program(job, folder, *words, ranks=0):
    return seen_by(PROGRAM, job, folder, *words, ranks=ranks, timeout=100)


def stream(job, replicas=1, rank=0):
    with penstock.DataLoader(job, split="train", num_replicas=replicas, rank=rank) as loader:
        return [[epoch, digest(batch[0])] for epoch in range(2) for batch in loader]


def labels(job, replicas=1):
    """Of the val split, as gathered from the ranks, batch for batch."""
    parts = []
    for rank in range(replicas):
        with penstock.DataLoader(job, split="val", num_replicas=replicas, rank=rank) as loader:
            parts.append([batch[1].tolist() for batch in loader])
    return [sum(step, []) for step in zip(*parts)]


def test_alone():
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        (whole,) = program(ALONE, folder, "--accumulate=2", "--save-after=2")
        assert [one[:2] for one in whole["seen"]] == stream(ALONE)
        # 5 batches an epoch: the last one ends its window, and the next epoch begins a window of its own.
        assert [one[2] for one in whole["seen"]] == [False, True, False, True, True] * 2
        assert whole["labels"] == labels(ALONE)
        (rest,) = program(ALONE, folder, "--accumulate=2", "--load")
        assert rest["seen"] == whole["seen"][2:]  # losses to the last digit
        (raw,) = program(ALONE, folder, "--accumulate=2", "--raw")
        assert [one[:2] for one in raw["seen"]] == stream(ALONE)
        assert [one[2] for one in raw["seen"]] == [False, True] * 5  # a window reaches into the next epoch


def test_two_processes_under_mpirun():
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        whole = program(TWO, folder, "--accumulate=2", "--save-after=4", ranks=4)
        for rank, one in enumerate(whole):
            assert (one["processes"], one["embedded"]) == (2, False)
            assert [step[:2] for step in one["seen"]] == stream(TWO, 2, rank)
            assert [step[2] for step in one["seen"]] == [False, True, True] * 2
            assert one["labels"] == labels(TWO, 2)
        rest = program(TWO, folder, "--load", "--accumulate=2", ranks=4)
        assert [[step[:2] for step in one["seen"]] for one in rest] == [
            [step[:2] for step in one["seen"][4:]] for one in whole]
        raw = program(TWO, folder, "--raw", ranks=4)
        assert [[step[:2] for step in one["seen"]] for one in raw] == [stream(TWO, 2, rank) for rank in range(2)]


def fresh(**options):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    return Accelerator(cpu=True, **options)


def test_refusals():
    with penstock.DataLoader(JOB, split="train") as train:
        for config in ({"dispatch_batches": True}, {"split_batches": True}):
            accelerator = fresh(dataloader_config=DataLoaderConfiguration(**config))
            raises(penstock.UsageError, lambda: penstock.accelerate.prepare(accelerator, train), *config)
        raises(penstock.UsageError, lambda: penstock.accelerate.prepare(fresh(), [1, 2]), "list", "accelerator.prepare")
        two = types.SimpleNamespace(num_processes=2, process_index=1, device_placement=True, device="cpu")
        raises(penstock.UsageError, lambda: penstock.accelerate.prepare(two, train), "replica 0 of 1", "process 1 of 2")
    with penstock.DataLoader(JOB, split="train", num_replicas=2, rank=0) as train:
        raises(penstock.UsageError, lambda: penstock.accelerate.prepare(two, train), "replica 0 of 2", "process 1 of 2")
        raises(penstock.UsageError, lambda: penstock.accelerate.prepare(fresh(), train), "process 0 of 1", "cpu=True")
    with penstock.DataLoader(JOB, split="train", output="numpy") as train:  # the CPU's are as good as torch's
        images, _ = next(iter(penstock.accelerate.prepare(fresh(), train)))
        assert type(images).__name__ == "ndarray"


def test_batches_are_moved_and_still_described():
    with penstock.DataLoader(JOB, split="train") as train:
        train._move_to("meta")  # a device that every torch has
        batch = next(iter(train))
        assert batch[0].device.type == "meta" and batch.step == 0 and batch.num_valid == 16


def test_a_wrapped_loader():
    """What Accelerate has prepared may be wrapped; with prefetch=0 it still says when the epoch ends."""
    import wrap_test
    accelerator = fresh()
    shard = accelerator.prepare(wrap_test.torch_loader("train", shuffle=True, num_workers=2))
    wrapped = penstock.wrap(shard, wrap_test.JOB, split="train", prefetch=0, device=accelerator.device)
    raises(penstock.UsageError, lambda: penstock.accelerate.prepare(accelerator, wrapped), "WrappedLoader", "prefetch=0")
    ends, batches = [], []
    for batch in wrapped:
        ends.append(accelerator.gradient_state.end_of_dataloader)
        batches.append(batch)
    assert wrap_test.check_same(batches, wrap_test.own("train", 0)) == 80 and ends == [False] * 4 + [True]


def test_breaking_off_and_passes_within_passes():
    accelerator = fresh(gradient_accumulation_steps=2)
    with penstock.DataLoader(JOB, split="train") as train, penstock.DataLoader(JOB, split="val") as val:
        train, val = (penstock.accelerate.prepare(accelerator, one) for one in (train, val))
        ends = []
        for step, _ in enumerate(train):
            if step == 1:
                for _ in val:
                    break
                assert not accelerator.gradient_state.end_of_dataloader
                assert [accelerator.gradient_state.end_of_dataloader for _ in val] == [False, True]
            ends.append(accelerator.gradient_state.end_of_dataloader)
        assert ends == [False] * 4 + [True]
        assert accelerator.gradient_state.active_dataloader is None
        assert len(train) == 5 and train.num_samples == 80 and "PreparedLoader" in repr(train)
        train.set_epoch(0)
        state = train.state_dict()
        for _ in train:
            break
        train.load_state_dict(state)
        assert sum(1 for _ in train) == 5
        assert torch.utils.data.DataLoader not in type(train).__mro__


if __name__ == "__main__":
    run_tests(globals())
