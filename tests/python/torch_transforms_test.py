"""Pipelines of torchvision's transform objects as penstock translates them: the objects themselves are run, and their pixels
compared; what draws is compared by its parameters. v1 with any torchvision, v2 where it has it (tests/frameworks)."""

import copy
import enum
import functools
import inspect
import io
import json
import os
import re
import sys

import numpy as np
from PIL import Image

import penstock
from jobs import FULL, run_tests
from penstock import transforms as T
from penstock._torch_transforms import translate
from photos import VAL, WORK, raises

try:
    import torch
    import torchvision
    from torchvision.transforms import InterpolationMode as Mode
except ImportError as problem:
    print(f"SKIP: {problem}")
    sys.exit(77)
V1 = torchvision.transforms
try:
    from torchvision.transforms import v2 as V2
except ImportError:
    V2 = None
HAVE = [V1] + ([V2] if V2 else [])
OLD_PILLOW = int(Image.__version__.partition(".")[0]) < 13  # that resizes rows first, as penstock: EXACTNESS.md
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


if not FULL:  # a third of the pictures
    some = os.path.join(WORK, "some")
    for folder in os.listdir(VAL):
        os.makedirs(os.path.join(some, folder))
        for name in sorted(os.listdir(os.path.join(VAL, folder)))[::3]:
            os.symlink(os.path.join(VAL, folder, name), os.path.join(some, folder, name))
    VAL = some


def files():
    """In ImageFolder's order."""
    return [os.path.join(VAL, folder, name) for folder in sorted(os.listdir(VAL))
            for name in sorted(os.listdir(os.path.join(VAL, folder)))]


@functools.lru_cache
def pictures():
    return [Image.open(path).convert("RGB") for path in files()]


def ours(transform):
    """A tensor of the whole of VAL, made by a DataLoader that was given torchvision's objects."""
    with penstock.DataLoader(penstock.ImageFolder(VAL), split="val", mode="eval", batch_size=len(files()), transform=transform) as val:
        return next(iter(val))[0].clone()


def theirs(transform):
    made = []
    for picture in pictures():
        one = transform(picture)
        made.append(torch.from_numpy(np.asarray(one).transpose(2, 0, 1).copy()) if isinstance(one, Image.Image) else one)
    return torch.stack([torch.as_tensor(one) for one in made])


# What gives one result whatever is drawn: (name, arguments, share of bytes that may differ).
def unconditional(V):
    v1 = V is V1
    always = {"p": 1.0}
    yield "Resize", (72,), {}, 0
    yield "Resize", ([72],), {}, 0
    yield "Resize", ((40, 90),), {"interpolation": Mode.BICUBIC}, 0
    yield "Resize", (31,), {"interpolation": Mode.NEAREST}, 0
    yield "Resize", (33,), {"interpolation": Mode.BOX, "max_size": 60}, 0
    yield "Resize", (40,), {"interpolation": Mode.LANCZOS, "antialias": False}, 0  # PIL pictures are antialiased nevertheless
    yield "CenterCrop", (50,), {}, 0
    yield "CenterCrop", ((150, 33),), {}, 0
    yield "Pad", (5,), {}, 0
    yield "Pad", ((3, 7),), {"fill": (1, 128, 255)}, 0
    yield "Pad", ([1, 2, 3, 4],), {"padding_mode": "reflect", "fill": 9}, 0
    yield "RandomCrop", ((100, 140),), {"pad_if_needed": False}, 0
    yield "RandomCrop", ((102, 147),), {"padding": (1, 0, 6, 2), "fill": (9, 8, 7)}, 0
    yield "RandomCrop", ((120, 150),), {"padding": [5, 10]}, 0
    yield "RandomHorizontalFlip", (), always, 0
    yield "RandomVerticalFlip", (), always, 0
    yield "RandomHorizontalFlip", (0.0,), {}, 0
    yield "RandomRotation", ((30, 30),), {"interpolation": Mode.BILINEAR, "fill": (250, 9, 77), "center": (20, 30)}, 1e-4
    yield "RandomRotation", ((-75, -75),), {"expand": True}, 1e-4
    yield "RandomAffine", ((25, 25),), {"scale": (0.75, 0.75), "shear": (10, 10, -5, -5), "fill": 200}, 1e-4
    yield "RandomAffine", ((0, 0),), {"shear": (20, 20), "interpolation": Mode.BICUBIC, "center": [0, 0]}, 1e-4
    yield "Grayscale", (3,), {}, 0
    yield "RandomGrayscale", (1.0,), {}, 0
    yield "ColorJitter", (), {"brightness": (1.3, 1.3)}, 0
    yield "ColorJitter", (), {"contrast": (0.4, 0.4)}, 0
    yield "ColorJitter", (), {"saturation": (1.7, 1.7)}, 0
    yield "ColorJitter", (), {"hue": (-0.21, -0.21)}, 0
    yield "ColorJitter", (0, 0, 0, 0), {}, 0
    yield "RandomInvert", (), always, 0
    yield "RandomPosterize", (3,), always, 0
    yield "RandomSolarize", (90,), always, 0
    yield "RandomAdjustSharpness", (1.9,), always, 0
    yield "RandomAutocontrast", (), always, 0
    yield "RandomEqualize", (), always, 0
    yield "GaussianBlur", ((5, 3), (0.8, 0.8)), {}, 1e-3
    yield "GaussianBlur", (3, 1.1), {}, 1e-3
    if not v1:
        yield "RandomErasing", (), {"p": 0.0}, 0
        yield "Identity", (), {}, 0
        yield "RGB", (), {}, 0
        yield "Resize", (50,), {"interpolation": "bicubic"}, 0
        yield "Pad", (5,), {"fill": {Image.Image: 40, "others": 7}}, 0


class Preset:
    """As torchvision's training programs have them."""

    def __init__(self, *steps):
        self.steps = V1.Compose(steps)

    def __call__(self, img):
        return self.steps(img)


class Brighter(Preset):
    def __call__(self, img):
        return self.steps(img) + 1


def test_a_class_that_only_calls_its_transforms_is_looked_through():
    steps = [V1.Resize(40), V1.CenterCrop(32), V1.ToTensor()]
    assert translate(Preset(*steps)).steps == translate(V1.Compose(steps)).steps and not translate(Preset(*steps)).rest
    made = Brighter(*steps)
    assert translate(made).rest == [made] and "Brighter" in translate(made).why
    hidden = Preset(*steps)
    del hidden.steps  # nothing to look at: what it does is its own affair
    assert translate(hidden).rest == [hidden]


def test_objects_that_draw_nothing_give_torchvisions_pixels():
    compared = changed = 0
    for V in HAVE:
        first, last = V.CenterCrop((100, 140)), V.CenterCrop((118, 158))
        plain = ours(V.Compose([first, last]))
        for name, args, options, may_differ in unconditional(V):
            transform = V.Compose([first, getattr(V, name)(*args, **options), last])
            made, wanted = ours(transform), theirs(transform)
            assert made.dtype == torch.uint8 and made.shape == wanted.shape, (name, made.shape, wanted.shape)
            different = (made.int() - wanted.int()).abs()
            pillows_order = name == "Resize" and different.max() <= 21  # Pillow 13 may resize columns first: EXACTNESS.md
            share = different.count_nonzero().item() / different.numel()
            assert share <= (0.03 if pillows_order else may_differ), (V.__name__, name, args, options, share, different.max())
            compared += 1
            changed += not torch.equal(made, plain)
    print(f"{compared} objects compared on {len(files())} pictures, {changed} of them change something")
    assert compared >= 36 and changed >= compared - (5 if V2 is None else 13), (compared, changed)


# What draws: (name, arguments, spec).
def drawing(V):
    v1 = V is V1
    bilinear, nearest = {"interpolation": "bilinear"}, {"interpolation": "nearest"}
    yield "RandomResizedCrop", (32,), {}, {"size": [32, 32], "scale": [0.08, 1.0], "ratio": [3 / 4, 4 / 3], **bilinear}
    yield ("RandomResizedCrop", ((24, 32), (0.3, 0.9), (0.5, 2)), {"interpolation": Mode.BICUBIC},
           {"size": [24, 32], "scale": [0.3, 0.9], "ratio": [0.5, 2], "interpolation": "bicubic"})
    yield "RandomCrop", (32, 4), {}, {"size": [32, 32], "pad_if_needed": False, "padding_mode": "constant", "fill": 0,
                                      "padding": 4 if v1 else [4, 4, 4, 4]}
    yield ("RandomCrop", ((24, 32), (1, 2, 3, 4), True), {"padding_mode": "edge"},
           {"size": [24, 32], "pad_if_needed": True, "padding_mode": "edge", "padding": [1, 2, 3, 4]})
    yield "RandomHorizontalFlip", (0.3,), {}, {"p": 0.3}
    yield "RandomVerticalFlip", (), {}, {"p": 0.5}
    yield "RandomRotation", (20,), {}, {"degrees": [-20.0, 20.0], "expand": False, "fill": 0, **nearest}
    yield ("RandomAffine", (10, (0.1, 0.2), (0.8, 1.2), 5), {},
           {"degrees": [-10.0, 10.0], "translate": [0.1, 0.2], "scale": [0.8, 1.2], "shear": [-5.0, 5.0], "fill": 0, **nearest})
    yield "RandomPerspective", (0.4, 0.7), {"fill": 3}, {"distortion_scale": 0.4, "p": 0.7, "fill": 3, **bilinear}
    yield "RandomGrayscale", (), {}, {"p": 0.1}
    yield ("ColorJitter", (0.4, (0.5, 1.5), 2, 0.1), {},
           {"brightness": [0.6, 1.4], "contrast": [0.5, 1.5], "saturation": [0.0, 3.0], "hue": [-0.1, 0.1]})
    yield "RandomInvert", (0.2,), {}, {"p": 0.2}
    yield "RandomPosterize", (4, 0.2), {}, {"bits": 4, "p": 0.2}
    yield "RandomSolarize", (128, 0.2), {}, {"threshold": 128, "p": 0.2}
    yield "RandomAdjustSharpness", (2, 0.2), {}, {"sharpness_factor": 2, "p": 0.2}
    yield "RandomAutocontrast", (0.2,), {}, {"p": 0.2}
    yield "RandomEqualize", (0.2,), {}, {"p": 0.2}
    yield "GaussianBlur", (3,), {}, {"kernel_size": [3, 3], "sigma": [0.1, 2.0]}
    yield ("RandAugment", (3, 5), {}, {"num_ops": 3, "magnitude": 5, "num_magnitude_bins": 31, "fill": 0, **nearest})
    yield "AutoAugment", (V1.AutoAugmentPolicy.CIFAR10,), {}, {"policy": "cifar10", "fill": 0, **nearest}
    yield "TrivialAugmentWide", (), {"fill": [1, 2, 3]}, {"num_magnitude_bins": 31, "fill": [1, 2, 3], **nearest}
    yield ("AugMix", (2, 4), {}, {"severity": 2, "mixture_width": 4, "chain_depth": -1, "alpha": 1.0, "all_ops": True, "fill": 0,
                                  **bilinear})
    if not v1:
        yield ("RandomErasing", (0.4,), {"value": (1, 2, 3)},
               {"p": 0.4, "scale": [0.02, 0.33], "ratio": [0.3, 3.3], "value": [1, 2, 3]})


def test_objects_that_draw_have_the_same_parameters():
    compared = 0
    for V in HAVE:
        for name, args, options, wanted in drawing(V):
            made = translate(getattr(V, name)(*args, **options))
            assert not made.rest and len(made.steps) == 1, made
            found = made.steps[0][name]
            assert set(found) == set(wanted), (name, found, wanted)
            for key, value in wanted.items():
                assert found[key] == value or np.allclose(found[key], value), (V.__name__, name, key, found[key], value)
            compared += 1
    print(f"{compared} objects' parameters compared")
    assert compared >= 22


# Classes that never are: (name, arguments, words of why).
NEVER = {
    "Lambda": ((lambda picture: picture,), "calls <lambda>"),
    "LinearTransformation": ((torch.eye(12), torch.zeros(12)), "no counterpart of torchvision's LinearTransformation"),
    "FiveCrop": ((8,), "tuple of pictures"),
    "TenCrop": ((8,), "tuple of pictures"),
    "MixUp": ((), "whole batches"),
    "CutMix": ((), "whole batches"),
    "RandomZoomOut": ((), "no counterpart"),
    "RandomIoUCrop": ((), "no counterpart"),
    "SanitizeBoundingBoxes": ((), "no counterpart"),
    "SanitizeKeyPoints": ((), "no counterpart"),
    "ClampBoundingBoxes": ((), "no counterpart"),
    "ClampKeyPoints": ((), "no counterpart"),
    "SetClampingMode": (("soft",), "no counterpart"),
    "ConvertBoundingBoxFormat": (("XYXY",), "no counterpart"),
    "UniformTemporalSubsample": ((2,), "no counterpart"),
    "ElasticTransform": ((), "no counterpart"),
}
# v2's names that came later.
LATER = {"JPEG": ((50, 90),), "GaussianNoise": (), "RandomChannelPermutation": (),
         "RandomPhotometricDistort": (), "RandomResize": (20, 40), "RandomShortestSize": ([20, 30],), "ScaleJitter": ((20, 30),)}
CONVERSIONS = {"ToTensor", "PILToTensor", "ToImage", "ToPureTensor", "ToPILImage", "ConvertImageDtype", "ToDtype", "Normalize"}
CONTAINERS = {"Compose", "RandomApply", "RandomChoice", "RandomOrder"}


def test_every_public_class_has_a_fate():
    counted = 0
    for V in HAVE:
        tested = ({name for name, *_ in unconditional(V)} | {name for name, *_ in drawing(V)} | CONVERSIONS | CONTAINERS
                  | set(NEVER) | set(LATER) | {"RandomErasing", "Transform"})
        for name, one in vars(V).items():
            if not inspect.isclass(one) or issubclass(one, enum.Enum) or name.startswith("_"):
                continue
            assert name in tested, f"{V.__name__}.{name} has no row in this test's tables"
            counted += 1
            if name in NEVER:
                made = translate(one(*NEVER[name][0]) if name not in ("MixUp", "CutMix") else one(num_classes=3))
                assert made.why.startswith(f"{name}: ") and NEVER[name][1] in made.why and len(made.rest) == 1, made
            if name in LATER:
                made = translate([V.PILToTensor(), one(*LATER[name])])
                assert not made.rest and list(made.steps[0]) == [name], made
    print(f"{counted} classes of torchvision {torchvision.__version__}")
    assert counted >= 36


def names_of(V, *steps):
    """Names of what the steps are translated into."""
    made = translate(V.Compose(list(steps)))
    assert not made.rest, made.why
    return [next(iter(spec)) for spec in made.steps]


def test_conversions():
    for V in HAVE:
        eval_ = V.Compose([V.Resize(40), V.CenterCrop(32), V.ToTensor(), V.Normalize(MEAN, STD)])
        made, wanted = ours(eval_), theirs(eval_)
        assert made.dtype == torch.float32 and torch.allclose(made, wanted, rtol=0, atol=1e-5 if OLD_PILLOW else 0.2)
        assert translate(eval_).steps[2:] == [{"ToDtype": {"dtype": "float32", "scale": True}},
                                              {"Normalize": {"mean": list(MEAN), "std": list(STD)}}]
        crop = V.CenterCrop(8)
        # What stands behind a conversion and only moves pixels goes before it, with the same result.
        moved = V.Compose([V.Resize((40, 40)), V.ToTensor(), V.RandomCrop(40), V.Normalize([0.5], [0.5]),
                           V.RandomHorizontalFlip(1.0)])
        assert torch.allclose(ours(moved), theirs(moved), rtol=0, atol=1e-6 if OLD_PILLOW else 0.2)
        assert names_of(V, crop) == ["CenterCrop"]
        assert names_of(V, crop, V.PILToTensor()) == ["CenterCrop"]
        assert names_of(V, crop, V.PILToTensor(), V.ConvertImageDtype(torch.float32)) == ["CenterCrop", "ToDtype"]
        assert names_of(V, V.ToTensor(), V.ToPILImage(), crop) == ["CenterCrop"]
        assert names_of(V, crop, V.ToTensor(), V.ConvertImageDtype(torch.uint8)) == ["CenterCrop"]
        # 255 times a byte's float is that byte: what lets floats become bytes again.
        codes = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 256)
        assert torch.equal(V.ConvertImageDtype(torch.uint8)(V.ConvertImageDtype(torch.float32)(codes)), codes)
        assert torch.equal(V1.functional.pil_to_tensor(V.ToPILImage()(codes.float() / 255)), codes)
        # Colours behind a conversion: 0 to 1 is 0 to 255; behind Normalize only what a byte becomes.
        to = [V.ToTensor()]
        assert translate(V.Compose(to + [V.Pad(2, fill=1.0), crop])).steps[0]["Pad"]["fill"] == 255
        assert translate(V.Compose(to + [V.Pad(2, fill=20 / 255), crop])).steps[0]["Pad"]["fill"] == 20
        assert "bytes are whole numbers" in translate(V.Compose(to + [V.Pad(2, fill=0.5), crop])).why
        assert translate(V.Compose(to + [V.RandomErasing(value=(0.0, 1.0, 0.2)), crop])).steps[0]["RandomErasing"]["value"] == [0, 255, 51]
        assert translate(V.Compose(to + [V.RandomSolarize(0.5), crop])).steps[0]["RandomSolarize"]["threshold"] == 128
        assert "rounding decides" in translate(V.Compose(to + [V.RandomSolarize(51 / 255), crop])).why
        half = to + [V.Normalize([0.5], [0.5])]
        assert translate(V.Compose(half + [V.RandomErasing(value=0)])).steps[0]["RandomErasing"]["value"] == 128  # half a byte beside it
        assert "beyond penstock's bytes" in translate(V.Compose(half + [V.RandomErasing(value=2)])).why
        assert translate(V.Compose(half + [V.RandomErasing(value=-1)])).steps[0]["RandomErasing"]["value"] == 0
        assert translate(V.Compose(half + [V.RandomErasing(value=(1, -1, 1))])).steps[0]["RandomErasing"]["value"] == [255, 0, 255]
        for wrong, words in (([V.ColorJitter(0.1)], "normalised floats"), ([V.CenterCrop(8)], "padded with, fill=0 is a byte of 127.5 here"),
                             ([V.Normalize([0.5], [0.5])], "normalises once"), ([V.ConvertImageDtype(torch.uint8)], "floats again")):
            made = translate(V.Compose(half + wrong))
            assert words in made.why and made.steps == [] and made.rest == [*half, *wrong] and made.culprit == 2, made
        for wrong, words in (([V.Normalize([0.5], [0.5])], "torchvision refuses"),
                             ([V.PILToTensor(), V.Normalize([0.5], [0.5])], "needs floats"),
                             (to + [V.ConvertImageDtype(torch.float64)], "no float64 tensors"),
                             (to + [V.RandomEqualize()], "equalise"), (to + [V.RandomPosterize(3)], "posterise"),
                             (to + [V.AutoAugment()], "operations on floats"), (to + [V.RandomErasing(value="random")], "normal noise")):
            made = translate(V.Compose(wrong))
            assert words in made.why and made.rest == wrong, (words, made)


def test_conversions_of_v2():
    if V2 is None:
        print("no v2: not compared")
        return
    V = V2
    float32, image = V.ToDtype(torch.float32, scale=True), torchvision.tv_tensors.Image
    crop = V.CenterCrop(32)
    assert names_of(V, V.ToImage(), crop, float32, V.ToPureTensor()) == ["CenterCrop", "ToDtype"]
    assert names_of(V, float32, crop) == ["CenterCrop"]  # a PIL picture has no dtype: torchvision gives it back
    transform = V.Compose([float32, V.CenterCrop(32)])
    assert torch.equal(ours(transform), theirs(transform))
    assert names_of(V, V.ToImage(), crop, V.ToDtype({image: torch.float32, "others": None})) == ["CenterCrop", "ToDtype"]
    assert names_of(V, V.PILToTensor(), crop, V.ToDtype({torch.Tensor: torch.float16})) == ["CenterCrop", "ToDtype"]
    assert names_of(V, V.ToImage(), crop, V.ToDtype({"others": None})) == ["CenterCrop"]
    assert "says nothing of Image" in translate([V.ToImage(), V.ToDtype({torch.Tensor: torch.float16})]).why
    assert "which have none" in translate([V.ToDtype({"others": torch.float32})]).why
    # Exact behind ToImage: what only moves bytes.
    transform = V.Compose([V.ToImage(), crop, V.RandomHorizontalFlip(1.0), V.Pad(3, fill=9, padding_mode="reflect"), float32,
                           V.Normalize(MEAN, STD)])
    assert torch.equal(ours(transform), theirs(transform))
    # Fills by type of what there is.
    fills = {Image.Image: 1, image: 2, torch.Tensor: 3, torchvision.tv_tensors.Mask: 255}
    for before, wanted in (([], 1), ([V.ToImage()], 2), ([V.PILToTensor()], 3)):
        assert translate([*before, V.Pad(2, fill=fills)]).steps[0]["Pad"] == {
            "padding": 2, "padding_mode": "constant", "fill": wanted, "mask_fill": 255}
    assert "says nothing of PIL" in translate(V.Pad(2, fill={image: 1})).why
    # On tensors antialias counts, and so does which pixel is the nearest.
    assert "without antialiasing" in translate([V.ToImage(), V.Resize(8, antialias=False)]).why
    assert not translate(V.Resize(8, antialias=False)).rest
    assert "other pixels" in translate([V.ToImage(), V.Resize(8, interpolation=Mode.NEAREST)]).why
    assert not translate([V.ToImage(), V.Resize(8, interpolation=Mode.NEAREST_EXACT)]).rest
    assert "not for tensors" in translate([V.ToImage(), V.Resize(8, interpolation=Mode.BOX)]).why
    preset = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
    assert names_of(V, preset) == ["Resize", "CenterCrop", "ToDtype", "Normalize"]
    made = translate([V.RandomHorizontalFlip(), preset, lambda picture: picture])
    assert [*made.steps[0]] == ["RandomHorizontalFlip"] and made.rest[0] is preset and made.culprit == 1, made


def test_containers():
    for V in HAVE:
        inside = [V.ColorJitter(0.1), V.Compose([V.RandomInvert(0.2), V.RandomEqualize()])]
        for container in (V.Compose(inside), torch.nn.Sequential(inside[0], torch.nn.Sequential(*inside[1].transforms)), inside, tuple(inside),
                          T.Compose(inside), [V.Compose([V.Compose(inside), torch.nn.Identity()])]):
            assert names_of(V, container) == ["ColorJitter", "RandomInvert", "RandomEqualize"], container
        made = translate(V.RandomApply(inside, p=0.3)).steps
        assert made[0]["RandomApply"]["p"] == 0.3
        assert [*map(lambda spec: [*spec][0], made[0]["RandomApply"]["transforms"])] == ["ColorJitter", "RandomInvert", "RandomEqualize"]
        made = translate(V.RandomApply(torch.nn.ModuleList([inside[0]]))).steps
        assert [*made[0]["RandomApply"]["transforms"][0]] == ["ColorJitter"]
        # Several as one choice, and nothing as one choice.
        made = translate(V.RandomChoice(inside, p=[1, 3])).steps[0]["RandomChoice"]
        assert np.allclose(np.array(made["p"]) / sum(made["p"]), [0.25, 0.75]) and len(made["transforms"]) == 2
        assert made["transforms"][1]["RandomApply"]["p"] == 1.0 and len(made["transforms"][1]["RandomApply"]["transforms"]) == 2
        assert "p" not in translate(V.RandomChoice(inside)).steps[0]["RandomChoice"]
        made = translate(V.RandomOrder([*inside, torch.nn.Identity()])).steps[0]["RandomOrder"]["transforms"]
        assert [*map(lambda spec: [*spec][0], made)] == ["ColorJitter", "RandomApply", "RandomHorizontalFlip"]
        transform = V.Compose([V.CenterCrop((60, 60)), V.RandomChoice([torch.nn.Identity()]), V.RandomApply([V.RandomInvert(1)], p=1.0),
                               V.RandomOrder([V.RandomVerticalFlip(1), V.Compose([V.Pad(3), V.RandomCrop(66)])])])
        assert torch.equal(ours([*transform.transforms, V.CenterCrop(60)]),
                           theirs(V.Compose([*transform.transforms, V.CenterCrop(60)])))
        assert "of <lambda>() in it" in translate(V.RandomApply([lambda picture: picture])).why
        assert "converts pictures" in translate(V.RandomApply([V.ToTensor()])).why
        assert T.RandomApply([V.RandomInvert(0.5)], p=0.1) == T.RandomApply([T.RandomInvert()], p=0.1)


class OwnResize(V1.Resize):
    """A class of a program's own."""


class OwnCompose(V1.Compose):
    """A class of a program's own."""


def own_function(picture):
    return picture


def test_what_is_the_programs_own_is_not_translated():
    V = V1
    resize = V.Resize(40)
    changed = V.Resize(40)
    changed.scale = 2
    faked = type("Resize", (), {"__module__": V.Resize.__module__, "__call__": lambda self, picture: picture})()
    hooked = V.CenterCrop(8)
    hooked.register_forward_hook(lambda *args: None)
    policies = V.AutoAugment()
    policies.policies = policies.policies[:3]
    for step, words in ((OwnResize(8), "made from torchvision's Resize"), (OwnCompose([resize]), "made from torchvision's Compose"),
                        (changed, "does not know its attribute 'scale'"), (faked, "Python code"), (hooked, "hooks"),
                        (policies, "policies were changed"), (own_function, "Python code"), (np.asarray, "Python code of numpy"),
                        (V.Resize, "is a class; write Resize()"), (V.Pad(-1), "refuses it: 'splits.split.pipeline.0.Pad.padding' is -1"),
                        (V.Grayscale(1), "one channel"), (V.RandomCrop(8, 1, fill=300), "fill=300 is a byte of 300 here"),
                        (V.GaussianBlur(9999), "refuses it")):
        made = translate([V.RandomHorizontalFlip(), V.Compose([resize, step]), V.ToTensor()])
        assert [*made.steps[0]] == ["RandomHorizontalFlip"] and len(made.steps) == 2, made
        assert len(made.rest) == 2 and made.rest[0] is step and made.culprit == 0 and words in made.why, (words, made.why)
        assert [note.runs for note in made.notes[2:]] == ["Python worker"] * 2
    assert translate(None) == ([], [], "", [], 0, "Tensor")
    raises(penstock.UsageError, lambda: translate([resize, 3]), "3 is no transform")
    raises(penstock.UsageError, lambda: translate([own_function, T.RandomInvert()]), "RandomInvert(p=0.5) of penstock's", "own_function")
    raises(penstock.UsageError, lambda: translate([T.ToTensor(), own_function]), "ToDtype")
    made = translate([T.RandomInvert(), own_function])
    assert made.steps == [{"RandomInvert": {"p": 0.5}}] and made.rest == [own_function]
    # Whoever only takes whole translations says which step stood in the way.
    raises(penstock.UsageError, lambda: T.pipeline_of(V.Compose([resize, V.CenterCrop(8), own_function])),
           "own_function is no transform of penstock's", "Python code", "Python(function)")


def test_penstocks_and_torchvisions_in_one_list():
    V = V1
    mixed = [V.Resize(40), T.CenterCrop(32), V.RandomHorizontalFlip(1.0), T.ToDtype("float32", scale=True), V.Normalize(MEAN, STD),
             T.MixUp(num_classes=4)]
    made = translate(mixed)
    assert [*map(lambda spec: [*spec][0], made.steps)] == ["Resize", "CenterCrop", "RandomHorizontalFlip", "ToDtype", "Normalize", "MixUp"]
    assert len(made.notes) == 6 and not made.rest
    raises(penstock.UsageError, lambda: translate([own_function, T.CenterCrop(32)]), "own_function", "penstock.transforms.Python(function)")
    assert "penstock.transforms.Python(it)" in translate([T.CenterCrop(32), own_function]).why


def test_describe():
    V = V1
    file = io.StringIO()
    text = penstock.describe_transforms(V.Compose([V.Resize(40), V.GaussianBlur(3), V.ToTensor(), V.Normalize(MEAN, STD), own_function]),
                                        file=file)
    assert file.getvalue() == text + "\n"
    assert re.search(r"1\. Resize\(.*\n     runs: loader's threads or GPU\n     exact", text), text
    assert re.search(r"2\. GaussianBlur\(.*\n.*\n     near: ", text) and re.search(r"3\. ToTensor\(\)\n     runs: Python worker", text)
    assert "From here on in Python: own_function(): it is Python code" in text and text.count("Draws are penstock's") == 1
    assert text.count("or this process with num_workers=0") == 3, text
    with penstock.DataLoader(penstock.ImageFolder(VAL), transform=[V.CenterCrop(8), V.ToTensor(), V.Normalize(MEAN, STD)]) as loader:
        described = penstock.describe_transforms(loader, file=io.StringIO())
        assert re.search(r"1\. CenterCrop\(size=[\[(]8.*\n.*\n     exact", described), described
        assert described.count("runs: finishing") == 2
        assert json.loads(loader._native.spec())["split"]["pipeline"][0].keys() == {"CenterCrop"}
    on_tensors = penstock.describe_transforms([V.PILToTensor(), V.RandomRotation((90, 90)), V.RandomRotation(20), V.ColorJitter(0.1),
                                               V.RandomHorizontalFlip(), V.RandomErasing(value=7)], file=io.StringIO())
    assert re.findall(r"     (exact|near): ", on_tensors) == ["exact", "near", "near", "near", "exact", "exact"], on_tensors
    assert re.search(r"torchvision works on tensors of bytes here: \d+ % of the bytes differ, by \d+ at most", on_tensors)
    assert "not measured" not in on_tensors
    erased = penstock.describe_transforms([V.ToTensor(), V.Normalize(MEAN, STD), V.RandomErasing()], file=io.StringIO())
    assert re.search(r"3\. RandomErasing.*\n.*\n     near: equal bytes; value is that of the nearest byte, 0\.00\d+ away at most", erased), erased
    raises(penstock.UsageError, lambda: penstock.describe_transforms(None), "describe_transforms")
    raises(penstock.UsageError, lambda: penstock.describe_transforms(7), "7 is no transform")


def test_nothing_of_what_was_given_changes():
    transform = V1.Compose([V1.RandomCrop(8, padding=(1, 2)), V1.AutoAugment(), V1.ToTensor(), V1.Normalize(list(MEAN), list(STD))])
    before = copy.deepcopy([vars(step) for step in transform.transforms])
    translate(transform).steps[0]["RandomCrop"]["padding"].append(3)
    assert str([vars(step) for step in transform.transforms]) == str(before)


run_tests(globals())
