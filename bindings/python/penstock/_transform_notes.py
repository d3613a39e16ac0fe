"""Of each step of a pipeline: where it runs, and how near its pictures are to torchvision's. `penstock.describe_transforms`.

The figures are tests/transforms/EXACTNESS.md's, which says with which commands they were measured.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple, Optional, TextIO

from .errors import UsageError

__all__ = ["Note", "describe_transforms"]


class Note(NamedTuple):
    """Of one step."""

    step: str     # as the program wrote it
    runs: str     # where
    exact: bool   # for equal draws, what torchvision would make of it
    pixels: str   # how near, in words


_LOADER = "loader's threads or GPU"
_FINISHING = "finishing"
_WORKER = "Python worker"
_NOWHERE = "nowhere"
_LAST_BIT = "where torch.linspace has fused multiply-add (on other CPUs its last bit differs)"

# On PIL pictures: what is not equal bytes everywhere. Measured with torchvision 0.29.2, Pillow 13.0.0.
_ON_PIL = {
    "RandomRotation": "2 of 64.5 million bytes differ, by 1",
    "RandomAffine": "51 of 24.5 million bytes differ, by 1",
    "RandomPerspective": "267 of 7.4 million bytes differ: pixels that lie exactly between two",
    "GaussianBlur": "210 of 9.8 million bytes differ, by 1",
    "AugMix": "7.9 % of the bytes differ, by 120 at most: torchvision does the operations on tensors, also of PIL pictures",
}
_RESIZES = ("Resize", "RandomResizedCrop", "RandomResize", "RandomShortestSize", "ScaleJitter")
_OLDER = "equal bytes with Pillow before 13; since, where the height shrinks much more than the width, it resizes columns first"
_POLICIES = ("AutoAugment", "RandAugment", "TrivialAugmentWide")
_POSITIONS = ("CenterCrop", "RandomCrop", "Pad", "RandomHorizontalFlip", "RandomVerticalFlip", "RandomErasing", "RandomInvert",
              "RandomSolarize", "RandomPosterize", "FiveCrop", "TenCrop", "RandomChannelPermutation")
# On tensors of bytes, and of floats of 0 to 1: largest difference, and share of the values that differ by more than a float's
# rounding; of floats the largest difference in 1/255.
_ON_BYTES: dict = {}
_ON_FLOATS: dict = {}


def is_of_batches(spec: dict) -> bool:
    """MixUp, CutMix, or a group of them."""
    for name, params in spec.items():
        if name in ("MixUp", "CutMix"):
            return True
        inside = params.get("transforms") if isinstance(params, dict) else None
        return bool(inside) and is_of_batches(inside[0])
    return False


def _names_in(specs: list) -> list:
    """Of the transforms, with their filters: [("Resize", "bilinear")], groups opened."""
    out: list = []
    for spec in specs:
        for name, params in spec.items():
            inside = params.get("transforms")
            out += _names_in(inside) if inside is not None else [(name, str(params.get("interpolation", "")))]
    return out


def text_of(step: Any) -> str:
    text = " ".join(repr(step).split()) if not hasattr(step, "__qualname__") else f"{step.__module__}.{step.__qualname__}"
    return text if len(text) <= 100 else text[:97] + "..."


def _on_pil(name: str, v1_policy: bool) -> Optional[str]:
    """How far from equal bytes; None: not at all."""
    if name in _POLICIES and v1_policy:
        return "before v2 Solarize's threshold was inverted, too, where it is a whole number"
    return _ON_PIL.get(name)


def _difference(name: str, filter_: str, before: Any, v1_policy: bool) -> Optional[str]:
    """What differs, in words; None where nothing does."""
    if name in _POSITIONS:
        return None
    if before is None or not before.is_tensor:
        return _on_pil(name, v1_policy)
    table, unit = (_ON_FLOATS, "/255") if before.is_float else (_ON_BYTES, "")
    found = table.get(f"{name}, {filter_}", table.get(name))
    if found is None:
        return "tensors' arithmetic is another than PIL's; not measured"
    largest, share = found
    if not share:
        return None
    shown = "values" if before.is_float else "bytes"
    return f"{share * 100:.2g} % of the {shown} differ, by {largest:g}{unit} at most"


def _pixels(specs: list, before: Any, v1_policy: bool) -> tuple:
    """(is it exact, words)"""
    names = _names_in(specs)
    found = [(name, _difference(name, filter_, before, v1_policy)) for name, filter_ in names]
    found = [(name, words) for name, words in dict.fromkeys(found) if words]
    if found:
        where = "on tensors, where " if before is not None and before.is_tensor else ""
        return False, f"near: {where}" + "; ".join(words if len(names) == 1 else f"{name}: {words}" for name, words in found)
    if any(name in _RESIZES for name, _ in names):
        return True, f"exact: {_OLDER}"
    if any(name in _POLICIES for name, _ in names):
        return True, f"exact: equal bytes, {_LAST_BIT}"
    return True, "exact: equal bytes"


def of_step(step: Any, specs: list, before: Any, after: Any) -> Note:
    """Of a step that was translated, between the two Pictures."""
    text = text_of(step)
    finishing = after.finishing[len(before.finishing):]
    if not specs and not finishing and after.finishing == before.finishing:
        return Note(text, _NOWHERE, True, "exact: batches are tensors, of three channels, whatever the pipeline says of it")
    if not specs and not finishing:
        return Note(text, _NOWHERE, True, "exact: floats of 0 to 1 become the bytes that they came of")
    exact, words = _finished(step, finishing, before) if finishing else (True, "")
    if not specs:
        return Note(text, _FINISHING, exact, words)
    v1 = not type(step).__module__.startswith("torchvision.transforms.v2.")
    pixels_exact, pixels = _pixels(specs, before, v1)
    where = _LOADER + (f", then {_FINISHING}" if finishing else "")
    return Note(text, where, exact and pixels_exact, pixels + (f"; then {words}" if words else ""))


def _finished(step: Any, finishing: list, before: Any) -> tuple:
    names = [name for spec in finishing for name in spec]
    if before.dtype in ("float16", "bfloat16"):
        return False, f"near: in float32, rounded once to {before.dtype}, where torch rounds before it, too"
    if "ToDtype" in names and type(step).__name__ != "ToDtype":
        return False, "near: torch divides by 255 and penstock multiplies by 1/255: the last bit of the float"
    return True, "exact: equal floats for equal bytes"


def of_spec(spec: dict) -> Note:
    """Of a step of a job file's."""
    name, params = next(iter(spec.items()))
    text = f"{name}({', '.join(f'{key}={value!r}' for key, value in (params or {}).items())})"
    text = text if len(text) <= 100 else text[:97] + "..."
    if name in ("ToDtype", "Normalize"):
        return Note(text, _FINISHING, True, "exact: equal floats for equal bytes")
    if is_of_batches(spec):
        return Note(text, "loader, on whole batches", True, "exact: v2's arithmetic")
    if name == "Python":
        return Note(text, _WORKER, True, "exact: the program's own function")
    exact, words = _pixels([{name: params or {}}], None, False)
    return Note(text, _LOADER, exact, words)


def in_python(text: str) -> Note:
    """Of a step that runs as it is."""
    return Note(text, _WORKER, True, "exact: the program's own object is called")


def _notes_of(what: Any) -> tuple:
    """(notes, the sentence about what cannot be translated) of a transform or a loader."""
    notes = getattr(what, "_transform_notes", None)
    if notes is not None:
        return notes, ""
    native = getattr(what, "_native", None)
    if native is not None and hasattr(native, "spec"):
        return [of_spec(spec) for spec in json.loads(native.spec())["split"]["pipeline"]], ""
    from ._torch_transforms import translate
    if what is None:
        raise UsageError("describe_transforms(None): nothing to describe", "give a DataLoader, or a transform")
    translated = translate(what)
    return translated.notes, translated.why


def describe_transforms(what: Any, file: Optional[TextIO] = None) -> str:
    """Prints, to `file` or standard output, of each step of a transform or of a DataLoader's pipeline: where it runs, and whether
    its pixels are torchvision's for equal draws, or how near. Returns the text.

    UsageError for what is neither a loader nor a transform.
    """
    notes, why = _notes_of(what)
    lines = [f"{number}. {note.step}\n     runs: {note.runs}\n     {note.pixels}" for number, note in enumerate(notes, 1)]
    if why:
        lines.append(f"From here on in Python workers: {why}." if not why.endswith(".") else f"From here on in Python workers: {why}")
    lines.append("Draws are penstock's (seed, epoch, index), not torch's: the same distributions, other numbers.")
    text = "\n".join(lines)
    print(text, file=file or sys.stdout)
    return text
