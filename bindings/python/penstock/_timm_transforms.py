"""What timm's own transform classes are here: what `timm.data.create_transform` makes beside torchvision's.

Only classes that give the same pictures as penstock's; `_WHY_NOT` says of others what is different.
"""

from __future__ import annotations

import math
from typing import Optional

from ._job import dtype_name
from ._torch_reading import Attributes, Picture, Untranslatable, filter_name, plain

_WHY_NOT = {
    "ResizeKeepRatio": "it rounds the longer side, which penstock's Resize, as torchvision's, cuts off to a whole number",
    "RandomCropOrPad": "penstock has no crop that pads on one side and cuts off on the other",
    "RandAugment": "timm's operations and magnitudes are others than torchvision's, which penstock's RandAugment has",
    "AutoAugment": "timm's operations and magnitudes are others than torchvision's, which penstock's AutoAugment has",
    "AugMixAugment": "timm's operations and magnitudes are others than torchvision's, which penstock's AugMix has",
}


def specs_of(read: Attributes, module: str, at: Picture) -> Optional[list]:
    """Job specs of one object of timm's; None of a class that is not known."""
    if read.name in _WHY_NOT:
        raise Untranslatable(_WHY_NOT[read.name])
    function = {("timm.data.transforms", "RandomResizedCropAndInterpolation"): _random_resized_crop,
                ("timm.data.transforms", "CenterCropOrPad"): _center_crop_or_pad,
                ("timm.data.transforms", "ToNumpy"): _to_bytes,
                ("timm.data.transforms", "MaybePILToTensor"): _to_bytes,
                ("timm.data.transforms", "MaybeToTensor"): _maybe_to_tensor,
                ("timm.data.transforms", "ToTensor"): _to_tensor,
                ("timm.data.random_erasing", "RandomErasing"): _random_erasing}.get((module, read.name))
    if function is None:
        return None
    specs = function(read, at)
    read.check_all_taken()
    return specs


def _random_resized_crop(read: Attributes, at: Picture) -> list:
    if at.is_tensor:
        raise Untranslatable("it is for PIL pictures")
    spec = {"size": read.numbers("size", many=(2,)), "scale": read.numbers("scale", many=(2,)),
            "ratio": read.numbers("ratio", many=(2,))}
    filters = read.take("interpolation")
    if isinstance(filters, (tuple, list)):  # interpolation="random": each sample gets one of them
        return [{"RandomResizedCrop": {**spec, "interpolation": [filter_name(one) for one in filters]}}]
    return [{"RandomResizedCrop": {**spec, "interpolation": filter_name(filters)}}]


def _center_crop_or_pad(read: Attributes, at: Picture) -> list:
    if read.take("padding_mode") != "constant" or at.bytes_of(plain(read.take("fill")), "fill") != 0:
        raise Untranslatable("it pads with another colour than black, or with the picture; penstock's CenterCrop pads with black")
    return [{"CenterCrop": {"size": read.numbers("size", many=(2,))}}]


def _to_bytes(read: Attributes, at: Picture) -> list:
    at.kind = "Tensor"
    return []


def _maybe_to_tensor(read: Attributes, at: Picture) -> list:
    if not at.is_tensor:
        at.kind = "Tensor"
        at.cast("float32", True)
    return []


def _to_tensor(read: Attributes, at: Picture) -> list:
    if at.is_tensor:
        raise Untranslatable("its picture is a tensor already; timm refuses it, too")
    at.kind = "Tensor"
    at.cast(str(dtype_name(read.take("dtype"))), False)
    return []


def _random_erasing(read: Attributes, at: Picture) -> list:
    mode, counts = read.take("mode"), [read.take("min_count"), read.take("max_count")]
    read.skip("num_splits", "device", "rand_color", "per_pixel")  # of batches; of the generator; what mode says
    if mode not in ("", "const"):
        raise Untranslatable(f"mode={mode!r} erases with normal noise, which penstock's bytes cannot hold")
    if counts != [1, 1]:
        raise Untranslatable("it erases several boxes")
    if not at.is_tensor:
        raise Untranslatable("it erases tensors only")
    return [{"RandomErasing": {"p": read.numbers("probability"), "scale": [read.numbers("min_area"), read.numbers("max_area")],
                               "ratio": [math.exp(one) for one in read.numbers("log_aspect_ratio", many=(2,))],
                               "value": at.bytes_of(0, "what it erases with, value", nearest=True)}}]
