"""Pipelines of torchvision's transform objects, v1 and v2, as job files say them: by type and attributes, without torchvision.

    translated = translate(torchvision.transforms.Compose([Resize(256), CenterCrop(224), ToTensor(), Normalize(mean, std)]))
    translated.steps    # [{"Resize": {"size": 256, ...}}, {"CenterCrop": ...}, {"ToDtype": ...}, {"Normalize": ...}]
    translated.rest     # []: all of it is translated

What is not known to give the same pictures is not translated: a subclass, an attribute that penstock does not know, a value that
it cannot express. From there on the program's own objects run as they are, in Python.

A pipeline of torchvision's changes what its pictures are on the way: PIL pictures, tensors of bytes, floats of 0 to 1, normalised
floats. penstock's are bytes until the finishing pass. So `Picture` follows what torchvision would have, conversions become the
finishing pass at the end, and a step behind them is translated only where it means the same on bytes.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from . import _transform_notes
from ._torch_reading import Picture, Untranslatable
from ._torch_sequences import flattened, name_of, specs_of
from ._transform_notes import text_of
from .errors import UsageError

__all__ = ["APART", "Translated", "flattened", "text_of", "translate"]

APART = ("put only torchvision's transforms and functions beside what runs in Python; or give a module's function that keeps the size of "
         "uint8 arrays as penstock.transforms.Python(function)")


class Translated(NamedTuple):
    """What became of a transform.

    `steps`: job specs, as in {"RandomResizedCrop": {"size": [224, 224]}}, for a split's `pipeline`.
    `rest`: the program's own objects, flattened out of Compose, to be called one after the other on the RGB PIL picture that
    `steps` have made; empty where all is translated. It begins with the conversions that stood before the first step that cannot be
    translated (ToImage, ToTensor, ToDtype, Normalize …), so that this step is given what torchvision would give it; `steps` has no
    ToDtype and no Normalize then.
    `why`: one sentence: which step cannot be translated, rest[culprit], and why; empty where rest is.
    `gives`: what torchvision's steps would return, "PIL", "Tensor" or "Image" (tv_tensors.Image).
    `notes`: a `_transform_notes.Note` for each step of the program's, in order.
    """

    steps: list
    rest: list
    why: str
    notes: list
    culprit: int = 0
    gives: str = "Tensor"


class _Walk:
    """The pipeline, step after step."""

    def __init__(self) -> None:
        self.at = Picture()
        self.steps: list = []
        self.tail: list = []  # what mixes whole batches
        self.conversions: list = []
        self.notes: list = []  # (note, is it a conversion)

    def add(self, step: Any) -> bool:
        """Of one step; True where it is picture work and a conversion at once, so that it can stand on neither side alone."""
        if hasattr(step, "to_spec"):
            self._add_own(step)
            return False
        self.at.on_tensors, self.at.remarks = False, []
        before = dataclasses.replace(self.at)
        specs = specs_of(step, self.at)
        converts = self.at != before
        if converts:
            self.conversions.append(step)
        self.steps += specs
        self.notes.append((_transform_notes.of_step(step, specs, before, self.at), converts))
        return converts and bool(specs)

    def _add_own(self, step: Any) -> None:
        """A step of penstock's own works on bytes, whatever stands before it; its conversions belong to the finishing pass."""
        spec = step.to_spec()
        name = next(iter(spec))
        converts = name in ("ToDtype", "Normalize")
        if name == "ToDtype":
            self.at.kind = "Tensor"
            self.at.cast(str(spec[name].get("dtype")), bool(spec[name].get("scale")))
        elif name == "Normalize":
            self.at.normalise(spec[name]["mean"], spec[name]["std"])
        elif self.tail or _transform_notes.is_of_batches(spec):
            self.tail.append(spec)
        else:
            self.steps.append(spec)
        if converts:
            self.conversions.append(step)
        self.notes.append((_transform_notes.of_spec(spec), converts))

    def up_to(self, steps: list, number: int, first: int, why: str) -> Translated:
        """The translation of what was added, where steps[first:] run as they are because steps[number] cannot be translated."""
        rest = self.conversions + steps[first:]
        own = [one for one in rest if hasattr(one, "to_spec")]
        if own or self.tail:
            raise UsageError(f"{own[0] if own else 'MixUp or CutMix'} of penstock's stands in one pipeline with what cannot be "
                             f"translated: {why}", APART)
        notes = [_transform_notes.in_python(note.step) if converts else note for note, converts in self.notes]
        notes += [_transform_notes.in_python(text_of(one), why.partition(": ")[2] if at == number else "")
                  for at, one in enumerate(steps[first:], first)]
        return Translated(self.steps, rest, why, notes, len(self.conversions) + number - first)


def translate(transform: Any) -> Translated:
    """What penstock makes of `transform`: None; transforms of penstock's, torchvision's (v1 and v2), timm's, an image processor of
    transformers; Compose, torch.nn.Sequential and lists of them; any callable.

    UsageError for what no pipeline can hold: neither a transform nor a callable; a transform of penstock's beside what only Python
    can run.
    """
    if transform is None:
        return Translated([], [], "", [])
    steps = list(flattened(transform))
    for step in steps:
        if isinstance(step, type) and step.__module__ == "penstock.transforms":
            raise UsageError(f"{step.__name__} is a class; a pipeline has transforms made of it",
                             f"write {step.__name__}(), with its parameters")
        if not hasattr(step, "to_spec") and not callable(step):
            raise UsageError(f"{step!r} is no transform", "use transforms of penstock's or torchvision's, or a function")
    if all(hasattr(step, "to_spec") for step in steps):  # in the program's order, whose mistakes the library names
        specs = [step.to_spec() for step in steps]
        return Translated(specs, [], "", [_transform_notes.of_spec(spec) for spec in specs])
    walk, indivisible = _Walk(), None
    for number, step in enumerate(steps):
        try:
            if walk.add(step) and indivisible is None:
                indivisible = number
        except Untranslatable as problem:
            first = number if indivisible is None else indivisible
            if indivisible is not None:
                walk = _Walk()
                for one in steps[:first]:
                    walk.add(one)
            return walk.up_to(steps, number, first, f"{name_of(step)}: {problem}")
    return Translated(walk.steps + walk.at.finishing + walk.tail, [], "", [note for note, _ in walk.notes], gives=walk.at.kind)
