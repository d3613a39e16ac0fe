"""What torchvision's transforms of geometry are here: one function a class, which reads all of its attributes and gives job specs.

v1 and v2 have the same names; where they keep an attribute otherwise, the function asks `read.v2`.
"""

from __future__ import annotations

from typing import Any

from ._torch_reading import (Attributes, Picture, Untranslatable, fill_of, plain, probability, range_of, resampling, size_of, step,
                             warp_filter)


@step("Resize")
def _resize(read: Attributes, at: Picture) -> list:
    size = None if read.take("size") is None else size_of(read)
    spec = {"size": size, **resampling(read, at)}
    if read.take("max_size", None) is not None:
        spec["max_size"] = read.numbers("max_size")
    return [{"Resize": spec}]


@step("RandomResizedCrop")
def _random_resized_crop(read: Attributes, at: Picture) -> list:
    return [{"RandomResizedCrop": {"size": size_of(read), "scale": range_of(read, "scale"), "ratio": range_of(read, "ratio"),
                                   **resampling(read, at)}}]


@step("CenterCrop")
def _center_crop(read: Attributes, at: Picture) -> list:
    if at.mean:
        at.bytes_of(0, "what smaller pictures are padded with, fill")
    return [{"CenterCrop": {"size": size_of(read)}}]


@step("RandomCrop")
def _random_crop(read: Attributes, at: Picture) -> list:
    padding = read.take("padding")
    if padding is not None:
        padding = read.numbers("padding", padding, many=(1, 2, 4))
        if read.v2 and isinstance(padding, list) and len(padding) == 4:  # kept as left, right, top, bottom
            padding = [padding[0], padding[2], padding[1], padding[3]]
    spec = {"size": size_of(read), "pad_if_needed": read.flag("pad_if_needed"), "padding_mode": read.take("padding_mode")}
    pads = padding is not None or spec["pad_if_needed"]
    if pads and spec["padding_mode"] == "constant":
        spec.update(fill_of(read, at))
    else:
        read.skip("fill", "_fill")
    return [{"RandomCrop": spec if padding is None else {**spec, "padding": padding}}]


@step("Pad")
def _pad(read: Attributes, at: Picture) -> list:
    spec = {"padding": read.numbers("padding", many=(1, 2, 4)), "padding_mode": read.take("padding_mode")}
    if spec["padding_mode"] == "constant":
        spec.update(fill_of(read, at))
    else:
        read.skip("fill", "_fill")
    return [{"Pad": spec}]


@step("FiveCrop", "TenCrop")
def _several_crops(read: Attributes, at: Picture) -> list:
    raise Untranslatable("it gives a tuple of pictures, of which torch makes a list of batches; penstock.transforms."
                         f"{read.name} at the end of a pipeline of penstock's gives one tensor [n, crops, 3, h, w]")


@step("RandomHorizontalFlip", "RandomVerticalFlip")
def _flip(read: Attributes, at: Picture) -> list:
    return [{read.name: probability(read)}]


@step("RandomRotation")
def _random_rotation(read: Attributes, at: Picture) -> list:
    spec = {"degrees": read.numbers("degrees", many=(2,)), "expand": read.flag("expand"), **warp_filter(read, at), **fill_of(read, at)}
    center = read.take("center")
    return [{"RandomRotation": spec if center is None else {**spec, "center": read.numbers("center", center, many=(2,))}}]


@step("RandomAffine")
def _random_affine(read: Attributes, at: Picture) -> list:
    spec = {"degrees": read.numbers("degrees", many=(2,)), **warp_filter(read, at), **fill_of(read, at)}
    for name, many in (("translate", (2,)), ("scale", (2,)), ("shear", (2, 4)), ("center", (2,))):
        if read.take(name) is not None:
            spec[name] = read.numbers(name, many=many)
    return [{"RandomAffine": spec}]


@step("RandomPerspective")
def _random_perspective(read: Attributes, at: Picture) -> list:
    return [{"RandomPerspective": {"distortion_scale": read.numbers("distortion_scale"), **probability(read),
                                   **warp_filter(read, at), **fill_of(read, at)}}]


@step("RandomResize")
def _random_resize(read: Attributes, at: Picture) -> list:
    return [{"RandomResize": {"min_size": read.numbers("min_size"), "max_size": read.numbers("max_size"), **resampling(read, at)}}]


@step("RandomShortestSize")
def _random_shortest_size(read: Attributes, at: Picture) -> list:
    sizes = plain(read.take("min_size"))
    spec = {"min_size": read.numbers("min_size", sizes, many=(len(sizes),) if isinstance(sizes, list) else None),
            **resampling(read, at)}
    if read.take("max_size") is not None:
        spec["max_size"] = read.numbers("max_size")
    return [{"RandomShortestSize": spec}]


@step("ScaleJitter")
def _scale_jitter(read: Attributes, at: Picture) -> list:
    return [{"ScaleJitter": {"target_size": read.numbers("target_size", many=(2,)),
                             "scale_range": read.numbers("scale_range", many=(2,)), **resampling(read, at)}}]


# ---- weights' own presets --------------------------------------------------------------------------------------------
def image_classification(what: Any, at: Picture) -> list:
    """`weights.transforms()`: resize, crop, floats, normalise, in one object."""
    read = Attributes(what)
    specs = [{"Resize": {"size": size_of(read, "resize_size"), **resampling(read, at)}},
             {"CenterCrop": {"size": size_of(read, "crop_size")}}]
    at.kind = "Tensor" if at.kind == "PIL" else at.kind
    at.cast("float32", True)
    at.normalise(plain(read.take("mean")), plain(read.take("std")))
    read.check_all_taken()
    return specs
