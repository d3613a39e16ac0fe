"""arithmetic: fast against Pillow: the photo decoded at 1/2, 1/4 or 1/8 by Pillow's draft mode, cut to the pixels that the
crop touches, and resized from the crop's place within them (resize's `box`, in fractions of pixels).
Draft mode also takes libjpeg's fastest transform and no interpolation of chroma, which plays a part only where blocks stay
8 x 8 or chroma is still to be doubled; so 4:2:0 and 4:2:2 are compared where neither is the case."""
import math
import os
import sys
import tempfile

from pipeline_request import need, request

need("numpy", "PIL")
import numpy as np
from PIL import Image

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "box": Image.Resampling.BOX}


def generated(folder):
    random = np.random.RandomState(7)
    for number, (width, height) in enumerate([(640, 480), (481, 643), (333, 499), (257, 255), (200, 901)]):
        y, x = np.mgrid[0:height, 0:width]
        base = np.stack([127 + 120 * np.sin(x / 17 + c) * np.cos(y / (11 + c)) for c in range(3)], axis=-1)
        array = np.clip(base + random.normal(0, 12, base.shape), 0, 255).astype(np.uint8)
        for kind, options in (("444", {"subsampling": 0}), ("420", {"subsampling": 2}),
                              ("444p", {"subsampling": 0, "progressive": True}), ("grey", None)):
            path = os.path.join(folder, f"{number}_{kind}.jpg")
            if options is None:
                Image.fromarray(array[..., 0]).save(path, quality=80)
            else:
                Image.fromarray(array).save(path, quality=85, **options)
            yield path, kind


def by_pillow(path, box, size, kind):
    x, y, w, h = box
    reduction = next((r for r in (8, 4, 2) if w // r >= size[1] and h // r >= size[0]), 1)
    image = Image.open(path)
    if reduction > 1:
        full = image.size
        image.draft("RGB", (full[0] // reduction, full[1] // reduction))
        assert image.size == tuple(math.ceil(side / reduction) for side in full), (image.size, full, reduction)
    image = image.convert("RGB")
    left, top, right, bottom = (edge / reduction for edge in (x, y, x + w, y + h))
    cut = (math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom))
    place = (left - cut[0], top - cut[1], right - cut[0], bottom - cut[1])
    return reduction, np.asarray(image.crop(cut).resize((size[1], size[0]), kind, box=place)).transpose(2, 0, 1)


def main():
    compared, counts, different = 0, {}, []
    with tempfile.TemporaryDirectory() as folder:
        paths = list(generated(folder))
        out = os.path.join(folder, "out.bin")
        for seed, (name, kind) in enumerate(FILTERS.items()):
            for size in ([24, 24], [50, 31], [9, 60]):
                pipeline = [{"RandomResizedCrop": {"size": size, "interpolation": name}}]
                lines = request(mode="pixels", pipeline=pipeline, files=[path for path, _ in paths], seed=seed, epoch=1,
                                out=out, arithmetic="fast")
                pixels = np.fromfile(out, dtype=np.uint8).reshape(len(paths), 3, *size)
                for (path, sampling), draws, ours in zip(paths, lines, pixels):
                    reduction, theirs = by_pillow(path, draws[0], size, kind)
                    if sampling == "420" and reduction == 2:
                        continue
                    compared += 1
                    counts[reduction] = counts.get(reduction, 0) + 1
                    if not (theirs == ours).all():
                        different.append((os.path.basename(path), name, size, draws, reduction,
                                          int(np.abs(theirs.astype(int) - ours).max())))
    print(f"{compared} compared, {len(different)} differ, by reduction {sorted(counts.items())}")
    for case in different[:10]:
        print("differs:", *case)
    return 1 if different or compared < 150 or any(counts.get(r, 0) < 5 for r in (1, 2, 4, 8)) else 0


if __name__ == "__main__":
    sys.exit(main())
