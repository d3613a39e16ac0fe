"""Transforms draw from torchvision's distributions (RandomResizedCrop's boxes: draws_torchvision_test.py; MixUp and CutMix:
mix_torchvision_test.py): two-sample Kolmogorov-Smirnov tests of every draw against
torchvision's get_params, or what its forward() does where it has none; where torchvision has v2, its classes'
make_params and forward(). Both sides are seeded, so the outcome is fixed. With PENSTOCK_FULL=1 four times the draws, which see
half as large a difference."""
import math
import random
import sys
from unittest import mock

from pipeline_request import need, request

need("torch", "torchvision", "PIL", "numpy")
import numpy as np
import torch
import torchvision.transforms
from PIL import Image
from torchvision.transforms import autoaugment

from jobs import FULL
from torchvision_functions import v2

COUNT = 4000 if FULL else 1000
SEED = 5
UNIT = 2.0 ** -32
WIDTH, HEIGHT = 60, 45
# Two samples of one distribution are further apart than this once in 10,000 times; for numbers with ties, more rarely.
LIMIT = math.sqrt(-math.log(1e-4 / 2) / 2) * math.sqrt(2 / COUNT)
OPS = ["Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
       "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"]


def distance(a, b):
    a, b = np.sort(np.asarray(a, dtype=np.float64)), np.sort(np.asarray(b, dtype=np.float64))
    values = np.concatenate([a, b])
    return np.max(np.abs(np.searchsorted(a, values, side="right") / len(a)
                         - np.searchsorted(b, values, side="right") / len(b)))


def drawn(name, params):
    lines = request(mode="draws", width=WIDTH, height=HEIGHT, count=COUNT, seed=SEED,
                    pipeline=[{name: params}, {"CenterCrop": {"size": 8}}])
    return np.array([line[0] for line in lines])


def theirs(make):
    torch.manual_seed(SEED)
    random.seed(SEED)  # torchvision's groups before v2
    return np.array([make() for _ in range(COUNT)], dtype=np.float64)


def happens(transform, name, before_v2=Image.new("RGB", (2, 1))):
    """How often forward() calls the functional `name`, counted on a small picture; before v2, on `before_v2`."""
    count = []
    if v2:
        transform.transform = lambda image, params: count.append(1) or image
        image = Image.new("RGB", (16, 16))  # RandomPerspective's least squares fail on fewer pixels

        def calls():
            count.clear()
            transform(image)
            return len(count)
        return theirs(calls)
    module = torchvision.transforms.functional
    original = getattr(module, name)
    setattr(module, name, lambda *args, **kwargs: count.append(1) or args[0])
    try:
        def once():
            count.clear()
            transform(before_v2)
            return len(count)
        return theirs(once)
    finally:
        setattr(module, name, original)


class Recorded:
    """The operations that a policy's forward() applies, as (name, magnitude)."""

    def __init__(self, policy):
        self.policy = policy
        self.image = Image.new("RGB", (WIDTH, HEIGHT))

    def __call__(self):
        found = []
        if v2:
            self.policy._apply_image_or_video_transform = (
                lambda image, name, magnitude, *args, **kwargs: found.append((name, magnitude)) or image)
            self.policy(self.image)
            return found
        original = autoaugment._apply_op
        autoaugment._apply_op = lambda image, name, magnitude, *args, **kwargs: found.append((name, magnitude)) or image
        try:
            self.policy(self.image)
        finally:
            autoaugment._apply_op = original
        return found


class V2Params:
    """v2's make_params in the shape of get_params before v2."""

    def __init__(self):
        self.image = [torch.zeros(3, HEIGHT, WIDTH)]

    def jitter(self, transform):
        found = transform.make_params(self.image)
        return [*found["fn_idx"].tolist(), *(float(found[f"{name}_factor"])
                                             for name in ("brightness", "contrast", "saturation", "hue"))]

    def affine(self, transform):
        found = transform.make_params(self.image)
        return np.hstack([found[name] for name in ("angle", "translate", "scale", "shear")])

    def corners(self, transform):
        seen = []
        with mock.patch("torchvision.transforms.v2._geometry._get_perspective_coeffs",
                        lambda start, end: seen.append(end)):
            transform.make_params(self.image)
        return np.ravel(seen[0])

    def box(self, transform):
        found = transform.make_params(self.image)
        return [found[name] for name in "jiwh"]


class Marked:
    """Which of its transforms a group calls, in order."""

    def __init__(self, make, count):
        self.called = []
        self.group = make([lambda image, number=number: self.called.append(number) or image for number in range(count)])

    def __call__(self):
        self.called.clear()
        self.group(Image.new("RGB", (2, 1)))
        return list(self.called)


def crops_and_groups(V):
    """(what, our columns, torchvision's columns)"""
    image = torch.zeros(3, HEIGHT, WIDTH)
    for size in ([20, 33], [HEIGHT - 1, WIDTH]):
        def corner(size=size):
            if v2:
                found = V.RandomCrop(size).make_params([image])
                return found["left"], found["top"]
            return V.RandomCrop.get_params(image, size)[1::-1]
        yield f"RandomCrop {size}", drawn("RandomCrop", {"size": size})[:, :2], theirs(corner)
    crop = drawn("RandomResizedCrop", {"size": 8, "interpolation": ["bilinear", "bicubic", "box"]})
    yield ("RandomResizedCrop's interpolation", crop[:, 4:], theirs(lambda: [random.choice(range(3))]))  # as timm's
    yield ("RandomResizedCrop's box beside it", crop[:, :4],
           drawn("RandomResizedCrop", {"size": 8, "interpolation": "box"}))
    if v2:
        yield ("RandomResize", drawn("RandomResize", {"min_size": 11, "max_size": 30}),
               theirs(lambda: v2.RandomResize(11, 30).make_params([image])["size"]))
        # v2 shows of the drawn edge only what becomes of the size.
        yield ("RandomShortestSize", drawn("RandomShortestSize", {"min_size": [9, 30, 45]}),
               theirs(lambda: [v2.RandomShortestSize([9, 30, 45]).make_params([image])["size"][0]]))
        yield ("ScaleJitter", np.floor(drawn("ScaleJitter", {"target_size": [6000, 4500]}) * UNIT * 4500),
               theirs(lambda: [v2.ScaleJitter((6000, 4500)).make_params([image])["size"][0]]))
    for name, functional in (("RandomHorizontalFlip", "hflip"), ("RandomVerticalFlip", "vflip")):
        yield (f"{name}'s probability", drawn(name, {"p": 0.35})[:, :1],
               happens(getattr(V, name)(0.35), functional)[:, None])
    flip = {"RandomHorizontalFlip": {}}
    one = Marked(lambda inside: V.RandomApply(inside, p=0.3), 1)
    yield ("RandomApply's probability", drawn("RandomApply", {"transforms": [flip], "p": 0.3})[:, :1],
           theirs(lambda: [len(one())]))
    for weights in (None, [0.5, 0.1, 0.4]):
        choice = Marked(lambda inside, weights=weights: V.RandomChoice(inside, p=weights), 3)
        params = {"transforms": [flip] * 3, **({"p": weights} if weights else {})}
        yield f"RandomChoice {weights}", drawn("RandomChoice", params)[:, :1], theirs(choice)
    places = np.array([1, 3, 9])[:, None]
    order = Marked(V.RandomOrder, 3)
    yield "RandomOrder", drawn("RandomOrder", {"transforms": [flip] * 3})[:, :3] @ places, theirs(order) @ places


def cases():
    """(what, our columns, torchvision's columns)"""
    V2 = V2Params()
    V = v2 or torchvision.transforms
    blank = torch.zeros(3, HEIGHT, WIDTH)
    yield from crops_and_groups(V)
    jitter = V.ColorJitter(0.4, (0.2, 3.0), 0.9, 0.3)
    ours = drawn("ColorJitter", {"brightness": 0.4, "contrast": [0.2, 3.0], "saturation": 0.9, "hue": 0.3})
    ranges = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    other = theirs(lambda: V2.jitter(jitter)) if v2 else theirs(
        lambda: [float(x) for part in jitter.get_params(*ranges)
                 for x in (part if hasattr(part, "tolist") else [part])])
    yield "ColorJitter", np.hstack([ours[:, :4], ours[:, 4:] * UNIT]), other
    order = [1, 4, 16, 64]
    yield "ColorJitter's order", ours[:, :4] @ np.array(order)[:, None], other[:, :4] @ np.array(order)[:, None]
    permuted = [v2.RandomChannelPermutation().make_params([blank])["permutation"].tolist() if v2
                else torch.randperm(3).tolist() for _ in range(COUNT)]
    yield ("RandomChannelPermutation", drawn("RandomChannelPermutation", {}) @ np.array([[9], [3], [1]]),
           np.array(permuted) @ np.array([[9], [3], [1]]))
    yield ("JPEG", drawn("JPEG", {"quality": [20, 55]}),
           theirs(lambda: [v2.JPEG([20, 55]).make_params([])["quality"] if v2 else int(torch.randint(20, 56, ()))]))
    if v2:
        found = [v2.RandomPhotometricDistort(hue=(-0.2, 0.1), p=0.4).make_params([blank]) for _ in range(COUNT)]
        ours = drawn("RandomPhotometricDistort", {"hue": [-0.2, 0.1], "p": 0.4})
        keys = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
        yield ("RandomPhotometricDistort's probabilities", ours[:, [0, 2, 4, 6, 8, 9]],
               np.array([[one[key] is not None for key in keys]
                         + [one["contrast_before"], one["channel_permutation"] is not None] for one in found]))
        for i, key in enumerate(keys):
            yield (f"RandomPhotometricDistort's {key}", ours[ours[:, 2 * i] == 1][:, 2 * i + 1:2 * i + 2] * UNIT,
                   np.array([[one[key]] for one in found if one[key] is not None]))
    yield ("RandomRotation", drawn("RandomRotation", {"degrees": [-20, 70]}) * UNIT,
           theirs(lambda: [V.RandomRotation([-20, 70]).make_params([])["angle"]] if v2
                  else [V.RandomRotation.get_params([-20, 70])]))
    params = {"degrees": 30, "translate": [0.2, 0.4], "scale": [0.5, 2], "shear": [-20, 20, -10, 5]}
    yield ("RandomAffine", drawn("RandomAffine", params) * np.array([UNIT, 1, 1, UNIT, UNIT, UNIT]),
           theirs(lambda: V2.affine(V.RandomAffine(**params))) if v2 else
           theirs(lambda: np.hstack(V.RandomAffine.get_params([-30, 30], [0.2, 0.4], [0.5, 2], [-20, 20, -10, 5],
                                                              [WIDTH, HEIGHT]))))
    yield ("RandomPerspective", drawn("RandomPerspective", {"distortion_scale": 0.6})[:, 1:],
           theirs(lambda: V2.corners(V.RandomPerspective(0.6))) if v2 else
           theirs(lambda: np.ravel(V.RandomPerspective.get_params(WIDTH, HEIGHT, 0.6)[1])))
    yield ("GaussianBlur", drawn("GaussianBlur", {"kernel_size": 3, "sigma": [0.3, 1.7]}) * UNIT,
           theirs(lambda: V.GaussianBlur(3, (0.3, 1.7)).make_params([])["sigma"][:1] if v2
                  else [V.GaussianBlur.get_params(0.3, 1.7)]))

    def box():
        if v2:
            return V2.box(V.RandomErasing())
        y, x, h, w, _ = V.RandomErasing.get_params(blank, (0.02, 0.33), (0.3, 3.3), [0])
        return x, y, w, h
    yield "RandomErasing", drawn("RandomErasing", {"p": 1.0}), theirs(box)
    yield ("RandomErasing's probability", drawn("RandomErasing", {"p": 0.3, "scale": [0.1, 0.2]})[:, 2:3] > 0,
           happens(V.RandomErasing(0.3, scale=(0.1, 0.2)), "erase", torch.zeros(3, HEIGHT, WIDTH))[:, None])
    for name, transform, functional, params in (
            ("RandomGrayscale", V.RandomGrayscale(), "rgb_to_grayscale", {}),
            ("RandomInvert", V.RandomInvert(0.3), "invert", {"p": 0.3}),
            ("RandomPosterize", V.RandomPosterize(4), "posterize", {"bits": 4}),
            ("RandomSolarize", V.RandomSolarize(9), "solarize", {"threshold": 9}),
            ("RandomAdjustSharpness", V.RandomAdjustSharpness(2, 0.9), "adjust_sharpness",
             {"sharpness_factor": 2, "p": 0.9}),
            ("RandomAutocontrast", V.RandomAutocontrast(), "autocontrast", {}),
            ("RandomEqualize", V.RandomEqualize(), "equalize", {}),
            ("RandomPerspective", V.RandomPerspective(p=0.4), "perspective", {"p": 0.4})):
        yield f"{name}'s probability", drawn(name, params)[:, :1], happens(transform, functional)[:, None]

    rand = Recorded(V.RandAugment(num_ops=3))
    ours = drawn("RandAugment", {"num_ops": 3})
    found = [rand() for _ in range(COUNT)]
    yield ("RandAugment", ours[:, 0::2], np.array([[OPS.index(name) for name, _ in ops] for ops in found]))
    yield ("RandAugment's signs", ours[ours[:, 0] == 5][:, 1:2],
           np.array([[value < 0] for ops in found for name, value in ops if name == "Rotate"]))
    trivial = Recorded(V.TrivialAugmentWide())
    ours = drawn("TrivialAugmentWide", {})
    found = [trivial()[0] for _ in range(COUNT)]
    yield "TrivialAugmentWide", ours[:, :1], np.array([[OPS.index(name)] for name, _ in found])
    rotated = ours[ours[:, 0] == 5]
    yield ("TrivialAugmentWide's angles", (rotated[:, 1] * 4.5 * (1 - 2 * rotated[:, 2]))[:, None],
           np.array([[value] for name, value in found if name == "Rotate"]))
    auto = V.AutoAugment(V.AutoAugmentPolicy.CIFAR10)
    yield ("AutoAugment", drawn("AutoAugment", {"policy": "cifar10"})[:, [0, 2, 4]],
           theirs(lambda: [float(x) for part in torchvision.transforms.AutoAugment.get_params(25)
                           for x in np.ravel(part)])[:, [0, 3, 4]])
    auto = Recorded(auto)
    ours = drawn("AutoAugment", {"policy": "cifar10"})
    yield ("how many AutoAugment applies", ours[:, 1:2] + ours[:, 3:4], theirs(lambda: [len(auto())]))
    for alpha in (1.0, 0.3, 5.0):
        ours = drawn("AugMix", {"alpha": alpha})

        def weights(alpha=alpha):
            image, rest = torch._sample_dirichlet(torch.tensor([alpha, alpha])).tolist()
            return [image] + [rest * part for part in torch._sample_dirichlet(torch.tensor([alpha] * 3)).tolist()]
        yield f"AugMix's weights, alpha {alpha}", ours[:, :4] * UNIT, theirs(weights)
    # (0.14 mixes tensors whatever it is given: its operations are recorded before anything is done.)
    mix = Recorded(V.AugMix(mixture_width=1, all_ops=False))
    found = [mix() for _ in range(COUNT)]
    ours = drawn("AugMix", {"mixture_width": 1, "all_ops": False})
    yield "AugMix's depth", ours[:, 2:3], np.array([[len(ops)] for ops in found])
    yield "AugMix's operations", ours[:, 3:4], np.array([[OPS.index(ops[0][0])] for ops in found])
    turned = ours[ours[:, 3] == 5][:, 4:6]  # Rotate by 30 degrees in nine steps
    yield ("AugMix's angles", np.round(turned[:, 0] * 30 / 9 * (1 - 2 * turned[:, 1]), 3)[:, None],
           np.array([[round(ops[0][1], 3)] for ops in found if ops[0][0] == "Rotate"]))
    everything = Recorded(V.AugMix(mixture_width=1))
    yield ("AugMix's operations, all", drawn("AugMix", {"mixture_width": 1})[:, 3:4],
           np.array([[OPS.index(everything()[0][0])] for _ in range(COUNT)]))


def main():
    print(f"seed {SEED}, {COUNT} draws each, distances must stay below {LIMIT:.4f}")
    failed = compared = 0
    for what, ours, other in cases():
        assert ours.shape[1] == other.shape[1], (what, ours.shape, other.shape)
        limit = LIMIT * math.sqrt(COUNT / 2 * (1 / len(ours) + 1 / len(other)))
        found = [distance(ours[:, i], other[:, i]) for i in range(ours.shape[1])]
        wrong = sum(d > limit for d in found)
        failed += wrong
        compared += len(found)
        print(f"{'FAIL' if wrong else 'ok  '} {what}: " + " ".join(f"{d:.4f}" for d in found)
              + ("" if limit < LIMIT * 1.01 else f" of {limit:.4f}"))
    # The test must be able to fail: a slightly different range is seen.
    last = 78 if FULL else 90
    seen = distance(drawn("RandomRotation", {"degrees": [-20, last]})[:, 0] * UNIT,
                    theirs(lambda: torchvision.transforms.RandomRotation.get_params([-20, 70])))
    if seen <= LIMIT:
        print(f"FAIL: {last} degrees instead of 70 are only {seen:.4f} away: the test sees nothing")
        failed += 1
    print(f"{compared} draws compared, {failed} failed")
    return 1 if failed or compared < 70 else 0


if __name__ == "__main__":
    sys.exit(main())
