"""Pairs and masks: every image of a sample gets the same draws, masks get the geometry alone, pixel by pixel."""

import os

import numpy as np
import torch
from PIL import Image

import penstock
from jobs import run_tests
from penstock import transforms as T
from photos import WORK, raises

SHARED = os.path.join(os.environ.get("PENSTOCK_SOURCE", "."), "..", "shared", "data", "paired")
COUNT, CLASSES = 12, 7
PAIRS = {name: os.path.join(WORK, "pairs", name) for name in ("images", "targets", "masks", "odd")}


def make_pairs():
    """Pictures whose three channels are their class ids times 1, 5 and 9, so that any pixel tells its class; targets
    are their negatives, masks the ids, as palette PNG (indices) and grey PNG (values) in turn."""
    random = np.random.RandomState(5)
    for i in range(COUNT):
        height, width = random.randint(60, 120, 2)
        ids = random.randint(0, CLASSES, (height, width)).astype(np.uint8)
        image = ids[..., None] * np.array([1, 5, 9], np.uint8)
        name = f"{'ab'[i % 2]}/{i:02}"
        mask = Image.fromarray(ids)
        if i % 2:
            mask = Image.fromarray(ids, "P")
            mask.putpalette([(37 * k) % 256 for k in range(3 * CLASSES)])  # colours say nothing about ids
        for folder, picture in (("images", Image.fromarray(image)), ("targets", Image.fromarray(255 - image)),
                                ("masks", mask)):
            path = os.path.join(PAIRS[folder], f"{name}.png")
            os.makedirs(os.path.dirname(path), exist_ok=True)
            picture.save(path)


make_pairs()
GEOMETRY = [T.Pad([3, 9], fill=0, padding_mode="reflect"), T.RandomCrop(64, pad_if_needed=True),
            T.RandomApply([T.RandomVerticalFlip(1), T.RandomResizedCrop(50, interpolation="nearest"),
                           T.Resize([64, 64], interpolation="nearest")]),
            T.RandomChoice([T.RandomResizedCrop((40, 56), interpolation="nearest"),
                            T.Resize([40, 56], interpolation="nearest")]),
            T.RandomHorizontalFlip()]


def iterations(dataset, transform, epochs=2, **options):
    with penstock.DataLoader(dataset, transform=transform, batch_size=5, seed=4, shuffle=True, **options) as loader:
        for _ in range(epochs):
            yield from loader


def test_masks_follow_every_draw_and_keep_their_numbers():
    seen = 0
    dataset = penstock.PairedFolders(PAIRS["images"], masks=PAIRS["masks"])
    for images, masks in iterations(dataset, GEOMETRY):
        assert images.shape[1:] == (3, 40, 56) and masks.shape[1:] == (40, 56) and masks.dtype == torch.uint8
        for channel, factor in enumerate((1, 5, 9)):
            assert torch.equal(images[:, channel], masks * factor)
        assert masks.max() < CLASSES and len(masks.unique()) == CLASSES
        seen += len(masks)
    assert seen == 2 * COUNT


def test_targets_get_the_same_draws_colour_included():
    colour = [T.RandomInvert(), *GEOMETRY, T.RandomApply([T.RandomInvert(0.7)], p=0.8)]
    plain = penstock.PairedFolders(PAIRS["images"], targets=PAIRS["targets"], masks=PAIRS["masks"])
    inverted = set()
    for images, masks, targets in iterations(plain, colour):
        for image, target, mask in zip(images.int(), targets.int(), masks.int()):
            assert torch.equal(image + target, torch.full_like(image, 255))
            how = [torch.equal(image[0], mask), torch.equal(image[0], 255 - mask)]
            assert sum(how) == 1
            inverted.add(how[1])
    assert inverted == {False, True}


def test_masks_have_a_fill_of_their_own():
    """255, for instance, which losses are told to ignore."""
    class Mask:  # torchvision's key of `fill` by type, which is not installed everywhere
        pass

    dataset = penstock.PairedFolders(PAIRS["images"], masks=PAIRS["masks"])
    fills = {"fill": {"Image": 200, Mask: 255}}
    same_size = [T.Resize([64, 64], interpolation="nearest")]
    for step in [T.Pad(9, **fills), T.RandomCrop(64, padding=20, **fills), T.RandomRotation(40, **fills),
                 T.RandomAffine(30, translate=[0.3, 0.3], **fills),
                 T.RandomPerspective(p=1, interpolation="nearest", **fills),
                 T.RandomRotation(40, fill=[200, 200, 200], mask_fill=255)]:
        outside = 0
        for images, masks in iterations(dataset, [*same_size, step, *same_size], 1):
            for channel in range(3):
                assert torch.equal(images[:, channel] == 200, masks == 255), step
            outside += int((masks == 255).sum())
        assert outside > 100, step
    for step in [T.RandAugment(4, 20, **fills), T.AutoAugment(**fills), T.TrivialAugmentWide(**fills)]:
        ids = torch.cat([masks.unique() for _, masks in iterations(dataset, [*same_size, step])]).unique().tolist()
        assert set(ids) == {*range(CLASSES), 255}, (step, ids)
    # Without: a single number is one for all, a colour means nothing among ids.
    for fill, wanted in [(90, 90), ([200, 1, 2], 0)]:
        masks = torch.cat([masks for _, masks in iterations(dataset, [T.CenterCrop(32), T.Pad(9, fill=fill)], 1)])
        assert masks[:, 0, 0].unique().tolist() == [wanted]
    raises(penstock.UsageError, lambda: T.Pad(1, fill={"Mask": 3}), "says nothing of images")
    raises(penstock.ConfigError, lambda: next(iterations(dataset, [T.CenterCrop(32), T.Pad(1, mask_fill=256)])), "mask_fill")


def test_only_images_are_finished():
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    last = [T.ToDtype(torch.float32, scale=True), T.Normalize(mean, std)]
    dataset = penstock.PairedFolders(PAIRS["images"], targets=PAIRS["images"], masks=PAIRS["masks"])
    for channels_last in (False, True):
        for batch in iterations(dataset, [*GEOMETRY, *last], 1, batch="dict", channels_last=channels_last):
            assert set(batch) == {"image", "target", "mask"}
            image, target, mask = batch["image"], batch["target"], batch["mask"]
            assert image.dtype == target.dtype == torch.float32 and mask.dtype == torch.uint8
            assert torch.equal(image, target) and image.stride() == target.stride()
            assert (image.stride(1) == 1) == channels_last and mask.is_contiguous()
            for channel in range(3):
                wanted = (mask * (1, 5, 9)[channel]).float() / 255
                assert torch.allclose(image[:, channel], (wanted - mean[channel]) / std[channel], atol=1e-6)
    for image, masks in iterations(penstock.PairedFolders(PAIRS["images"], masks=PAIRS["masks"]),
                               [T.Resize([50, 50], interpolation="nearest"), T.FiveCrop(32)], 1):
        assert image.shape[1:] == (5, 3, 32, 32) and masks.shape[1:] == (5, 32, 32)
        assert torch.equal(image[:, :, 0], masks)


def test_resized_masks_are_pillows_nearest():
    size, crop = 48, 40
    with penstock.DataLoader(penstock.PairedFolders(PAIRS["images"], masks=PAIRS["masks"]), split="val", mode="eval",
                             batch_size=COUNT, transform=[T.Resize(size), T.CenterCrop((crop, 52))]) as loader:
        images, masks = next(iter(loader))
    for i in range(COUNT):
        path = os.path.join(PAIRS["masks"], sorted(f"{'ab'[k % 2]}/{k:02}.png" for k in range(COUNT))[i])
        mask = np.asarray(Image.open(path))  # indices of a palette image
        width, height = mask.shape[1], mask.shape[0]
        scale = (size, size * height // width) if width < height else (size * width // height, size)
        resized = np.asarray(Image.fromarray(mask).resize(scale, Image.NEAREST))
        x, y = round((scale[0] - 52) / 2), round((scale[1] - crop) / 2)
        wanted = np.zeros((crop, 52), np.uint8)
        top, left = max(0, -((scale[1] - crop) // 2)), max(0, (52 - scale[0]) // 2)
        part = resized[max(y, 0):max(y, 0) + crop, max(x, 0):max(x, 0) + 52]
        wanted[top:top + part.shape[0], left:left + part.shape[1]] = part
        assert np.array_equal(masks[i].numpy(), wanted), path


def test_small_greys_of_masks_are_as_pillow_has_them():
    for name, mode in (("one", "1"), ("grey", "L")):
        folder = os.path.join(WORK, "small", name)
        for part in ("images", "masks"):
            os.makedirs(os.path.join(folder, part), exist_ok=True)
        Image.new("RGB", (20, 10)).save(os.path.join(folder, "images", "1.jpg"))
        mask = Image.fromarray((np.arange(200).reshape(10, 20) % 3 == 0).astype(np.uint8) * 255).convert(mode)
        mask.save(os.path.join(folder, "masks", "1.png"))
        wanted = np.array(Image.open(os.path.join(folder, "masks", "1.png"))).astype(np.uint8)
        dataset = penstock.PairedFolders(os.path.join(folder, "images"), masks=os.path.join(folder, "masks"))
        with penstock.DataLoader(dataset, batch_size=1, transform=[T.CenterCrop((10, 20))]) as loader:
            assert np.array_equal(next(iter(loader))[1][0].numpy(), wanted), mode


def test_what_cannot_be_a_mask_or_pair_is_a_bad_sample_by_name():
    for folder in ("images", "masks"):
        os.makedirs(os.path.join(PAIRS["odd"], folder), exist_ok=True)
    image = os.path.join(PAIRS["odd"], "images", "1.png")
    mask = os.path.join(PAIRS["odd"], "masks", "1.png")
    Image.new("RGB", (50, 40)).save(image)
    dataset = penstock.PairedFolders(os.path.dirname(image), masks=os.path.dirname(mask))

    def first():
        with penstock.DataLoader(dataset, batch_size=1, transform=[T.CenterCrop(32)]) as loader:
            return next(iter(loader))

    for picture, words in ((Image.new("RGB", (50, 40)), ["its mask", "palette or of grey"]),
                           (Image.new("I;16", (50, 40)), ["its mask", "palette or of grey"]),
                           (Image.new("L", (50, 41)), ["its mask", "50 x 41 pixels, and its image 50 x 40"])):
        picture.save(mask)
        raises(penstock.DatasetError, first, "'1.png'", *words)
    with open(mask, "wb") as file:
        file.write(b"nothing")
    raises(penstock.DatasetError, first, "'1.png'", "its mask")
    os.remove(mask)
    raises(penstock.DatasetError, first, "1 of the 1 images have no mask")
    raises(penstock.UsageError, lambda: penstock.PairedFolders("x"), "targets or masks")
    raises(penstock.ConfigError, lambda: penstock.DataLoader({"splits": {"train": {
        "dataset": {"images": "/x"}, "pipeline": [{"CenterCrop": {"size": 8}}]}}}),
           "'images' needs 'targets' or 'masks'")


def test_real_pairs():
    root = os.path.join(SHARED, "test")
    if not os.path.isdir(root):
        print(f"no {root}: only generated pairs tested")
        return
    blurry, sharp = os.path.join(root, "blurry"), os.path.join(root, "sharp")
    dataset = penstock.PairedFolders(blurry, targets=sharp)
    names = sorted(os.path.relpath(os.path.join(top, name), blurry)
                   for top, _, files in os.walk(blurry) for name in files if name.endswith((".png", ".jpg", ".JPG", ".jpeg")))
    with penstock.DataLoader(dataset, split="val", mode="eval", batch_size=4, transform=[T.CenterCrop((120, 200))]) as loader:
        seen = 0
        for images, targets in loader:
            for pair in zip(images, targets):
                for got, folder in zip(pair, (blurry, sharp)):
                    whole = Image.open(os.path.join(folder, names[seen])).convert("RGB")
                    x, y = round((whole.width - 200) / 2), round((whole.height - 120) / 2)
                    wanted = np.asarray(whole.crop((x, y, x + 200, y + 120))).transpose(2, 0, 1)
                    assert np.array_equal(got.numpy(), wanted), names[seen]
                seen += 1
        assert seen == len(names) > 10
    same = penstock.PairedFolders(sharp, targets=sharp)
    for images, targets in iterations(same, [T.RandomResizedCrop(96), T.RandomHorizontalFlip(), T.RandomInvert()], 1):
        assert torch.equal(images, targets)


run_tests(globals())
