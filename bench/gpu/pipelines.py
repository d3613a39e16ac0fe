"""Whole pipelines: the GPU's bytes are the CPU's, and Pillow's, for every transform that GPUs have, in batches of 1, 8 and 64,
with an index and without, with entropy decoding on GPU and CPU.

    pipelines.py PHOTOS            # ../odd and ../hires beside them are taken in where they are there
"""

import os
import sys

import numpy as np
from PIL import Image

import penstock
from common import PLAYED, by_gpus, gpus_of, done, emit, images_of, index_of, job, pictures, same, write_job

CROP = {"RandomResizedCrop": {"size": 96}}
PIPELINES = {
    "crop and flip": [CROP, {"RandomHorizontalFlip": {}}, {"RandomVerticalFlip": {}}],
    "bicubic": [{"RandomResizedCrop": {"size": 96, "interpolation": "bicubic"}}],
    "lanczos": [{"RandomResizedCrop": {"size": 96, "interpolation": "lanczos"}}],
    "box": [{"RandomResizedCrop": {"size": 96, "interpolation": "box"}}],
    "nearest": [{"RandomResizedCrop": {"size": 96, "interpolation": "nearest"}}],
    "resize and centre": [{"Resize": {"size": 112}}, {"CenterCrop": {"size": 96}}],
    "pads and crops": [{"Resize": {"size": [90, 90]}}, {"Pad": {"padding": 6, "fill": [9, 200, 30]}},
                       {"RandomCrop": {"size": 96, "padding": 4, "padding_mode": "reflect"}}],
    "edge pad": [{"Resize": {"size": [90, 90]}}, {"Pad": {"padding": 3, "padding_mode": "edge"}}],
    "colour": [CROP, {"ColorJitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}}],
    "grey": [CROP, {"RandomGrayscale": {"p": 0.5}}],
    "tones": [CROP, {"RandomPosterize": {"bits": 3}}, {"RandomSolarize": {"threshold": 100}}, {"RandomInvert": {}},
              {"RandomAutocontrast": {}}, {"RandomEqualize": {}}],
    "sharpness": [CROP, {"RandomAdjustSharpness": {"sharpness_factor": 2.0}}],
    "blur": [CROP, {"GaussianBlur": {"kernel_size": 23}}],
    "erasing": [CROP, {"RandomErasing": {"p": 0.7}}],
    "rotation": [CROP, {"RandomRotation": {"degrees": 30, "interpolation": "bicubic"}}],
    "affine": [CROP, {"RandomAffine": {"degrees": 20, "translate": [0.1, 0.2], "scale": [0.8, 1.2], "shear": 10,
                                       "interpolation": "bilinear"}}],
    "perspective": [CROP, {"RandomPerspective": {"p": 0.8, "interpolation": "bilinear"}}],
    "RandAugment": [CROP, {"RandAugment": {"interpolation": "bilinear"}}],
    "AutoAugment": [CROP, {"AutoAugment": {}}],
    "TrivialAugmentWide": [CROP, {"TrivialAugmentWide": {}}],
}
FLOAT = [{"ToDtype": {"dtype": "float32", "scale": True}}, {"Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}]
GPU = {"executor": "gpu", "gpu_memory_mb": 96 if PLAYED else 1024}


def compare(name, folder, pipeline, batch, loader, index=None, least_share=0.0, **split):
    dataset = {"folder": folder, **({"index": index} if index else {})}
    wanted, cpu = images_of(job(dataset, pipeline, batch, loader={"executor": "cpu"}, **split))
    got, gpu = images_of(job(dataset, pipeline, batch, loader={**GPU, **loader}, **split))
    share = by_gpus(gpu) / max(1, gpu["images"])
    hashes = all(cpu[key] == gpu[key] for key in ("order_hash", "pixel_hash"))
    remade = sum(gpus["remade"] for gpus in gpus_of(gpu))
    emit(name, same(wanted, got) and hashes and by_gpus(gpu) > 0 and share >= least_share, batch=batch, images=gpu["images"],
         compared_bytes=sum(batch[0].numel() * batch[0].element_size() for batch in wanted), by_gpu=by_gpus(gpu), share_by_gpu=round(share, 3), remade=remade,
         hashes_equal=hashes, **loader)
    return wanted


def against_pillow(folder):
    """Resize by each filter, and RandomResizedCrop with the boxes that were drawn, by Pillow itself."""
    paths = [os.path.join(folder, "all", name) for name in sorted(os.listdir(os.path.join(folder, "all")))]
    images = []
    for path in paths:
        with Image.open(path) as image:
            images.append(image.convert("RGB"))
    for name, resample in (("bilinear", Image.BILINEAR), ("bicubic", Image.BICUBIC), ("lanczos", Image.LANCZOS), ("box", Image.BOX)):
        got, stats = images_of(job(folder, [{"Resize": {"size": [80, 100], "interpolation": name}}], 8, mode="eval", loader=GPU))
        got = np.concatenate([batch[0].numpy() for batch in got])[:len(images)]
        wanted = np.stack([np.asarray(image.resize((100, 80), resample)).transpose(2, 0, 1) for image in images])
        emit(f"Resize {name} is Pillow's", bool((got == wanted).all()) and by_gpus(stats) > 0, images=len(images), by_gpu=by_gpus(stats))
    from common import WORK, penstock as call
    import json
    description = job(folder, [CROP, {"RandomHorizontalFlip": {}}], 8, loader=GPU)
    out = os.path.join(WORK.name, "inspected")
    steps = len(images) // 8
    call("inspect", write_job(description, "inspected"), f"--steps={steps}", f"--out={out}")
    with open(os.path.join(out, "manifest.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    got, stats = images_of(description)
    got = np.concatenate([batch[0].numpy() for batch in got])
    equal = 0
    for number, line in enumerate(lines):
        x, y, width, height = line["crop"]
        wanted = np.asarray(images[line["index"]].crop((x, y, x + width, y + height)).resize((96, 96), Image.BILINEAR))
        wanted = wanted[:, ::-1] if line["flip"][0] else wanted
        equal += bool((got[number] == wanted.transpose(2, 0, 1)).all())
    emit("RandomResizedCrop and flip are Pillow's", equal == len(lines) > 0 and by_gpus(stats) > 0, images=len(lines), equal=equal,
         by_gpu=by_gpus(stats))


def main():
    given = sys.argv[1]
    folder = pictures(given, 16 if PLAYED else 96)
    index = index_of(job(folder, [CROP]))
    for name, pipeline in PIPELINES.items():
        for batch in (8,) if PLAYED else (1, 8, 64):
            compare(name, folder, pipeline, batch, {"threads": 1} if PLAYED else {})
    for entropy in ("auto", "index", "never"):
        for with_index in (None, index):
            compare(f"gpu_entropy: {entropy}, {'an' if with_index else 'no'} index", folder, PIPELINES["crop and flip"] + FLOAT, 8,
                    {"gpu_entropy": entropy, "threads": 1 if PLAYED else 4}, with_index)
    against_pillow(folder)
    # Odd files: those that cannot be read are masked, by whoever looks at them.
    for name, most in (("odd", None), ("hires", 2 if PLAYED else None)):
        beside = os.path.join(os.path.dirname(os.path.abspath(given)), name)
        if os.path.isdir(beside):
            compare(name, pictures(beside, most, name), PIPELINES["resize and centre"], 8, {"gpu_memory_mb": 512 if PLAYED else 4096},
                    mode="eval")
    done()


if __name__ == "__main__":
    assert penstock
    main()
