"""The dataset and the transform of python_dataset.yaml. What penstock wants of them stands in
bindings/python/penstock/_worker.py; nothing of penstock is imported."""

import numpy as np


class Shapes:
    """Bright discs and squares on noise, drawn when asked for."""

    classes = ["disc", "square"]
    version = 1  # change it when the pictures change, so that an old run is not continued on new data

    def __init__(self, count, side):
        self.count, self.side = count, side

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        label = i % 2
        image = rng.integers(0, 100, (self.side, self.side, 3), dtype=np.uint8)
        radius = rng.integers(self.side // 8, self.side // 3)
        y, x = np.mgrid[:self.side, :self.side] - self.side // 2
        inside = x * x + y * y <= radius * radius if label == 0 else np.maximum(abs(x), abs(y)) <= radius
        image[inside] += 150
        # image and label, and any other fields of a fixed shape: batch["radius"] is float32 [n].
        return {"image": image, "label": label, "radius": np.float32(radius)}


def speckle(image, rng):
    """A hundredth of the pixels white. Draws from `rng` alone, so it is the same wherever it runs."""
    image[rng.random(image.shape[:2]) < 0.01] = 255
    return image
