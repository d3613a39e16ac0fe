"""What the workers of own_dataset_test and state_test import."""

import time

import numpy as np


def dim(image, generator):
    """A transform: every pixel a little darker, by a draw."""
    return (image - np.minimum(image, generator.integers(1, 10, dtype=np.uint8))).astype(np.uint8)


def negative(image, generator):
    """A transform that draws nothing."""
    return 255 - image


class Slow:
    """A dataset some of whose samples take longer than whole batches of others."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        time.sleep(0.1 if index % 7 == 0 else 0)
        return {"image": np.full((10, 10, 3), index, np.uint8), "label": index}


class Overexposed(ValueError):
    pass


def refuse(image, rng):
    raise Overexposed("too bright")
