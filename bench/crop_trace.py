#!/usr/bin/python3
"""Makes a trace: which file, which crop, mirrored or not, drawn as RandomResizedCrop and RandomHorizontalFlip draw.

    crop_trace.py FOLDER trace.jsonl [--epochs 4] [--batch 64] [--seed 0]

Every competitor replays the trace, so all of them decode and resize the same pixels. The lines have the keys of the
manifest.jsonl that `penstock inspect` writes, which can be used in its place. Files that some competitor cannot read
as asked (not JPEG, CMYK) are left out, and counted on stderr. Standard library only; only headers are read.
"""

import argparse
import json
import math
import os
import random
import sys


def jpeg_header(path):
    """(width, height, components) from the frame header; None when the file is no JPEG with one."""
    with open(path, "rb") as file:
        if file.read(2) != b"\xff\xd8":
            return None
        while True:
            byte = file.read(1)
            while byte and byte != b"\xff":  # tolerated: stray bytes between segments
                byte = file.read(1)
            while byte == b"\xff":
                byte = file.read(1)
            if not byte:
                return None
            marker = byte[0]
            if marker in (0x01, *range(0xD0, 0xD9)):  # no length follows
                continue
            length = file.read(2)
            if len(length) < 2 or marker in (0xD9, 0xDA):
                return None
            body = int.from_bytes(length, "big") - 2
            if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
                frame = file.read(6)
                if len(frame) < 6:
                    return None
                return int.from_bytes(frame[3:5], "big"), int.from_bytes(frame[1:3], "big"), frame[5]
            file.seek(body, os.SEEK_CUR)


def random_resized_crop(width, height, draw, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)):
    """torchvision's rule: ten tries, then the largest central box whose shape is allowed. Returns [x, y, w, h]."""
    for _ in range(10):
        area = width * height * draw.uniform(*scale)
        shape = math.exp(draw.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return [draw.randint(0, width - w), draw.randint(0, height - h), w, h]
    w, h = width, height
    if width / height < ratio[0]:
        h = min(height, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = min(width, round(height * ratio[1]))
    return [(width - w) // 2, (height - h) // 2, w, h]


def find_photos(folder):
    """(path, class number) of every file that is a JPEG by name, class folders in order; and the count of others."""
    photos, others = [], 0
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    for label, name in enumerate(classes):
        for parent, _, files in sorted(os.walk(os.path.join(folder, name))):
            for file in sorted(files):
                if file.lower().endswith((".jpg", ".jpeg")):
                    photos.append((os.path.join(parent, file), label))
                else:
                    others += 1
    return photos, others


def make_trace(folder, epochs, batch, seed):
    """Records of the trace, a multiple of the batch; and a dict of what was seen."""
    photos, left_out = find_photos(os.path.abspath(folder))
    usable = []
    for path, label in photos:
        header = jpeg_header(path)
        if header is None or header[2] not in (1, 3) or not header[0] or not header[1]:
            left_out += 1
        else:
            usable.append((path, label, header[0], header[1]))
    if not usable:
        raise SystemExit(f"crop_trace: no usable JPEG in the class folders of {folder}")
    draw = random.Random(seed)
    records = []
    for epoch in range(epochs):
        order = list(range(len(usable)))
        draw.shuffle(order)
        for index in order:
            path, label, width, height = usable[index]
            records.append(
                {
                    "epoch": epoch,
                    "index": index,
                    "path": path,
                    "label": label,
                    "width": width,
                    "height": height,
                    "crop": random_resized_crop(width, height, draw),
                    "flip": [draw.random() < 0.5, False],
                }
            )
    if len(records) > batch:
        del records[len(records) - len(records) % batch :]
    return records, {"files": len(usable), "left_out": left_out}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    records, seen = make_trace(options.folder, options.epochs, options.batch, options.seed)
    with open(options.out, "w", encoding="utf-8") as out:
        for record in records:
            out.write(json.dumps(record) + "\n")
    print(f"{len(records)} crops of {seen['files']} photos, {seen['left_out']} files left out", file=sys.stderr)


if __name__ == "__main__":
    main()
