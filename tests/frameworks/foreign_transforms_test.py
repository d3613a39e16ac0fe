"""timm's transforms, transformers' image processors and albumentations as penstock translates them: pixels where nothing is drawn,
parameters where something is, and reasons where they are not translated."""

import contextlib
import io
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "transforms"))
import albumentations
import numpy as np
import timm.data
import timm.data.transforms
import torch
from PIL import Image
from transformers import (BeitImageProcessor, CLIPImageProcessor, ConvNextImageProcessor, DeiTImageProcessor, SiglipImageProcessor,
                          ViTImageProcessor)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import penstock
from jobs import run_tests
from penstock._torch_transforms import translate
from photos import VAL
from torchvision_functions import rows_first


def pictures():
    paths = [os.path.join(VAL, folder, name) for folder in sorted(os.listdir(VAL)) for name in sorted(os.listdir(os.path.join(VAL, folder)))]
    return [Image.open(path).convert("RGB") for path in paths]


def ours(transform):
    with penstock.DataLoader(penstock.ImageFolder(VAL), split="val", mode="eval", batch_size=26, transform=transform) as val:
        return next(iter(val))[0].clone()


def names_of(transform):
    made = translate(transform)
    return [next(iter(spec)) for spec in made.steps], [type(step).__name__ for step in made.rest], made.why


def test_timm_eval():
    compared = 0
    for options in ({"input_size": 48}, {"input_size": (3, 40, 40), "crop_pct": 0.9, "interpolation": "bicubic"},
                    {"input_size": 32, "use_prefetcher": True}, {"input_size": 32, "crop_mode": "squash"},
                    {"input_size": 32, "normalize": False}, {"input_size": 32, "is_training": True, "no_aug": True}):
        transform = timm.data.create_transform(**options)
        made = ours(transform)
        with rows_first():  # Pillow before 13 did
            wanted = torch.stack([transform(picture) for picture in pictures()])
        assert made.dtype == wanted.dtype and torch.allclose(made.float(), wanted.float(), rtol=0, atol=1e-5), options
        compared += len(made)
    print(f"{compared} pictures compared")
    assert compared == 6 * 26


def test_timm_train():
    transform = timm.data.create_transform(64, is_training=True, interpolation="random", scale=(0.2, 0.9), color_jitter=(0.1, 0.2, 0.3, 0.1))
    made = translate(transform)
    assert made.steps[0] == {"RandomResizedCrop": {"size": [64, 64], "scale": [0.2, 0.9], "ratio": [3 / 4, 4 / 3],
                                                   "interpolation": ["bilinear", "bicubic"]}}
    assert [next(iter(spec)) for spec in made.steps[1:]] == ["RandomHorizontalFlip", "ColorJitter", "ToDtype", "Normalize"]
    assert not made.rest and np.allclose(made.steps[-1]["Normalize"]["mean"], timm.data.IMAGENET_DEFAULT_MEAN)
    images = ours(transform)
    assert images.shape == (26, 3, 64, 64) and images.dtype == torch.float32
    common = {"input_size": 64, "is_training": True}
    for options, steps, rest, words in (
            ({"use_prefetcher": True, "color_jitter_prob": 0.5, "grayscale_prob": 0.1, "gaussian_blur_prob": 0.2},
             ["RandomResizedCrop", "RandomHorizontalFlip", "RandomApply", "RandomGrayscale", "RandomApply"], [], ""),
            ({"auto_augment": "rand-m9-mstd0.5"}, ["RandomResizedCrop", "RandomHorizontalFlip"],
             ["RandAugment", "MaybeToTensor", "Normalize"], "operations and magnitudes are others"),
            ({"auto_augment": "original"}, ["RandomResizedCrop", "RandomHorizontalFlip"],
             ["AutoAugment", "MaybeToTensor", "Normalize"], "operations and magnitudes are others"),
            ({"auto_augment": "augmix-m5-w4-d2"}, ["RandomResizedCrop", "RandomHorizontalFlip"],
             ["AugMixAugment", "MaybeToTensor", "Normalize"], "operations and magnitudes are others"),
            ({"re_prob": 0.2, "color_jitter": None}, ["RandomResizedCrop", "RandomHorizontalFlip", "RandomErasing", "ToDtype", "Normalize"],
             [], ""),
            ({"re_prob": 0.2, "re_mode": "pixel", "color_jitter": None, "hflip": 0}, ["RandomResizedCrop"],
             ["MaybeToTensor", "Normalize", "RandomErasing"], "normal noise"),
            ({"re_prob": 0.2, "mean": (0, 0, 0), "color_jitter": None, "hflip": 0, "vflip": 0.3},
             ["RandomResizedCrop", "RandomVerticalFlip", "RandomErasing", "ToDtype", "Normalize"], [], ""),
            ({"train_crop_mode": "rkrc", "color_jitter": None, "hflip": 0}, [],
             ["ResizeKeepRatio", "CenterCropOrPad", "MaybeToTensor", "Normalize"], "rounds the longer side")):
        made = names_of(timm.data.create_transform(**common, **options))
        assert made[:2] == (steps, rest) and words in made[2], (options, made)
    erasing = translate(timm.data.create_transform(**common, re_prob=0.2, mean=(0, 0, 0))).steps[-3]["RandomErasing"]
    assert erasing["p"] == 0.2 and np.allclose(erasing["scale"], [0.02, 1 / 3]) and np.allclose(erasing["ratio"], [0.3, 1 / 0.3])


def test_timm_classes():
    T = timm.data.transforms
    assert names_of([T.CenterCropOrPad(30), T.ToNumpy()]) == (["CenterCrop"], [], "")
    for crop in ((30, 33), (300, 20), 161):
        transform = T.CenterCropOrPad(crop)
        assert torch.equal(ours([transform, T.MaybePILToTensor()]), torch.stack([T.MaybePILToTensor()(transform(one)) for one in pictures()]))
    assert "another colour than black" in names_of(T.CenterCropOrPad(30, fill=3))[2]
    assert names_of([T.CenterCropOrPad(30), T.ToTensor()])[0] == ["CenterCrop", "ToDtype"]
    assert torch.equal(ours([T.CenterCropOrPad(30), T.ToTensor()]), ours(T.CenterCropOrPad(30)).float())
    assert "no counterpart of timm's TrimBorder" in names_of(T.TrimBorder(3))[2]


def processed(processor):
    with rows_first():
        made = [processor(picture)["pixel_values"][0] for picture in pictures()]
    return torch.stack([torch.as_tensor(np.asarray(one)) for one in made])


def test_image_processors():
    compared = 0
    small = {"height": 40, "width": 52}
    for processor, steps in (
            (ViTImageProcessorPil(size=small), ["Resize", "ToDtype", "Normalize"]),
            (ViTImageProcessorPil(size=small, do_normalize=False), ["Resize", "ToDtype"]),
            (ViTImageProcessorPil(size=small, do_rescale=False, do_normalize=False, resample=0), ["Resize"]),
            (ViTImageProcessorPil(size=small, rescale_factor=1 / 127.5, image_mean=[1.0] * 3, image_std=[1.0] * 3),
             ["Resize", "ToDtype", "Normalize"]),
            (ViTImageProcessorPil(size=small, do_rescale=False, image_mean=[100.0] * 3, image_std=[50.0] * 3),
             ["Resize", "ToDtype", "Normalize"]),
            (CLIPImageProcessorPil(size={"height": 44, "width": 48}, crop_size={"height": 42, "width": 44}),
             ["Resize", "CenterCrop", "ToDtype", "Normalize"]),
            (ConvNextImageProcessorPil(size={"shortest_edge": 384}, crop_pct=0.9), ["Resize", "ToDtype", "Normalize"]),
            (ViTImageProcessor(size=small), ["Resize", "ToDtype", "Normalize"]),
            (DeiTImageProcessor(size={"height": 44, "width": 44}, crop_size=40), ["Resize", "CenterCrop", "ToDtype", "Normalize"]),
            (SiglipImageProcessor(size=small), ["Resize", "ToDtype", "Normalize"]),
            (ConvNextImageProcessor(), ["Resize", "ToDtype", "Normalize"])):
        assert names_of(processor) == (steps, [], ""), names_of(processor)
        made, wanted = ours(processor), processed(processor)
        assert made.shape == wanted.shape, (made.shape, wanted.shape)
        on_tensors = not type(processor).__name__.endswith("Pil")
        # Bytes by 1 (bilinear) or by some 20 (bicubic) where transformers resizes tensors; in steps of the normalised floats.
        step = 1 / 255 / 0.5 if "ToDtype" in steps else 1
        limit = (1.01 if "Resampling.BILINEAR" in repr(processor.resample) or processor.resample == 2 else 25) * step if on_tensors else 3e-5
        found = (made - wanted).abs()
        assert found.max() <= limit and (not on_tensors or found.mean() < 0.3 * step), (type(processor), found.max(), found.mean(), limit)
        compared += len(made)
    print(f"{compared} pictures compared")
    assert compared == 11 * 26


def test_clips_middle_is_a_pixel_off_where_it_is_said():
    """transformers cuts off half a pixel that torchvision rounds."""
    processor = CLIPImageProcessorPil(size={"shortest_edge": 60}, crop_size={"height": 60, "width": 60}, do_rescale=False,
                                      do_normalize=False)
    assert "transformers' crop begins a pixel earlier" in penstock.describe_transforms(processor, file=io.StringIO())
    made, wanted = ours(processor), processed(processor)
    equal = shifted = 0
    for picture, mine, other in zip(pictures(), made, wanted):
        longer = 60 * max(picture.size) // min(picture.size) - 60
        if longer % 4 == 3:
            shifted += 1
            wide = picture.width > picture.height
            assert torch.equal(mine[:, :, :-1], other[:, :, 1:]) if wide else torch.equal(mine[:, :-1], other[:, 1:])
        else:
            equal += 1
            assert torch.equal(mine, other)
    print(f"{equal} equal, {shifted} a pixel off")
    assert equal >= 5 and equal + shifted == 26


def test_processors_that_are_not_translated():
    class Own(ViTImageProcessor):
        def resize(self, image, size, **kwargs):
            return super().resize(image, size, **kwargs)

    for processor, words in (
            (BeitImageProcessor(), "preprocess is another"), (Own(), "Python code of the program"),
            (CLIPImageProcessor(size={"shortest_edge": 32, "longest_edge": 64}), "another rule"),
            (ViTImageProcessor(do_pad=True), "do_pad=True"), (ViTImageProcessor(resample=Image.Resampling.BOX), "not for tensors")):
        made = translate([processor, torch.nn.Identity()])
        assert made.steps == [] and made.rest[0] is processor and words in made.why, (words, made.why)
    assert "stands first" in names_of([timm.data.transforms.MaybeToTensor(), ViTImageProcessor()])[2]


def test_albumentations():
    for transform in (albumentations.Compose([albumentations.Resize(8, 8)]), albumentations.HorizontalFlip()):
        steps, rest, why = names_of(transform)
        assert steps == [] and len(rest) == 1 and "no counterparts of albumentations" in why


def test_describe():
    with contextlib.redirect_stdout(io.StringIO()) as out:
        penstock.describe_transforms([timm.data.create_transform(64, is_training=True, interpolation="random"), ViTImageProcessor()])
    text = out.getvalue()
    assert "RandomResizedCropAndInterpolation" in text and "From here on in Python: ViTImageProcessor" in text, text


if __name__ == "__main__":
    run_tests(globals())
