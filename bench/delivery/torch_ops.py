"""Decoding and augmenting as users of torchvision write it, with the crop of the trace in the place of the random one.
What torch_dataloader.py, webdataset_shards.py and spdl_pipeline.py have in common."""

import common
import torch
import torchvision
from torchvision.transforms.v2 import functional


def decoded(encoded):
    """uint8 tensor of a file's bytes to uint8 [3, h, w]."""
    return torchvision.io.decode_jpeg(encoded, mode=torchvision.io.ImageReadMode.RGB)


def decoded_file(path):
    return decoded(torchvision.io.read_file(path))


def augmented(image, sample):
    image = functional.resized_crop(
        image, sample.y, sample.x, sample.height, sample.width, [common.SIZE, common.SIZE], antialias=True
    )
    if sample.flip:
        image = functional.horizontal_flip(image)
    image = functional.to_image(image)
    image = functional.to_dtype(image, torch.float32, scale=True)
    return functional.normalize(image, common.MEAN, common.STD, inplace=True)


def versions():
    return {"torch": torch.__version__, "torchvision": torchvision.__version__}
