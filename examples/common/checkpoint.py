"""Checkpoints: model, optimizer, where the loader stands, and which epoch.

    state = read(arguments.resume, folder, place, "cifar10")    # None: from the beginning
    if state:
        restore(state, place, model=model, optimizer=optimizer, data=train)
    ...
    save(folder, epoch, place, "cifar10", model=model, optimizer=optimizer, data=train, more={"ended": True})

Rank 0 writes, and says which file all ranks read: a loader's state is the same on every one. The folder has to be one that all
nodes share. Trust: under torch 1 a checkpoint is a pickle, and may run code; take none from strangers.
"""

import glob
import os
import pickle
import re

import torch
import torch.distributed as dist

from .place import sum_over_ranks

# Weights and plain values, no code. Torch 1 cannot read numbers with a point so.
_PLAIN = {"weights_only": True} if int(torch.__version__.split(".")[0]) >= 2 else {}
_KEYS = {"epoch", "model", "optimizer", "data", "torch_rng", "more"}


def all_in(folder):
    """[(epoch, path)] of this folder's checkpoints, in order."""
    found = [(re.search(r"epoch-(\d+)\.pt$", path), path) for path in glob.glob(os.path.join(glob.escape(folder), "epoch-*.pt"))]
    return sorted((int(match[1]), path) for match, path in found if match)


def plain(model):
    """The network inside DataParallel or DistributedDataParallel, whose names have no "module." in front."""
    return getattr(model, "module", model)


def save(folder, epoch, place, program, *, model, optimizer, data, more=None, **others):
    """Writes folder/epoch-N.pt, on rank 0, and returns its path. `program`: whose it is. `others`: a scaler and whatever else has a state_dict()."""
    path = os.path.join(folder, f"epoch-{epoch}.pt")
    if not place.first:
        return path
    state = {"epoch": epoch, "model": plain(model).state_dict(), "optimizer": optimizer.state_dict(), "data": data.state_dict(),
             "torch_rng": torch.get_rng_state(), "more": {"program": program, **(more or {})}}
    if place.gpu:
        state["cuda_rng"] = torch.cuda.get_rng_state(place.device)
    state.update({name: one.state_dict() for name, one in others.items()})
    os.makedirs(folder, exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)  # the old one or the new one, never half of it, also where another run writes to this folder
    return path


def keep_last(folder, count, place):
    """Removes all but the last `count` checkpoints, on rank 0."""
    for _, path in all_in(folder)[:-count] if place.first else ():
        os.remove(path)


def load(path):
    try:
        return torch.load(path, map_location="cpu", **_PLAIN)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, pickle.UnpicklingError) as problem:
        raise SystemExit(f"cannot read the checkpoint '{path}': {problem}") from None


def load_model(model, weights, path):
    """All of it, or an end that says what differs first."""
    own = plain(model).state_dict()
    for name in sorted(own.keys() | weights.keys()):
        if name not in weights or name not in own:
            side = "it has no" if name not in weights else "this network has no"
            raise SystemExit(f"'{path}' is of another network: {side} {name}")
        if own[name].shape != weights[name].shape:
            raise SystemExit(f"'{path}' is of another network: {name} is {list(weights[name].shape)} there, and "
                             f"{list(own[name].shape)} here")
    plain(model).load_state_dict(weights)


def _chosen(wanted, folder, place):
    """The file's path as rank 0 sees it, or None."""
    there = all_in(folder)
    if wanted == "none" and there:
        raise SystemExit(f"'{folder}' has checkpoints already: --resume auto goes on from the last one; or name another output")
    path = {"auto": there[-1][1] if there else None, "none": None}.get(wanted, wanted)
    return None if path is None else os.path.abspath(path)


def read(wanted, folder, place, program):
    """The state of a checkpoint, or None. `wanted`: "auto" (the last one in the folder, where there is one), "none", or a file.

    All ranks get the same, or all end."""
    answer = [None, None]
    if place.first:
        try:
            answer[0] = _chosen(wanted, folder, place)
        except SystemExit as problem:  # everybody is to end with it
            answer[1] = str(problem)
    if place.world_size > 1:
        dist.broadcast_object_list(answer, 0)
    path, problem = answer
    if problem:
        raise SystemExit(problem)
    if path is None:
        return None
    missing = sum_over_ranks([0 if os.path.isfile(path) else 1], place)[0]
    if missing:
        raise SystemExit(f"cannot read the checkpoint '{path}': {int(missing)} of {place.world_size} processes do not see such a file "
                         "(all nodes have to share its folder)")
    state = load(path)
    if not isinstance(state, dict) or not _KEYS <= state.keys() or state["more"].get("program") != program:
        raise SystemExit(f"'{path}' is no checkpoint of this program")
    state["path"] = path
    if place.first:
        print(f"goes on from {path}", flush=True)
    return state


def restore(state, place, *, model, optimizer, data, **others):
    load_model(model, state["model"], state["path"])
    if optimizer is not None:
        try:
            optimizer.load_state_dict(state["optimizer"])
        except ValueError as problem:
            raise SystemExit(f"'{state['path']}' was saved by a run that trained other parameters (frozen ones): {problem}") from None
    data.load_state_dict(state["data"])  # penstock.ConfigError names what differs: transforms, batch size, number of ranks
    for name, one in others.items():
        if name in state:
            one.load_state_dict(state[name])
    torch.set_rng_state(state["torch_rng"])
    if "cuda_rng" in state and place.gpu:
        torch.cuda.set_rng_state(state["cuda_rng"], place.device)


def load_pretrained(model, path):
    """Those weights of a file that have as many numbers here, and how many those are: the last layer of another number of
    classes is left as it was initialised."""
    state = load(path)
    weights = state.get("model", state) if isinstance(state, dict) else {}
    own = plain(model).state_dict()
    fitting = {name: value for name, value in weights.items() if name in own and own[name].numel() == value.numel()}
    if not fitting:
        raise SystemExit(f"'{path}' has no weights of this network")
    plain(model).load_state_dict({name: value.reshape(own[name].shape) for name, value in fitting.items()}, strict=False)
    return len(fitting), len(own)
