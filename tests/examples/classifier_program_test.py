"""examples/classifier: each of its settings trains, stages freeze what they say, runs are resumed to the same weights, figures are counted
right, and mistakes in settings are named."""

import os
import re
import subprocess
import sys

import torch
from PIL import Image

from jobs import FULL, demo_photos, left_to_full, run_tests
from programs import EXAMPLES, WORK, Program, equal, losses, weights

TOP = os.path.join(EXAMPLES, "classifier")
# 80 of 4 classes or 24 of 3, a fifth of each class to validate with.
PHOTOS, CLASSES, EACH = (os.path.join(demo_photos(), "train"), 4, 4) if FULL else (os.path.join(demo_photos(24, 8, 3), "train"), 3, 2)


class Classifier(Program):
    def output_words(self, folder):
        return "--set", f"output={folder}"


program = Classifier("classifier", "train_model.py", os.path.join(TOP, "job.yaml"))
sys.path[:0] = [EXAMPLES, TOP]
from common.place import Place  # noqa: E402
from evaluator import Counts  # noqa: E402
from settings import read_settings  # noqa: E402

ALONE = Place(0, 1, 0, torch.device("cpu"))
TWO_STAGES = os.path.join(WORK, "two.yaml")
with open(TWO_STAGES, "w") as settings_file:
    settings_file.write(f"""\
include: {TOP}/configs/base.yaml
output: {WORK}/unused
network: {{name: resnet18}}
data: {{folder: {PHOTOS}, image_size: 32, batch_size: 16}}
stages:
  - {{name: head, epochs: 1, freeze: [conv1, bn1, layer1, layer2, layer3, layer4], optimizer: adamw, lr: 0.001}}
  - {{name: all, epochs: {2 if FULL else 1}, lr: [0.01, 0.001]}}
""")


def output(name):
    return f"output={os.path.join(WORK, name)}"


def test_stages_a_resumed_run_and_its_evaluation():
    said = program.alone("train", TWO_STAGES, "--set", output("whole"))
    epochs = [("0", "head"), ("1", "all"), ("2", "all")][:3 if FULL else 2]
    assert re.findall(rf"^epoch (\d) \((\w+)\) : loss \S+ top-1 \S+ of {CLASSES * EACH} pictures$", said, re.M) == epochs, said
    assert "stage head: 1 epochs, 60 parameters frozen" in said, said
    assert f"stage all: {len(epochs) - 1} epochs, 0 parameters frozen" in said, said
    whole = os.path.join(WORK, "whole")
    assert {"best.pt", "rank-0.log", *(f"epoch-{epoch}.pt" for epoch, _ in epochs)} <= set(os.listdir(whole))
    first, last = weights(whole, 0), weights(whole, len(epochs) - 1)
    assert not torch.equal(first["conv1.weight"], last["conv1.weight"])
    if FULL:
        program.alone("train", TWO_STAGES, "--set", output("parts"), "--max-steps", "6")  # four an epoch: within the second stage
        said = program.alone("train", TWO_STAGES, "--set", output("parts"), "--resume", "auto")
        assert "goes on from" in said
        assert equal(last, weights(os.path.join(WORK, "parts"), 2))
        # Dropout draws where it stopped.
        net = ("--set", "network.name=mobilenet_v3_small")
        program.alone("train", TWO_STAGES, *net, "--set", "stages.0.freeze=[]", "--set", output("drop"))
        program.alone("train", TWO_STAGES, *net, "--set", "stages.0.freeze=[]", "--set", output("drops"), "--max-steps", "6")
        program.alone("train", TWO_STAGES, *net, "--set", "stages.0.freeze=[]", "--set", output("drops"), "--resume", "auto")
        assert equal(weights(os.path.join(WORK, "drop"), 2), weights(os.path.join(WORK, "drops"), 2))
    said = program.alone("evaluate", TWO_STAGES, "--set", output("whole"))
    assert len(re.findall(rf"^\S+: precision [01]\.\d+ recall [01]\.\d+ of {EACH}$", said, re.M)) == CLASSES, said
    assert Image.open(os.path.join(whole, "confusion.png")).size[0] > 200


@left_to_full("cifar10_program_test: one trainer, fed by three loaders; training_test: two")
def test_the_same_losses_whoever_loads():
    words = ("train", TWO_STAGES, "--max-steps", "2")
    two = losses(program.several(2, *words))
    place = [f"splits.{split}.dataset.folder={PHOTOS}" for split in ("train", "val")]
    assert len(two) == 2 and losses(program.launched(4, *words, overrides=place)) == two


def test_each_settings_file_trains():
    files = sorted(name for name in os.listdir(os.path.join(TOP, "configs")) if name != "base.yaml")
    assert len(files) == 3, files
    for name in files if FULL else files[:1]:
        said = program.alone("train", os.path.join(TOP, "configs", name), "--max-steps", "1", "--set", f"data.folder={PHOTOS}", "--set",
                             "data.image_size=32")
        assert len(losses(said)) == 1, said


@left_to_full("test_stages_a_resumed_run_and_its_evaluation: a folder")
def test_lists_are_a_data_set_too():
    lists = os.path.join(WORK, "lists")
    said = program.alone("lists", PHOTOS, "--out", lists, "--val-share", "0.25")
    assert "of 4 classes" in said
    said = program.alone("train", TWO_STAGES, "--set", f"data.lists={lists}", "--set", "data.folder=", "--set",
                        f"data.job={TOP}/lists.yaml", "--set", "stages.1.epochs=0")
    assert re.search(r"of 20 pictures$", said, re.M), said


def test_figures_are_counted():
    counts = Counts(["a", "b", "c"], top_k=(1, 2, 5))
    scores = torch.tensor([[3., 2, 1], [3, 2, 1], [1, 2, 3], [1, 3, 2], [9, 9, 9]])
    counts.add(scores, torch.tensor([0, 1, 2, 2, -100]))
    counts.sum_over(ALONE)
    assert counts.top_k == [1, 2] and counts.total == 4 and counts.accuracy(1) == 0.5 and counts.accuracy(2) == 1.0
    assert counts.precision_and_recall() == [("a", 0.5, 1.0, 1), ("b", 0.0, 0.0, 1), ("c", 1.0, 0.5, 2)]


def test_mistakes_are_named():
    def complaint(text, *changes):
        path = os.path.join(WORK, "wrong.yaml")
        with open(path, "w") as file:
            file.write(text)
        try:
            read_settings(path, changes)
        except SystemExit as problem:
            return str(problem)
        raise AssertionError(f"accepted: {text}")

    good = f"include: {TWO_STAGES}\n"
    for text, changes, why in ((good + "netwrok: {}\n", (), "'netwrok' is not known; there are data, evaluate"),
                               (good + "loss: {name: 3}\n", (), "'loss.name' is 3, and should be of kind str"),
                               (good + "stages: [{name: x}]\n", (), "'stages.0.epochs' is missing"),
                               (good, ("stages.7.epochs=2",), "there is no such place"),
                               ("include: wrong.yaml\n", (), "includes itself"),
                               ("include: nowhere.yaml\n", (), "nowhere.yaml"),
                               ("[1, 2]\n", (), "expected keys and values")):
        assert why in complaint(text, *changes), (text, complaint(text, *changes))
    said = program.alone("train", TWO_STAGES, "--set", "network.name=resnet19", code=1)
    assert "torchvision has no 'resnet19'" in said, said


@left_to_full("test_stages_a_resumed_run_and_its_evaluation: the programs that the scripts start")
def test_the_scripts():
    from jobs import PENSTOCK
    env = {**os.environ, "PATH": f"{os.path.dirname(PENSTOCK)}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    for words in (["test_datasets.sh", PHOTOS], ["train_with_ddp.sh", PHOTOS, TWO_STAGES, "--max-steps", "1", "--set", output("script")]):
        done = subprocess.run([os.path.join(TOP, "scripts", words[0]), *words[1:]], cwd=WORK, env=env, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done


if __name__ == "__main__":
    run_tests(globals())
