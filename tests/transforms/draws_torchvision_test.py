"""RandomResizedCrop draws boxes of torchvision's distribution: two-sample Kolmogorov-Smirnov tests of x, y, width,
height, area and aspect against RandomResizedCrop.get_params, or v2's make_params. Both sides are seeded, so the outcome
is fixed. With PENSTOCK_FULL=1 more of them, which see smaller differences."""
import math
import sys

from pipeline_request import need, request

need("torch", "torchvision", "numpy")
import numpy as np
import torch
from torchvision.transforms import RandomResizedCrop

from jobs import FULL
from torchvision_functions import v2

COUNT = 8000 if FULL else 1500
SEED = 5


def distance(a, b):
    values = np.concatenate([a, b])
    values.sort()
    return np.max(np.abs(np.searchsorted(np.sort(a), values, side="right") / len(a)
                         - np.searchsorted(np.sort(b), values, side="right") / len(b)))


def columns(boxes):
    x, y, w, h = np.asarray(boxes, dtype=np.float64).T
    return {"x": x, "y": y, "width": w, "height": h, "area": w * h, "aspect": w / h}


def main():
    # Two samples of one distribution are further apart than this once in 10,000 times.
    limit = math.sqrt(-math.log(1e-4 / 2) / 2) * math.sqrt(2 / COUNT)
    print(f"seed {SEED}, {COUNT} boxes each, distances must stay below {limit:.4f}")
    failed = 0
    cases = [(500, 375, [0.08, 1.0], [3 / 4, 4 / 3]), (375, 500, [0.08, 1.0], [3 / 4, 4 / 3]),
             (32, 32, [0.5, 1.0], [3 / 4, 4 / 3]), (300, 60, [0.08, 1.0], [3 / 4, 4 / 3]),
             (640, 480, [0.25, 0.35], [0.3, 3.0])]
    for width, height, scale, ratio in cases:
        lines = request(mode="draws", width=width, height=height, count=COUNT, seed=SEED,
                        pipeline=[{"RandomResizedCrop": {"size": 224, "scale": scale, "ratio": ratio}}])
        ours = columns([line[0] for line in lines])
        torch.manual_seed(SEED)
        image = torch.empty(3, height, width)
        boxes = []
        for _ in range(COUNT):
            if v2:
                i, j, h, w = v2.RandomResizedCrop(224, scale, ratio).make_params([image]).values()
            else:
                i, j, h, w = RandomResizedCrop.get_params(image, scale, ratio)
            boxes.append((j, i, w, h))
        theirs = columns(boxes)
        found = {name: distance(ours[name], theirs[name]) for name in ours}
        failed += sum(d > limit for d in found.values())
        print(f"{width}x{height} {scale} {ratio}: " + " ".join(f"{n} {d:.4f}" for n, d in found.items()))
    # The test must be able to fail: a slightly different range is seen.
    other = 0.12 if FULL else 0.2
    lines = request(mode="draws", width=500, height=375, count=COUNT, seed=SEED,
                    pipeline=[{"RandomResizedCrop": {"size": 224, "scale": [other, 1.0]}}])
    torch.manual_seed(SEED)
    image = torch.empty(3, 375, 500)
    theirs = [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(COUNT)]
    seen = distance(columns([line[0] for line in lines])["area"], np.array([float(h * w) for _, _, h, w in theirs]))
    if seen <= limit:
        print(f"FAIL: scale {other} instead of 0.08 is only {seen:.4f} away: the test sees nothing")
        failed += 1
    print("FAIL" if failed else "ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
