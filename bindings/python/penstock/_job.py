"""Jobs made in Python: the job file's words as a dict, and keyword arguments as overrides."""

from __future__ import annotations

import difflib
import json
import operator
import os
import re
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from .errors import UsageError

# Keys of a job's top level, which are keywords of DataLoader too.
TOP_KEYS = ("name", "seed", "on_error", "arithmetic", "color", "exif", "transport", "bad_samples", "roles", "loader", "trainer",
            "balancer", "mpi", "limits", "splits")

# Keyword arguments of DataLoader that are keys of the split.
SPLIT_KEYS = {
    "batch_size": "batch_size",
    "shuffle": "sampler.shuffle",
    "drop_last": "drop_last",
    "tail": "tail",
    "mode": "mode",
    "cpu_fraction": "cpu_fraction",
}


def state_text(state: Any, where: str) -> str:
    """What a checkpoint kept, as the library reads it."""
    if not isinstance(state, Mapping):
        raise UsageError(f"{where}: expected the dict that state_dict() gave, got {type(state).__name__}")
    try:
        return json.dumps(dict(state))
    except (TypeError, ValueError) as problem:
        raise UsageError(f"{where}: this is not what state_dict() gave: {problem}") from None


def _text(value: Any) -> str:
    return json.dumps(value, default=_plain) if not isinstance(value, str) else value


def _plain(value: Any) -> Any:
    """Paths, and NumPy's numbers and arrays."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def dtype_name(dtype: Any) -> Optional[str]:
    """"float16" for "float16", torch.float16 and np.float16 alike."""
    return None if dtype is None else str(getattr(dtype, "__name__", None) or dtype).rpartition(".")[2]


def integer(what: str, value: Any) -> int:
    """A Python int of it, or of NumPy's."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{what}: {value!r} is no integer") from None


def whole(name: str, value: Any) -> int:
    """Of a parameter: an integer that the library can count with."""
    number = integer(name, value)
    if not -2**31 <= number < 2**31:
        raise UsageError(f"{name}={number}: that is too many")
    return number


def flag(name: str, value: Any) -> Optional[bool]:
    """Of a parameter that may be left out."""
    if value is not None and not isinstance(value, bool):
        raise UsageError(f"{name}={value!r}", "say True or False")
    return value


def epoch_of(value: Any) -> int:
    epoch = integer(f"set_epoch({value!r})", value)
    if not 0 <= epoch < 2**32:
        raise UsageError(f"set_epoch({epoch}): epochs count from 0 to 2^32 - 1")
    return epoch


def check_keywords(more: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuses keywords that name neither a parameter nor a key of the job."""
    for name in more:
        if name in TOP_KEYS or "__" in name.strip("_"):
            continue
        squeezed = {one.replace("_", ""): one for one in known}
        close = difflib.get_close_matches(name.replace("_", "").lower(), squeezed, n=1)
        hint = f"did you mean {squeezed[close[0]]!r}?" if close else \
            "keys of the job go as words joined by two underscores, as in loader__threads=4"
        raise UsageError(f"DataLoader has no parameter {name!r}", hint)


def words_of(overrides: Union[None, str, Sequence[str], Mapping[str, Any]]) -> list[str]:
    """`key.sub=value` lines of what the user gave: one line, several, or a dict of keys."""
    if overrides is None:
        return []
    if isinstance(overrides, str):
        return [overrides]
    if isinstance(overrides, Mapping):
        return [f"{key}={_text(value)}" for key, value in overrides.items()]
    if not isinstance(overrides, Iterable):
        raise UsageError(f"overrides: {overrides!r} is no list of texts", 'say overrides=["loader.threads=4"]')
    words = list(overrides)
    for word in words:
        if not isinstance(word, str):
            raise UsageError(f"overrides: {word!r} is no text", 'say overrides=["loader.threads=4"]')
    return words


def with_share(cpu_fraction: Union[None, float, str], more: Mapping[str, Any]) -> tuple[Optional[float], dict]:
    """The number, and the other keywords: "auto" is a key of the loader, as it changes no sample."""
    if not isinstance(cpu_fraction, str):
        return cpu_fraction, dict(more)
    if cpu_fraction != "auto":
        raise UsageError(f"cpu_fraction={cpu_fraction!r}", 'say a number from 0 to 1, or "auto"')
    return None, {"loader__cpu_fraction": "auto", **more}


def overrides_of(split: str, named: Mapping[str, Any], more: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """`key.sub=value` lines: the split's own keys, then any key (`loader__threads=4`)."""
    keys = {key: f"splits.{split}.{SPLIT_KEYS[key]}" for key, value in named.items() if value is not None}
    keys.update((key, key.replace("__", ".")) for key in more)
    return [f"{key}={_text_of(name, {**named, **more}[name])}" for name, key in keys.items()] + list(words)


def _text_of(name: str, value: Any) -> str:
    try:
        return _text(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name}={value!r}: no job file can say that", "use numbers, texts, lists and dicts") from None


_OVERRIDE = re.compile(r"^command line: error: (.*\n *\| ([^=\s]+)=)", re.MULTILINE)


def by_keyword(complaints: str) -> str:
    """Complaints about overrides, which the library knows from command lines, by the keywords that they are here."""
    named = _OVERRIDE.sub(lambda found: f"{_keyword(found[2])}: error: {found[1]}", complaints)
    return named.replace("command line: error: ", "overrides: error: ")


def _keyword(key: str) -> str:
    if key == "roles.ranks_per_replica":
        return "ranks_per_replica"
    for keyword, below in SPLIT_KEYS.items():
        if key.startswith("splits.") and key.split(".", 2)[-1] == below:
            return keyword
    return key.replace(".", "__")


def build(dataset: Mapping[str, Any], split: str, pipeline: Sequence[Mapping[str, Any]],
          named: Mapping[str, Any], seed: Optional[int], gpu_pipeline: Sequence[Mapping[str, Any]] = ()) -> dict:
    """The job of one split, as a job file would say it."""
    if named.get("batch_size") is None:
        named = dict(named, batch_size=1)
    spec: dict = {"dataset": dict(dataset), "pipeline": list(pipeline), "mode": named.get("mode") or "train"}
    if gpu_pipeline:
        spec["gpu_pipeline"] = list(gpu_pipeline)
    for key, value in named.items():
        if value is None or key == "mode":
            continue
        *parents, last = SPLIT_KEYS[key].split(".")
        place = spec
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    job: dict = {"splits": {split: spec}}
    if seed is not None:
        job["seed"] = seed
    return job


def text_of(job: Mapping[str, Any]) -> str:
    """The job as text that the parser reads: JSON, which is YAML."""
    try:
        return json.dumps(job, default=_plain)
    except (TypeError, ValueError) as problem:
        raise UsageError(f"the job holds something that no job file can say: {problem}",
                         "use numbers, texts, lists and dicts") from None
