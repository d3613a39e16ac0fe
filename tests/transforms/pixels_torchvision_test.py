"""Pixel transforms against torchvision on PIL images: our draws, torchvision's and Pillow's arithmetic, equal bytes.
With Debian's torchvision 0.14 by default; with PyPI's, v2's functions and v2's own policy classes (tests/frameworks).

Exceptions, with their reasons (EXACTNESS.md has the counts; `--markdown FILE` writes its table):
  GaussianBlur   torchvision sums the kernel in two dimensions in float, in its library's order; ours along rows, then
                 columns. Bytes differ by 1 where a sum is a half but for rounding: at most 1 in 10,000 bytes.
  RandomAffine, RandomRotation   sine and cosine are our own, equal to libm's but for the last bit, which moves a pixel
                 only where it lies exactly between two: at most 1 in 10,000 pixels.
  v2's RandomPerspective   its least squares give some 1e-16 where a coefficient is 0, which moves a pixel that lies
                 exactly between two. Given those that NumPy solves, rounded to float: 1 byte of 1,000,000, by NumPy's LAPACK.
  v2's policies  equal bytes where torch.linspace has fused multiply-add, on which its last bit depends.
  v2's AugMix    works on tensors, also for a PIL image. With its operations on PIL images: equal bytes.
By default each case is compared on one of the larger sizes of image and one of the small ones, in turn. PENSTOCK_FULL=1: on all
of them, with more images, and the hue of all 2^24 colours."""
import io
import os
import sys
import tempfile
from unittest import mock

from pipeline_request import need, request

need("torch", "torchvision", "PIL", "numpy")
import PIL
import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision.transforms import autoaugment

from jobs import FULL
from torchvision_functions import F, InterpolationMode, linspace, policy, v2

UNIT = 2.0 ** -32
LARGER = 3  # of the sizes of image
MODES = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR,
         "bicubic": InterpolationMode.BICUBIC}
OPS = ["Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast",
       "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert"]


def pictures(width, height, random):
    """Images of one size: photo-like, noise, few colours, one colour, grey, dark with low contrast."""
    y, x = np.mgrid[0:height, 0:width]
    wave = np.stack([127 + 120 * np.sin(x / 17 + c) * np.cos(y / (11 + c)) for c in range(3)], axis=-1)
    shape = (height, width, 3)
    arrays = [np.clip(wave + random.normal(0, 12, shape), 0, 255), random.randint(0, 256, shape),
              random.randint(0, 3, shape) * 100, np.full(shape, 77), np.repeat(random.randint(0, 256, shape)[..., :1], 3, -1),
              60 + random.randint(0, 9, shape), np.clip(wave, 0, 255)]
    arrays += [np.clip(np.roll(wave, 7 * i, 1) + random.normal(0, 30, shape), 0, 255) for i in range(20 if FULL else 1)]
    return [Image.fromarray(array.astype(np.uint8)) for array in arrays]


def corners_map(image, values):
    """torchvision's coefficients as its current version computes them: solved in double, rounded to float."""
    w, h = image.width - 1, image.height - 1
    start = [(0, 0), (w, 0), (w, h), (0, h)]
    end = list(zip(values[0::2], values[1::2]))
    rows = []
    for (x, y), (u, v) in zip(end, start):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
    try:
        found = np.linalg.solve(np.array(rows, dtype=np.float64), np.array(start, dtype=np.float64).ravel())
    except np.linalg.LinAlgError:
        return None
    return found.astype(np.float32).tolist()


ADJUSTMENTS = ["adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue"]


def jitter(image, values):
    for operation in values[:4]:
        image = getattr(F, ADJUSTMENTS[operation])(image, values[4 + operation] * UNIT)
    return image


def distort(image, v):
    """v2's own class, given our draws; 0.14 has none."""
    factors = [v[2 * i + 1] * UNIT if v[2 * i] else None for i in range(4)]
    if v2:
        names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
        return v2.RandomPhotometricDistort().transform(image, {
            **dict(zip(names, factors)), "contrast_before": bool(v[8]), "channel_permutation": v[10:] if v[9] else None})
    for operation in [0, 1, 2, 3] if v[8] else [0, 2, 3, 1]:
        if factors[operation] is not None:
            image = getattr(F, ADJUSTMENTS[operation])(image, factors[operation])
    return permute(image, v[10:]) if v[9] else image


def permute(image, order):
    """v2's function; 0.14 has none."""
    return F.permute_channels(image, order) if v2 else Image.fromarray(np.asarray(image)[..., order])


def perspective(mode, fill, solved_there=False):
    def replay(image, values):
        coefficients = corners_map(image, values[1:])
        if coefficients is None:
            return image
        if v2 and solved_there:
            w, h = image.width - 1, image.height - 1
            return F.perspective(image, [[0, 0], [w, 0], [w, h], [0, h]], list(zip(values[1::2], values[2::2])),
                                 MODES[mode], fill)
        if v2:
            return F.perspective(image, None, None, MODES[mode], fill, coefficients)
        return image.transform(image.size, Image.Transform.PERSPECTIVE, coefficients,
                               getattr(Image.Resampling, mode.upper()), fillcolor=fill)
    return replay


def affine(mode, fill, center=None):
    return lambda image, v: F.affine(image, v[0] * UNIT, [v[1], v[2]], v[3] * UNIT, [v[4] * UNIT, v[5] * UNIT],
                                     MODES[mode], fill, center)


def rotation(mode, fill, expand=False, center=None):
    return lambda image, v: F.rotate(image, v[0] * UNIT, MODES[mode], expand, center, fill)


def magnitude(name, bin_, bins, image, shear=0.3, translate=None, rotate=30.0, enhance=0.9, bits=(8, 4)):
    """torchvision's tables."""
    if name in ("Identity", "AutoContrast", "Equalize", "Invert"):
        return 0.0
    if name == "Posterize":
        return float((bits[0] - torch.arange(bins) / ((bins - 1) / bits[1])).round().int()[bin_])
    if name == "Solarize":
        return 255.0 * linspace(1.0, 0.0, bins)[bin_].item()  # v2's; 0.14 has linspace(255, 0)
    if name.startswith("Translate"):
        side = image.width if name.endswith("X") else image.height
        last = translate(side) if translate else 150.0 / 331.0 * side
    else:
        last = shear if name.startswith("Shear") else rotate if name == "Rotate" else enhance
    return linspace(0.0, last, bins)[bin_].item()


def posterize(image, bits):
    """torchvision keeps 0 to 8 bits; Pillow has come to refuse 0, which AugMix asks for at its strongest."""
    return F.posterize(image, bits) if bits else image.point(lambda value: 0)


def operate(image, op, bin_, bins, negated, mode="nearest", fill=None, **table):
    name = OPS[op]
    value = magnitude(name, bin_, bins, image, **table)
    if negated and 1 <= op <= 9:
        value = -value
    if name == "Posterize":
        return posterize(image, int(value))
    return autoaugment._apply_op(image, name, value, MODES[mode], fill)


def rand_augment(magnitude_bin, bins, **options):
    if v2:
        return policy.rand_augment(magnitude_bin, bins, **options)

    def replay(image, values):
        for op, negated in zip(values[0::2], values[1::2]):
            image = operate(image, op, magnitude_bin, bins, negated, **options)
        return image
    return replay


def trivial(image, v):
    if v2:
        return policy.trivial(image, v)
    return operate(image, v[0], v[1], 31, v[2], shear=0.99, translate=lambda side: 32.0, rotate=135.0, enhance=0.99,
                   bits=(8, 6))


def auto_augment(name):
    if v2:
        return policy.auto_augment(name)
    table = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(name)).policies

    def replay(image, v):
        for (name, _, bin_), happens, negated in zip(table[v[0]], v[1::2], v[2::2]):
            if happens:
                image = operate(image, OPS.index(name), bin_ or 0, 10, negated)
        return image
    return replay


def aug_mix(width, depth, **options):
    if v2:
        return policy.aug_mix(width, depth, posterize, **options)

    def replay(image, v):
        weights = (torch.tensor(v[:width + 1], dtype=torch.float64) * UNIT).float()
        mix = weights[0] * F.pil_to_tensor(image)
        rest = v[width + 1:]
        for chain in range(width):
            drawn = rest[chain * (1 + 3 * depth):]
            copy = image
            for i in range(drawn[0]):
                op, bin_, negated = drawn[1 + 3 * i:4 + 3 * i]
                copy = operate(copy, op, bin_, 10, negated, mode="bilinear", translate=lambda side: side / 3.0,
                               bits=(4, 4))
            mix.add_(weights[chain + 1] * F.pil_to_tensor(copy))
        return F.to_pil_image(mix.to(torch.uint8))
    return replay


def erase(value):
    def replay(image, v):
        x, y, w, h = v[:4]
        if v2:
            return F.erase(image, y, x, h, w, torch.tensor(value, dtype=torch.uint8).reshape(-1, 1, 1).expand(3, h, w))
        array = np.array(image)
        array[y:y + h, x:x + w] = value
        return Image.fromarray(array)
    return replay


def normals(seed, shape):
    """What runtime/pixels/gaussian_noise.h makes of a seed: Philox4x32-10, a block a pixel, and Wichura's AS 241."""
    mask = np.uint64(0xffffffff)
    count = shape[0] * shape[1]
    c = [np.arange(count, dtype=np.uint64), np.ones(count, np.uint64), np.zeros(count, np.uint64), np.zeros(count, np.uint64)]
    keys = [seed & 0xffffffff, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(b >> np.uint64(32)) ^ c[1] ^ np.uint64(keys[0]), b & mask, (a >> np.uint64(32)) ^ c[3] ^ np.uint64(keys[1]), a & mask]
        keys = [(keys[0] + 0x9E3779B9) & 0xffffffff, (keys[1] + 0xBB67AE85) & 0xffffffff]
    p = (np.stack(c[:3]).astype(np.float64) + 0.5) * 2.0 ** -32
    q = p - 0.5
    r = 0.180625 - q * q
    middle = (q * (((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179)
              / (((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1))
    r = np.sqrt(-np.log(np.minimum(p, 1 - p))) - 1.6
    tail = ((((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777)
            / ((0.12021132975 * r + 0.73700164250) * r + 1))
    made = np.where(np.abs(q) <= 0.425, middle, np.copysign(tail, q)).astype(np.float32)
    assert np.abs(made - torch.special.ndtri(torch.from_numpy(p)).numpy()).max() < 1e-6, "they are not normal"
    return torch.from_numpy(made).reshape(3, *shape)


def pillow_jpeg(image, v):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=v[0])
    return Image.open(file).convert("RGB")


def jpeg(image, v):
    """v2's function, whose libjpeg-turbo is torchvision's own; 0.14 has none, but Pillow's."""
    return F.jpeg(image, v[0]) if v2 else pillow_jpeg(image, v)


def gaussian_noise(mean=0.0, sigma=0.1, clip=True):
    """v2's function on uint8, with our normals in place of torch's; 0.14 has none."""
    def replay(image, v):
        noise = normals(v[0], (image.height, image.width))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        if v2:
            with mock.patch.object(torch, "randn_like", lambda *args, **kwargs: noise):
                made = F.gaussian_noise(pixels, mean, sigma, clip)
        else:
            made = pixels + (mean * 255 + noise * (sigma * 255)).to(torch.int16)
            made = (made.clamp(0, 255) if clip else made).to(torch.uint8)
        return Image.fromarray(made.permute(1, 2, 0).numpy())
    return replay


ROUNDED = (1, 1e-4)     # largest difference, share of bytes that may differ
MOVED = (255, 1e-4)
SOLVED = (255, 1e-5)
LAST_BIT = (255, 0.1)
ON_TENSORS = (255, 0.3)
EQUAL = (0, 0)


def cases():
    """(transform, parameters, replay(image, draws), tolerance)"""
    always = {"p": 1.0}
    yield "Grayscale", {"num_output_channels": 3}, lambda image, v: F.rgb_to_grayscale(image, 3), EQUAL
    yield "RandomGrayscale", {"p": 0.5}, lambda image, v: F.rgb_to_grayscale(image, 3) if v[0] else image, EQUAL
    yield "RandomInvert", {"p": 0.5}, lambda image, v: F.invert(image) if v[0] else image, EQUAL
    for bits in (0, 1, 4, 7, 8):
        yield "RandomPosterize", {"bits": bits, **always}, lambda image, v, bits=bits: posterize(image, bits), EQUAL
    for threshold in (0, 100, 127.5, 255, 256):
        yield ("RandomSolarize", {"threshold": threshold, **always},
               lambda image, v, threshold=threshold: F.solarize(image, threshold), EQUAL)
    for factor in (0, 0.3, 1, 1.7, 6):
        yield ("RandomAdjustSharpness", {"sharpness_factor": factor, **always},
               lambda image, v, factor=factor: F.adjust_sharpness(image, factor), EQUAL)
    yield "RandomAutocontrast", always, lambda image, v: F.autocontrast(image), EQUAL
    yield "RandomEqualize", always, lambda image, v: F.equalize(image), EQUAL
    yield ("ColorJitter", {"brightness": 0.4},
           lambda image, v: F.adjust_brightness(image, v[4] * UNIT), EQUAL)
    yield ("ColorJitter", {"contrast": [0.0, 3.0]}, lambda image, v: F.adjust_contrast(image, v[5] * UNIT), EQUAL)
    yield ("ColorJitter", {"saturation": [0.0, 5.0]}, lambda image, v: F.adjust_saturation(image, v[6] * UNIT), EQUAL)
    yield "ColorJitter", {"hue": 0.5}, lambda image, v: F.adjust_hue(image, v[7] * UNIT), EQUAL
    yield "ColorJitter", {"hue": [-0.5, -0.5]}, lambda image, v: F.adjust_hue(image, v[7] * UNIT), EQUAL
    yield ("ColorJitter", {"brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}, jitter, EQUAL)
    for mode in MODES:
        colour = [9, 80, 255]
        yield ("RandomRotation", {"degrees": 180, "interpolation": mode, "fill": colour},
               rotation(mode, colour), MOVED)
        yield ("RandomRotation", {"degrees": [20, 70], "interpolation": mode, "center": [3.5, 11]},
               rotation(mode, None, center=[3.5, 11]), MOVED)
        yield ("RandomAffine", {"degrees": 30, "translate": [0.2, 0.3], "scale": [0.5, 2], "shear": [-20, 20, -10, 10],
                                "interpolation": mode, "fill": colour}, affine(mode, colour), MOVED)
        yield ("RandomAffine", {"degrees": 0, "translate": [0.5, 0.5], "interpolation": mode}, affine(mode, 0), MOVED)
        yield ("RandomAffine", {"degrees": 0, "scale": [0.3, 3], "center": [0, 5], "interpolation": mode},
               affine(mode, 0, [0, 5]), MOVED)
        yield ("RandomPerspective", {"distortion_scale": 0.7, "interpolation": mode, "fill": colour, **always},
               perspective(mode, tuple(colour)), SOLVED if v2 else EQUAL)
    for angle in (0, 90, 180, 270, -90, 360, 45):
        yield "RandomRotation", {"degrees": [angle, angle]}, rotation("nearest", None), MOVED
    yield ("RandomAffine", {"degrees": 0, "scale": [1e-3, 1e-3], "shear": [80, 80]}, affine("nearest", 0), MOVED)
    for size, sigma in ((3, [0.1, 2.0]), (5, 1.0), ([9, 3], [0.1, 5.0]), (23, [0.1, 2.0])):
        def blur(image, v, size=size):
            size = [size, size] if isinstance(size, int) else size
            if image.width <= size[0] // 2 or image.height <= size[1] // 2:
                return None  # torch cannot reflect this far
            return F.gaussian_blur(image, size, [v[0] * UNIT] * 2)
        yield "GaussianBlur", {"kernel_size": size, "sigma": sigma}, blur, ROUNDED
    yield "RandomErasing", always, erase(0), EQUAL
    yield "RandomErasing", {"value": [1, 200, 255], "scale": [0.1, 0.5], **always}, erase([1, 200, 255]), EQUAL
    yield "RandAugment", {}, rand_augment(9, 31), EQUAL
    yield ("RandAugment", {"num_ops": 4, "magnitude": 7, "num_magnitude_bins": 10, "interpolation": "bilinear",
                           "fill": [5, 6, 7]}, rand_augment(7, 10, mode="bilinear", fill=[5, 6, 7]), EQUAL)
    yield "TrivialAugmentWide", {}, trivial, EQUAL
    for policy in ("imagenet", "cifar10", "svhn"):
        yield "AutoAugment", {"policy": policy}, auto_augment(policy), EQUAL
    yield "AugMix", {}, aug_mix(3, 3), EQUAL
    options = {"all_ops": False, "severity": 10}
    yield "AugMix", {"mixture_width": 2, "chain_depth": 2, **options}, aug_mix(2, 2, **options), EQUAL


def later_cases():
    """As cases(); behind all of those, which so keep their draws."""
    yield "Grayscale", {}, lambda image, v: F.rgb_to_grayscale(image, 3), EQUAL
    yield "Identity", {}, lambda image, v: v2.Identity()(image) if v2 else image, EQUAL
    yield "RGB", {}, lambda image, v: v2.RGB()(image) if v2 else image.convert("RGB"), EQUAL
    yield "RandomChannelPermutation", {}, permute, EQUAL
    yield "RandomPhotometricDistort", {}, distort, EQUAL
    yield ("RandomPhotometricDistort", {"brightness": [0.2, 3], "contrast": [0, 4], "saturation": [0, 4],
                                        "hue": [-0.5, 0.5], "p": 0.9}, distort, EQUAL)
    for options in ({}, {"mean": -0.1, "sigma": 0.5}, {"mean": 0.3, "sigma": 1.0, "clip": False}, {"sigma": 0.0}):
        yield "GaussianNoise", options, gaussian_noise(**options), EQUAL
    for quality in (1, [5, 95], 75, 100):
        yield "JPEG", {"quality": quality}, jpeg, EQUAL
        yield "JPEG", {"quality": quality}, pillow_jpeg, EQUAL


def v2_cases():
    """What v2 does otherwise than the cases above, counted: (why, transform, parameters, replay, tolerance)"""
    why = "v2's own coefficients"
    for mode in MODES:
        yield (why, "RandomPerspective", {"distortion_scale": 0.7, "interpolation": mode, "p": 1.0},
               perspective(mode, None, solved_there=True), (255, 1e-3))
    why = "torch.linspace as it is"
    fused = all(torch.equal(torch.linspace(0.0, last, bins), linspace(0.0, last, bins))
                for last in (0.3, 0.9, 30.0) for bins in (10, 31))
    print(f"torch.linspace of torch {torch.__version__} {'has' if fused else 'has not'} fused multiply-add on this CPU")
    last_bit = EQUAL if fused else LAST_BIT
    yield why, "RandAugment", {}, policy.rand_augment(9, 31, own_linspace=False), last_bit
    yield (why, "RandAugment", {"num_ops": 4, "magnitude": 7, "num_magnitude_bins": 10},
           policy.rand_augment(7, 10, own_linspace=False), last_bit)
    yield why, "TrivialAugmentWide", {}, lambda image, v: policy.trivial(image, v, own_linspace=False), last_bit
    for name in ("imagenet", "cifar10", "svhn"):
        yield why, "AutoAugment", {"policy": name}, policy.auto_augment(name, own_linspace=False), last_bit
    yield "on tensors", "AugMix", {}, policy.aug_mix(3, 3, posterize, on_tensors=True), ON_TENSORS


class Comparison:
    def __init__(self, folder):
        self.folder = folder
        self.failed = 0
        self.compared = 0
        self.unchanged = 0  # cases in which nothing happened
        self.sets = []
        self.table = {}  # transform: cases, images, bytes, bytes that differ, by at most
        random = np.random.RandomState(11)
        sizes = [(61, 43), (64, 64), (35, 96), (3, 3), (2, 5), (2, 2), (2, 1), (1, 1)]
        for size in sizes:
            images = pictures(*size, random)
            files = []
            for number, image in enumerate(images):
                files.append(os.path.join(folder, f"{size[0]}x{size[1]}_{number}.png"))
                image.save(files[-1])
            self.sets.append((size, images, files))

    def pixels(self, pipeline, files, shape, seed):
        out = os.path.join(self.folder, "out.bin")
        lines = request(mode="pixels", pipeline=pipeline, files=files, seed=seed, epoch=2, out=out)
        return lines, np.fromfile(out, dtype=np.uint8).reshape(len(files), 3, *shape).transpose(0, 2, 3, 1)

    def run(self, number, name, params, replay, tolerance, crop=None, why=""):
        """`crop`: the size that makes images of any size equal again, for transforms that change it."""
        largest = differ = total = bytes_ = changed = 0
        # A start of pipeline_tool for each size is what this costs. A case's number chooses, so that the cases of one transform
        # meet several sizes.
        sets = self.sets if FULL else [self.sets[:LARGER][number % LARGER], self.sets[LARGER:][number % (len(self.sets) - LARGER)]]
        for size, images, files in sets:
            shape = [size[1], size[0]]
            pipeline = [{"CenterCrop": {"size": shape}}, {name: params}]  # the first only says the size
            if crop:
                pipeline.append({"CenterCrop": {"size": crop}})
            repeat = 1 if size[0] < 30 else 3 if FULL else 2 if "Aug" in name or "Distort" in name else 1
            lines, ours = self.pixels(pipeline, files * repeat, crop or shape, number)
            for image, draws, pixels in zip(images * repeat, lines, ours):
                expected = replay(image, draws.get(1, []))
                if expected is None:
                    continue
                expected = F.center_crop(expected, crop) if crop else expected
                difference = np.abs(np.asarray(expected).astype(int) - pixels)
                largest = max(largest, difference.max())
                differ += np.count_nonzero(difference)
                bytes_ += difference.size
                total += 1
                changed += np.asarray(expected).tobytes() != np.asarray(image).tobytes()
        title = f"{name}, {why}" if why else name
        row = self.table.setdefault(title, [0, 0, 0, 0, 0])
        self.table[title] = [row[0] + 1, row[1] + total, row[2] + bytes_, row[3] + differ, max(row[4], int(largest))]
        good = largest <= tolerance[0] and differ <= tolerance[1] * bytes_ and total
        self.unchanged += not changed
        self.compared += total
        self.failed += not good
        print(f"{'ok  ' if good else 'FAIL'} {title} {params}: {total} images, {changed} changed, "
              f"{differ} of {bytes_} bytes differ, by at most {largest}")


def all_hues(comparison):
    """Every colour there is, through three hues; a part of them by default."""
    side = 4096 if FULL else 256
    codes = np.arange(1 << 24, dtype=np.uint32)
    if not FULL:  # few of them twice
        codes = np.random.RandomState(5).randint(0, 1 << 24, side * side, dtype=np.uint32)
    array = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=-1).astype(np.uint8).reshape(side, side, 3)
    path = os.path.join(comparison.folder, "colours.png")
    Image.fromarray(array).save(path, compress_level=1)
    differ = 0
    for number, range_ in enumerate(([0.0, 0.001], [0.1, 0.4], [-0.5, 0.0])):
        lines, ours = comparison.pixels([{"CenterCrop": {"size": side}}, {"ColorJitter": {"hue": range_}}], [path],
                                        [side, side], number)
        expected = F.adjust_hue(Image.fromarray(array), lines[0][1][7] * UNIT)
        differ += np.count_nonzero(np.asarray(expected) != ours[0])
    print(f"hue of {len(codes)} colours, 3 shifts: {differ} bytes differ")
    comparison.failed += differ > 0


def noise(comparison):
    """RandomErasing's noise: only in the box, all bytes about equally often, another for another draw."""
    size, images, files = comparison.sets[1]
    pipeline = [{"CenterCrop": {"size": size[0]}}, {"RandomErasing": {"value": "random", "p": 1.0, "scale": [0.5, 0.6]}}]
    lines, ours = comparison.pixels(pipeline, files, size, 3)
    seen = []
    for image, draws, pixels in zip(images, lines, ours):
        x, y, w, h, _ = draws[1]
        inside = np.zeros(size, dtype=bool)
        inside[y:y + h, x:x + w] = True
        comparison.failed += not (np.asarray(image)[~inside] == pixels[~inside]).all()
        seen.append(pixels[inside].ravel())
    counts = np.bincount(np.concatenate(seen), minlength=256)
    chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    same = (seen[0][:300] == seen[1][:300]).mean()
    print(f"noise: chi2 {chi2:.0f} of 255 degrees of freedom, {same:.3f} of the bytes alike")
    comparison.failed += not (chi2 < 350 and same < 0.05)


def markdown(table):
    lines = ["| transform | cases | images | bytes | differ | by at most |", "|---|---|---|---|---|---|"]
    lines += [f"| {name} | {row[0]} | {row[1]:,} | {row[2]:,} | {row[3]:,} | {row[4]} |" for name, row in table.items()]
    return "\n".join(lines) + "\n"


def main():
    arguments = sys.argv[1:]
    target = arguments.pop(arguments.index("--markdown") + 1) if "--markdown" in arguments else None
    print(f"{'v2' if v2 else 'before v2'}: torchvision {torchvision.__version__}, torch {torch.__version__}, "
          f"Pillow {PIL.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(folder)
        wanted = [word for word in arguments if word != "--markdown"]
        number = 0
        for number, (name, params, replay, tolerance) in enumerate(cases()):
            if not wanted or name in wanted:
                comparison.run(number, name, params, replay, tolerance)
        if not wanted or "RandomRotation" in wanted:
            for mode in MODES:
                comparison.run(number, "RandomRotation", {"degrees": 180, "expand": True, "interpolation": mode},
                               rotation(mode, None, expand=True), MOVED, crop=[90, 80])
            comparison.run(number, "RandomRotation", {"degrees": [90, 90], "expand": True},
                           rotation("nearest", None, expand=True), EQUAL, crop=[90, 80])
        for number, (name, params, replay, tolerance) in enumerate(later_cases(), 100):
            if not wanted or name in wanted:
                comparison.run(number, name, params, replay, tolerance)
        if v2:
            for number, (why, name, params, replay, tolerance) in enumerate(v2_cases()):
                if not wanted or name in wanted:
                    comparison.run(number, name, params, replay, tolerance, why=why)
        if not wanted:
            all_hues(comparison)
            noise(comparison)
        if target:
            with open(target, "w") as file:
                file.write(markdown(comparison.table))
        print(f"{comparison.compared} images compared, {comparison.failed} cases failed, "
              f"{comparison.unchanged} cases changed nothing")
        idle = 8  # Identity, RGB, no noise, 8 bits, a threshold of 256, a sharpness of 1, 0 and 360 degrees
        return 1 if comparison.failed or (not wanted and (comparison.compared < (2000 if FULL else 1000)
                                                          or comparison.unchanged > idle)) else 0


if __name__ == "__main__":
    sys.exit(main())
