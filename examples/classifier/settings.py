"""Settings of an experiment: YAML or JSON, with `include:` for what several have in common, every key checked.

    settings = read_settings("configs/resnet18.yaml", ["stages.0.epochs=2"])
    settings["network"]["name"]

`output` is a folder under the one that the program runs in. An included file's keys stand below those of the file that includes it; mappings are merged, everything else is replaced.
"""

import json
import os

import yaml

# key: (kind, default); a default of ... has to be given. The keys of `stages` are of each stage.
STAGE = {"name": (str, ...), "epochs": (int, ...), "freeze": (list, []), "lr": ((float, list), 0.01),
         "optimizer": (str, "sgd"), "momentum": (float, 0.9), "weight_decay": (float, 0.0005)}
KNOWN = {"output": (str, ...), "seed": (int, 0), "keep": (int, 3), "stages": (list, ...),
         "network": ({"name": (str, "resnet18"), "weights": (str, ""), "checkpoint": (str, "")}, {}),
         "data": ({"job": (str, ...), "folder": (str, ""), "lists": (str, ""), "batch_size": (int, 16), "image_size": (int, 224),
                   "overrides": (list, [])}, ...),
         "loss": ({"name": (str, "cross_entropy"), "label_smoothing": (float, 0.0)}, {}),
         "evaluate": ({"top_k": (list, [1, 5])}, {})}


PATHS = (("data", "job"), ("data", "folder"), ("data", "lists"), ("network", "weights"), ("network", "checkpoint"))


def _placed(settings, folder):
    """Relative paths begin at the folder of the file that they stand in."""
    for section, key in PATHS:
        inner = settings.get(section)
        if isinstance(inner, dict) and isinstance(inner.get(key), str) and inner[key]:
            inner[key] = os.path.normpath(os.path.join(folder, os.path.expanduser(inner[key])))
    return settings


def _load(path, including=()):
    path = os.path.abspath(path)
    if path in including:
        raise SystemExit(f"'{path}' includes itself")
    try:
        with open(path, encoding="utf-8") as file:
            own = json.load(file) if path.endswith(".json") else yaml.safe_load(file)
    except (OSError, ValueError, yaml.YAMLError) as problem:
        raise SystemExit(f"cannot read the settings '{path}': {problem}") from None
    if not isinstance(own, dict):
        raise SystemExit(f"'{path}': expected keys and values")
    names = own.pop("include", [])
    merged = {}
    for name in [names] if isinstance(names, str) else names:
        merged = _merge(merged, _load(os.path.join(os.path.dirname(path), name), (*including, path)))
    return _merge(merged, _placed(own, os.path.dirname(path)))


def _merge(below, above):
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _set(settings, text):
    """key.sub=value, a number being a place in a list."""
    if "=" not in text:
        raise SystemExit(f"--set {text}: write KEY=VALUE")
    path, value = text.split("=", 1)
    at, keys = settings, path.split(".")
    try:
        for key in keys[:-1]:
            at = at[int(key)] if isinstance(at, list) else at.setdefault(key, {})
        last = int(keys[-1]) if isinstance(at, list) else keys[-1]
        at[last] = yaml.safe_load(value)
    except (IndexError, ValueError, AttributeError, TypeError):
        raise SystemExit(f"--set {text}: there is no such place") from None


def _checked(value, known, where):
    if not isinstance(value, dict):
        raise SystemExit(f"{where or 'the settings'}: expected keys and values")
    for key in value:
        if key not in known:
            raise SystemExit(f"'{where}{key}' is not known; there are {', '.join(sorted(known))}")
    out = {}
    for key, (kind, default) in known.items():
        given = value.get(key, default)
        if given is ...:
            raise SystemExit(f"'{where}{key}' is missing")
        if isinstance(kind, dict):
            out[key] = _checked(given, kind, f"{where}{key}.")
            continue
        given = "" if given is None and kind is str else given  # `--set data.folder=`
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if float in kinds and isinstance(given, int) and not isinstance(given, bool):
            given = float(given)
        if not isinstance(given, kinds) or (isinstance(given, bool) and bool not in kinds):
            raise SystemExit(f"'{where}{key}' is {given!r}, and should be of kind {' or '.join(one.__name__ for one in kinds)}")
        out[key] = given
    return out


def read_settings(path, changes=()):
    settings = _load(path)
    for change in changes:
        _set(settings, change)
    settings = _checked(settings, KNOWN, "")
    settings["stages"] = [_checked(stage, STAGE, f"stages.{number}.") for number, stage in enumerate(settings["stages"])]
    if not settings["stages"]:
        raise SystemExit("'stages' is empty: nothing is to be trained")
    if settings["keep"] < 1:
        raise SystemExit(f"'keep' is {settings['keep']}, and at least the last checkpoint is kept")
    return _placed(settings, os.getcwd())  # those of `changes`, as in a shell
