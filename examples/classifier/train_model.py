"""Trains a classifier as a settings file says: network, stages with their frozen parts and learning rates, what is measured and kept.

    python examples/classifier/train_model.py train examples/classifier/configs/resnet18.yaml --set data.folder=/data/photos
    torchrun --nproc_per_node 2 examples/classifier/train_model.py train CONFIG
    penstock launch --run examples/classifier/job.yaml -n 4 -- python examples/classifier/train_model.py train CONFIG
    python examples/classifier/train_model.py evaluate CONFIG --checkpoint RUN/best.pt
    python examples/classifier/train_model.py lists /data/photos --out lists --val-share 0.2

One file is one experiment; `include:` takes what several have in common.
"""

import argparse
import fnmatch
import math
import os
import random
import shutil
import sys
import time

import torch
import torchvision
from torch import nn

import penstock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]
from common import checkpoint, log  # noqa: E402
from common.flags import plainly, positive  # noqa: E402
from common.place import in_parallel, joined, mean_over_ranks  # noqa: E402
from evaluator import Counts  # noqa: E402
from settings import read_settings  # noqa: E402


PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class Log:
    """A line with the time, the rank and what was said: rank 0's on the terminal, everybody's in a file of their own."""

    def __init__(self, folder, place):
        os.makedirs(folder, exist_ok=True)
        self._first, self._rank = place.first, place.rank
        self._file = open(os.path.join(folder, f"rank-{place.rank}.log"), "a", encoding="utf-8")

    def say(self, text):
        if self._first:
            print(text, flush=True)
        self._file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} rank {self._rank}: {text}\n")
        self._file.flush()

    def close(self):
        self._file.close()


def open_data(settings, place):
    data = settings["data"]
    words = [f"seed={settings['seed']}", f"splits.train.pipeline.0.RandomResizedCrop.size={data['image_size']}",
             f"splits.val.pipeline.0.Resize.size={round(data['image_size'] * 8 / 7)}",
             f"splits.val.pipeline.1.CenterCrop.size={data['image_size']}"]
    for split in ("train", "val"):
        if data["folder"]:
            words.append(f"splits.{split}.dataset.folder={data['folder']}")
        if data["lists"]:
            words.append(f"splits.{split}.dataset.list={os.path.join(data['lists'], split + '.txt')}")
    words += data["overrides"]
    return [penstock.DataLoader(data["job"], split=split, batch_size=data["batch_size"], device=place.gpu, overrides=words)
            for split in ("train", "val")]


def classes_of(settings, train):
    """Lists have numbers only; the names stand in a file beside them."""
    names = os.path.join(settings["data"]["lists"], "classes.txt") if settings["data"]["lists"] else ""
    if not names:
        return train.classes
    with open(names, encoding="utf-8") as file:
        return file.read().split("\n")[:-1]


def build_network(settings, classes, say):
    network = settings["network"]
    build = getattr(torchvision.models, network["name"], None)
    if not callable(build):
        raise SystemExit(f"'network.name': torchvision has no '{network['name']}'")
    model = build(num_classes=len(classes))
    # A checkpoint wins over pretrained weights, and these over random ones.
    if network["checkpoint"]:
        state = checkpoint.load(network["checkpoint"])
        checkpoint.load_model(model, state.get("model", state), network["checkpoint"])
        say(f"weights of the checkpoint {network['checkpoint']}")
    elif network["weights"]:
        taken, of = checkpoint.load_pretrained(model, network["weights"])
        say(f"{taken} of {of} weights from {network['weights']}")
    return model


def freeze(model, patterns):
    """Parameters whose name fits a pattern are left as they are: a branch ("layer1"), a name, or one with * in it."""
    frozen = 0
    for name, parameter in checkpoint.plain(model).named_parameters():
        fits = any(name == one or name.startswith(one + ".") or fnmatch.fnmatchcase(name, one) for one in patterns)
        parameter.requires_grad = not fits
        frozen += fits
    if patterns and not frozen:
        raise SystemExit(f"'freeze': nothing is called {', '.join(patterns)}")
    return frozen


def rate_of(stage, epoch):
    """A learning rate for each epoch, the last one staying; or a single one, which falls by a cosine to a hundredth."""
    lr = stage["lr"]
    if isinstance(lr, list) and (not lr or not all(isinstance(one, (int, float)) for one in lr)):
        raise SystemExit(f"'lr' of stage {stage['name']} is {lr}, and should be a number or numbers")
    if isinstance(lr, list):
        return float(lr[min(epoch, len(lr) - 1)])
    return lr * (0.01 + 0.99 * (1 + math.cos(math.pi * epoch / stage["epochs"])) / 2)


def optimizer_of(stage, model):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if stage["optimizer"] == "sgd":
        return torch.optim.SGD(parameters, lr=rate_of(stage, 0), momentum=stage["momentum"], weight_decay=stage["weight_decay"])
    if stage["optimizer"] == "adamw":
        return torch.optim.AdamW(parameters, lr=rate_of(stage, 0), weight_decay=stage["weight_decay"])
    raise SystemExit(f"'optimizer': '{stage['optimizer']}' is neither sgd nor adamw")


def loss_of(settings):
    if settings["loss"]["name"] != "cross_entropy":
        raise SystemExit(f"'loss.name': '{settings['loss']['name']}' is not cross_entropy")
    return nn.CrossEntropyLoss(label_smoothing=settings["loss"]["label_smoothing"])


def evaluate(model, val, classes, settings, place):
    counts = Counts(classes, settings["evaluate"]["top_k"])
    model.eval()
    with torch.no_grad():
        for images, labels in val:
            counts.add(model(images), labels)
    counts.sum_over(place)
    return counts


def train(settings, arguments):
    with joined(arguments.device, arguments.dist_url) as place:
        train_at(place, settings, arguments)


def train_at(place, settings, arguments):
    logger = Log(settings["output"], place)
    torch.manual_seed(settings["seed"])
    data, val = open_data(settings, place)
    classes = classes_of(settings, data)
    model = build_network(settings, classes, logger.say).to(place.device)
    criterion = loss_of(settings)
    curves = log.Curves(os.path.join(settings["output"], "curves"), place)
    plan = [(stage, epoch) for stage in settings["stages"] for epoch in range(stage["epochs"])]
    state = checkpoint.read(arguments.resume, settings["output"], place, "classifier")
    more = state["more"] if state else {"ended": False, "best": 0.0, "lost": [0.0, 0]}
    first = state["epoch"] + int(more["ended"]) if state else 0
    best, lost, wrapped, optimizer, steps = more["best"], list(more["lost"]), None, None, 0

    def save(epoch, ended):
        return checkpoint.save(settings["output"], epoch, place, "classifier", model=wrapped, optimizer=optimizer, data=data,
                        more={"best": best, "ended": ended, "classes": classes, "lost": [0.0, 0] if ended else lost})

    for epoch in range(first, len(plan)):
        stage, within = plan[epoch]
        if wrapped is None or within == 0:  # a stage begins: other parameters, another optimizer
            frozen = freeze(model, stage["freeze"])
            wrapped = in_parallel(model, place)
            optimizer = optimizer_of(stage, model)
            logger.say(f"stage {stage['name']}: {stage['epochs']} epochs, {frozen} parameters frozen")
        if state is not None:  # of a stage that begins now it is another one's optimizer
            same_stage = within > 0 or not more["ended"]
            checkpoint.restore(state, place, model=model, optimizer=optimizer if same_stage else None, data=data)
            state = None
        for group in optimizer.param_groups:
            group["lr"] = rate_of(stage, within)
        data.set_epoch(epoch)
        wrapped.train()
        for images, labels in data:
            loss = criterion(wrapped(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step_loss = mean_over_ranks(loss, place)
            if not math.isfinite(step_loss):  # the mean is everybody's, so all stop
                raise SystemExit(f"the loss is {step_loss} in epoch {epoch}: training ends")
            steps, lost = steps + 1, [lost[0] + step_loss, lost[1] + 1]
            if arguments.max_steps:
                logger.say(f"step {steps} loss {step_loss!r}")
            if steps == arguments.max_steps:
                break
        if steps == arguments.max_steps:
            save(epoch, False)
            break
        counts = evaluate(wrapped, val, classes, settings, place)
        mean_loss, lost = lost[0] / lost[1], [0.0, 0]
        better, best = counts.accuracy() >= best, max(best, counts.accuracy())
        tops = " ".join(f"top-{k} {counts.accuracy(k):.4f}" for k in counts.top_k)
        logger.say(f"epoch {epoch} ({stage['name']}) : loss {mean_loss!r} {tops} of {counts.total} pictures")
        for name, value in [("loss", mean_loss), ("lr", rate_of(stage, within))] + [
                (f"top-{k}", counts.accuracy(k)) for k in counts.top_k]:
            curves.add(name, value, epoch)
        path = save(epoch, True)
        if place.first and better:
            shutil.copyfile(path, os.path.join(settings["output"], "best.pt"))
        checkpoint.keep_last(settings["output"], settings["keep"], place)
    curves.close()
    logger.close()


def report(settings, arguments):
    with joined(arguments.device) as place:
        data, val = open_data(settings, place)
        classes = classes_of(settings, data)
        settings["network"]["checkpoint"] = arguments.checkpoint or os.path.join(settings["output"], "best.pt")
        say = print if place.first else (lambda text: None)
        model = build_network(settings, classes, say).to(place.device)
        counts = evaluate(model, val, classes, settings, place)
        say(" ".join(f"top-{k} {counts.accuracy(k):.4f}" for k in counts.top_k) + f" of {counts.total} pictures")
        for name, precision, recall, count in counts.precision_and_recall():
            say(f"{name}: precision {precision:.4f} recall {recall:.4f} of {count}")
        picture = os.path.join(settings["output"], "confusion.png")
        if place.first:
            os.makedirs(settings["output"], exist_ok=True)
            counts.picture(picture)
        say(f"who is taken for whom: {picture}")


def write_lists(arguments):
    """train.txt and val.txt, lines "PATH LABEL", and classes.txt, of class folders; one of each class at least is left for training."""
    if not 0 <= arguments.val_share < 1:
        raise SystemExit(f"--val-share {arguments.val_share}: a share of each class, such as 0.2")
    root = os.path.abspath(arguments.folder)
    classes = sorted(name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name))) if os.path.isdir(root) else []
    if not classes:
        raise SystemExit(f"'{root}' has no class folders")
    os.makedirs(arguments.out, exist_ok=True)
    parts = {"train": [], "val": []}
    for label, name in enumerate(classes):
        files = sorted(os.path.join(top, one) for top, _, names in os.walk(os.path.join(root, name)) for one in names
                       if one.lower().endswith(PICTURES))
        if not files:
            raise SystemExit(f"'{os.path.join(root, name)}' has no picture")
        random.Random(f"{arguments.seed} {name}").shuffle(files)
        held_out = min(len(files) - 1, round(arguments.val_share * len(files)))
        parts["val"] += [f"{path} {label}\n" for path in files[:held_out]]
        parts["train"] += [f"{path} {label}\n" for path in files[held_out:]]
    for part, lines in parts.items():
        with open(os.path.join(arguments.out, part + ".txt"), "w", encoding="utf-8") as file:
            file.writelines(lines)
    with open(os.path.join(arguments.out, "classes.txt"), "w", encoding="utf-8") as file:
        file.writelines(name + "\n" for name in classes)
    print(f"{arguments.out}: train.txt, val.txt, classes.txt of {len(classes)} classes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("train", "evaluate"):
        command = commands.add_parser(name)
        command.add_argument("config", help="settings, YAML or JSON")
        command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the settings, such as stages.0.epochs=2")
        command.add_argument("--device", default="auto")
        if name == "train":
            command.add_argument("--resume", default="none", help="auto: from the last checkpoint of the output; none; or a file")
            command.add_argument("--max-steps", type=positive, help="stop after so many steps of this run, with a checkpoint")
            command.add_argument("--dist-url", default="env://")
        else:
            command.add_argument("--checkpoint", help="instead of the output's best.pt")
    lists = commands.add_parser("lists", help="file lists of class folders, in two parts")
    lists.add_argument("folder")
    lists.add_argument("--out", default="lists")
    lists.add_argument("--val-share", type=float, default=0.2)
    lists.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.command == "lists":
        write_lists(arguments)
    else:
        (train if arguments.command == "train" else report)(read_settings(arguments.config, arguments.set), arguments)


if __name__ == "__main__":
    plainly(main)
