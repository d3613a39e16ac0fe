"""examples/imagefolder_ddp: one folder in two parts, the same losses whoever loads, resuming, predictions, complaints."""

import os
import re
import sys

import torch

from jobs import FULL, demo_photos, left_to_full, run_tests
from leftovers import no_leftovers
from programs import EXAMPLES, WORK, Program, equal, losses, weights

JOB = os.path.join(EXAMPLES, "imagefolder_ddp", "job.yaml")
PHOTOS = os.path.join(demo_photos(), "train")  # 80 of 4 classes
program = Program("imagefolder_ddp", "train.py", JOB)
QUICK = ("--data-path", PHOTOS, "--image-size", "32", "--batch-size", "8")
PLACE = [f"splits.{split}.dataset.folder={PHOTOS}" for split in ("train", "val")]


def output(name):
    return os.path.join(WORK, name)


def predict(*words, code=0):
    with no_leftovers() as env:
        return program._end([sys.executable, os.path.join(EXAMPLES, "imagefolder_ddp", "predict.py"), *words], 60, code, env)


def test_a_run_is_resumed_to_the_same_weights_and_predicts():
    whole, parts = output("whole"), output("parts")
    epochs = 2 if FULL else 1
    said = program.alone(*QUICK, "--epochs", str(epochs), "--num_classes", "4", "--output", whole)
    found = re.findall(r"^epoch \d : loss \S+ validation accuracy \S+ loss \S+ of (\d+) pictures$", said, re.M)
    assert found == ["16"] * epochs, said  # a fifth of each class
    if FULL:
        program.alone(*QUICK, "--epochs", "2", "--max-steps", "8", "--output", parts)  # an epoch's steps, but not its end
        program.alone(*QUICK, "--epochs", "2", "--resume", "auto", "--output", parts)
        assert equal(weights(whole, 1), weights(parts, 1))
    broken = output("broken.jpg")
    with open(broken, "w") as file:
        file.write("no picture")
    checkpoint = os.path.join(whole, f"epoch-{epochs - 1}.pt")
    classes = sorted(os.listdir(PHOTOS))
    said = predict(checkpoint, os.path.join(PHOTOS, classes[0]))
    lines = said.splitlines()
    assert len(lines) == len(os.listdir(os.path.join(PHOTOS, classes[0]))), said
    assert all(sum(name in line for name in classes) >= 3 for line in lines), lines
    assert "broken.jpg: no usable picture: " in predict(checkpoint, broken, code=1)


@left_to_full("cifar10_program_test: one trainer, fed by three loaders; training_test: two")
def test_the_same_losses_of_two_trainers_that_load_and_that_are_fed():
    words = (*QUICK, "--max-steps", "2")
    embedded = losses(program.several(2, *words))
    assert len(embedded) == 2, embedded
    assert losses(program.launched(4, *words, overrides=PLACE)) == embedded
    if int(torch.__version__.split(".")[0]) >= 2:  # 1.13's own torchrun does not run on Python 3.11
        assert losses(program.by_torchrun(2, *words)) == embedded
    slurm = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS")
    os.environ["SLURM_STEP_ID"] = "0"  # as srun says it to its tasks
    assert losses(program.several(2, *words, names=slurm)) == embedded
    del os.environ["SLURM_STEP_ID"]


def test_what_goes_wrong_is_said():
    for words, why in (((*QUICK, "--num_classes", "5"), "--num_classes 5, and the data have 4: "),
                       ((*QUICK, "--syncBN", "True"), "SyncBatchNorm needs GPUs"),
                       ((*QUICK, "--world-size", "2"), "--world-size 2, and 1 processes were started"),
                       ((*QUICK, "--freeze-layers", "maybe"), "'maybe' is neither true nor false"),
                       ((*QUICK, "--lr", "1e30"), "the loss is nan"))[:5 if FULL else 1]:
        said = program.alone(*words, "--max-steps", "3", code=2 if "maybe" in words else 1)
        assert why in said, (words, said)


@left_to_full("test_a_run_is_resumed_to_the_same_weights_and_predicts: no freezing, mixing, or mixed precision")
def test_the_switches():
    frozen = output("frozen")
    program.alone(*QUICK, "--max-steps", "2", "--freeze-layers", "True", "--output", frozen)
    pretrained = os.path.join(frozen, "epoch-0.pt")
    said = program.alone(*QUICK, "--max-steps", "2", "--freeze-layers", "False", "--weights", pretrained)
    assert re.search(r"(\d+) of \1 weights from", said), said
    for words in (("--mix", "MixUp", "--num_classes", "4"), ("--mix", "CutMix", "--num_classes", "4"), ("--amp", "True")):
        assert len(losses(program.alone(*QUICK, *words, "--max-steps", "2"))) == 2, words


if __name__ == "__main__":
    run_tests(globals())
