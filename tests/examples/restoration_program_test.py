"""examples/paired_restoration: pairs stay pairs, the same losses whoever loads, resuming, and better pictures after a while."""

import os
import re

import numpy
from PIL import Image, ImageFilter

from jobs import FULL, left_to_full, run_tests
from programs import EXAMPLES, WORK, Program, equal, losses, weights

JOB = os.path.join(EXAMPLES, "paired_restoration", "job.yaml")
REAL = os.path.join(os.environ["PENSTOCK_SOURCE"], "..", "shared", "data", "paired")
PAIRS = os.path.join(WORK, "pairs")
program = Program("paired_restoration", "train.py", JOB)
QUICK = ("--data", PAIRS, "--image-size", "32", "--batch-size", "3")
PLACE = [f"splits.{split}.dataset.{key}={os.path.join(PAIRS, split, folder)}" for split in ("train", "test")
         for key, folder in (("images", "blurry"), ("targets", "sharp"))]


def make_pairs():
    """Blocks of colour, and the same blurred: 11 to train on, so that the last batch has 2, and 5 to test."""
    random = numpy.random.default_rng(2)
    for split, count in (("train", 11), ("test", 5)):
        for i in range(count):
            sharp = Image.fromarray(random.integers(0, 255, (6, 8, 3), dtype=numpy.uint8)).resize((64, 48), Image.NEAREST)
            for folder, picture in (("sharp", sharp), ("blurry", sharp.filter(ImageFilter.GaussianBlur(2)))):
                path = os.path.join(PAIRS, split, folder, "sub", f"{i}.png")
                os.makedirs(os.path.dirname(path), exist_ok=True)
                picture.save(path)


def test_it_learns_and_a_resumed_run_has_the_same_weights():
    whole, parts = os.path.join(WORK, "whole"), os.path.join(WORK, "parts")
    said = program.alone(*QUICK, "--epochs", "6", "--lr", "0.003", "--output", whole)
    found = [(float(after), float(before)) for after, before in re.findall(r"PSNR ([\d.]+) dB \(of the blurry pictures ([\d.]+)\)", said)]
    assert len(found) == 6 and found[-1][0] > found[0][0] and found[-1][0] > found[-1][1], said
    assert sorted(os.listdir(os.path.join(whole, "samples")))[:2] == ["epoch-0-0.png", "epoch-0-1.png"]
    assert Image.open(os.path.join(whole, "samples", "epoch-5-0.png")).size == (96, 32)
    program.alone(*QUICK, "--epochs", "6", "--lr", "0.003", "--max-steps", "6", "--output", parts)  # four an epoch
    program.alone(*QUICK, "--epochs", "6", "--lr", "0.003", "--resume", "auto", "--output", parts)
    assert equal(weights(whole, 5), weights(parts, 5))


@left_to_full("cifar10_program_test: one trainer, fed by three loaders; training_test: two")
def test_the_same_losses_whoever_loads():
    words = (*QUICK, "--max-steps", "2")
    two = losses(program.several(2, *words))
    assert len(two) == 2 and losses(program.launched(4, *words, overrides=PLACE)) == two
    base = losses(program.alone(*words))
    assert base != two and losses(program.alone(*words, "--parallel", "dp")) == base
    assert len(losses(program.alone(*words, "--amp", "True"))) == 2


def test_what_goes_wrong_is_said():
    said = program.alone("--data", os.path.join(WORK, "nowhere"), code=1)
    assert os.path.join(WORK, "nowhere", "train", "blurry") in said, said
    os.rename(os.path.join(PAIRS, "test", "sharp", "sub", "4.png"), os.path.join(PAIRS, "4.png"))
    said = program.alone(*QUICK, "--epochs", "1", code=1)
    os.rename(os.path.join(PAIRS, "4.png"), os.path.join(PAIRS, "test", "sharp", "sub", "4.png"))
    assert "sub/4" in said and os.path.join("test", "sharp") in said, said


def test_real_pairs():
    if not FULL or not os.path.isdir(REAL):
        print("real pairs: with PENSTOCK_FULL=1 and ../shared/data only")
        return
    said = program.alone("--data", REAL, "--image-size", "64", "--epochs", "4", "--output", os.path.join(WORK, "real"), limit_s=900)
    found = [(float(after), float(before)) for after, before in re.findall(r"PSNR ([\d.]+) dB \(of the blurry pictures ([\d.]+)\)", said)]
    # Pairs that were no pairs would have some 10 dB. 40 of them teach it nothing yet, and spoil nothing.
    assert abs(found[-1][1] - 31.09) < 0.05 and found[-1][0] > found[-1][1] - 0.1, said


if __name__ == "__main__":
    make_pairs()
    run_tests(globals())
