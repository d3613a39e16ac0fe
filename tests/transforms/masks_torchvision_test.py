"""Masks of class ids against torchvision v2's tv_tensors.Mask: our draws, v2's functions, every geometric transform.
Only where torchvision has v2 (tests/frameworks).

Two yardsticks a case. The mask as a PIL image, nearest, which is what is promised: equal bytes. And tv_tensors.Mask,
which v2 moves as a tensor: crops, flips and borders are equal; a warp rounds the same points otherwise, so a pixel
between two may take the other one, and each does where a quarter turn leaves half a pixel (EXACTNESS.md counts them,
`--markdown FILE`); Resize has torch's old rule of nearest, the pixel at floor(x * scale), where Pillow takes
floor((x + 0.5) * scale), as torch's nearest-exact does on the mask's plain tensor, up to rows and columns where that is a
whole number but for rounding."""
import os
import sys
import tempfile

from pipeline_request import need, request

need("torch", "torchvision", "PIL", "numpy")
import numpy as np
import torch
from PIL import Image

from torchvision_functions import F, InterpolationMode, v2

if v2 is None:
    print("SKIP: torchvision before v2 has no masks")
    sys.exit(77)
from torchvision import tv_tensors

UNIT = 2.0 ** -32
NEAREST = InterpolationMode.NEAREST
CLASSES, IGNORED = 9, 255
WIDTH, HEIGHT = 97, 64
EXACT = InterpolationMode.NEAREST_EXACT
# Share of pixels that may differ from tv_tensors.Mask.
EQUAL, WARPED, WHOLE, BETWEEN, OLD_RULE = 0, 1e-3, 0.03, 0.5, 0.5


def masks(random):
    """Large areas, small ones, single pixels."""
    for cell in (1, 1, 3, 8, 25):
        coarse = random.randint(0, CLASSES, (HEIGHT // cell + 1, WIDTH // cell + 1)).astype(np.uint8)
        yield np.repeat(np.repeat(coarse, cell, 0), cell, 1)[:HEIGHT, :WIDTH]


def plain(mask):
    return mask.as_subclass(torch.Tensor) if torch.is_tensor(mask) else mask


def perspective(mask, values):
    w, h = WIDTH - 1, HEIGHT - 1
    return F.perspective(mask, [[0, 0], [w, 0], [w, h], [0, h]], list(zip(values[1::2], values[2::2])), NEAREST, IGNORED)


def random_crop(mask, values):
    left, top, right, bottom = 3, 20, 5, 6
    padded = F.pad(mask, [left, top, right, bottom], fill=IGNORED, padding_mode="constant")
    return F.crop(padded, values[1] + top, values[0] + left, 50, 70)


def cases():
    """(transform, and what is special about the case; parameters, replay(mask, draws), share of pixels that may differ)"""
    fill = {"fill": IGNORED}
    size = [40, 56]
    yield "CenterCrop", {"size": size}, lambda m, v: F.center_crop(m, size), EQUAL
    yield "RandomCrop", {"size": [50, 70], "padding": [3, 20, 5, 6], **fill}, random_crop, EQUAL
    yield "RandomHorizontalFlip", {"p": 1.0}, lambda m, v: F.horizontal_flip(m), EQUAL
    yield "RandomVerticalFlip", {"p": 1.0}, lambda m, v: F.vertical_flip(m), EQUAL
    for mode in ("constant", "edge", "reflect", "symmetric"):
        yield ("Pad", {"padding": [3, 5, 7, 9], "padding_mode": mode, **fill},
               lambda m, v, mode=mode: F.pad(m, [3, 5, 7, 9], IGNORED if mode == "constant" else None, mode), EQUAL)
    yield "Resize", {"size": size}, lambda m, v: F.resize(m, size, NEAREST), OLD_RULE
    yield ("RandomResizedCrop", {"size": size},
           lambda m, v: F.resized_crop(m, v[1], v[0], v[3], v[2], size, NEAREST), OLD_RULE)
    exact = lambda m: EXACT if torch.is_tensor(m) else NEAREST  # noqa: E731
    yield "Resize, nearest-exact", {"size": size}, lambda m, v: F.resize(plain(m), size, exact(m)), WHOLE
    yield ("RandomResizedCrop, nearest-exact", {"size": size},
           lambda m, v: F.resized_crop(plain(m), v[1], v[0], v[3], v[2], size, exact(m)), WHOLE)
    for name, degrees, share in (("RandomRotation", 180, WARPED), ("RandomRotation by 0", [0, 0], EQUAL),
                                 ("RandomRotation by 90", [90, 90], BETWEEN)):
        yield (name, {"degrees": degrees, **fill}, lambda m, v: F.rotate(m, v[0] * UNIT, NEAREST, fill=IGNORED), share)
    yield ("RandomAffine", {"degrees": 30, "translate": [0.2, 0.3], "scale": [0.5, 2], "shear": [-20, 20, -10, 10], **fill},
           lambda m, v: F.affine(m, v[0] * UNIT, [v[1], v[2]], v[3] * UNIT, [v[4] * UNIT, v[5] * UNIT], NEAREST, IGNORED),
           WARPED)
    yield "RandomPerspective", {"distortion_scale": 0.6, "p": 1.0, **fill}, perspective, WARPED
    # v2 has these for images alone.
    yield "FiveCrop", {"size": size}, lambda m, v: F.five_crop(plain(m), size), EQUAL
    yield "TenCrop", {"size": size}, lambda m, v: F.ten_crop(plain(m), size), EQUAL
    # What does not move a pixel leaves masks alone, in v2 as here.
    for name, params in (("Identity", {}), ("RGB", {}), ("RandomChannelPermutation", {}), ("RandomPhotometricDistort", {}), ("GaussianNoise", {}), ("JPEG", {"quality": 9}), ("RandomInvert", {"p": 1.0}), ("RandomPosterize", {"bits": 2, "p": 1.0}),
                         ("RandomSolarize", {"threshold": 3, "p": 1.0}), ("RandomEqualize", {"p": 1.0}),
                         ("RandomAutocontrast", {"p": 1.0}), ("RandomGrayscale", {"p": 1.0}),
                         ("RandomAdjustSharpness", {"sharpness_factor": 3, "p": 1.0}), ("GaussianBlur", {"kernel_size": 5}),
                         ("ColorJitter", {"brightness": 0.5, "hue": 0.3})):
        own = getattr(v2, name)(**params)
        image = tv_tensors.Image(torch.zeros(3, HEIGHT, WIDTH, dtype=torch.uint8))  # some of them want one
        yield name, params, lambda m, v, own=own: own(image, m)[1] if isinstance(m, tv_tensors.Mask) else m, EQUAL
    # Behind the others, which so keep their draws.
    yield ("RandomResize, CenterCrop", {"min_size": 20, "max_size": 60},
           lambda m, v: F.center_crop(F.resize(m, [v[0]], NEAREST), size), OLD_RULE)


def views_of(made):
    """Of a PIL image or a Mask, or of several crops: views x height x width."""
    if isinstance(made, (list, tuple)):
        return np.concatenate([views_of(view) for view in made])
    return np.asarray(made)[None] if isinstance(made, Image.Image) else made.numpy()


def main():
    target = sys.argv[2] if sys.argv[1:2] == ["--markdown"] else None
    table = ["| transform | masks | pixels | differ from PIL | differ from tv_tensors.Mask |", "|---|---|---|---|---|"]
    failed = compared = 0
    random = np.random.RandomState(3)
    with tempfile.TemporaryDirectory() as folder:
        arrays = list(masks(random))
        files = []
        for number, array in enumerate(arrays):
            files.append(os.path.join(folder, f"{number}.png"))
            Image.fromarray(array).save(files[-1])
        out = os.path.join(folder, "out.bin")
        for number, (name, params, replay, share) in enumerate(cases()):
            repeat = 8
            pipeline = [{"CenterCrop": {"size": [HEIGHT, WIDTH]}}, {name.split(",")[0].split(" ")[0]: params}]  # the first only says the size
            if name.endswith(", CenterCrop"):
                pipeline.append({"CenterCrop": {"size": [40, 56]}})
            lines = request(mode="pixels", role="mask", pipeline=pipeline, files=files * repeat, seed=number, out=out)
            ours = np.fromfile(out, dtype=np.uint8).reshape(len(lines), -1)
            pixels = from_pil = from_mask = 0
            for array, draws, got in zip(arrays * repeat, lines, ours):
                by_pil = views_of(replay(Image.fromarray(array), draws.get(1, [])))
                by_mask = views_of(replay(tv_tensors.Mask(torch.from_numpy(array)[None]), draws.get(1, [])))
                planes = got.reshape(len(by_pil), 3, *by_pil.shape[1:])  # the class id three times
                assert (planes == planes[:, :1]).all(), name
                pixels += by_pil.size
                from_pil += np.count_nonzero(planes[:, 0] != by_pil)
                from_mask += np.count_nonzero(planes[:, 0] != by_mask)
            compared += len(lines)
            good = from_pil <= 1e-4 * pixels and from_mask <= share * pixels
            failed += not good
            print(f"{'ok  ' if good else 'FAIL'} {name} {params}: {len(lines)} masks, {from_pil} of {pixels} pixels differ"
                  f" from Pillow's, {from_mask} from tv_tensors.Mask")
            table.append(f"| {name} | {len(lines)} | {pixels:,} | {from_pil:,} | {from_mask:,} |")
    if target:
        with open(target, "w") as file:
            file.write("\n".join(table) + "\n")
    print(f"{compared} masks compared, {failed} cases failed")
    return 1 if failed or compared < 800 else 0


if __name__ == "__main__":
    sys.exit(main())
