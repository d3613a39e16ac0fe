"""penstock.transforms: the program's own catalogue, torchvision's words, and torchvision's pixels."""

import inspect
import itertools
import json
import os

import numpy as np
import torch
from PIL import Image

import penstock
from jobs import FULL, PENSTOCK, run_tests
from leftovers import run
from penstock import transforms as T
from photos import VAL, raises

try:
    import torchvision
    from torchvision.transforms import InterpolationMode
except ImportError:
    torchvision = None

CLASSES = {name: one for name, one in vars(T).items()
           if inspect.isclass(one) and issubclass(one, T.Transform) and one is not T.Transform}


def catalogue():
    """{transform: its schema} as `penstock schema` prints it."""
    result = run([PENSTOCK, "schema"], 20)
    assert result.returncode == 0, result.stderr
    forms = json.loads(result.stdout)["definitions"]["split"]["properties"]["pipeline"]["items"]["anyOf"]
    found = {}
    for form in forms:
        found.update(form.get("properties", {}))
    return found


def parameters(one):
    return {name: p for name, p in inspect.signature(one).parameters.items() if name != "self"}


def plain(value):
    value = getattr(value, "value", value)
    return list(value) if isinstance(value, tuple) else value


def test_every_class_against_the_schema():
    schema = catalogue()
    assert set(CLASSES) == set(schema), set(CLASSES) ^ set(schema)
    assert set(CLASSES) | {"Compose", "Transform"} == set(T.__all__)
    for name, one in CLASSES.items():
        wanted = schema[name]
        mine = parameters(one)
        assert list(mine) == list(wanted["properties"]), (name, list(mine), list(wanted["properties"]))
        needed = [key for key, p in mine.items() if p.default is p.empty]
        assert needed == wanted.get("required", []), (name, needed)
        for key, p in mine.items():
            if p.default is not p.empty and key != "antialias":  # None: the arithmetic says it
                default = wanted["properties"][key].get("default")
                assert plain(p.default) == default or [plain(p.default)] == default, (name, key, p.default)
        assert one.__doc__ and len(one.__doc__) > 20


def test_every_class_against_torchvision():
    if torchvision is None:
        print("no torchvision: signatures not compared")
        return
    compared = 0
    for name, one in CLASSES.items():
        theirs = getattr(torchvision.transforms, name, None)
        if theirs is None:
            continue
        compared += 1
        others = parameters(theirs)
        for key, p in parameters(one).items():
            if key == "mask_fill":  # theirs is `fill` by type
                continue
            assert key in others, (name, key)
            # torchvision 0.14's None for antialias means True on PIL images, and v2 says True; its 0 for each part of
            # ColorJitter is v2's None.
            # Grayscale's default leaves one channel there, three here.
            if p.default is not p.empty and key != "antialias" and name not in ("ColorJitter", "Grayscale"):
                assert plain(p.default) == plain(others[key].default), (name, key, p.default, others[key].default)
        mine = [key for key in parameters(one) if key not in ("antialias", "mask_fill")]
        assert mine == [key for key in others if key in mine], name  # positional use works alike
    assert compared >= 24


def test_words_of_torch_and_torchvision_are_accepted():
    assert T.ToDtype(torch.float32, scale=True) == T.ToDtype("float32", True) == T.ToDtype(np.float32, scale=True)
    assert T.ToDtype(torch.float32) != T.ToDtype(torch.float16) and T.ToDtype("float32") != T.RandomHorizontalFlip()
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.uint8, np.dtype("float16"), "float32"):
        made = T.ToDtype(dtype).to_spec()["ToDtype"]["dtype"]
        assert made == str(dtype).rpartition(".")[2], (dtype, made)
    if torchvision is not None:
        for mode in InterpolationMode:
            assert T.Resize(8, interpolation=mode).to_spec() == T.Resize(8, interpolation=mode.value).to_spec()
    for number, name in enumerate(("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")):
        assert T.Resize(8, interpolation=Image.Resampling(number)).to_spec() == T.Resize(8, interpolation=name).to_spec()
        raises(penstock.UsageError, lambda: T.Resize(8, interpolation=number), f"Pillow's {name}", "say the name")
    converted = [T.ToImage(), T.CenterCrop(8), T.PILToTensor(), T.ToPureTensor(), T.ToTensor()]
    assert T.pipeline_of(converted) == T.pipeline_of([T.CenterCrop(8), T.ConvertImageDtype(torch.float32)]) == [
        {"CenterCrop": {"size": 8}}, {"ToDtype": {"dtype": "float32", "scale": True}}]
    assert repr(converted[0]) == "ToImage()"
    either = T.RandomResizedCrop(8, interpolation=(Image.Resampling.BILINEAR, "bicubic"))
    assert either == T.RandomResizedCrop(8, interpolation="random")
    assert either.to_spec()["RandomResizedCrop"]["interpolation"] == ["bilinear", "bicubic"]
    assert repr(T.Compose([T.CenterCrop(8)])) == "Compose([CenterCrop(size=8)])"
    assert T.pipeline_of(T.Compose([T.Compose([T.CenterCrop(8)]), T.RandomVerticalFlip()])) == [
        {"CenterCrop": {"size": 8}}, {"RandomVerticalFlip": {"p": 0.5}}]
    raises(penstock.UsageError, lambda: T.pipeline_of([lambda image: image]), "transform of penstock", "Python(function)")
    assert T.Python(os.path.join, "2").to_spec() == {"Python": {"function": "posixpath:join", "version": "2"}}
    # A method by its name alone would be called without its object.
    for nameless in (lambda image: image, test_mistakes_name_the_key, os.environ.get, inspect.Signature().replace):
        raises(penstock.UsageError, lambda: T.Python(nameless), "import", "__main__")
    assert T.Python(inspect.Signature.from_callable).to_spec()["Python"]["function"] == "inspect:Signature.from_callable"
    with penstock.DataLoader(penstock.ImageFolder(VAL), batch_size=13, seed=1, transform=[
            T.RandomResizedCrop((24, 32), scale=(np.float64(0.5), 1.0)), T.RandomCrop(np.array([16, 16]), padding=(2, 2)),
            T.RandomHorizontalFlip(p=torch.tensor(0.5)), T.ToDtype(torch.float16, scale=True),
            T.Normalize(mean=torch.tensor([0.5, 0.5, 0.5]), std=np.array([0.5, 0.5, 0.5]))]) as loader:
        images, _ = next(iter(loader))
        assert images.shape == (13, 3, 16, 16) and images.dtype == torch.float16


def test_mistakes_name_the_key():
    def loader(*steps):
        return penstock.DataLoader(penstock.ImageFolder(VAL), transform=list(steps))

    raises(penstock.ConfigError, lambda: loader(T.CenterCrop(0)), "size")
    raises(penstock.ConfigError, lambda: loader(T.RandomHorizontalFlip(p=2)), "'splits.train.pipeline", "p")
    raises(penstock.ConfigError, lambda: loader(T.Resize(8, interpolation="cubic")), "bicubic")
    raises(penstock.ConfigError, lambda: loader(T.CenterCrop(8), T.ToDtype("float8")), "float8")
    raises(penstock.UsageError, lambda: loader(T.CenterCrop(8), T.ToDtype), "ToDtype is a class", "write ToDtype()")
    raises(penstock.UsageError, lambda: loader(T.Compose), "Compose is a class")
    raises(AttributeError, lambda: T.Lambda(), "has no Lambda", "write Python(function)")
    raises(AttributeError, lambda: T.ElasticTransform(), "has no ElasticTransform", "RandomResizedCrop", "Python(function)")
    assert not hasattr(T, "__wrapped__") and not hasattr(T, "nothing")
    # What no picture can go through is known before any is read.
    raises(penstock.ConfigError, lambda: loader(T.Resize([40, 40]), T.RandomCrop(48)), "48 x 48 does not fit into 40 x 40")
    raises(penstock.ConfigError, lambda: loader(T.Resize([40, 40]), T.FiveCrop(48)), "FiveCrop of 48 x 48 does not fit")
    loader(T.Resize([40, 40]), T.RandomCrop(48, padding=4)).close()
    for value in (float("nan"), float("inf"), -float("inf")):
        raises(penstock.ConfigError, lambda: loader(T.CenterCrop(8), T.RandomHorizontalFlip(p=value)), "p", "numbers are finite here")
        raises(penstock.ConfigError, lambda: loader(T.CenterCrop(8), T.Normalize([value] * 3, [1, 1, 1])), "mean",
               "numbers are finite here")
    raises(penstock.UsageError, lambda: loader(), "transform")
    raises(penstock.UsageError, lambda: penstock.DataLoader(penstock.ImageFolder(VAL)), "transform is missing")
    raises(TypeError, lambda: T.CenterCrop())


def files():
    """In torchvision's ImageFolder order."""
    return [os.path.join(VAL, folder, name) for folder in sorted(os.listdir(VAL))
            for name in sorted(os.listdir(os.path.join(VAL, folder)))]


def long_side(length):
    """v2's Resize(None, max_size=length), in the functions of any torchvision."""
    def resize(image):
        width, height = image.size
        other = int(length * min(width, height) / max(width, height))
        return torchvision.transforms.functional.resize(image, [other, length] if width > height else [length, other])
    return resize


def test_pixels_of_an_eval_pipeline_are_torchvisions():
    if torchvision is None:
        print("no torchvision: pixels not compared")
        return
    V = torchvision.transforms
    for mine, theirs in (
            ([T.Resize(72), T.CenterCrop(64)], [V.Resize(72), V.CenterCrop(64)]),
            ([T.Resize(None, max_size=50), T.CenterCrop(48)], [long_side(50), V.CenterCrop(48)]),
            ([T.Resize([40, 90], InterpolationMode.BICUBIC)], [V.Resize([40, 90], InterpolationMode.BICUBIC)]),
            # The width shrinks more: of a height that does, Pillow 13 resizes columns first (tests/transforms/EXACTNESS.md).
            ([T.CenterCrop((40, 300)), T.Resize((33, 31))], [V.CenterCrop((40, 300)), V.Resize((33, 31))])):
        reference = V.Compose(theirs)
        with penstock.DataLoader(penstock.ImageFolder(VAL), split="val", mode="eval", batch_size=8, shuffle=False,
                                 transform=T.Compose(mine)) as val:
            seen = 0
            for images, labels in val if FULL else itertools.islice(val, 1):
                for image, label in zip(images, labels):
                    path = files()[seen]
                    wanted = np.asarray(reference(Image.open(path).convert("RGB"))).transpose(2, 0, 1)
                    assert image.dtype == torch.uint8 and np.array_equal(image.numpy(), wanted), (path, mine)
                    assert val.classes[int(label)] == os.path.basename(os.path.dirname(path))
                    seen += 1
        assert seen == (26 if FULL else 8)


def test_floats_of_an_eval_pipeline_are_torchs():
    if torchvision is None:
        print("no torchvision: floats not compared")
        return
    V = torchvision.transforms
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    reference = V.Compose([V.Resize(40), V.CenterCrop(32), V.ToTensor(), V.Normalize(mean, std)])
    with penstock.DataLoader(penstock.ImageFolder(VAL), split="val", mode="eval", batch_size=26, transform=[
            T.Resize(40), T.CenterCrop(32), T.ToDtype(torch.float32, scale=True), T.Normalize(mean, std)]) as val:
        images, _ = next(iter(val))
        wanted = torch.stack([reference(Image.open(path).convert("RGB")) for path in files()])
        assert torch.allclose(images, wanted, rtol=0, atol=1e-6)


def test_nested_and_several_crops():
    inside = T.RandomApply([T.RandomInvert(1), T.RandomChoice([T.RandomHorizontalFlip(1)], p=[1])], p=1)
    assert inside.to_spec() == {"RandomApply": {"p": 1, "transforms": [
        {"RandomInvert": {"p": 1}}, {"RandomChoice": {"p": [1], "transforms": [{"RandomHorizontalFlip": {"p": 1}}]}}]}}
    images = []
    for last in ([T.CenterCrop(24)], [T.FiveCrop((24, 24))], [T.TenCrop(24), T.ToDtype(torch.float32)]):
        with penstock.DataLoader(penstock.ImageFolder(VAL), split="val", mode="eval", batch_size=5, transform=[
                T.Resize(40), T.CenterCrop(40), inside, T.Pad(2, padding_mode="reflect"), *last]) as val:
            images.append(next(iter(val))[0])
    assert [tuple(batch.shape) for batch in images] == [(5, 3, 24, 24), (5, 5, 3, 24, 24), (5, 10, 3, 24, 24)]
    assert torch.equal(images[0], images[1][:, 4]) and torch.equal(images[1].float(), images[2][:, :5])
    assert torch.equal(images[2][:, 9], images[2][:, 4].flip(-1)) and images[2].dtype == torch.float32
    raises(penstock.ConfigError, lambda: penstock.DataLoader(penstock.ImageFolder(VAL), transform=[
        T.RandomApply([T.RandomInvert(p=7)]), T.CenterCrop(8)]), "RandomApply.transforms.0", "is 7")
    raises(penstock.UsageError, lambda: T.RandomApply([lambda image: image]), "transform of penstock")


def test_a_compose_in_a_choice_is_one():
    pair = T.Compose([T.RandomInvert(1), T.RandomHorizontalFlip(1)])
    both = {"RandomApply": {"transforms": [{"RandomInvert": {"p": 1}}, {"RandomHorizontalFlip": {"p": 1}}], "p": 1.0}}
    for one in (pair, pair.transforms):
        assert T.RandomChoice([one, T.RandomVerticalFlip(1)], p=[0.7, 0.3]).to_spec() == {
            "RandomChoice": {"transforms": [both, {"RandomVerticalFlip": {"p": 1}}], "p": [0.7, 0.3]}}
        assert T.RandomOrder([one, T.Compose([T.Grayscale()])]).to_spec() == {
            "RandomOrder": {"transforms": [both, *T.pipeline_of(T.Grayscale())]}}
    assert T.RandomChoice([T.Compose([]), T.RandomInvert(1)]).to_spec() == {
        "RandomChoice": {"transforms": [{"Identity": {}}, {"RandomInvert": {"p": 1}}]}}
    images = []
    for choice in (T.Identity(), pair, T.RandomChoice([T.Compose([]), pair], p=[0.5, 0.5])):
        with penstock.DataLoader(penstock.ImageFolder(VAL), split="val", mode="eval", batch_size=26, transform=[T.CenterCrop(16), choice]) as val:
            images.append(next(iter(val))[0].clone())
    plain, changed, either = images
    assert torch.equal(changed, 255 - plain.flip(-1))
    assert {(torch.equal(one, a), torch.equal(one, b)) for one, a, b in zip(either, plain, changed)} == {(True, False), (False, True)}


def test_mixed_batches():
    last = [T.RandomResizedCrop(32), T.ToDtype(torch.float32, scale=True), T.MixUp(alpha=0.5, num_classes=10)]
    dataset, options = penstock.ImageFolder(VAL), {"batch_size": 8, "seed": 2, "shuffle": True}
    with penstock.DataLoader(dataset, transform=last, **options) as mixed, \
            penstock.DataLoader(dataset, transform=last[:-1], **options) as plain:
        for (images, soft), (originals, labels) in zip(mixed, plain):
            assert soft.shape == (len(labels), 10) and soft.dtype == torch.float32
            one_hot = torch.nn.functional.one_hot(labels, 10).float()
            share = next(row[one.bool()] for row, one, other in zip(soft, one_hot, one_hot.roll(1, 0))
                         if (one != other).any())
            assert torch.allclose(soft, one_hot * share + one_hot.roll(1, 0) * (1 - share), atol=1e-6)
            assert torch.allclose(images, originals * share + originals.roll(1, 0) * (1 - share), atol=1e-6)
    raises(penstock.ConfigError, lambda: penstock.DataLoader(penstock.ImageFolder(VAL), transform=last, dtype="uint8"),
           "MixUp", "float")
    raises(penstock.ConfigError, lambda: penstock.Preprocessor({"splits": {"val": {
        "dataset": {"folder": VAL}, "pipeline": T.pipeline_of(last)}}}, "val"), "whole batches")


run_tests(globals())
