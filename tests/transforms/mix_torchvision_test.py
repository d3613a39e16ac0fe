"""MixUp and CutMix against torchvision v2's classes, or, before v2 (Debian's 0.14), its lines written out: equal bytes
for the same share and box, in every dtype and memory format; and the shares' and boxes' distributions.
PENSTOCK_FULL=1: four steps of each pipeline, and more draws."""
import math
import os
import struct
import sys
import tempfile

from pipeline_request import need, request

need("torch", "torchvision", "numpy")
import numpy as np
import torch
from jobs import FULL
from torchvision_functions import drawn, v2

SAMPLES, HEIGHT, WIDTH, CLASSES, COUNT, SEED = 5, 9, 12, 6, 8000 if FULL else 2000, 7
LABELS = [3, 0, 5, 5, 1]


def double(bits):
    return struct.unpack("<d", struct.pack("<q", bits))[0]


def mixed_up(tensor, lam):
    """v2.MixUp.transform and _mixup_label. The small types: float32 products, each rounded to the type; torch 1.13
    differs there, it rounds the share to the type first."""
    if tensor.dtype == torch.float32:
        return tensor.roll(1, 0).mul_(1.0 - lam).add_(tensor.mul(lam))
    rest = tensor.roll(1, 0).float().mul_(1.0 - lam).to(tensor.dtype)
    return rest.float().add_(tensor.float().mul_(lam).to(tensor.dtype).float()).to(tensor.dtype)


def cut_box(lam, r_x, r_y):
    """v2.CutMix.make_params."""
    r = 0.5 * math.sqrt(1.0 - lam)
    r_w_half, r_h_half = int(r * WIDTH), int(r * HEIGHT)
    x1, y1 = max(r_x - r_w_half, 0), max(r_y - r_h_half, 0)
    x2, y2 = min(r_x + r_w_half, WIDTH), min(r_y + r_h_half, HEIGHT)
    return (x1, y1, x2, y2), float(1.0 - (x2 - x1) * (y2 - y1) / (WIDTH * HEIGHT))


class Share:
    """Stands for torch's Beta distribution: gives the drawn share."""

    def __init__(self, share):
        self.share = share

    def sample(self, shape):
        return torch.tensor(self.share, dtype=torch.float64)


def v2_mixed(images, labels, which, values):
    transform = getattr(v2, which)(alpha=1.0, num_classes=CLASSES)
    transform._dist = Share(double(values[0]))
    with drawn(values[1:]):
        return transform(images, labels)


def expected(images, labels, which, values):
    if v2:
        return v2_mixed(images, labels, which, values)
    lam = double(values[0])
    if which == "MixUp":
        return mixed_up(images, lam), mixed_up(labels, lam)
    (x1, y1, x2, y2), lam = cut_box(lam, *values[1:])
    out, rolled = images.clone(), images.roll(1, 0)
    out[..., y1:y2, x1:x2] = rolled[..., y1:y2, x1:x2]
    return out, mixed_up(labels, lam)


def parameters(alpha):
    return {"alpha": alpha, "num_classes": CLASSES}


def pipelines(dtype):
    start = [{"CenterCrop": {"size": [HEIGHT, WIDTH]}}, {"ToDtype": {"dtype": dtype, "scale": dtype != "uint8"}}]
    for alpha in (0.2, 1.0):
        yield start + [{"CutMix": parameters(alpha)}], lambda draws: [("CutMix", draws[2])]
        if dtype == "uint8":
            continue
        yield start + [{"MixUp": parameters(alpha)}], lambda draws: [("MixUp", draws[2])]
        yield (start + [{"RandomChoice": {"transforms": [{"MixUp": parameters(alpha)}, {"CutMix": parameters(3)}]}},
                        {"CutMix": parameters(alpha)}],
               lambda draws: [("MixUp", draws[2][1:2]) if draws[2][0] == 0 else ("CutMix", draws[2][2:5]),
                              ("CutMix", draws[3])])


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8 if tensor.dtype == torch.uint8 else
                                    {2: torch.int16, 4: torch.int32}[tensor.element_size()]).numpy().tobytes()


def check_bytes(folder):
    compared = 0
    torch.manual_seed(SEED)
    labels = torch.nn.functional.one_hot(torch.tensor(LABELS), CLASSES).float()
    source, out = os.path.join(folder, "in"), os.path.join(folder, "out")
    for dtype in ("float32", "float16", "bfloat16", "uint8"):
        shape = (SAMPLES, 3, HEIGHT, WIDTH)
        images = torch.randint(256, shape, dtype=torch.uint8) if dtype == "uint8" else torch.randn(shape)
        images = images.to(getattr(torch, dtype))
        for channels_last in (False, True):
            def laid_out(tensor):
                return tensor.permute(0, 2, 3, 1) if channels_last else tensor
            with open(source, "wb") as file:
                file.write(bytes_of(laid_out(images)))
            for pipeline, steps_of in pipelines(dtype):
                for step in range(4) if FULL else (compared % 4,):
                    draws = request(mode="mix", pipeline=pipeline, channels_last=channels_last, labels=LABELS, step=step,
                                    seed=SEED, epoch=2, replica=1, out=out, **{"in": source})[0]
                    wanted, soft = images, labels
                    for which, values in steps_of(draws):
                        wanted, soft = expected(wanted, soft, which, values)
                    with open(out, "rb") as file:
                        made = file.read()
                    assert made == bytes_of(laid_out(wanted)) + soft.numpy().tobytes(), (dtype, channels_last, pipeline, step)
                    compared += 1
    print(f"{compared} batches compared, none differs")
    assert compared > (100 if FULL else 30)


def distance(a, b):
    values = np.sort(np.concatenate([a, b]))
    return np.max(np.abs(np.searchsorted(np.sort(a), values, side="right") / len(a)
                         - np.searchsorted(np.sort(b), values, side="right") / len(b)))


def check_distributions():
    # Two samples of one distribution are further apart than this once in 10,000 times.
    limit = math.sqrt(-math.log(1e-4 / 2) / 2) * math.sqrt(2 / COUNT)
    torch.manual_seed(SEED)
    for alpha in (0.05, 0.2, 0.8, 1.0, 4.0, 100.0) if FULL else (0.05, 1.0, 4.0):  # below 1 the draw goes another way
        for which in ("MixUp", "CutMix"):
            lines = request(mode="batch_draws", count=COUNT, seed=SEED, pipeline=[
                {"CenterCrop": {"size": [HEIGHT, WIDTH]}}, {"ToDtype": {"dtype": "float32"}}, {which: parameters(alpha)}])
            ours = np.array([double(line[2][0]) for line in lines])
            theirs = torch.distributions.Beta(alpha, alpha).sample((COUNT,)).double().numpy()
            # torch's shares are of float32, and kept away from 0 and 1.
            found = distance(*(np.clip(shares, 1e-6, 1 - 1e-6) for shares in (ours, theirs)))
            assert found < limit, (which, alpha, found, limit)
            assert ours.min() >= 0 and ours.max() <= 1
            if which == "CutMix":
                for column, extent in ((1, WIDTH), (2, HEIGHT)):
                    counts = np.bincount([line[2][column] for line in lines], minlength=extent)
                    assert len(counts) == extent and abs(counts - COUNT / extent).max() < 5 * math.sqrt(COUNT / extent)
    # The test must be able to fail.
    assert distance(torch.distributions.Beta(0.2, 0.2).sample((COUNT,)).numpy(),
                    torch.distributions.Beta(*[0.25 if FULL else 0.35] * 2).sample((COUNT,)).numpy()) > limit
    other = [request(mode="batch_draws", count=50, **which, pipeline=[
        {"CenterCrop": {"size": 8}}, {"ToDtype": {"dtype": "float32"}}, {"MixUp": parameters(1)}])
        for which in ({"seed": 1}, {"seed": 2}, {"seed": 1, "epoch": 1}, {"seed": 1, "replica": 1})]
    shares = {tuple(line[2]) for lines in other for line in lines}
    assert len(shares) == 200  # every one its own
    print(f"distributions: all within {limit:.4f}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_bytes(folder)
    check_distributions()
    return 0


if __name__ == "__main__":
    sys.exit(main())
