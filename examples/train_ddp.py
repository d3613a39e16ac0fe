"""A small network trained on penstock's batches, alone or with DistributedDataParallel: what a user's train.py looks like.

    python examples/train_ddp.py job.yaml                                        # alone, loading in threads of its own
    torchrun --nproc_per_node 2 examples/train_ddp.py job.yaml                   # two trainers, each loading for itself
    mpirun -n 4 penstock run job.yaml -- python examples/train_ddp.py job.yaml   # two trainers fed by two loader ranks

The same job gives the same losses to the last digit in the last two cases: the stream is the same.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import penstock


def make_network(classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, classes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--checkpoint", help="resume from this file where it is there, and write it after each epoch")
    arguments = parser.parse_args()

    # penstock run, torchrun and others set these; a program started by hand has none.
    distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if distributed else 0

    torch.manual_seed(0)
    train = penstock.DataLoader(arguments.job, split="train")
    network = make_network(len(train.classes))
    model = DistributedDataParallel(network) if distributed else network
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    first = 0
    if arguments.checkpoint and os.path.exists(arguments.checkpoint):
        saved = torch.load(arguments.checkpoint)
        network.load_state_dict(saved["network"])
        train.load_state_dict(saved["data"])
        first = saved["epoch"] + 1

    for epoch in range(first, arguments.epochs):
        for images, labels in train:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"epoch {epoch} loss {loss.item()!r}", flush=True)
        if arguments.checkpoint and rank == 0:
            torch.save({"network": network.state_dict(), "data": train.state_dict(), "epoch": epoch}, arguments.checkpoint)
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
