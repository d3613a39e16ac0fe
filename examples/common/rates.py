"""Learning rates as functions of the epoch, so that a resumed run needs nothing but its number.

    set_rate(optimizer, cosine(epoch, epochs, first=0.01, last=0.0001))
"""

import math


def cosine(epoch, epochs, first, last):
    """From `first` in epoch 0 towards `last`, as torch's CosineAnnealingLR has it (Loshchilov and Hutter, "SGDR", 2017)."""
    return last + (first - last) * (1 + math.cos(math.pi * epoch / epochs)) / 2


def set_rate(optimizer, rate):
    for group in optimizer.param_groups:
        group["lr"] = rate
