"""Whole pipelines against torchvision on Pillow images, byte for byte: pipeline_tool draws and applies, and the same
draws are replayed here with Pillow's decoder and torchvision's functions; v2's where it has them (tests/frameworks).
Pillow resizes rows, then columns, as is done here; since 13 the other way about where the height shrinks much more than
the width. What that changes is counted, and `--markdown FILE` writes a table of it.
PENSTOCK_FULL=1: every size in every kind of file, and four times the photos; by default every size in two kinds."""
import copy
import glob
import os
import sys
import tempfile

from pipeline_request import need, request

need("torch", "torchvision", "numpy", "PIL")
import numpy as np
import PIL
import torch
from PIL import Image
from torchvision import transforms

from jobs import FULL
from torchvision_functions import F, InterpolationMode, rows_first, v2

transforms = v2 or transforms

SHARED = os.path.join(os.environ.get("PENSTOCK_SOURCE", "."), "..", "shared", "data", "photos")


def generated(folder):
    """Photo-like images of many kinds: (path, ...)."""
    random = np.random.RandomState(3)
    paths = []
    colours, grey = (...,), (..., 0)
    kinds = [("jpg", {"quality": 90, "subsampling": 0}, colours), ("jpg", {"quality": 75, "subsampling": 2}, colours),
             ("jpg", {"quality": 60, "subsampling": 1}, colours), ("jpg", {"quality": 85, "progressive": True}, colours),
             ("png", {}, colours), ("jpg", {"quality": 80}, grey)]
    sizes = [(500, 375), (375, 500), (333, 499), (256, 256), (224, 224), (230, 224), (640, 200), (199, 201), (64, 50),
             (33, 31), (17, 90), (1, 1), (3, 2), (2, 300)]
    for number, (width, height) in enumerate(sizes):
        y, x = np.mgrid[0:height, 0:width]
        base = np.stack([127 + 120 * np.sin(x / 17 + c) * np.cos(y / (11 + c)) for c in range(3)], axis=-1)
        array = np.clip(base + random.normal(0, 12, base.shape), 0, 255).astype(np.uint8)
        for kind, (extension, options, shown) in enumerate(kinds):
            if not FULL and kind % 3 != number % 3:
                continue
            path = os.path.join(folder, f"{number}_{kind}.{extension}")
            Image.fromarray(array[shown]).save(path, **options)
            paths.append(path)
    return paths


def random_crop(image, draws, size, padding=(0, 0, 0, 0), fill=0):
    """torchvision pads, then crops; the draws are in the coordinates before padding."""
    left, top, right, bottom = padding
    # pad_if_needed, on the padded image
    extra_x = max(0, size[1] - (image.width + left + right))
    extra_y = max(0, size[0] - (image.height + top + bottom))
    padded = F.pad(image, [left + extra_x, top + extra_y, right + extra_x, bottom + extra_y], fill, "constant")
    return F.crop(padded, draws[1] + top + extra_y, draws[0] + left + extra_x, size[0], size[1])


def pad(image, sides, fill, mode):
    """torchvision's pad; but NumPy before 1.25, which it calls, repeats an image that is smaller than its border
    wrongly where the two sides differ, so those are computed here, as NumPy does since."""
    left, top, right, bottom = sides if len(sides) == 4 else list(sides) * 2
    if v2 or mode == "constant" or max(left, right) < image.width and max(top, bottom) < image.height:
        return F.pad(image, [left, top, right, bottom], fill, mode)
    index = []
    for before, n, after in ((top, image.height, bottom), (left, image.width, right)):
        i = np.arange(-before, n + after)
        if mode == "edge" or n == 1:
            index.append(np.clip(i, 0, n - 1))
        elif mode == "reflect":
            index.append(n - 1 - np.abs(i % (2 * n - 2) - (n - 1)))
        else:
            index.append((n - 0.5 - np.abs(i % (2 * n) - (n - 0.5))).astype(int))
    return Image.fromarray(np.asarray(image)[index[0]][:, index[1]])


def cases():
    """(name, pipeline, replay(image, draws))"""
    val = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    yield ("val: Resize 256, CenterCrop 224", [{"Resize": {"size": 256}}, {"CenterCrop": {"size": 224}}],
           lambda image, draws: val(image))
    modes = {"bilinear": InterpolationMode.BILINEAR, "bicubic": InterpolationMode.BICUBIC,
             "lanczos": InterpolationMode.LANCZOS, "box": InterpolationMode.BOX, "nearest": InterpolationMode.NEAREST}
    for name, mode in modes.items():
        def train(image, draws, mode=mode):
            x, y, w, h = draws[0]
            image = F.resized_crop(image, y, x, h, w, [224, 224], mode)
            return F.hflip(image) if draws[1][0] else image
        yield (f"train: RandomResizedCrop 224 {name}, RandomHorizontalFlip",
               [{"RandomResizedCrop": {"size": 224, "interpolation": name}}, {"RandomHorizontalFlip": {}}], train)

    def cifar(image, draws):
        image = random_crop(image, draws[0], (32, 32), (4, 4, 4, 4))
        return F.hflip(image) if draws[1][0] else image
    yield ("cifar: RandomCrop 32, padding 4", [{"RandomCrop": {"size": 32, "padding": 4, "pad_if_needed": True}},
                                               {"RandomHorizontalFlip": {}}], cifar)
    yield ("RandomCrop with four paddings and a colour, then Resize",
           [{"RandomCrop": {"size": [60, 90], "padding": [3, 40, 50, 6], "pad_if_needed": True, "fill": [1, 128, 255]}},
            {"Resize": {"size": [48, 64], "interpolation": "bicubic"}}],
           lambda image, draws: F.resize(random_crop(image, draws[0], (60, 90), (3, 40, 50, 6), (1, 128, 255)), [48, 64],
                                         InterpolationMode.BICUBIC))

    def flipped_first(image, draws):
        if draws[0][0]:
            image = F.hflip(image)
        if draws[1][0]:
            image = F.vflip(image)
        x, y, w, h = draws[3]
        image = F.resize(image, 96, InterpolationMode.BILINEAR, max_size=400)
        return F.resized_crop(image, y, x, h, w, [80, 72], InterpolationMode.BILINEAR)
    yield ("flips, Resize with max_size, RandomResizedCrop",
           [{"RandomHorizontalFlip": {}}, {"RandomVerticalFlip": {}}, {"Resize": {"size": 96, "max_size": 400}},
            {"RandomResizedCrop": {"size": [80, 72]}}], flipped_first)
    for mode in ("edge", "reflect", "symmetric", "constant"):
        for padding in ((3,), (40, 7), (0, 90, 33, 1)):
            sides = list(padding) * (2 if len(padding) == 1 else 1)
            yield (f"Pad {padding} {mode}, Resize",
                   [{"Pad": {"padding": list(padding), "padding_mode": mode, "fill": 9}}, {"Resize": {"size": [50, 70]}}],
                   lambda image, draws, sides=sides, mode=mode: F.resize(pad(image, sides, 9, mode), [50, 70]))

    def mirrored_crop(image, draws):
        image = pad(image, [30, 2, 3, 14], 0, "reflect")
        for axis in (0, 1):
            extra = max(0, 64 - image.size[axis])
            image = pad(image, [extra, 0] if axis == 0 else [0, extra], 0, "reflect")
            draws[0][axis] += extra + (30, 2)[axis]
        return F.hflip(F.crop(image, draws[0][1], draws[0][0], 64, 64))
    yield ("RandomCrop with reflection, a flip",
           [{"RandomCrop": {"size": 64, "padding": [30, 2, 3, 14], "pad_if_needed": True, "padding_mode": "reflect"}},
            {"RandomHorizontalFlip": {"p": 1}}], mirrored_crop)

    for name, function in (("FiveCrop", F.five_crop), ("TenCrop", F.ten_crop)):
        yield (f"Resize, {name}", [{"Resize": {"size": [65, 80]}}, {name: {"size": [60, 51]}}],
               lambda image, draws, function=function: function(F.resize(image, [65, 80]), (60, 51)))
    yield ("TenCrop, flipped vertically", [{"Resize": {"size": 66}}, {"CenterCrop": {"size": 66}},
                                           {"TenCrop": {"size": 65, "vertical_flip": True}}],
           lambda image, draws: F.ten_crop(F.center_crop(F.resize(image, 66), 66), 65, True))
    center = transforms.CenterCrop((225, 301))
    yield ("CenterCrop that pads", [{"CenterCrop": {"size": [225, 301]}}], lambda image, draws: center(image))

    # Behind the others, which so keep their draws.
    modes["hamming"] = InterpolationMode.HAMMING
    yield ("RandomResizedCrop, hamming", [{"RandomResizedCrop": {"size": 224, "interpolation": "hamming"}}],
           lambda image, draws: F.resized_crop(image, draws[0][1], draws[0][0], draws[0][3], draws[0][2], [224, 224],
                                               modes["hamming"]))
    several = ["bilinear", "bicubic", "hamming"]

    def drawn_filter(image, draws):
        x, y, w, h, which = draws[0]
        return F.resized_crop(image, y, x, h, w, [96, 80], modes[several[which]])
    yield ("RandomResizedCrop, one of several interpolations",
           [{"RandomResizedCrop": {"size": [96, 80], "interpolation": several}}], drawn_filter)

    def longest(image):
        """v2's Resize(None, max_size=300); 0.14 has none, so its size is written out."""
        if v2:
            return v2.Resize(None, max_size=300)(image)
        w, h = image.size
        size = [int(300 * h / w), 300] if w > h else [300, int(300 * w / h)]
        return F.resize(image, size)
    yield ("Resize to the longer edge, CenterCrop",
           [{"Resize": {"size": None, "max_size": 300}}, {"CenterCrop": {"size": [70, 100]}}],
           lambda image, draws: F.center_crop(longest(image), [70, 100]))
    # v2's lines, with our draws in place of torch's; 0.14 has none of these.
    def by_edge(image, draws):
        return F.resize(image, draws[0][0], InterpolationMode.BICUBIC)

    def shortest(image, draws):
        r = min(draws[0][0] / min(image.size), 400 / max(image.size))
        return F.resize(image, [int(image.height * r), int(image.width * r)])

    def jitter(image, draws):
        scale = torch.tensor([draws[0][0] * 2.0 ** -32], dtype=torch.float32)
        r = min(1500 / image.height, 2000 / image.width) * scale
        return F.resize(image, [int(image.height * r), int(image.width * r)])
    for name, params, replay in (
            ("RandomResize", {"min_size": 20, "max_size": 90, "interpolation": "bicubic"}, by_edge),
            ("RandomShortestSize", {"min_size": [40, 57, 77], "max_size": 400}, shortest),
            ("ScaleJitter", {"target_size": [2000, 1500], "scale_range": [0.2, 0.4]}, jitter)):
        yield (f"{name}, CenterCrop", [{name: params}, {"CenterCrop": {"size": [75, 64]}}],
               lambda image, draws, replay=replay: F.center_crop(replay(image, draws), [75, 64]))


def views_of(made):
    """Of one picture, or of several crops: samples x channels x height x width."""
    return np.stack([np.asarray(view).transpose(2, 0, 1) for view in (made if isinstance(made, tuple) else (made,))])


def main():
    compared = different = 0
    table = ["| pipeline | images | bytes | differ | with Pillow's own order of passes | by at most |",
             "|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        files = generated(folder)
        photos = sorted(glob.glob(os.path.join(SHARED, "**", "*.jp*g"), recursive=True))
        photos = photos[::max(1, len(photos) // (24 if FULL else 6))]
        print(f"{len(files)} generated images, {len(photos)} photos")
        files += photos
        out = os.path.join(folder, "out.bin")
        images = [Image.open(path).convert("RGB") for path in files]
        every = list(zip(files, images))
        # Before Pillow 13 the two ways to replay give the same: twice only in the full run.
        own_order = FULL or int(PIL.__version__.split(".")[0]) >= 13
        for number, (name, pipeline, replay) in enumerate(cases()):
            files, images = zip(*every[::4 if FULL else 3] if name.startswith("Pad") else every)
            lines = request(mode="pixels", pipeline=pipeline, files=list(files), seed=number, epoch=1, out=out)
            pixels = np.fromfile(out, dtype=np.uint8).reshape(len(files), -1)
            wrong = []
            counts = [0, 0, 0, 0]  # bytes, different, with Pillow's own order, by at most
            for path, image, draws, ours in zip(files, images, lines, pixels):
                # torchvision cannot make an image of no pixels: its own limit, not a case.
                plain = expected = views_of(replay(image, copy.deepcopy(draws)))
                if own_order:
                    with rows_first():
                        expected = views_of(replay(image, draws))
                compared += 1
                plain, expected = plain.ravel(), expected.ravel()
                assert expected.size == ours.size
                distance = np.abs(plain.astype(int) - ours)
                counts = [counts[0] + ours.size, counts[1] + np.count_nonzero(expected != ours),
                          counts[2] + np.count_nonzero(distance), max(counts[3], distance.max())]
                if (expected != ours).any():
                    wrong.append(path)
            different += len(wrong)
            table.append(f"| {name} | {len(files)} | {counts[0]:,} | {counts[1]:,} | {counts[2]:,} | {counts[3]} |")
            print(f"{name}: {len(files)} compared, {len(wrong)} differ" + (f", first {wrong[0]}" if wrong else "")
                  + (f"; {counts[2]} bytes by Pillow's own order, by at most {counts[3]}" if counts[2] else ""))
            assert counts[2] == counts[1] or int(PIL.__version__.split(".")[0]) >= 13
    if "--markdown" in sys.argv:
        with open(sys.argv[sys.argv.index("--markdown") + 1], "w") as file:
            file.write("\n".join(table) + "\n")
    print(f"{compared} compared, {different} differ")
    return 1 if different or compared < (800 if FULL else 500) else 0


if __name__ == "__main__":
    sys.exit(main())
