#!/usr/bin/python3
"""The pixels that every competitor is compared with: Pillow decodes the whole photo, cuts the box, resizes, mirrors.

    reference.py TRACE COUNT OUT.npy      uint8 [COUNT, 3, 224, 224], before scaling and normalising

Debian's Pillow on Debian's libjpeg-turbo is what penstock's `exact` arithmetic promises to equal, so this runs under
/usr/bin/python3 where that has Pillow.
"""

import json
import sys

import common
import numpy as np
from PIL import Image, features


def reference(sample):
    with Image.open(sample.path) as image:
        box = (sample.x, sample.y, sample.x + sample.width, sample.y + sample.height)
        pixels = image.convert("RGB").crop(box).resize((common.SIZE, common.SIZE), Image.BILINEAR)
    pixels = np.asarray(pixels)
    return (pixels[:, ::-1] if sample.flip else pixels).transpose(2, 0, 1)


def main():
    trace, count, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    samples = common.read_trace(trace)
    array = np.stack([reference(samples[at % len(samples)]) for at in range(count)])
    np.save(out, array)
    from PIL import __version__ as pillow

    versions = {"pillow": pillow, "libjpeg_turbo": features.version("libjpeg_turbo"), "numpy": np.__version__}
    print(json.dumps({"ok": True, "images": count, "versions": versions}))


if __name__ == "__main__":
    main()
