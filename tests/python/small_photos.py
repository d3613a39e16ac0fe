"""The data and job of photos.py with pictures an eighth as wide, as decoding takes most of the time of tests that only look which
batches come; with PENSTOCK_FULL=1 those of photos.py.

    from small_photos import JOB, TRAIN, VAL
"""

import os

from PIL import Image

import photos
from jobs import FULL, write_job

SMALL = photos.PHOTOS if FULL else os.path.join(photos.WORK, "small_photos")
TRAIN, VAL = os.path.join(SMALL, "train"), os.path.join(SMALL, "val")
if not FULL:
    for folder, _, names in [*os.walk(photos.TRAIN), *os.walk(photos.VAL)]:
        for name in names:
            with Image.open(os.path.join(folder, name)) as picture:
                picture.draft(picture.mode, (1, 1))
                path = os.path.join(SMALL, os.path.relpath(folder, photos.PHOTOS), name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                picture.save(path)
    photos.TRAIN = TRAIN  # of photos.tiny_job(), too
JOB = write_job(photos.WORK, SMALL, trainers=1, name="small_photos.yaml")
