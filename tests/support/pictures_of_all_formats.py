"""Writes pictures of the formats that penstock reads, in two class folders, with Pillow.

    /usr/bin/python3 pictures_of_all_formats.py FOLDER

All are made from two pictures with smooth and noisy parts; nothing is drawn at random, so that each run writes the same.
"""

import os
import sys

import numpy
from PIL import Image

KINDS = [
    ("baseline.jpg", "RGB", {"quality": 90}), ("progressive.jpg", "RGB", {"quality": 80, "progressive": True}),
    ("grey.jpg", "L", {}), ("cmyk.jpg", "CMYK", {}),
    ("colours.png", "RGB", {}), ("palette.png", "P", {}), ("alpha.png", "RGBA", {}), ("grey.png", "L", {}),
    ("lossy.webp", "RGB", {"quality": 80}), ("lossless.webp", "RGB", {"lossless": True}),
    ("raw.tif", "RGB", {}), ("lzw.tif", "RGB", {"compression": "tiff_lzw"}), ("deflate.tif", "RGB", {"compression": "tiff_adobe_deflate"}),
    ("packbits.tif", "L", {"compression": "packbits"}), ("jpeg.tif", "RGB", {"compression": "jpeg"}), ("zstd.tif", "RGB", {"compression": "zstd"}),
    ("colours.bmp", "RGB", {}), ("colours.ppm", "RGB", {}), ("grey.pgm", "L", {}),
]


def picture(kind):
    y, x = numpy.mgrid[0:240, 0:320]
    noise = (x * 7919 + y * 104729 + (x * y) % 251 * 31) % 64
    planes = [(x * (2 + kind) + noise) % 256, (y * 3 + noise * kind) % 256, ((x + y) // 2 + noise) % 256]
    return Image.fromarray(numpy.stack(planes, axis=2).astype(numpy.uint8), "RGB")


for kind, name in enumerate(("one", "two")):
    folder = os.path.join(sys.argv[1], name)
    os.makedirs(folder)
    for file, mode, options in KINDS:
        picture(kind).convert(mode).save(os.path.join(folder, file), **options)
print(f"{2 * len(KINDS)} pictures", file=sys.stderr)
