"""Image processors of transformers (5 and later), used as a transform: their `pixel_values`, made by penstock's steps.

Of those that resize, crop, rescale and normalise as their backend does, torchvision's or PIL's; ViT, CLIP, DeiT, SigLIP and others
differ in numbers alone. What a processor overrides, and what it says beside these, is not known here.
"""

from __future__ import annotations

from typing import Any, Optional

from ._torch_reading import Picture, Untranslatable, filter_name, plain

_BACKENDS = {"TorchvisionBackend": True, "PilBackend": False}  # does it work on tensors
_WORK = ("__call__", "preprocess", "process_image", "_preprocess", "_preprocess_image_like_inputs", "_prepare_image_like_inputs",
         "resize", "center_crop", "rescale", "normalize", "rescale_and_normalize", "convert_to_rgb", "_validate_preprocess_kwargs",
         "_fuse_mean_std_and_rescale_factor")
_CONVNEXT = ("transformers.models.convnext.image_processing_convnext", "transformers.models.convnext.image_processing_pil_convnext")
_OTHER_MIDDLE = ("where a side is longer than the crop by 3 more than a multiple of 4, transformers' crop begins a pixel earlier; where "
                 "it is shorter, pads may differ by a pixel")
# What an attribute may say without changing pixels.
_IDLE = {"do_convert_rgb", "default_to_square", "return_tensors", "disable_grouping", "device", "image_seq_length", "do_resize", "size",
         "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std",
         "_valid_kwargs_names"}


def specs_of(processor: Any, at: Picture) -> Optional[list]:
    """Job specs, and the conversions in `at`; None of what is no image processor of a known backend."""
    backend = next((kind for kind in type(processor).__mro__ if kind.__module__ == "transformers.image_processing_backends"
                    and kind.__name__ in _BACKENDS), None)
    if backend is None:
        return None
    convnext = type(processor).__module__ in _CONVNEXT
    _check(processor, backend, ("resize", "_preprocess") if convnext else ())
    if at.is_tensor:
        raise Untranslatable("it is translated where it stands first, or behind what makes PIL pictures")
    at.kind, at.on_tensors = "Tensor", _BACKENDS[backend.__name__]
    size = _size_of(processor.size, "size") if processor.do_resize else None
    crops = []
    if convnext and size is not None:
        size, crops = _of_convnext(processor, size)
    if processor.do_center_crop:
        crops.append(_size_of(processor.crop_size, "crop_size"))
    specs = [] if size is None else [{"Resize": {"size": size, "interpolation": _filter(processor.resample, at.on_tensors)}}]
    for crop in crops:
        if len(crop) != 2:
            raise Untranslatable("crop_size has no height and width")
        if size is None or len(size) != 2 or any((side - cut) % 4 == 3 or side < cut for side, cut in zip(size, crop)):
            at.remarks.append(_OTHER_MIDDLE)
        specs.append({"CenterCrop": {"size": crop}})
        size = crop
    _finish(processor, at)
    return specs


def _filter(resample: Any, on_tensors: bool) -> str:
    name = "bilinear" if resample is None else filter_name(resample)
    if on_tensors and name == "nearest":
        return "nearest-exact"
    if on_tensors and name not in ("nearest-exact", "bilinear", "bicubic", "lanczos"):
        raise Untranslatable(f"resample={name} is not for tensors; torchvision refuses it, too")
    return name


def _of_convnext(processor: Any, size: list) -> tuple:
    """(size, crops): below 384 it resizes to more, and cuts the middle out."""
    if len(size) != 1:
        raise Untranslatable(f"size={size} is not its shorter side")
    if size[0] >= 384:
        return size * 2, []
    return [int(size[0] / processor.crop_pct)], [size * 2]


def _check(processor: Any, backend: type, known: tuple) -> None:
    for kind in type(processor).__mro__:
        if kind is backend:
            break
        for name in _WORK:
            if name in vars(kind) and name not in known:
                raise Untranslatable(f"its {kind.__name__}.{name} is another than that of transformers' {backend.__name__}")
    for name, value in vars(processor).items():
        if name in _WORK or name not in _IDLE and value not in (None, False) and not (known and name == "crop_pct"):
            raise Untranslatable(f"penstock does not know what {name}={value!r} does")


def _size_of(size: Any, what: str) -> list:
    """[height, width], or [shorter side]."""
    said = dict(size) if size is not None else {}
    if set(said) == {"height", "width"}:
        return [int(said["height"]), int(said["width"])]
    if set(said) == {"shortest_edge"}:
        return [int(said["shortest_edge"])]
    raise Untranslatable(f"{what}={said} is another rule than height and width, or the shorter side")


def _finish(processor: Any, at: Picture) -> None:
    mean, std = (plain(getattr(processor, name)) for name in ("image_mean", "image_std"))
    mean, std = (value if isinstance(value, list) else [value] for value in (mean, std))
    factor = processor.rescale_factor if processor.do_rescale else 1.0
    if not processor.do_rescale and not processor.do_normalize:
        return
    unit = abs(factor * 255 - 1) < 1e-9
    at.cast("float32", unit)
    if processor.do_normalize or not unit:  # another factor than 1/255 goes into mean and std
        scale = 1.0 if unit else factor
        mean, std = (mean, std) if processor.do_normalize else ([0.0], [1.0])
        at.normalise([value / scale for value in mean], [value / scale for value in std])
    at.remarks.append("rounding of floats: transformers scales mean and std, or works in double, instead of scaling the picture")
