"""Transforms with the names, parameters and behaviour of torchvision.transforms.v2: the pipeline of a job, in Python."""

from __future__ import annotations

import types as _types
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from ._job import dtype_name as _dtype_name
from ._torch_reading import PILLOWS as _PILLOWS, plain as _plain
from ._worker import Refused as _Refused, resolve as _resolve
from .errors import UsageError

__all__ = ["Compose", "Transform", "AugMix", "AutoAugment", "CenterCrop", "ColorJitter", "CutMix", "ExifTranspose",
           "FiveCrop", "GaussianBlur", "GaussianNoise", "Grayscale", "Identity", "JPEG", "MixUp", "Normalize", "Pad",
           "Python", "RGB", "RandAugment", "RandomAdjustSharpness", "RandomAffine", "RandomApply",
           "RandomAutocontrast", "RandomChannelPermutation", "RandomChoice", "RandomCrop", "RandomEqualize",
           "RandomErasing", "RandomGrayscale", "RandomHorizontalFlip", "RandomInvert", "RandomOrder",
           "RandomPerspective", "RandomPhotometricDistort", "RandomPosterize", "RandomResize", "RandomResizedCrop",
           "RandomRotation", "RandomShortestSize", "RandomSolarize", "RandomVerticalFlip", "Resize", "ScaleJitter",
           "TenCrop", "ToDtype", "TrivialAugmentWide"]


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
    """A job file's `pipeline:` for a Compose, one transform, or a list of them: penstock's, or what can be translated of
    torchvision's. UsageError where a step cannot be."""
    from . import _torch_transforms
    if transform is None:
        return []
    remedy = f"use penstock.transforms ({', '.join(__all__[2:])}); Python(function) takes a function of your own"
    for step in _torch_transforms.flattened(transform):
        if not hasattr(step, "to_spec") and not callable(step):
            raise UsageError(f"{step!r} is no transform of penstock's", remedy)
    translated = _torch_transforms.translate(transform)
    if translated.rest:
        step = translated.rest[translated.culprit]
        raise UsageError(f"{_torch_transforms.text_of(step)} is no transform of penstock's, and cannot be translated into one: "
                         f"{translated.why}", remedy)
    return translated.steps


class Compose:
    """Several transforms, one after the other."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        if not isinstance(transforms, (list, tuple)):
            raise UsageError(f"Compose({transforms!r})", "give a list of transforms")
        self.transforms = list(transforms)

    def __repr__(self) -> str:
        return f"Compose({self.transforms!r})"


# What torchvision's conversions mean here, for pipelines that are copied from its pages: pictures are tensors already.
def ToTensor() -> "Transform":  # noqa: N802
    """ToDtype("float32", scale=True): floats of 0 to 1."""
    return ToDtype("float32", scale=True)


def ConvertImageDtype(dtype: Any = "float32") -> "Transform":  # noqa: N802
    """ToDtype(dtype, scale=True)."""
    return ToDtype(dtype, scale=True)


class ToImage(Compose):
    """Nothing: pictures are tensors already."""

    def __init__(self) -> None:
        super().__init__([])

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class PILToTensor(ToImage):
    """Nothing: pictures are tensors already."""


class ToPureTensor(ToImage):
    """Nothing: pictures are plain tensors already."""


Size = Union[int, Sequence[int]]


_ELSEWHERE = {
    "Lambda": "Python(function)",
    "Scale": "Resize",
    "RandomSizedCrop": "RandomResizedCrop",
}


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    instead = _ELSEWHERE.get(name)
    raise AttributeError(f"penstock.transforms has no {name}" + (f"; write {instead}" if instead else
                         f": there are {', '.join(__all__)}; Python(function) takes a function of your own"))


def _interpolation(value: Any) -> Optional[str]:
    """"bilinear" for "bilinear", torchvision's InterpolationMode.BILINEAR and Pillow's Resampling.BILINEAR. UsageError for a bare number,
    which is another filter in Pillow than in OpenCV."""
    if type(value) is int:
        pillows = _PILLOWS.get(value)
        raise UsageError(f"interpolation={value}: a number" + (f" (Pillow's {pillows})" if pillows else ""),
                         'say the name, as in "bilinear" or "area": Pillow and OpenCV number their filters differently')
    if isinstance(value, int) and not isinstance(value, bool):  # Pillow's Resampling
        return _PILLOWS.get(int(value), value)
    return getattr(value, "value", value)


def _interpolations(value: Any) -> Any:
    """One interpolation, or a list of which each sample gets one; "random" is timm's word for bilinear and bicubic."""
    if value == "random":
        return ["bilinear", "bicubic"]
    return [_interpolation(one) for one in value] if isinstance(value, (list, tuple)) else _interpolation(value)


def _antialias(value: Optional[bool]) -> dict:
    """None: what the job's arithmetic does. Pillow antialiases, cv2.resize does not."""
    return {} if value is None else {"antialias": value}


def _fills(fill: Any, mask_fill: Optional[int]) -> dict:
    """`fill` and `mask_fill`; also of torchvision's dict by type, as in {tv_tensors.Image: 127, tv_tensors.Mask: 255}."""
    if isinstance(fill, Mapping):
        by_name = {getattr(kind, "__name__", kind): value for kind, value in fill.items()}
        if "Image" not in by_name and "others" not in by_name:
            raise UsageError(f"fill={fill!r} says nothing of images",
                             'its keys are types called Image and Mask, or "others"')
        if mask_fill is None:
            mask_fill = _plain(by_name.get("Mask", by_name.get("others")))
            mask_fill = mask_fill[0] if isinstance(mask_fill, list) and len(mask_fill) == 1 else mask_fill
        fill = by_name.get("Image", by_name.get("others"))
    return {"fill": _plain(fill), "mask_fill": _plain(mask_fill)}


class ExifTranspose(Transform):
    """Images oriented by their EXIF orientation, as PIL.ImageOps.exif_transpose makes them. First, or not at all."""

    def __init__(self) -> None:
        super().__init__()


class Identity(Transform):
    """The picture as it is; where a choice is wanted that changes nothing."""

    def __init__(self) -> None:
        super().__init__()


class RGB(Transform):
    """Nothing is changed: pictures have three channels already, grey files three equal ones."""

    def __init__(self) -> None:
        super().__init__()


class RandomResizedCrop(Transform):
    """A box of random area (a share within `scale`) and aspect ratio (within `ratio`), resized to `size`. Each
    sample gets one of a list of interpolations; "random" is timm's word for ("bilinear", "bicubic")."""

    def __init__(self, size: Size, scale: Sequence[float] = (0.08, 1.0), ratio: Sequence[float] = (3 / 4, 4 / 3),
                 interpolation: Any = "bilinear", antialias: Optional[bool] = None) -> None:
        super().__init__(size=_plain(size), scale=_plain(scale), ratio=_plain(ratio),
                         interpolation=_interpolations(interpolation), **_antialias(antialias))


class Resize(Transform):
    """To `size`: [height, width], or the length of the shorter side; None makes the longer side `max_size`."""

    def __init__(self, size: Optional[Size], interpolation: Any = "bilinear", max_size: Optional[int] = None,
                 antialias: Optional[bool] = None) -> None:
        super().__init__(size=_plain(size), interpolation=_interpolation(interpolation), max_size=_plain(max_size),
                         **_antialias(antialias))
        if size is None:
            self.params = {"size": None, **self.params}


class RandomResize(Transform):
    """The shorter side to a random length from `min_size` to `max_size` - 1."""

    def __init__(self, min_size: int, max_size: int, interpolation: Any = "bilinear",
                 antialias: Optional[bool] = None) -> None:
        super().__init__(min_size=_plain(min_size), max_size=_plain(max_size),
                         interpolation=_interpolation(interpolation), **_antialias(antialias))


class RandomShortestSize(Transform):
    """The shorter side to one of `min_size`, the longer one at most `max_size`."""

    def __init__(self, min_size: Size, max_size: Optional[int] = None, interpolation: Any = "bilinear",
                 antialias: Optional[bool] = None) -> None:
        super().__init__(min_size=_plain(min_size), max_size=_plain(max_size),
                         interpolation=_interpolation(interpolation), **_antialias(antialias))


class ScaleJitter(Transform):
    """By the factor that fits the picture into `target_size`, times a random scale."""

    def __init__(self, target_size: Sequence[int], scale_range: Sequence[float] = (0.1, 2.0),
                 interpolation: Any = "bilinear", antialias: Optional[bool] = None) -> None:
        super().__init__(target_size=_plain(target_size), scale_range=_plain(scale_range),
                         interpolation=_interpolation(interpolation), **_antialias(antialias))


class CenterCrop(Transform):
    """The middle, padded with black where the picture is smaller."""

    def __init__(self, size: Size) -> None:
        super().__init__(size=_plain(size))


class RandomCrop(Transform):
    """A box of `size` anywhere, after padding."""

    def __init__(self, size: Size, padding: Any = None, pad_if_needed: bool = False, fill: Any = 0,
                 padding_mode: str = "constant", mask_fill: Optional[int] = None) -> None:
        super().__init__(size=_plain(size), padding=_plain(padding), pad_if_needed=pad_if_needed,
                         **_fills(fill, mask_fill), padding_mode=padding_mode)


class Pad(Transform):
    """A border of `padding` pixels: one number; [left and right, top and bottom]; or [left, top, right, bottom]."""

    def __init__(self, padding: Any, fill: Any = 0, padding_mode: str = "constant",
                 mask_fill: Optional[int] = None) -> None:
        super().__init__(padding=_plain(padding), **_fills(fill, mask_fill), padding_mode=padding_mode)


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


class Grayscale(Transform):
    """The three channels made the picture's luma. `num_output_channels` can only be 3: samples have three channels, where
    torchvision's default leaves one."""

    def __init__(self, num_output_channels: int = 3) -> None:
        super().__init__(num_output_channels=_plain(num_output_channels))


class RandomGrayscale(Transform):
    """The three channels made the picture's luma, with probability `p`."""

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p=_plain(p))


class ColorJitter(Transform):
    """Brightness, contrast, saturation and hue changed at random, in random order: v for 1 - v to 1 + v, or a range."""

    def __init__(self, brightness: Any = None, contrast: Any = None, saturation: Any = None, hue: Any = None) -> None:
        super().__init__(brightness=_plain(brightness), contrast=_plain(contrast), saturation=_plain(saturation),
                         hue=_plain(hue))


class RandomChannelPermutation(Transform):
    """Red, green and blue in a random order."""

    def __init__(self) -> None:
        super().__init__()


class RandomInvert(Transform):
    """The negative, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=_plain(p))


class RandomPosterize(Transform):
    """Only the highest `bits` of each byte, with probability `p`."""

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(bits=_plain(bits), p=_plain(p))


class RandomSolarize(Transform):
    """Bytes at or above `threshold` (0 to 255) inverted, with probability `p`."""

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(threshold=_plain(threshold), p=_plain(p))


class RandomAdjustSharpness(Transform):
    """Smoothed (0) to sharpened (2 and more), with probability `p`."""

    def __init__(self, sharpness_factor: float, p: float = 0.5) -> None:
        super().__init__(sharpness_factor=_plain(sharpness_factor), p=_plain(p))


class RandomAutocontrast(Transform):
    """Each channel stretched to 0 to 255, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=_plain(p))


class RandomEqualize(Transform):
    """Each channel's histogram evened out, with probability `p`."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p=_plain(p))


class RandomPhotometricDistort(Transform):
    """Brightness, contrast, saturation, hue and the order of the channels changed, each with probability `p`."""

    def __init__(self, brightness: Sequence[float] = (0.875, 1.125), contrast: Sequence[float] = (0.5, 1.5),
                 saturation: Sequence[float] = (0.5, 1.5), hue: Sequence[float] = (-0.05, 0.05), p: float = 0.5) -> None:
        super().__init__(brightness=_plain(brightness), contrast=_plain(contrast), saturation=_plain(saturation),
                         hue=_plain(hue), p=_plain(p))


class RandomRotation(Transform):
    """Rotated by an angle within `degrees`, counter-clockwise."""

    def __init__(self, degrees: Any, interpolation: Any = "nearest", expand: bool = False, center: Any = None,
                 fill: Any = 0, mask_fill: Optional[int] = None) -> None:
        super().__init__(degrees=_plain(degrees), interpolation=_interpolation(interpolation), expand=expand,
                         center=_plain(center), **_fills(fill, mask_fill))


class RandomAffine(Transform):
    """Rotated (clockwise), shifted, scaled and sheared at random."""

    def __init__(self, degrees: Any, translate: Any = None, scale: Any = None, shear: Any = None,
                 interpolation: Any = "nearest", fill: Any = 0, center: Any = None,
                 mask_fill: Optional[int] = None) -> None:
        super().__init__(degrees=_plain(degrees), translate=_plain(translate), scale=_plain(scale),
                         shear=_plain(shear), interpolation=_interpolation(interpolation), **_fills(fill, mask_fill),
                         center=_plain(center))


class RandomPerspective(Transform):
    """The four corners moved inwards at random, with probability `p`."""

    def __init__(self, distortion_scale: float = 0.5, p: float = 0.5, interpolation: Any = "bilinear",
                 fill: Any = 0, mask_fill: Optional[int] = None) -> None:
        super().__init__(distortion_scale=_plain(distortion_scale), p=_plain(p),
                         interpolation=_interpolation(interpolation), **_fills(fill, mask_fill))


class GaussianBlur(Transform):
    """Blurred with a Gaussian of a width within `sigma`."""

    def __init__(self, kernel_size: Size, sigma: Any = (0.1, 2.0)) -> None:
        super().__init__(kernel_size=_plain(kernel_size), sigma=_plain(sigma))


class GaussianNoise(Transform):
    """Normal noise added to each byte; `mean` and `sigma` are shares of 255. Before ToDtype: torchvision's on bytes, whose
    noise is whole numbers."""

    def __init__(self, mean: float = 0.0, sigma: float = 0.1, clip: bool = True) -> None:
        super().__init__(mean=_plain(mean), sigma=_plain(sigma), clip=clip)


class JPEG(Transform):
    """Encoded as JPEG of a quality within `quality`, and decoded again."""

    def __init__(self, quality: Union[int, Sequence[int]]) -> None:
        super().__init__(quality=_plain(quality))


class RandomErasing(Transform):
    """A random box painted over, with probability `p`. `value` is a colour of 0 to 255, before any Normalize, or
    "random": uniform noise. `inplace` is torchvision's word, and changes nothing here."""

    def __init__(self, p: float = 0.5, scale: Sequence[float] = (0.02, 0.33), ratio: Sequence[float] = (0.3, 3.3),
                 value: Any = 0, inplace: bool = False) -> None:
        super().__init__(p=_plain(p), scale=_plain(scale), ratio=_plain(ratio), value=_plain(value), inplace=inplace)


class RandAugment(Transform):
    """`num_ops` random operations of one `magnitude`."""

    def __init__(self, num_ops: int = 2, magnitude: int = 9, num_magnitude_bins: int = 31,
                 interpolation: Any = "nearest", fill: Any = None,
                 mask_fill: Optional[int] = None) -> None:
        super().__init__(num_ops=_plain(num_ops), magnitude=_plain(magnitude),
                         num_magnitude_bins=_plain(num_magnitude_bins), interpolation=_interpolation(interpolation),
                         **_fills(fill, mask_fill))


class AutoAugment(Transform):
    """One of 25 pairs of operations learned on "imagenet", "cifar10" or "svhn" (or torchvision's AutoAugmentPolicy)."""

    def __init__(self, policy: Any = "imagenet", interpolation: Any = "nearest", fill: Any = None,
                 mask_fill: Optional[int] = None) -> None:
        super().__init__(policy=getattr(policy, "value", policy), interpolation=_interpolation(interpolation),
                         **_fills(fill, mask_fill))


class TrivialAugmentWide(Transform):
    """One random operation of random strength."""

    def __init__(self, num_magnitude_bins: int = 31, interpolation: Any = "nearest", fill: Any = None,
                 mask_fill: Optional[int] = None) -> None:
        super().__init__(num_magnitude_bins=_plain(num_magnitude_bins), interpolation=_interpolation(interpolation),
                         **_fills(fill, mask_fill))


class AugMix(Transform):
    """A mixture of the picture and of `mixture_width` augmented copies. Masks stay as they are."""

    def __init__(self, severity: int = 3, mixture_width: int = 3, chain_depth: int = -1, alpha: float = 1.0,
                 all_ops: bool = True, interpolation: Any = "bilinear", fill: Any = None) -> None:
        super().__init__(severity=_plain(severity), mixture_width=_plain(mixture_width),
                         chain_depth=_plain(chain_depth), alpha=_plain(alpha), all_ops=all_ops,
                         interpolation=_interpolation(interpolation), fill=_plain(fill))


class RandomApply(Transform):
    """All of `transforms` with probability `p`, else none."""

    def __init__(self, transforms: Sequence[Any], p: float = 0.5) -> None:
        super().__init__(transforms=pipeline_of(list(transforms)), p=_plain(p))


def _one_each(transforms: Sequence[Any]) -> list:
    """A step for each element, also of a Compose or list, which may hold several or none: these are not taken apart."""
    each = [pipeline_of([one]) or [Identity().to_spec()] for one in transforms]
    return [steps[0] if len(steps) == 1 else {"RandomApply": {"transforms": steps, "p": 1.0}} for steps in each]


class RandomChoice(Transform):
    """One of `transforms`, by the weights `p`. A Compose or list among them is one."""

    def __init__(self, transforms: Sequence[Any], p: Optional[Sequence[float]] = None) -> None:
        super().__init__(transforms=_one_each(transforms), p=_plain(p))


class RandomOrder(Transform):
    """All of `transforms` in a random order. A Compose or list among them stays in its order."""

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__(transforms=_one_each(transforms))


class ToDtype(Transform):
    """The dtype of the tensor; with `scale`, 0 to 255 becomes 0 to 1."""

    def __init__(self, dtype: Any, scale: bool = False) -> None:
        super().__init__(dtype=_dtype_name(dtype), scale=scale)


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


def _is_found(function: Callable, name: str) -> bool:
    """Whether it is what a worker finds by that name: of a method it finds the class's function, without the object."""
    try:
        found = _resolve(name)
    except (_Refused, ImportError, ValueError):
        return False
    if isinstance(function, _types.MethodType):
        return found == function  # a class's method is another object each time
    # A notebook that loads modules again (autoreload) gives the old function the new one's code.
    return found is function or getattr(found, "__code__", None) is getattr(function, "__code__", found)


class Python(Transform):
    """A function of the program's own: uint8 [height, width, 3] and a numpy Generator in, an array of that shape out.

    `function` is "package.module:name", or the function itself, which the loaders' Python workers must be able to import
    by its module and name: none of `__main__`, no lambda, and no method of an object. Change `version` with its code: runs of the
    two are then told apart.
    """

    def __init__(self, function: Union[str, Callable], version: str = "") -> None:
        if callable(function):
            module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<no name>")
            if module in (None, "__main__") or "<" in name or not _is_found(function, f"{module}:{name}"):
                raise UsageError(f"Python({name}): workers cannot import this function",
                                 "define it by name at the top of a module of its own, neither in another function nor in the "
                                 "program itself (__main__), nor as an object's method, and give what the program imports from there")
            function = f"{module}:{name}"
        super().__init__(function=function, version=version)
