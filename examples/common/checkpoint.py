"""Checkpoints: model, optimizer, schedule, where the loader stands, and which epoch; whole files, whatever happens meanwhile.

    first = resume(arguments.resume, folder, place, model=model, optimizer=optimizer, schedule=schedule, data=train)
    ...
    save(folder, epoch, place, model=model, optimizer=optimizer, schedule=schedule, data=train, best=best)

Rank 0 writes, all ranks read: a loader's state is the same on every one.
"""

import glob
import os
import pickle
import re

import torch


# Weights and plain values, no code. Torch 1 cannot read numbers with a point so.
_PLAIN = {"weights_only": True} if int(torch.__version__.split(".")[0]) >= 2 else {}


def latest(folder):
    """The checkpoint of the last epoch in this folder, or None."""
    found = [(int(re.search(r"epoch-(\d+)\.pt$", path)[1]), path) for path in glob.glob(os.path.join(folder, "epoch-*.pt"))]
    return max(found)[1] if found else None


def plain(model):
    """The network inside DataParallel or DistributedDataParallel, whose names have no "module." in front."""
    return getattr(model, "module", model)


def save(folder, epoch, place, *, model, optimizer, data, more=None, **others):
    """Writes folder/epoch-N.pt, on rank 0. `others`: schedule, scaler and whatever else has a state_dict()."""
    if not place.first:
        return
    state = {"epoch": epoch, "model": plain(model).state_dict(), "optimizer": optimizer.state_dict(), "data": data.state_dict(),
             "torch_rng": torch.get_rng_state(), "more": more or {}}
    state.update({name: one.state_dict() for name, one in others.items()})
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"epoch-{epoch}.pt")
    torch.save(state, path + ".part")
    os.replace(path + ".part", path)  # the old one or the new one, never half of it


def load(path):
    try:
        return torch.load(path, map_location="cpu", **_PLAIN)
    except (OSError, RuntimeError, EOFError, ValueError, pickle.UnpicklingError) as problem:
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


def resume(wanted, folder, place, *, model, optimizer, data, **others):
    """The state that was loaded, or None. `wanted`: "auto" (the last one in the folder, where there is one), "none", or a file."""
    path = {"auto": latest(folder), "none": None}.get(wanted, wanted)
    if path is None:
        return None
    state = load(path)
    if not isinstance(state, dict) or not {"model", "optimizer", "data", "epoch"} <= state.keys():
        raise SystemExit(f"'{path}' is no checkpoint of this program")
    load_model(model, state["model"], path)
    optimizer.load_state_dict(state["optimizer"])
    data.load_state_dict(state["data"])  # penstock.ConfigError names what differs: transforms, batch size, number of ranks
    for name, one in others.items():
        if name in state:
            one.load_state_dict(state[name])
    torch.set_rng_state(state["torch_rng"])
    if place.first:
        print(f"goes on from {path}", flush=True)
    return state


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
