"""Jobs made in Python: the job file's words as a dict, and keyword arguments as overrides."""

from __future__ import annotations

import json
from typing import Any, Mapping, Optional, Sequence

from .errors import UsageError

# Keyword arguments of DataLoader that are keys of the split.
SPLIT_KEYS = {
    "batch_size": "batch_size",
    "shuffle": "sampler.shuffle",
    "drop_last": "drop_last",
    "tail": "tail",
    "mode": "mode",
}


def _text(value: Any) -> str:
    return json.dumps(value) if not isinstance(value, str) else value


def overrides_of(split: str, named: Mapping[str, Any], more: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """`key.sub=value` lines: the split's own keys, then any key (`loader__threads=4` or `{"loader.threads": 4}`)."""
    out = [f"splits.{split}.{SPLIT_KEYS[key]}={_text(value)}" for key, value in named.items() if value is not None]
    out += [f"{key.replace('__', '.')}={_text(value)}" for key, value in more.items()]
    return out + list(words)


def build(dataset: Mapping[str, Any], split: str, pipeline: Sequence[Mapping[str, Any]],
          named: Mapping[str, Any], seed: Optional[int]) -> dict:
    """The job of one split, as a job file would say it."""
    if named.get("batch_size") is None:
        named = dict(named, batch_size=1)
    spec: dict = {"dataset": dict(dataset), "pipeline": list(pipeline), "mode": named.get("mode") or "train"}
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
        return json.dumps(job)
    except (TypeError, ValueError) as problem:
        raise UsageError(f"the job holds something that no job file can say: {problem}",
                         "use numbers, texts, lists and dicts") from None
