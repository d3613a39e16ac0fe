"""How near torchvision's transforms of tensors are to penstock's pictures: what v2's recommended order (ToImage first), and steps
behind ToTensor, do otherwise than the same on PIL pictures, which are penstock's yardstick. Equal draws: ours; torchvision's v2 and v1
functions on tensors of bytes, and on floats of 0 to 1. Bounds are asserted, and `--markdown FILE` writes EXACTNESS.md's table.

    tensor_order_test.py [--markdown FILE]
"""

import contextlib
import os
import sys
import tempfile
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "transforms"))
import numpy as np
import torch
import torchvision
from PIL import Image
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms import functional as F1
from torchvision.transforms.v2 import functional as F2

import pixels_torchvision_test as pixels
import torchvision_functions
from penstock import _transform_notes as notes
from pipeline_request import request

SIZES = [(160, 120), (100, 151)]
SIDE = 72
REPEATS = 1 if pixels.FULL else 3  # of each picture, whose draws are others
HALF = 0.501  # of a byte's step: what rounding floats to bytes makes at most


def resized(mode):
    return lambda F: lambda image, draws: F.resize(image, [SIDE, SIDE], mode, antialias=True)


def resized_crop(mode):
    def of(F):
        def replay(image, draws):
            x, y, w, h = draws
            return F.resized_crop(image, y, x, h, w, [SIDE, SIDE], mode, antialias=True)
        return replay
    return of


def resampling():
    """(title, pipeline, which step draws, functional module -> replay)"""
    for name, mode in (("bilinear", Mode.BILINEAR), ("bicubic", Mode.BICUBIC), ("lanczos", Mode.LANCZOS),
                       ("nearest-exact", Mode.NEAREST_EXACT)):
        yield f"Resize, {name}", [{"Resize": {"size": [SIDE, SIDE], "interpolation": name}}], 0, resized(mode)
        yield f"RandomResizedCrop, {name}", [{"RandomResizedCrop": {"size": SIDE, "interpolation": name}}], 0, resized_crop(mode)


def moved():
    """What only moves bytes: nothing may differ."""
    yield "RandomHorizontalFlip", {"p": 0.5}, lambda F: lambda image, v: F.hflip(image) if v[0] else image
    yield "RandomVerticalFlip", {"p": 0.5}, lambda F: lambda image, v: F.vflip(image) if v[0] else image
    yield "Pad", {"padding": [3, 9, 1, 2], "fill": [5, 80, 200]}, lambda F: lambda image, v: pad_colour(image)
    yield "Pad", {"padding": 7, "padding_mode": "reflect"}, lambda F: lambda image, v: F.pad(image, [7] * 4, 0, "reflect")
    yield "RandomCrop", {"size": [90, 80]}, lambda F: lambda image, v: F.crop(image, v[1], v[0], 90, 80)
    yield "CenterCrop", {"size": [171, 130]}, lambda F: lambda image, v: F.center_crop(image, [171, 130])


def pad_colour(image):
    unit = 255 if image.is_floating_point() else 1
    return F2.pad(image, [3, 9, 1, 2], [value / unit for value in (5, 80, 200)], "constant")


class Sized(torch.Tensor):
    """With what the replays ask of PIL pictures."""

    width = property(lambda self: self.shape[-1])
    height = property(lambda self: self.shape[-2])


class Measure:
    def __init__(self, folder):
        self.folder, self.table, self.failed, self.compared = folder, {}, 0, 0
        random = np.random.RandomState(17)
        self.sets = []
        for size in SIZES:
            images = pixels.pictures(*size, random)
            paths = [os.path.join(folder, f"{size[0]}_{number}.png") for number in range(len(images))]
            for image, path in zip(images, paths):
                image.save(path)
            self.sets.append((size, images, paths))

    def ours(self, pipeline, paths, seed):
        out = os.path.join(self.folder, "out.bin")
        lines = request(mode="pixels", pipeline=pipeline, files=paths, seed=seed, epoch=1, out=out)
        return lines, np.fromfile(out, dtype=np.uint8)

    def case(self, title, pipeline, at, replay, floats=True, pil=False):
        """`pipeline` after a step that only says the size; `at`: the step that draws."""
        for (width, height), images, paths in self.sets:
            sized = [{"CenterCrop": {"size": [height, width]}}, *pipeline]
            lines, flat = self.ours(sized, paths * REPEATS, len(self.table))
            for number, (image, draws) in enumerate(zip(images * REPEATS, lines)):
                made = torch.from_numpy(flat.reshape(len(paths) * REPEATS, 3, -1)[number].astype(np.float32))
                tensor = F2.pil_to_tensor(image).as_subclass(Sized)
                values = draws.get(at + 1, [])
                for kind, given in ([("PIL", image)] if pil else [("bytes", tensor)] +
                                    ([("floats", tensor.float() / 255)] if floats else [])):
                    found = replay(given, values)
                    found = F2.pil_to_tensor(found) if isinstance(found, Image.Image) else found
                    found = found.as_subclass(torch.Tensor).reshape(3, -1).float() * (255 if kind == "floats" else 1)
                    self.count(title, kind, (found - made).abs())

    def count(self, title, kind, difference):
        row = self.table.setdefault((title, kind), [0, 0, 0, 0.0])
        row[0] += 1
        row[1] += difference.numel()
        row[2] += int((difference > (HALF if kind == "floats" else 0)).sum())
        row[3] = max(row[3], float(difference.max()))
        self.compared += 1


def pixel_cases():
    """Those of pixels_torchvision_test that are for sizes of any kind."""
    seen = []
    for name, params, _, _ in [*pixels.cases(), *pixels.later_cases()]:
        # No bicubic warps for tensors, no threshold above a byte's largest; the replays of these two make PIL pictures of bytes.
        if params.get("interpolation") == "bicubic" or params.get("threshold") == 256 or name in ("RandomErasing", "GaussianNoise"):
            continue
        if (name, params) not in seen:
            seen.append((name, params))
            yield name, params


def replay_of(wanted, params):
    """The replay by the module's functions, as they are patched at this moment."""
    for name, given, replay, _ in [*pixels.cases(), *pixels.later_cases()]:
        if name == wanted and given == params:
            return replay
    raise AssertionError(wanted)


def tensor_posterize(image, bits):
    return pixels.F.posterize(image, bits) if bits or not isinstance(image, Image.Image) else image.point(lambda value: 0)


POLICIES = ("AutoAugment", "RandAugment", "TrivialAugmentWide")
ONLY_V2 = ("AugMix", "RandomPerspective", "Identity", "RGB", "RandomChannelPermutation", "RandomPhotometricDistort", "JPEG")
# What is not translated behind ToTensor; RandomSolarize is, with another number for its threshold.
NO_FLOATS = ("RandomPosterize", "RandomEqualize", "AugMix", "JPEG", "RandomSolarize", *POLICIES)


def magnitude_of_v1(name, bin_, bins, image, **table):
    """v1's thresholds of Solarize are exactly what they say, so that a byte that equals one is inverted."""
    if name == "Solarize":
        return torch.linspace(255.0, 0.0, bins)[bin_].item()
    return MAGNITUDE(name, bin_, bins, image, **table)


MAGNITUDE = pixels.magnitude


@contextlib.contextmanager
def functions(F, v2):
    """The replays call these functions, and v2's own classes where `v2` is not None."""
    with mock.patch.object(pixels, "F", F), mock.patch.object(pixels, "v2", v2), \
            mock.patch.object(pixels, "posterize", tensor_posterize), \
            mock.patch.object(pixels, "magnitude", MAGNITUDE if v2 else magnitude_of_v1), \
            mock.patch.object(torchvision_functions, "linspace", torch.linspace):
        yield


def measure(run):
    for title, pipeline, at, of in resampling():
        for F in (F2,) if "lanczos" in title else (F2, F1):  # v1 has no lanczos for tensors
            run.case(title, pipeline, at, of(F))
    for name, params, of in moved():
        for F in (F2, F1):
            run.case(name, [{name: params}], 0, of(F))
    for name, params in pixel_cases():
        for F, v2 in ((F2, pixels.v2), (F1, None)):
            if v2 is None and name in ONLY_V2:
                continue
            with functions(F, v2):
                replay = replay_of(name, params) if name != "AugMix" else torchvision_functions.policy.aug_mix(
                    params.get("mixture_width", 3), params.get("chain_depth", 3), tensor_posterize, on_tensors=True,
                    **{key: params[key] for key in params if key in ("all_ops", "severity")})
                coloured = isinstance(params.get("fill"), list)
                run.case(name, [{name: params}], 0, replay, floats=name not in NO_FLOATS and not coloured)
                if name in POLICIES and v2 is None:
                    run.case(f"{name} of v1", [{name: params}], 0, replay, pil=True)


def check(table):
    """Every figure that describe_transforms prints is about what was measured, here and now."""
    wrong, told = [], {}
    told.update({(name, "bytes"): figures for name, figures in notes._ON_BYTES.items()})
    told.update({(name, "floats"): figures for name, figures in notes._ON_FLOATS.items()})
    told.update({(f"{name} of v1", "PIL"): figures for name, figures in notes._V1_POLICIES.items()})
    for key, (_, values, differ, largest) in table.items():
        name = key[0].partition(",")[0]
        if name in notes._EVERYWHERE:
            if differ or largest > 1e-4:
                wrong.append(f"{key}: {differ} values differ, by {largest}, and it is called exact")
            continue
        if key not in told:
            wrong.append(f"{key} was measured and has no figure")
            continue
        largest_told, share_told = told.pop(key)
        share = differ / values
        if largest > 1.5 * largest_told + 0.1 or not share_told / 4 - 1e-3 <= share <= share_told * 4 + 1e-3:
            wrong.append(f"{key}: by {largest:.3g} and {share:.3%}, and the figures are {largest_told} and {share_told:.3%}")
    wrong += [f"{key} has a figure and was not measured" for key in told]
    return wrong


def main():
    target = sys.argv[sys.argv.index("--markdown") + 1] if "--markdown" in sys.argv else None
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    torch.set_num_threads(1)  # pictures are small
    with tempfile.TemporaryDirectory() as folder:
        run = Measure(folder)
        measure(run)
    lines = ["| transform | on | pictures | values | differ | share | by at most |", "|---|---|---|---|---|---|---|"]
    for (title, kind), (count, values, differ, largest) in run.table.items():
        lines.append(f"| {title} | {kind} | {count:,} | {values:,} | {differ:,} | {differ / values:.2%} | {largest:.3g} |")
    print("\n".join(lines))
    if target:
        with open(target, "w") as file:
            file.write("\n".join(lines) + "\n")
    wrong = check(run.table)
    print("\n".join(wrong))
    print(f"{run.compared} pictures compared in {len(run.table)} rows, {len(wrong)} figures wrong")
    return 1 if wrong or run.compared < 5000 else 0


if __name__ == "__main__":
    sys.exit(main())
