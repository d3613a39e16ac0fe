"""Runs a program on the CPU and writes down what its DataLoaders give, torch's and penstock's alike.

    watch.py FOLDER PROGRAM [ARGUMENT…]

FOLDER/RANK.json then has, of each loader in the order in which they were first iterated over: whose it is, len(), how many
batches came, their labels, the indices in them, how long it took, and how far from the beginning each pixel is on average. FOLDER/RANK.pt
holds the pictures of the loaders that do not shuffle, which both ways of loading should agree on.

A program that asks for CUDA gets the CPU, and gloo for NCCL: none of that is the DataLoader's affair.
"""

import json
import os
import resource
import runpy
import sys
import time
import weakref

import torch
import torch._dynamo  # noqa: F401  it lists torch's functions, and those below are not they
import torch.utils.data.dataloader as torch_loader

import penstock

folder, *sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
torch.set_num_threads(1)

# ---- the CPU in CUDA's place -----------------------------------------------------------------------------------------
_tensor, _begin, _parallel = torch.tensor, torch.distributed.init_process_group, torch.nn.parallel.DistributedDataParallel


class OnCpu(_parallel):
    def __init__(self, module, device_ids=None, output_device=None, **more):
        if any(one.requires_grad for one in module.parameters()):
            super().__init__(module, **more)


def begin(backend=None, **more):
    more.pop("device_id", None)
    return _begin("gloo", **more)


def tensor(data, *words, device=None, **more):
    return _tensor(data, *words, device="cpu" if str(device).startswith("cuda") else device, **more)


torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *words, **more: self
torch.cuda.set_device = torch.cuda.synchronize = lambda *words: None
torch.hub.list = lambda *words, **more: []  # which models a repository elsewhere has
torch.tensor, torch.distributed.init_process_group, torch.nn.parallel.DistributedDataParallel = tensor, begin, OnCpu

# ---- what loaders give -----------------------------------------------------------------------------------------------
_seen = []                                # of each iteration that was begun
_of_loader = weakref.WeakKeyDictionary()  # the number of a loader
_asked = []                               # what torch's own iterations asked their workers for, of the newest one
_pictures = {}


def _columns(batch):
    return list(batch.values()) if isinstance(batch, dict) else list(batch)


def _note(one, batch, keep):
    columns = _columns(batch)
    labels = columns[1] if len(columns) > 1 else columns[0]
    pictures = columns[0]
    parts = list(pictures) if isinstance(pictures, (list, tuple)) else [pictures]
    one["labels"].append(labels.tolist() if labels.ndim == 1 else labels.sum(1).round(decimals=4).tolist())
    one["shapes"].append([[list(part.shape), str(part.dtype)] for part in parts])
    if keep and len(parts) == 1:
        _pictures.setdefault(one["loader"], []).append(parts[0].clone())


def _watched(kind, iterate, indices):
    def watched(loader):
        number = _of_loader.setdefault(loader, len(_of_loader))
        one = {"loader": number, "kind": kind, "len": len(loader), "labels": [], "indices": [], "shapes": [],
               "seconds": 0.0, "rank": int(os.environ.get("RANK", 0))}
        _seen.append(one)
        iterations = sum(other["loader"] == number for other in _seen)
        sampler = type(getattr(loader.batch_sampler, "sampler", loader.sampler)).__name__  # Accelerate gives a batch_sampler alone
        one["sampler"] = sampler
        keep = iterations == 1
        steps = iterate(loader)
        while True:
            begun = time.monotonic()
            try:
                batch = next(steps)
            except StopIteration:
                one["seconds"] += time.monotonic() - begun
                return
            one["seconds"] += time.monotonic() - begun
            found = indices(steps, batch)
            if found is not None:
                one["indices"].append(found)
            _note(one, batch, keep)
            yield batch
    return watched


def _torch_indices(steps, batch):
    return _asked_by.get(steps).pop(0)


_asked_by = weakref.WeakKeyDictionary()
_next_index = torch_loader._BaseDataLoaderIter._next_index


def _watched_next_index(self):
    found = _next_index(self)
    _asked_by.setdefault(self, []).append(list(found) if isinstance(found, (list, tuple)) else [found])
    return found


def _penstock_indices(steps, batch):
    found = getattr(batch, "indices", None)
    return None if callable(found) or found is None else found.tolist()


torch_loader._BaseDataLoaderIter._next_index = _watched_next_index
torch_loader.DataLoader.__iter__ = _watched("torch", torch_loader.DataLoader.__iter__, _torch_indices)
penstock.DataLoader.__iter__ = _watched("penstock", penstock.DataLoader.__iter__, _penstock_indices)

begun, cpu_begun = time.monotonic(), time.process_time()
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = {"seen": _seen, "seconds": time.monotonic() - begun,
            "cpu_seconds": time.process_time() - cpu_begun + children.ru_utime + children.ru_stime}
    rank = os.environ.get("RANK", 0)
    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump(said, file)
    torch.save(_pictures, os.path.join(folder, f"{rank}.pt"))
