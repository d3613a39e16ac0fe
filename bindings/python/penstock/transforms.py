"""Transforms with the names, parameters and behaviour of torchvision.transforms.v2: the pipeline of a job, in Python."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Union

from .errors import UsageError

__all__ = ["Compose", "Transform", "CenterCrop", "CutMix", "FiveCrop", "MixUp", "Normalize", "Pad", "Python",
           "RandomApply", "RandomChoice", "RandomCrop", "RandomHorizontalFlip", "RandomInvert", "RandomOrder",
           "RandomResizedCrop", "RandomVerticalFlip", "Resize", "TenCrop", "ToDtype"]


class Transform:
    """One step of a pipeline. Plain data: the loaders do the work."""

    def __init__(self, **params: Any) -> None:
        self.params = {name: value for name, value in params.items() if value is not None}

    def to_spec(self) -> dict:
        return {type(self).__name__: self.params}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.params.items())})"

    def __eq__(self, other: Any) -> bool:
        return type(self) is type(other) and self.params == other.params

    __hash__ = None  # type: ignore[assignment]


def pipeline_of(transform: Any) -> list:
    """A job file's `pipeline:` for a Compose, one transform, or a list of them."""
    if transform is None:
        return []
    steps = transform.transforms if isinstance(transform, Compose) else transform
    steps = list(steps) if isinstance(steps, (list, tuple)) else [steps]
    out = []
    for step in steps:
        if isinstance(step, Compose):
            out += pipeline_of(step)
        elif hasattr(step, "to_spec"):
            out.append(step.to_spec())
        else:
            raise UsageError(f"{step!r} is no transform of penstock's",
                             f"use penstock.transforms ({', '.join(__all__[2:])}); "
                             "Python(function) takes a function of your own")
    return out


class Compose:
    """Several transforms, one after the other."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        self.transforms = list(transforms)

    def __repr__(self) -> str:
        return f"Compose({self.transforms!r})"


Size = Union[int, Sequence[int]]


def _interpolation(value: Any) -> Optional[str]:
    """"bilinear" for "bilinear" and for torchvision's InterpolationMode.BILINEAR alike."""
    return getattr(value, "value", value)


def _plain(value: Any) -> Any:
    """Lists and numbers for tuples, and for NumPy's and torch's arrays and numbers."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_plain(one) for one in value] if isinstance(value, (tuple, list)) else value


class RandomResizedCrop(Transform):
    """A box of random area (a share within `scale`) and aspect ratio (within `ratio`), resized to `size`."""

    def __init__(self, size: Size, scale: Sequence[float] = (0.08, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3),
                 interpolation: Any = "bilinear", antialias: bool = True) -> None:
        super().__init__(size=_plain(size), scale=_plain(scale), ratio=_plain(ratio),
                         interpolation=_interpolation(interpolation), antialias=antialias)


class Resize(Transform):
    """To `size`: [height, width], or the length of the shorter side."""

    def __init__(self, size: Size, interpolation: Any = "bilinear", max_size: Optional[int] = None,
                 antialias: bool = True) -> None:
        super().__init__(size=_plain(size), interpolation=_interpolation(interpolation), max_size=max_size,
                         antialias=antialias)


class CenterCrop(Transform):
    """The middle, padded with black where the picture is smaller."""

    def __init__(self, size: Size) -> None:
        super().__init__(size=_plain(size))


class RandomCrop(Transform):
    """A box of `size` anywhere, after padding."""

    def __init__(self, size: Size, padding: Any = None, pad_if_needed: bool = False, fill: Any = 0,
                 padding_mode: str = "constant") -> None:
        super().__init__(size=_plain(size), padding=_plain(padding), pad_if_needed=pad_if_needed, fill=_plain(fill),
                         padding_mode=padding_mode)


class Pad(Transform):
    """A border of `padding` pixels: one number; [left and right, top and bottom]; or [left, top, right, bottom]."""

    def __init__(self, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> None:
        super().__init__(padding=_plain(padding), fill=_plain(fill), padding_mode=padding_mode)


class FiveCrop(Transform):
    """The four corners and the middle: images are [n, 5, 3, h, w]. Only ToDtype and Normalize may follow."""

    def __init__(self, size: Size) -> None:
        super().__init__(size=_plain(size))


class TenCrop(Transform):
    """FiveCrop of the picture and of its mirror image: [n, 10, 3, h, w]."""

    def __init__(self, size: Size, vertical_flip: bool = False) -> None:
        super().__init__(size=_plain(size), vertical_flip=vertical_flip)


class RandomHorizontalFlip(Transform):
    """Left and right exchanged, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=_plain(p))


class RandomVerticalFlip(Transform):
    """Top and bottom exchanged, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=_plain(p))


class RandomInvert(Transform):
    """The negative, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=_plain(p))


class RandomApply(Transform):
    """All of `transforms` with probability `p`, else none."""

    def __init__(self, transforms: Sequence[Any], p: float = 0.5) -> None:
        super().__init__(transforms=pipeline_of(list(transforms)), p=_plain(p))


class RandomChoice(Transform):
    """One of `transforms`, by the weights `p`."""

    def __init__(self, transforms: Sequence[Any], p: Optional[Sequence[float]] = None) -> None:
        super().__init__(transforms=pipeline_of(list(transforms)), p=_plain(p))


class RandomOrder(Transform):
    """All of `transforms` in a random order."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__(transforms=pipeline_of(list(transforms)))


class ToDtype(Transform):
    """The dtype of the tensor; with `scale`, 0 to 255 becomes 0 to 1."""

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        super().__init__(dtype=str(getattr(dtype, "__name__", dtype)).rpartition(".")[2], scale=scale)


class Normalize(Transform):
    """(x - mean) / std, per channel. `inplace` is torchvision's word, and changes nothing here."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        super().__init__(mean=_plain(mean), std=_plain(std), inplace=inplace)


class MixUp(Transform):
    """Each sample of a batch plus the one before it, by a share drawn from Beta(alpha, alpha) once a batch. Stands
    last, after ToDtype; labels become float32 [n, num_classes]."""

    def __init__(self, *, alpha: float = 1.0, num_classes: int) -> None:
        super().__init__(alpha=_plain(alpha), num_classes=_plain(num_classes))


class CutMix(Transform):
    """A box of each sample of a batch is taken from the one before it; otherwise as MixUp."""

    def __init__(self, *, alpha: float = 1.0, num_classes: int) -> None:
        super().__init__(alpha=_plain(alpha), num_classes=_plain(num_classes))


class Python(Transform):
    """A function of the program's own: uint8 [height, width, 3] and a numpy Generator in, an array of that shape out.

    `function` is "package.module:name", or the function itself, which the loaders' Python workers must be able to import
    by its module and name. Change `version` with its code: runs of the two are then told apart.
    """

    def __init__(self, function: Union[str, Callable], version: str = "") -> None:
        if callable(function):
            module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<no name>")
            if module in (None, "__main__") or "<" in name:
                raise UsageError(f"Python({name}): workers cannot import this function",
                                 "define it by name at the top of a module, and give that")
            function = f"{module}:{name}"
        super().__init__(function=function, version=version)
