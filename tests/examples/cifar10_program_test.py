"""examples/cifar10: the same losses to the last digit whoever loads (with one loader with PENSTOCK_FULL=1), a checkpoint in mid-epoch, and what goes wrong said plainly.
With PENSTOCK_FULL=1 also on the exact subset of ../shared/data, where it learns, and by DataParallel and DistributedDataParallel."""

import os
import re

import numpy

from jobs import FULL, left_to_full, run_tests
from programs import EXAMPLES, WORK, Program, equal, losses, weights

import torch

REAL = os.path.join(os.environ["PENSTOCK_SOURCE"], "..", "shared", "data", "cifar10")
JOB = os.path.join(EXAMPLES, "cifar10", "job.yaml")
data = os.path.join(WORK, "cifar")

program = Program("cifar10", "train.py", JOB)
QUICK = ("--data", data, "--image-size", "16", "--batch-size", "8")
PLACE = [f"splits.{split}.dataset.cifar10={data}" for split in ("train", "test")]


def make_data():
    """40 pictures to train on and 16 to test: each class has its colour, and noise."""
    os.makedirs(data, exist_ok=True)
    random = numpy.random.default_rng(1)
    for name, count in [(f"data_batch_{i}.bin", 8) for i in range(1, 6)] + [("test_batch.bin", 16)]:
        with open(os.path.join(data, name), "wb") as file:
            for _ in range(count):
                label = int(random.integers(10))
                pixels = random.integers(0, 120, (3, 32, 32), dtype=numpy.uint8) + numpy.uint8(13 * label)
                file.write(bytes([label]) + pixels.tobytes())


def test_the_same_losses_embedded_and_with_one_and_three_loaders():
    words = (*QUICK, "--max-steps", "3")
    embedded = losses(program.alone(*words))
    assert len(embedded) == 3 and len(set(embedded)) == 3, embedded
    for ranks in (2, 4) if FULL else (4,):  # of one trainer
        assert losses(program.launched(ranks, *words, overrides=["roles.trainers=1", *PLACE])) == embedded, ranks


@left_to_full("restoration_program_test resumes in mid-epoch always")
def test_a_checkpoint_in_mid_epoch_leads_to_the_same_weights():
    whole, parts = os.path.join(WORK, "whole"), os.path.join(WORK, "parts")
    said = program.alone(*QUICK, "--epochs", "2", "--output", whole)
    assert re.search(r"^epoch 1 : train accuracy 0\.\d+ test accuracy [01]\.\d+ ", said, re.M) and "best test accuracy" in said, said
    program.alone(*QUICK, "--epochs", "2", "--max-steps", "5", "--output", parts)  # an epoch's steps, but not its end
    program.alone(*QUICK, "--epochs", "2", "--max-steps", "2", "--resume", "auto", "--output", parts)
    said = program.alone(*QUICK, "--epochs", "2", "--resume", "auto", "--output", parts)
    assert f"goes on from {os.path.join(parts, 'epoch-1.pt')}" in said, said
    assert equal(weights(whole, 1), weights(parts, 1))


def test_what_goes_wrong_is_said():
    other = os.path.join(WORK, "other.pt")
    torch.save({"epoch": 0, "model": {"fc.weight": torch.zeros(3, 512)}, "optimizer": {}, "data": {},
                "torch_rng": torch.get_rng_state(), "more": {"program": "cifar10"}}, other)
    for words, why in ((("--data", os.path.join(WORK, "nowhere")), "nowhere"),
                       ((*QUICK, "--resume", other), "is of another network: it has no bn1.bias"),
                       ((*QUICK, "--set", "splits.train.batch_sizes=3"), "did you mean 'batch_size'"),
                       ((*QUICK, "--output", os.path.join(WORK, "parts")), "has checkpoints already: --resume auto goes on"),
                       ((*QUICK, "--weights", os.path.join(WORK, "none.pt")), "cannot read the checkpoint"))[0 if FULL else 4:]:
        said = program.alone(*words, "--max-steps", "1", code=1)
        assert why in said, (words, said)


def test_all_of_it_on_real_pictures():
    if not FULL or not os.path.isdir(REAL):
        print("learning on the exact subset, DataParallel and two trainers: with PENSTOCK_FULL=1 and ../shared/data only")
        return
    words = ("--data", REAL, "--batch-size", "64", "--epochs", "3", "--lr", "0.05")
    said = program.alone(*words, "--output", os.path.join(WORK, "real"), limit_s=1500)
    accuracies = [float(found) for found in re.findall(r"test accuracy (0\.\d+)", said)]
    assert accuracies[-1] > 0.3 and accuracies[-1] > accuracies[0], said
    quick = ("--data", REAL, "--image-size", "16", "--batch-size", "8", "--max-steps", "4")
    base = losses(program.alone(*quick))
    assert losses(program.alone(*quick, "--parallel", "dp")) == base
    two = losses(program.several(2, *quick))
    assert len(two) == 4 and two != base, two
    assert losses(program.alone(*quick, "--spawn", "2")) == two
    place = [f"splits.{split}.dataset.cifar10={REAL}" for split in ("train", "test")]
    assert losses(program.launched(4, *quick, overrides=place)) == two


if __name__ == "__main__":
    make_data()
    run_tests(globals())
