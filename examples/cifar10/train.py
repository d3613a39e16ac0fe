"""ResNet-18 on CIFAR-10: one process, DataParallel, or DistributedDataParallel under torchrun, `penstock run` or by --spawn.

    python examples/cifar10/train.py --data /data/cifar10 --image-size 112                      # one GPU, or the CPU
    python examples/cifar10/train.py --data /data/cifar10 --image-size 112 --parallel dp        # its GPUs, one process
    torchrun --nproc_per_node 2 examples/cifar10/train.py --data /data/cifar10 --image-size 112
    python examples/cifar10/train.py --data /data/cifar10 --image-size 112 --spawn 2            # the same without torchrun
    penstock launch --run examples/cifar10/job.yaml -n 4 -- python examples/cifar10/train.py --data /data/cifar10

In the last one two trainers are fed by two loader ranks; the losses are those of the two processes before it, to the last digit.
"""

import argparse
import os
import sys
import time

import torch
import torchvision
from torch import nn

import penstock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from common import checkpoint, flags, log  # noqa: E402
from common.flags import plainly, positive  # noqa: E402
from common.rates import cosine, set_rate  # noqa: E402
from common.place import in_parallel, joined, sum_over_ranks  # noqa: E402

SIZES = ("splits.train.pipeline.0.Resize.size", "splits.test.pipeline.0.Resize.size")


def arguments_of(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_common(parser, epochs=30, output="cifar10-run")
    parser.add_argument("--job", default=os.path.join(HERE, "job.yaml"))
    parser.add_argument("--data", help="folder of CIFAR-10, in either version, instead of the job's")
    parser.add_argument("--parallel", choices=("none", "dp"), default="none", help="dp: DataParallel over this process's GPUs")
    parser.add_argument("--spawn", type=int, default=0, help="start so many processes on this node")
    parser.add_argument("--batch-size", type=positive, default=256, help="of all processes together")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--last-lr", type=float, default=1e-4)
    parser.add_argument("--weights", help="file of weights or a checkpoint: what fits is taken")
    parser.add_argument("--local_rank", "--local-rank", type=int, help="as torch.distributed.launch gave it")
    arguments = parser.parse_args(words)
    if arguments.local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(arguments.local_rank))
    return arguments


def open_data(arguments, place):
    if arguments.batch_size % place.world_size:
        raise SystemExit(f"--batch-size {arguments.batch_size} cannot be divided among {place.world_size} processes")
    words = flags.overrides_of(arguments, SIZES)
    if arguments.data:
        words += [f"splits.{split}.dataset.cifar10={os.path.abspath(arguments.data)}" for split in ("train", "test")]
    size = arguments.batch_size // place.world_size
    return (penstock.DataLoader(arguments.job, split=split, batch_size=size, device=place.gpu, overrides=words)
            for split in ("train", "test"))


def accuracy_on(model, test, place):
    model.eval()
    right = counted = 0
    with torch.no_grad():
        for images, labels in test:
            right += int((model(images).argmax(1) == labels).sum())  # padding has label -100
            counted += int((labels >= 0).sum())
    right, counted = sum_over_ranks([right, counted], place)
    return right / counted


def train(arguments):
    with joined(arguments.device, arguments.dist_url) as place:
        train_at(place, arguments)


def train_at(place, arguments):
    torch.manual_seed(0)  # the same first weights on every rank
    data, test = open_data(arguments, place)
    model = torchvision.models.resnet18(num_classes=len(data.classes))
    if arguments.weights:
        taken, of = checkpoint.load_pretrained(model, arguments.weights)
        if place.first:
            print(f"{taken} of {of} weights from {arguments.weights}", flush=True)
    model.to(place.device)
    model = nn.DataParallel(model) if arguments.parallel == "dp" and place.world_size == 1 else in_parallel(model, place)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9, weight_decay=0.05)
    state = checkpoint.read(arguments.resume, arguments.output, place, "cifar10")
    if state:
        checkpoint.restore(state, place, model=model, optimizer=optimizer, data=data)
    first, more = (state["epoch"], state["more"]) if state else (0, {})
    best = more.get("best", 0.0)
    sums = more.get("sums", [0.0, 0, 0]) if place.first else [0.0, 0, 0]  # this epoch's loss, right ones, pictures
    if more.get("ended"):
        first += 1

    def save(epoch, ended):
        so_far = sum_over_ranks(sums, place)
        checkpoint.save(arguments.output, epoch, place, "cifar10", model=model, optimizer=optimizer, data=data,
                        more={"best": best, "sums": so_far, "ended": ended})

    curves = log.Curves(os.path.join(arguments.output, "curves"), place)
    steps = 0
    for epoch in range(first, arguments.epochs):
        lr = cosine(epoch, arguments.epochs, arguments.lr, arguments.last_lr)
        set_rate(optimizer, lr)
        data.set_epoch(epoch)
        model.train()
        begun, images = time.monotonic(), 0
        for pictures, labels in data:
            scores = model(pictures)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums = [sums[0] + loss.item() * len(labels), sums[1] + int((scores.argmax(1) == labels).sum()), sums[2] + len(labels)]
            steps, images = steps + 1, images + len(labels)
            if arguments.max_steps and place.first:
                print(f"step {steps} loss {loss.item()!r}", flush=True)
            if steps == arguments.max_steps:
                break
        if steps == arguments.max_steps:
            save(epoch, False)
            break
        rate = images * place.world_size / (time.monotonic() - begun)
        lost, right, seen = sum_over_ranks(sums, place)
        accuracy = accuracy_on(model, test, place)
        best, sums = max(best, accuracy), [0.0, 0, 0]
        if place.first:
            print(f"epoch {epoch} : train accuracy {right / seen:.4f} test accuracy {accuracy:.4f} loss {lost / seen!r} "
                  f"{rate:.0f} images/s", flush=True)
        curves.add("accuracy/train", right / seen, epoch)
        curves.add("accuracy/test", accuracy, epoch)
        curves.add("lr", lr, epoch)
        save(epoch, True)
    else:
        if place.first:
            print(f"best test accuracy {best:.4f}", flush=True)
    curves.close()


def spawned(rank, arguments, master_port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(arguments.spawn), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(master_port))
    plainly(train, arguments)


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    given = arguments_of()
    if given.spawn > 1 and given.batch_size % given.spawn:
        raise SystemExit(f"--batch-size {given.batch_size} cannot be divided among {given.spawn} processes")
    if given.spawn > 1:
        if "RANK" in os.environ:
            raise SystemExit("--spawn starts processes, and something else (torchrun, penstock run) has started this one")
        torch.multiprocessing.spawn(spawned, (given, free_port()), nprocs=given.spawn)
    else:
        plainly(train, given)
