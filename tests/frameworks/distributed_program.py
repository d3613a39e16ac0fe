"""A small network, alone or sharded over two processes; writes the loss of each rank's half of each step to FOLDER/RANK.

    distributed_program.py JOB FOLDER alone|ddp|fsdp2|fsdp1

Alone, one loader gives the global batch. Its even rows are what rank 0 of two would get and its odd rows rank 1's, and
gradients are averaged over the halves as the others do it: every number is the same, to the last digit.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import penstock


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 4))


def over_processes(how):
    model = network()
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        return FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard([layer for layer in model if isinstance(layer, nn.Conv2d)], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    job, folder, how = sys.argv[1:]
    torch.set_num_threads(1)
    if how == "alone":
        rank, model = 0, network()
        train = penstock.DataLoader(job, split="train", batch_size=32)
    else:
        dist.init_process_group("gloo")
        rank, model = dist.get_rank(), over_processes(how)
        train = penstock.DataLoader(job, split="train")
    files = [open(os.path.join(folder, str(rank + half)), "w") for half in range(2 if how == "alone" else 1)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        for images, labels in train:
            halves = [(images, labels)] if how != "alone" else [
                (images[half::2].contiguous(), labels[half::2]) for half in range(2)]
            optimizer.zero_grad()
            for half, (pixels, classes) in enumerate(halves):
                loss = nn.functional.cross_entropy(model(pixels), classes)
                (loss / len(halves)).backward()
                print(f"epoch {epoch} loss {loss.item()!r}", file=files[half])
            optimizer.step()
    if how != "alone":
        dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
