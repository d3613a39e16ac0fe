"""Where DataLoaders stand, in a file of its own: for programs whose checkpoints have no place for it.

    penstock.save_state("data.state", {"train": train.state_dict(), "val": val.state_dict()})   # by one rank
    states = penstock.load_state("data.state")
    train.load_state_dict(states["train"])
"""

import json
import os
from typing import Any, Mapping, Union

from . import _job, _penstock

__all__ = ["load_state", "save_state"]


def save_state(path: Union[str, os.PathLike], state: Mapping[str, Any]) -> None:
    """Writes one `state_dict()`, or a dict of several by name, to `path`.

    After a crash, a kill or a full disk at any moment the file is the one that was there before or the new one, whole: it
    is written beside it, brought to the disk (fsync) and renamed. It has a checksum. Any rank may save, because a state is
    the same on all of them; one is enough. Where several save to one path at once, the file is always one of theirs, whole,
    and the last one stays. What a killed save leaves beside it, a file whose name ends in `.part`, is removed by the next
    save to that path; if it comes from another host, that happens when it is a day old. Where `path` is a symbolic link,
    what it leads to is replaced. RunError where it cannot be written, UsageError for what is no state, and for a folder, a
    device, a pipe or a socket as `path`.
    """
    _penstock.save_state(os.fspath(path), _job.state_text(state, "save_state"))


def load_state(path: Union[str, os.PathLike]) -> dict:
    """What `save_state` wrote. ConfigError for a file that is damaged, cut off, of another version or none of its kind;
    RunError where it cannot be read. Nothing in it is executed."""
    return json.loads(_penstock.load_state(os.fspath(path)))
