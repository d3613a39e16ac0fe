"""Trains a classifier as a settings file says: network, stages with their frozen parts and learning rates, what is measured and kept.

    python examples/classifier/train_model.py train examples/classifier/configs/resnet18.yaml --set data.folder=/data/photos
    torchrun --nproc-per-node 2 examples/classifier/train_model.py train CONFIG
    penstock launch --run examples/classifier/job.yaml -n 4 -- python examples/classifier/train_model.py train CONFIG
    python examples/classifier/train_model.py evaluate CONFIG --checkpoint RUN/best.pt
    python examples/classifier/train_model.py lists /data/photos --out lists --val-share 0.2

One file is one experiment; `include:` takes what several have in common.
"""

import argparse
import fnmatch
import glob
import math
import os
import random
import re
import shutil
import sys
import time

import torch
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import penstock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]
from common import checkpoint, log  # noqa: E402
from common.place import join, leave, mean_over_ranks  # noqa: E402
from evaluator import Counts  # noqa: E402
from settings import read_settings  # noqa: E402


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
    words = [f"splits.train.pipeline.0.RandomResizedCrop.size={data['image_size']}",
             f"splits.val.pipeline.0.Resize.size={round(data['image_size'] * 8 / 7)}",
             f"splits.val.pipeline.1.CenterCrop.size={data['image_size']}"]
    for split in ("train", "val"):
        if data["folder"]:
            words.append(f"splits.{split}.dataset.folder={data['folder']}")
        if data["lists"]:
            words.append(f"splits.{split}.dataset.list={os.path.join(data['lists'], split + '.txt')}")
    words += data["overrides"]
    device = place.device if place.device.type == "cuda" else None
    return [penstock.DataLoader(data["job"], split=split, batch_size=data["batch_size"], device=device, overrides=words)
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


def keep_last(folder, count):
    found = sorted((int(re.search(r"epoch-(\d+)\.pt$", path)[1]), path) for path in glob.glob(os.path.join(folder, "epoch-*.pt")))
    for _, path in found[:-count]:
        os.remove(path)


def train(settings, arguments):
    place = join(arguments.device, arguments.dist_url)
    logger = Log(settings["output"], place)
    torch.manual_seed(settings["seed"])
    data, val = open_data(settings, place)
    classes = classes_of(settings, data)
    model = build_network(settings, classes, logger.say).to(place.device)
    criterion = loss_of(settings)
    curves = log.Curves(os.path.join(settings["output"], "curves"), place)
    plan = [(stage, epoch) for stage in settings["stages"] for epoch in range(stage["epochs"])]
    first, best, wrapped, optimizer, state, steps = 0, 0.0, None, None, None, 0
    path = {"auto": checkpoint.latest(settings["output"]), "none": None}.get(arguments.resume, arguments.resume)
    if path:
        state = checkpoint.load(path)
        first, best = state["epoch"] + int(state["more"]["ended"]), state["more"]["best"]

    def save(epoch, ended):
        checkpoint.save(settings["output"], epoch, place, model=wrapped, optimizer=optimizer, data=data,
                        more={"best": best, "ended": ended, "classes": classes})

    for epoch in range(first, len(plan)):
        stage, within = plan[epoch]
        if wrapped is None or within == 0:  # a stage begins: other parameters, another optimizer
            frozen = freeze(model, stage["freeze"])
            wrapped = DistributedDataParallel(model, device_ids=[place.device] if place.device.type == "cuda" else None) \
                if place.world_size > 1 else model
            optimizer = optimizer_of(stage, model)
            logger.say(f"stage {stage['name']}: {stage['epochs']} epochs, {frozen} parameters frozen")
        if state is not None:
            same_stage = within > 0 or not state["more"]["ended"]
            checkpoint.load_model(model, state["model"], path)
            data.load_state_dict(state["data"])
            if same_stage:
                optimizer.load_state_dict(state["optimizer"])
            logger.say(f"goes on from {path}")
            state = None
        for group in optimizer.param_groups:
            group["lr"] = rate_of(stage, within)
        data.set_epoch(epoch)
        wrapped.train()
        losses = []
        for images, labels in data:
            loss = criterion(wrapped(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(mean_over_ranks(loss, place))
            if not math.isfinite(losses[-1]):
                raise SystemExit(f"the loss is {losses[-1]} in epoch {epoch}: training ends")
            steps += 1
            if arguments.max_steps:
                logger.say(f"step {steps} loss {losses[-1]!r}")
            if steps == arguments.max_steps:
                break
        if steps == arguments.max_steps:
            save(epoch, False)
            break
        counts = evaluate(wrapped, val, classes, settings, place)
        better, best = counts.accuracy() >= best, max(best, counts.accuracy())
        tops = " ".join(f"top-{k} {counts.accuracy(k):.4f}" for k in counts.top_k)
        logger.say(f"epoch {epoch} ({stage['name']}) : loss {sum(losses) / len(losses)!r} {tops} of {counts.total} pictures")
        for name, value in [("loss", sum(losses) / len(losses)), ("lr", rate_of(stage, within))] + [
                (f"top-{k}", counts.accuracy(k)) for k in counts.top_k]:
            curves.add(name, value, epoch)
        save(epoch, True)
        if place.first:
            if better:
                shutil.copyfile(os.path.join(settings["output"], f"epoch-{epoch}.pt"), os.path.join(settings["output"], "best.pt"))
            keep_last(settings["output"], settings["keep"])
    curves.close()
    logger.close()
    leave(place)


def report(settings, arguments):
    place = join(arguments.device)
    data, val = open_data(settings, place)
    classes = classes_of(settings, data)
    settings["network"]["checkpoint"] = arguments.checkpoint or os.path.join(settings["output"], "best.pt")
    model = build_network(settings, classes, print).to(place.device)
    counts = evaluate(model, val, classes, settings, place)
    print(" ".join(f"top-{k} {counts.accuracy(k):.4f}" for k in counts.top_k) + f" of {counts.total} pictures")
    for name, precision, recall, count in counts.precision_and_recall():
        print(f"{name}: precision {precision:.4f} recall {recall:.4f} of {count}")
    picture = os.path.join(settings["output"], "confusion.png")
    os.makedirs(settings["output"], exist_ok=True)
    counts.picture(picture)
    print(f"who is taken for whom: {picture}")


def write_lists(arguments):
    """train.txt and val.txt, lines "PATH LABEL", and classes.txt, of class folders."""
    source = penstock.ImageFolder(arguments.folder)
    root = os.path.abspath(source.root)
    classes = sorted(name for name in os.listdir(root) if os.path.isdir(os.path.join(root, name)))
    if not classes:
        raise SystemExit(f"'{root}' has no class folders")
    os.makedirs(arguments.out, exist_ok=True)
    with open(os.path.join(arguments.out, "train.txt"), "w", encoding="utf-8") as train_file, \
            open(os.path.join(arguments.out, "val.txt"), "w", encoding="utf-8") as val_file:
        for label, name in enumerate(classes):
            files = sorted(os.path.join(root, name, one) for one in os.listdir(os.path.join(root, name)))
            random.Random(f"{arguments.seed} {name}").shuffle(files)
            held_out = round(arguments.val_share * len(files))
            for number, path in enumerate(files):
                (val_file if number < held_out else train_file).write(f"{path} {label}\n")
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
            command.add_argument("--max-steps", type=int, help="stop after so many steps of this run, with a checkpoint")
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
    main()
