"""torchvision as this folder's tests use it: v2's functions where it has them (PyPI's, under tests/frameworks),
otherwise those before v2 (Debian's 0.14). `policy` has v2's own policy classes, with our draws in place of torch's."""
import contextlib
from types import SimpleNamespace
from unittest import mock

import numpy as np
import PIL.Image
import torch
from torchvision.transforms import InterpolationMode

try:
    from torchvision.transforms import v2
    from torchvision.transforms.v2 import functional as F
except ImportError:
    v2 = None
    from torchvision.transforms import functional as F

__all__ = ["F", "InterpolationMode", "drawn", "linspace", "policy", "rows_first", "v2"]
OPS = ["Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
       "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"]


_linspace = torch.linspace


def linspace(start, end, count):
    """torch.linspace as current torch has it where the CPU has fused multiply-add (its AVX2 and AVX-512 code): ours on any
    CPU. Without, and in Debian's 1.13, the last bit may be another."""
    start, end = np.float32(start), np.float32(end)
    step = np.float64((end - start) / np.float32(count - 1))
    i = np.arange(count)
    values = torch.from_numpy(np.where(i < count // 2, np.float64(start) + step * i,
                                       np.float64(end) - step * (count - 1 - i)).astype(np.float32))
    assert (values - _linspace(start, end, count)).abs().max() <= 2 ** -23 * max(abs(start), abs(end))
    return values


@contextlib.contextmanager
def drawn(integers=(), yes=(), own_linspace=True):
    """torch.randint gives these integers; torch.rand a number below every probability but 0, or above, for yes and no.
    All of them have to be asked for. Unless own_linspace is False, torch.linspace is the one above."""
    integers, yes = list(integers), list(yes)
    with mock.patch.object(torch, "randint", lambda *args, **kwargs: torch.tensor(integers.pop(0))), \
            mock.patch.object(torch, "rand", lambda *args, **kwargs: torch.tensor(1e-9 if yes.pop(0) else 1.0)), \
            mock.patch.object(torch, "linspace", linspace if own_linspace else _linspace):
        yield
    assert not integers and not yes, f"not asked for: {integers} {yes}"


@contextlib.contextmanager
def rows_first():
    """Pillow resizes rows, then columns; since 13 the other way about where the height shrinks much more than the width
    (its change 9549). Here always rows first, each pass as Pillow makes it."""
    original = PIL.Image.Image.resize

    def resize(self, size, resample=None, box=None, reducing_gap=None):
        assert box is None and reducing_gap is None
        if resample == PIL.Image.Resampling.NEAREST:
            return original(self, size, resample)
        return original(original(self, (size[0], self.height), resample), size, resample)

    with mock.patch.object(PIL.Image.Image, "resize", resize):
        yield


def space_of(transform, all_ops=True):
    return transform._AUGMENTATION_SPACE if all_ops else transform._PARTIAL_AUGMENTATION_SPACE


def one_op(space, op, bin_, negated):
    """What an operation asks torch for: (integers, signs)."""
    magnitudes, signed = space[OPS[op]]
    has_magnitude = magnitudes(10, 50, 50) is not None
    integers = [list(space).index(OPS[op])] + ([bin_] if has_magnitude and bin_ is not None else [])
    return integers, [negated] if signed else []


def rand_augment(magnitude, bins, mode="nearest", fill=None, own_linspace=True):
    def replay(image, values):
        transform = v2.RandAugment(len(values) // 2, magnitude, bins, InterpolationMode(mode), fill)
        integers, signs = [], []
        for op, negated in zip(values[0::2], values[1::2]):
            more = one_op(transform._AUGMENTATION_SPACE, op, None, negated)
            integers += more[0]
            signs += more[1]
        with drawn(integers, signs, own_linspace):
            return transform(image)
    return replay


def trivial(image, values, own_linspace=True):
    transform = v2.TrivialAugmentWide()
    with drawn(*one_op(transform._AUGMENTATION_SPACE, *values), own_linspace):
        return transform(image)


def auto_augment(name, own_linspace=True):
    transform = v2.AutoAugment(v2.AutoAugmentPolicy(name))

    def replay(image, values):
        yes = []
        for (op, probability, _), happens, negated in zip(transform._policies[values[0]], values[1::2], values[2::2]):
            yes.append(happens)
            if happens and transform._AUGMENTATION_SPACE[op][1]:
                yes.append(negated)
        with drawn([values[0]], yes, own_linspace):
            return transform(image)
    return replay


class AugMixOnPictures(v2.AugMix if v2 else object):
    """v2's AugMix does the operations on tensors, even for a PIL image. Here they are done on PIL images."""

    def _apply_image_or_video_transform(self, image, transform_id, magnitude, interpolation, fill):
        picture = F.to_pil_image(image[0])
        if transform_id == "Posterize":
            made = self.posterize(picture, int(magnitude))
        else:
            made = super()._apply_image_or_video_transform(picture, transform_id, magnitude, interpolation, fill)
        return F.pil_to_tensor(made)[None]


def aug_mix(width, depth, posterize, on_tensors=False, **options):
    """Of the drawn depth 1 to 3, or, where the transform says it, `depth`."""
    def replay(image, values):
        weights = (torch.tensor(values[:width + 1], dtype=torch.float64) * 2.0 ** -32).float()
        chain_depth = -1 if depth == 3 else depth
        transform = (v2.AugMix if on_tensors else AugMixOnPictures)(
            mixture_width=width, chain_depth=chain_depth, **options)
        transform.posterize = posterize
        space = space_of(transform, options.get("all_ops", True))
        rest, integers, signs = values[width + 1:], [], []
        for chain in range(width):
            chosen = rest[chain * (1 + 3 * depth):]
            if depth == 3:
                integers.append(chosen[0])
            for i in range(chosen[0]):
                more = one_op(space, *chosen[1 + 3 * i:4 + 3 * i])
                integers += more[0]
                signs += more[1]
        # The class multiplies the second by the rest of the first: with 1 as the rest, these are the weights.
        shares = [torch.stack([weights[0], torch.tensor(1.0)])[None], weights[None, 1:]]
        transform._sample_dirichlet = lambda parameters: shares.pop(0)
        with drawn(integers, signs, not on_tensors):
            return transform(image)
    return replay


policy = SimpleNamespace(rand_augment=rand_augment, trivial=trivial, auto_augment=auto_augment, aug_mix=aug_mix)
