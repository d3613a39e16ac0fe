"""What torchvision's transforms of colours, policies and conversions are here: as `_torch_geometry`. Conversions give no specs: they
change `at`, the `Picture` that torchvision would have at this place."""

from __future__ import annotations

from typing import Any

from ._job import dtype_name
from ._torch_reading import (Attributes, Picture, Untranslatable, fill_of, plain, probability, range_of, step, warp_filter)


# ---- colours ---------------------------------------------------------------------------------------------------------
@step("Grayscale")
def _grayscale(read: Attributes, at: Picture) -> list:
    at.require_bytes()
    if read.numbers("num_output_channels") != 3:
        raise Untranslatable("it makes pictures of one channel, and penstock's have three: num_output_channels=3")
    return [{"Grayscale": {"num_output_channels": 3}}]


@step("RandomGrayscale", "RandomInvert", "RandomAutocontrast")
def _random_colour(read: Attributes, at: Picture) -> list:
    at.require_bytes()
    return [{read.name: probability(read)}]


@step("RandomEqualize")
def _random_equalize(read: Attributes, at: Picture) -> list:
    if at.is_float:
        raise Untranslatable("torchvision equalises floats otherwise than bytes, or refuses them")
    return [{"RandomEqualize": probability(read)}]


@step("ColorJitter")
def _color_jitter(read: Attributes, at: Picture) -> list:
    at.require_bytes()
    ranges = {name: read.take(name) for name in ("brightness", "contrast", "saturation", "hue")}
    return [{"ColorJitter": {name: read.numbers(name, value, many=(2,)) for name, value in ranges.items() if value is not None}}]


@step("RandomPosterize")
def _random_posterize(read: Attributes, at: Picture) -> list:
    if at.is_float:
        raise Untranslatable("torchvision posterises floats otherwise than bytes, or refuses them")
    return [{"RandomPosterize": {"bits": read.numbers("bits"), **probability(read)}}]


@step("RandomSolarize")
def _random_solarize(read: Attributes, at: Picture) -> list:
    at.require_bytes()
    threshold = read.numbers("threshold")
    if at.scaled:  # the first byte that is at or above it as a float of 0 to 1
        if any(abs(byte / 255 - threshold) < 1e-6 for byte in range(256)):
            raise Untranslatable(f"threshold={threshold} is a byte's value as a float, where rounding decides")
        threshold = next((byte for byte in range(256) if byte / 255 > threshold), 256)
    return [{"RandomSolarize": {"threshold": threshold, **probability(read)}}]


@step("RandomAdjustSharpness")
def _random_adjust_sharpness(read: Attributes, at: Picture) -> list:
    at.require_bytes()
    return [{"RandomAdjustSharpness": {"sharpness_factor": read.numbers("sharpness_factor"), **probability(read)}}]


@step("GaussianBlur")
def _gaussian_blur(read: Attributes, at: Picture) -> list:
    at.require_bytes()
    return [{"GaussianBlur": {"kernel_size": read.numbers("kernel_size", many=(1, 2)), "sigma": read.numbers("sigma", many=(2,))}}]


@step("RandomErasing")
def _random_erasing(read: Attributes, at: Picture) -> list:
    if not at.is_tensor and not read.v2:
        raise Untranslatable("torchvision's v1 erases tensors only; put ToTensor before it")
    value = plain(read.take("value"))
    if value is None or isinstance(value, str):
        raise Untranslatable("value='random' is normal noise, which penstock's bytes cannot hold; penstock's own is uniform")
    read.flag("inplace")
    return [{"RandomErasing": {**probability(read), "scale": range_of(read, "scale"), "ratio": range_of(read, "ratio"),
                               "value": at.bytes_of(value, "value", nearest=True)}}]


@step("RandomPhotometricDistort")
def _random_photometric_distort(read: Attributes, at: Picture) -> list:
    at.require_bytes()
    return [{"RandomPhotometricDistort": {**{name: read.numbers(name, many=(2,)) for name in
                                             ("brightness", "contrast", "saturation", "hue")}, **probability(read)}}]


@step("RandomChannelPermutation")
def _random_channel_permutation(read: Attributes, at: Picture) -> list:
    at.require_bytes()
    return [{"RandomChannelPermutation": {}}]


@step("GaussianNoise")
def _gaussian_noise(read: Attributes, at: Picture) -> list:
    if at.is_float:
        raise Untranslatable("it adds noise to floats, which penstock's bytes cannot hold; before ToDtype it can be translated")
    if not at.is_tensor:
        raise Untranslatable("it is for tensors; torchvision refuses PIL pictures, too")
    return [{"GaussianNoise": {"mean": read.numbers("mean"), "sigma": read.numbers("sigma"), "clip": read.flag("clip")}}]


@step("JPEG")
def _jpeg(read: Attributes, at: Picture) -> list:
    if at.is_float:
        raise Untranslatable("it is for bytes; torchvision refuses floats, too")
    return [{"JPEG": {"quality": read.numbers("quality", many=(2,))}}]


# ---- policies --------------------------------------------------------------------------------------------------------
def _policy(read: Attributes, at: Picture) -> dict:
    if at.is_float:
        raise Untranslatable("its operations on floats are others than those on bytes, or are refused")
    return {**warp_filter(read, at), **fill_of(read, at)}


@step("AutoAugment")
def _auto_augment(read: Attributes, at: Picture) -> list:
    policy = read.take("policy")
    kept = read.take("_policies" if read.v2 else "policies")
    if kept != read.step._get_policies(policy):
        raise Untranslatable("its policies were changed")
    return [{"AutoAugment": {"policy": getattr(policy, "value", policy), **_policy(read, at)}}]


@step("RandAugment")
def _rand_augment(read: Attributes, at: Picture) -> list:
    return [{"RandAugment": {**{name: read.numbers(name) for name in ("num_ops", "magnitude", "num_magnitude_bins")},
                             **_policy(read, at)}}]


@step("TrivialAugmentWide")
def _trivial_augment_wide(read: Attributes, at: Picture) -> list:
    return [{"TrivialAugmentWide": {"num_magnitude_bins": read.numbers("num_magnitude_bins"), **_policy(read, at)}}]


@step("AugMix")
def _aug_mix(read: Attributes, at: Picture) -> list:
    if read.take("_PARAMETER_MAX") != 10:
        raise Untranslatable("its _PARAMETER_MAX was changed")
    spec = {name: read.numbers(name) for name in ("severity", "mixture_width", "chain_depth", "alpha")}
    return [{"AugMix": {**spec, "all_ops": read.flag("all_ops"), **_policy(read, at)}}]


@step("MixUp", "CutMix")
def _mix(read: Attributes, at: Picture) -> list:
    raise Untranslatable("it mixes whole batches, in torch in a collate_fn; penstock.transforms."
                         f"{read.name} stands last in the pipeline")


# ---- conversions -----------------------------------------------------------------------------------------------------
@step("ToTensor")
def _to_tensor(read: Attributes, at: Picture) -> list:
    if at.is_tensor:
        if read.v2:
            return []
        raise Untranslatable("its picture is a tensor already; torchvision refuses it, too")
    at.kind = "Tensor"
    at.cast("float32", True)
    return []


@step("PILToTensor")
def _pil_to_tensor(read: Attributes, at: Picture) -> list:
    if at.is_tensor and not read.v2:
        raise Untranslatable("its picture is a tensor already; torchvision refuses it, too")
    at.kind = "Tensor" if at.kind == "PIL" else at.kind
    return []


@step("ToImage")
def _to_image(read: Attributes, at: Picture) -> list:
    at.kind = "Image"
    return []


@step("ToPureTensor")
def _to_pure_tensor(read: Attributes, at: Picture) -> list:
    at.kind = "Tensor" if at.kind == "Image" else at.kind
    return []


@step("ToPILImage")
def _to_pil_image(read: Attributes, at: Picture) -> list:
    if read.take("mode") not in (None, "RGB"):
        raise Untranslatable("it makes pictures of another mode than RGB")
    if not at.is_tensor and not read.v2:
        raise Untranslatable("its picture is PIL's already; torchvision refuses it, too")
    at.cast("uint8", True)
    at.kind = "PIL"
    return []


@step("ConvertImageDtype")
def _convert_image_dtype(read: Attributes, at: Picture) -> list:
    dtype = read.take("dtype")
    if not at.is_tensor:
        if read.v2:
            return []
        raise Untranslatable("it is for tensors; put PILToTensor before it")
    at.cast(str(dtype_name(dtype)), True)
    at.kind = at.kind if read.v2 else "Tensor"  # torchvision's first ones do arithmetic, of which no Image comes
    return []


@step("ToDtype")
def _to_dtype(read: Attributes, at: Picture) -> list:
    dtype, scale = read.take("dtype"), read.flag("scale")
    if isinstance(dtype, dict):
        wanted = {"Image": "torchvision", "Tensor": "torch", "PIL": "PIL"}[at.kind]
        name = "Image" if at.kind == "PIL" else at.kind
        found = [value for kind, value in dtype.items() if not isinstance(kind, str) and kind.__name__ == name
                 and kind.__module__.partition(".")[0] == wanted]
        if not found and "others" not in dtype:
            raise Untranslatable(f"dtype={dtype!r} says nothing of {at.kind} pictures")
        dtype = found[0] if found else dtype["others"]
        if dtype is not None and not at.is_tensor:
            raise Untranslatable("it says a dtype for PIL pictures, which have none")
    if at.is_tensor and dtype is not None:
        at.cast(str(dtype_name(dtype)), scale)
    return []  # PIL pictures pass it, as in torchvision


@step("Normalize")
def _normalize(read: Attributes, at: Picture) -> list:
    read.flag("inplace")
    if not at.is_tensor:
        raise Untranslatable("it is for tensors of floats; torchvision refuses PIL pictures, too")
    at.normalise(plain(read.take("mean")), plain(read.take("std")))
    at.kind = at.kind if read.v2 else "Tensor"
    return []


@step("Identity", "RGB")
def _nothing(read: Attributes, at: Picture) -> list:
    return []  # penstock's pictures have three channels
