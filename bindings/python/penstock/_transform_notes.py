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
_HERE = "this process, in Python"  # where a loader has no workers
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
_OLDER = "equal bytes with Pillow before 13; Pillow 13 resizes columns first where the height shrinks much more than the width"
_POLICIES = ("AutoAugment", "RandAugment", "TrivialAugmentWide")
# Equal bytes on PIL pictures and tensors alike.
_EVERYWHERE = ("CenterCrop", "RandomCrop", "Pad", "RandomHorizontalFlip", "RandomVerticalFlip", "RandomErasing", "RandomInvert",
              "RandomSolarize", "RandomPosterize", "FiveCrop", "TenCrop", "RandomChannelPermutation", "Identity", "RGB", "JPEG",
              "GaussianNoise")
# On tensors: (largest difference in bytes' steps of 1 or 1/255; share of the values that differ, of floats by more than half a step,
# which rounding to bytes makes). tests/frameworks/tensor_order_test.py measures them, and fails where they are wrong.
_ON_BYTES: dict = {
    "Resize, bilinear": (1, 0.07), "RandomResizedCrop, bilinear": (1, 0.088), "Resize, bicubic": (13, 0.082),
    "RandomResizedCrop, bicubic": (22, 0.098), "Resize, lanczos": (1, 0.0049), "RandomResizedCrop, lanczos": (2, 0.0057),
    "Resize, nearest-exact": (252, 0.013), "RandomResizedCrop, nearest-exact": (247, 0.01), "Grayscale": (1, 0.55),
    "RandomGrayscale": (1, 0.19), "RandomAdjustSharpness": (1, 2.3e-05), "RandomAutocontrast": (1, 0.0083),
    "RandomEqualize": (0, 0.0), "ColorJitter": (22, 0.27), "RandomRotation, nearest": (255, 0.00012),
    "RandomAffine, nearest": (239, 0.00012), "RandomPerspective, nearest": (255, 7.9e-05),
    "RandomRotation, bilinear": (183, 0.31), "RandomAffine, bilinear": (188, 0.28),
    "RandomPerspective, bilinear": (187, 0.22), "RandomRotation, by 90 degrees": (254, 0.2), "GaussianBlur": (1, 1.4e-05),
    "RandAugment": (252, 0.21), "TrivialAugmentWide": (235, 0.089), "AutoAugment": (255, 0.031), "AugMix": (160, 0.12),
    "RandomPhotometricDistort": (56, 0.35),
}
_ON_FLOATS: dict = {
    "Resize, bilinear": (1, 0.14), "RandomResizedCrop, bilinear": (1, 0.17), "Resize, bicubic": (18, 0.16),
    "RandomResizedCrop, bicubic": (41.3, 0.2), "Resize, lanczos": (33.5, 0.18), "RandomResizedCrop, lanczos": (72.9, 0.22),
    "Resize, nearest-exact": (252, 0.013), "RandomResizedCrop, nearest-exact": (247, 0.01), "Grayscale": (0.525, 0.01),
    "RandomGrayscale": (0.525, 0.0034), "RandomAdjustSharpness": (2.31, 0.24), "RandomAutocontrast": (1, 0.043),
    "ColorJitter": (22.4, 0.43), "RandomRotation, nearest": (221, 3.9e-05), "RandomAffine, nearest": (0, 0.0),
    "RandomRotation, bilinear": (126, 0.21), "RandomAffine, bilinear": (188, 0.22),
    "RandomRotation, by 90 degrees": (254, 0.2), "GaussianBlur": (0.5, 0.0), "RandomPhotometricDistort": (55, 0.58),
    "RandomPerspective, nearest": (255, 6.5e-05), "RandomPerspective, bilinear": (159, 0.22),
}
# v1's policies on PIL pictures: a byte that equals Solarize's threshold is inverted there.
_V1_POLICIES: dict = {
    "RandAugment": (0, 0.0), "TrivialAugmentWide": (0, 0.0), "AutoAugment": (85, 5.1e-05),
}


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
            out += _names_in(inside) if inside is not None else [(name, _kind_of(name, params))]
    return out


def _kind_of(name: str, params: dict) -> str:
    """Which figures of a transform are meant: those of its filter, or of a quarter turn."""
    degrees = params.get("degrees") or [0]
    if name == "RandomRotation" and isinstance(degrees, list) and len(set(degrees)) == 1 and degrees[0] % 180 == 90:
        return "by 90 degrees"
    return str(params.get("interpolation", ""))


def text_of(step: Any) -> str:
    text = " ".join(repr(step).split()) if not hasattr(step, "__qualname__") else f"{step.__module__}.{step.__qualname__}"
    return text if len(text) <= 100 else text[:97] + "..."


def _on_pil(name: str, v1_policy: bool) -> Optional[str]:
    """How far from equal bytes; None: not at all."""
    if name in _POLICIES and v1_policy:
        largest, share = _V1_POLICIES[name]
        return (f"v1's Solarize inverts bytes that equal its threshold, too: measured {_share(share)} of the bytes, by {largest} at most"
                if share else "v1's Solarize inverts bytes that equal its threshold, too")
    return _ON_PIL.get(name)


def _difference(name: str, filter_: str, on: str, v1_policy: bool) -> Optional[str]:
    """What differs, in words; None where nothing does. `on`: "PIL", "bytes" or "floats"."""
    if name in _EVERYWHERE:
        return None
    if on == "PIL":
        return _on_pil(name, v1_policy)
    table = _ON_FLOATS if on == "floats" else _ON_BYTES
    name = "Resize" if name in _RESIZES and name != "RandomResizedCrop" else name
    found = table.get(f"{name}, {filter_}", table.get(name))
    if found is None:
        return "not measured; tensors' arithmetic is another than PIL's"
    largest, share = found
    if on == "floats":
        return (f"{_share(share)} of the values differ by more than rounding to bytes does, by {largest:g}/255 at most" if share else
                "values differ by half of 1/255 at most, the rounding to bytes")
    return f"{_share(share)} of the bytes differ, by {largest} at most" if share else None


def _share(share: float) -> str:
    return f"{share * 100:.2g} %"


def _pixels(specs: list, on: str, v1_policy: bool) -> tuple:
    """(is it exact, words)"""
    names = _names_in(specs)
    found = [(name, _difference(name, filter_, on, v1_policy)) for name, filter_ in names]
    found = [(name, words) for name, words in dict.fromkeys(found) if words]
    if found:
        where = "" if on == "PIL" else f"torchvision works on tensors of {on} here: "
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
    exact, words = _finished(step, finishing, before) if finishing and not after.remarks else (True, "")
    if not specs:
        return Note(text, _FINISHING, exact, words)
    v1 = not type(step).__module__.startswith("torchvision.transforms.v2.")
    on = "PIL" if not (before.is_tensor or after.on_tensors) else "floats" if before.is_float else "bytes"
    pixels_exact, pixels = _pixels(specs, on, v1)
    where = _LOADER + (f", then {_FINISHING}" if finishing else "")
    exact = exact and pixels_exact and not after.remarks
    parts = [part.partition(": ")[2] for part in (pixels, words) if part]
    return Note(text, where, exact, ("exact: " if exact else "near: ") + "; ".join([parts[0], *after.remarks, *parts[1:]]))


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
    exact, words = _pixels([{name: params or {}}], "PIL", False)
    return Note(text, _LOADER, exact, words)


def in_python(text: str, why: str = "") -> Note:
    """Of a step that runs as it is; `why`, of the first one that cannot be translated."""
    return Note(text, _WORKER, True, "exact: the program's own object is called" + (f"; not translated: {why}" if why else ""))


def begun_in_python(notes: list) -> list:
    """Of a pipeline whose first steps penstock makes in the Python worker that runs the others."""
    return [note._replace(runs=f"{_WORKER}, by penstock") if note.runs.startswith(_LOADER) else note for note in notes]


def in_this_process(notes: Any) -> list:
    """Of a loader with num_workers=0, which has no workers."""
    return [note._replace(runs=_HERE + note.runs[len(_WORKER):]) if note.runs.startswith(_WORKER) else note for note in notes]


def all_in_python(notes: list) -> list:
    """Of one that runs as it is, because of a step that cannot be translated, or whose pictures' sizes differ before it."""
    return [note if note.runs == _WORKER else in_python(note.step) for note in notes]


def _where(note: Note, of_loader: bool) -> str:
    """A transform by itself may come to run in either place."""
    return note.runs if of_loader or not note.runs.startswith(_WORKER) else f"{note.runs}, or this process with num_workers=0"


def _notes_of(what: Any) -> tuple:
    """(notes, the sentence about what cannot be translated) of a transform or a loader, whose notes say it themselves."""
    notes = getattr(what, "_transform_notes", None) or getattr(getattr(what, "_given", None), "notes", None)
    if notes:
        return list(notes), ""
    native = getattr(what, "_native", None)
    if native is not None and hasattr(native, "spec"):
        return [of_spec(spec) for spec in json.loads(native.spec())["split"].get("pipeline", [])], ""  # none of epochs without a batch
    from ._torch_transforms import translate
    if what is None:
        raise UsageError("describe_transforms(None): nothing to describe", "give a DataLoader, or a transform")
    translated = translate(what)
    return translated.notes, translated.why


_NO_STEPS = "Its samples are made in Python, by the data set: there are no steps to describe."


def _makes_samples_itself(what: Any) -> bool:
    """Is it a loader whose data set makes the samples, by transforms that nobody here knows?"""
    given = getattr(what, "_given", None)
    return getattr(given, "layout", None) is not None and not given.notes


def describe_transforms(what: Any, file: Optional[TextIO] = None) -> str:
    """Prints, to `file` or standard output, of each step of a transform or of a DataLoader's pipeline: where it runs, and whether
    its pixels are torchvision's for equal draws, or how near. Returns the text.

    UsageError for what is neither a loader nor a transform.
    """
    text = _NO_STEPS if _makes_samples_itself(what) else _text_of(what)
    print(text, file=file or sys.stdout)
    return text


def _text_of(what: Any) -> str:
    notes, why = _notes_of(what)
    of_loader = hasattr(what, "_given") or hasattr(what, "_transform_notes")
    lines = [f"{number}. {note.step}\n     runs: {_where(note, of_loader)}\n     {note.pixels}" for number, note in enumerate(notes, 1)]
    if why:
        lines.append(f"From here on in Python: {why}" + ("" if why.endswith(".") else "."))
    lines.append("Draws are penstock's (seed, epoch, index), not torch's: the same distributions, other numbers.")
    return "\n".join(lines)
