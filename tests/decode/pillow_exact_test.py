"""Decode + crop + resize against Pillow, byte for byte.

    PENSTOCK_BUILD=build/release python3 tests/decode/pillow_exact_test.py [--full] [--seed N] [--markdown FILE]

Generated JPEG files of every sampling, kind, quality and many sizes, PNG files of every type, then photos where
../shared/data is there. Every box is decoded by crop_tool and compared by hash with the same box of Pillow's decoded
image; some are resampled too, cut to a window, or written as mirrored planes. Prints counts per sampling and border
class; none may differ, and no class may be empty (--full: at least 10,000 distinct boxes in each of the generated
samplings).

Border classes: a box of two pixels or less in width or height is a sliver; any other counts for each border of the image
that it touches, or as interior.
"""
import argparse
import collections
import io
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time
import warnings
import zlib

try:
    import numpy as np
    import xxhash
    from PIL import Image, features
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)

from jobs import FULL

SOURCE = pathlib.Path(os.environ.get("PENSTOCK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("PENSTOCK_BUILD", SOURCE / "build" / "release"))
DATA = SOURCE.parent / "shared" / "data"
CLASSES = ["sliver", "left", "right", "top", "bottom", "interior"]
SAMPLINGS = {  # luma first; libjpeg refuses fractional ratios
    "444": "1x1,1x1,1x1",
    "422": "2x1,1x1,1x1",
    "420": "2x2,1x1,1x1",
    "440": "1x2,1x1,1x1",
    "411": "4x1,1x1,1x1",
    "410": "4x2,1x1,1x1",
    "141": "1x4,1x1,1x1",
    "311": "3x1,1x1,1x1",
    "grey": "grey",
    "2x2,2x1,1x2": "2x2,2x1,1x2",
    "2x2,1x2,1x2": "2x2,1x2,1x2",
    "2x1,1x1,2x1": "2x1,1x1,2x1",
    "1x1,2x2,2x2": "1x1,2x2,2x2",
    "2x4,1x1,1x1": "2x4,1x1,1x1",
    "cmyk 1x1": "1x1,1x1,1x1,1x1",
    "cmyk 2x2": "2x2,1x1,1x1,2x2",
}
# Index: penstock's Filter. Value: Pillow's.
FILTERS = [Image.Resampling.NEAREST, Image.Resampling.BOX, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC,
           Image.Resampling.LANCZOS, Image.Resampling.HAMMING]
EDGES = [*range(1, 41), *range(63, 68)]


def find_program(name):
    for candidate in [BUILD / "tests" / "decode" / name, BUILD / name]:
        if candidate.exists():
            return candidate
    sys.exit(f"cannot find {name} under {BUILD}: build it, or set PENSTOCK_BUILD")


def digest(array):
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(array))


class Comparison:
    """Collects requests with the answers Pillow gives, runs crop_tool on them, counts."""

    def __init__(self, rng):
        self.tool = find_program("crop_tool")
        self.rng = rng
        self.requests, self.expected, self.labels = [], [], []
        self.counts = collections.defaultdict(collections.Counter)  # sampling -> class -> boxes
        self.resized = collections.Counter()  # filter -> windows
        self.planes = 0
        self.differing = []

    def add(self, request, expected):
        self.requests.append(request)
        self.expected.append("ok " + expected)

    def count(self, sampling, size, box):
        x, y, w, h = box
        touched = []
        if w <= 2 or h <= 2:
            touched = ["sliver"]
        else:
            touched += ["left"] if x == 0 else []
            touched += ["top"] if y == 0 else []
            touched += ["right"] if x + w == size[0] else []
            touched += ["bottom"] if y + h == size[1] else []
            touched = touched or ["interior"]
        for name in touched:
            self.counts[sampling][name] += 1

    def box(self, sampling, path, pixels, box):
        x, y, w, h = box
        self.count(sampling, (pixels.shape[1], pixels.shape[0]), box)
        self.add(f"decode\t{path}\t{x}\t{y}\t{w}\t{h}", digest(pixels[y:y + h, x:x + w]))

    def resize(self, path, pixels, box, sizes):
        rng = self.rng
        x, y, w, h = box
        out_w, out_h = rng.choice(sizes + [w]), rng.choice(sizes + [h])
        kind = rng.randrange(len(FILTERS))
        window_w, window_h = rng.randint(1, out_w), rng.randint(1, out_h)
        window_x, window_y = rng.randint(0, out_w - window_w), rng.randint(0, out_h - window_h)
        if rng.random() < 0.3:
            window_x, window_y, window_w, window_h = 0, 0, out_w, out_h
        image = Image.fromarray(np.ascontiguousarray(pixels[y:y + h, x:x + w])).resize((out_w, out_h), FILTERS[kind])
        result = np.asarray(image)[window_y:window_y + window_h, window_x:window_x + window_w]
        words = [path, x, y, w, h, out_w, out_h, kind, window_x, window_y, window_w, window_h]
        self.resized[FILTERS[kind].name.lower()] += 1
        if rng.random() < 0.5:
            self.add("resize\t" + "\t".join(map(str, words)), digest(result))
            return
        flip = rng.randrange(4)
        result = result[:, ::-1] if flip & 1 else result
        result = result[::-1] if flip & 2 else result
        self.planes += 1
        self.add("planar\t" + "\t".join(map(str, words + [flip])), digest(result.transpose(2, 0, 1)))

    def run(self):
        if not self.requests:
            return
        answer = subprocess.run([self.tool], input="\n".join(self.requests) + "\n", capture_output=True, text=True)
        lines = answer.stdout.splitlines()
        if answer.returncode != 0 or len(lines) != len(self.requests):
            sys.exit(f"crop_tool failed ({answer.returncode}) after {len(lines)} of {len(self.requests)}:"
                     f" {answer.stderr[-500:]}\n  next: {self.requests[len(lines):][:1]}")
        for request, expected, line in zip(self.requests, self.expected, lines):
            if line != expected:
                self.differing.append((request.replace("\t", " "), line))
        self.requests, self.expected = [], []


def decode_with_pillow(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))


def boxes_of(rng, width, height, per_class):
    """Distinct boxes, `per_class` of each border class where the image has so many."""
    chosen = set()
    for kind in CLASSES:
        for _ in range(per_class):
            if kind == "sliver":
                w, h = rng.randint(1, width), rng.randint(1, height)
                if rng.random() < 0.5:
                    w = rng.randint(1, min(2, width))
                else:
                    h = rng.randint(1, min(2, height))
                x, y = rng.randint(0, width - w), rng.randint(0, height - h)
            else:
                if width < 3 or height < 3:
                    break
                inset = 1 if kind == "interior" else 0
                if width < 3 + 2 * inset or height < 3 + 2 * inset:
                    break
                w, h = rng.randint(3, width - 2 * inset), rng.randint(3, height - 2 * inset)
                x, y = rng.randint(inset, width - w - inset), rng.randint(inset, height - h - inset)
                x = 0 if kind == "left" else width - w if kind == "right" else x
                y = 0 if kind == "top" else height - h if kind == "bottom" else y
            chosen.add((x, y, w, h))
    return sorted(chosen)


def generated_jpegs(comparison, rng, full):
    maker = find_program("make_jpegs")
    kinds = ["base", "base", "opt", "prog", "script", "arith", "arithprog", "split"]
    # Few sizes give no interior; 12 boxes a class of 2,025 files make more than 10,000 of each.
    for name, factors in SAMPLINGS.items():
        sizes = [(w, h) for w in EDGES for h in EDGES]
        if not full:
            sizes = rng.sample(sizes, 10) + [(1, 1), (2, 3), (17, 33), (40, 40), (67, 65)]
        with tempfile.TemporaryDirectory(prefix="penstock-exact-") as folder:
            orders, files = [], []
            for i, (w, h) in enumerate(sizes):
                path = f"{folder}/{i}.jpg"
                quality = rng.choice([1, 10, 50, 75, 90, 95, 100, rng.randint(1, 100)])
                restart = rng.choice([0, 0, 1, 2, 5])
                orders.append(f"{path} {w} {h} {factors} {rng.choice(kinds)} {quality} {restart} {rng.getrandbits(40)}")
                files.append(path)
            subprocess.run([maker], input="\n".join(orders) + "\n", text=True, check=True)
            for path in files:
                pixels = decode_with_pillow(path)
                for box in boxes_of(rng, pixels.shape[1], pixels.shape[0], 12 if full else 6):
                    comparison.box(name, path, pixels, box)
                    if rng.random() < 0.12:
                        comparison.resize(path, pixels, box, [1, 2, 7, 16, 31, 64, rng.randint(1, 130)])
            comparison.run()


def photos(comparison, rng, full):
    names = {v: k for k, v in SAMPLINGS.items()}
    plan = [("photos", 12, 10, 15), ("photos_apache", 10, 6, 4), ("hires", 8, 2, 1)]
    for folder, full_boxes, default_boxes, default_files in plan:
        files = sorted(p for p in (DATA / folder).glob("**/*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
        if not files:
            print(f"  {folder}: not there, left out")
            continue
        if not full:
            files = rng.sample(files, min(default_files, len(files)))
        for path in files:
            with Image.open(path) as image:
                layers = getattr(image, "layer", [])
                factors = ",".join(f"{h}x{v}" for _, h, v, _ in layers) if len(layers) > 1 else "grey"
                sampling = names.get(factors, "other") if layers else "png"
            pixels = decode_with_pillow(path)
            height, width = pixels.shape[:2]
            for box in boxes_of(rng, width, height, max(1, (full_boxes if full else default_boxes) // 6)):
                comparison.box(sampling, path, pixels, box)
            for _ in range(4 if full else 2):
                w, h = rng.randint(max(1, width // 4), width), rng.randint(max(1, height // 4), height)
                box = (rng.randint(0, width - w), rng.randint(0, height - h), w, h)
                comparison.resize(path, pixels, box, [224, 256, 224, 518])
            comparison.run()


def png_bytes(rng, width, height, depth, colour, interlaced):
    """A PNG file with random samples and random filters."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    bits = depth * channels
    values = [[rng.getrandbits(bits) for _ in range(width)] for _ in range(height)]
    entries = rng.randint(1, 1 << depth) if colour == 3 else 0
    if colour == 3 and rng.random() < 0.7:  # mostly valid indices
        values = [[v % entries for v in row] for row in values]

    def pack(row):
        number = 0
        for v in row:
            number = number << bits | v
        pad = -len(row) * bits % 8
        return (number << pad).to_bytes((len(row) * bits + 7) // 8, "big")

    passes = [(0, 0, 1, 1)]
    if interlaced:
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    stream = bytearray()
    step = max(1, bits // 8)
    for x0, y0, dx, dy in passes:
        before = None
        for row in values[y0::dy]:
            picked = row[x0::dx]
            if not picked:
                break
            line = pack(picked)
            above = before or bytes(len(line))
            kind = rng.randrange(5)
            out = bytearray([kind])
            for i, v in enumerate(line):
                a = line[i - step] if i >= step else 0
                b = above[i]
                c = above[i - step] if i >= step else 0
                pa, pb, pc = abs(b - c), abs(a - c), abs(a + b - 2 * c)
                paeth = a if pa <= pb and pa <= pc else b if pb <= pc else c
                out.append(v - [0, a, b, (a + b) // 2, paeth][kind] & 255)
            stream += out
            before = line

    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))
    if colour == 3:
        data += chunk(b"PLTE", rng.randbytes(entries * 3))
        if rng.random() < 0.5:
            data += chunk(b"tRNS", rng.randbytes(rng.randint(1, entries)))
    elif colour in (0, 2) and rng.random() < 0.3:
        data += chunk(b"tRNS", b"".join(struct.pack(">H", rng.getrandbits(depth)) for _ in range(channels)))
    if rng.random() < 0.3:
        data += chunk(b"gAMA", struct.pack(">I", 45455))
    body = zlib.compress(bytes(stream), rng.choice([0, 6]))
    cut = rng.randint(0, len(body))
    return data + chunk(b"IDAT", body[:cut]) + chunk(b"IDAT", body[cut:]) + chunk(b"IEND", b"")


def generated_pngs(comparison, rng, full):
    kinds = [(d, 0) for d in (1, 2, 4, 8, 16)] + [(d, 3) for d in (1, 2, 4, 8)] + [(d, c) for c in (2, 4, 6) for d in (8, 16)]
    with tempfile.TemporaryDirectory(prefix="penstock-exact-") as folder:
        for depth, colour in kinds:
            for i in range(60 if full else 4):
                width, height = rng.choice(EDGES), rng.choice(EDGES)
                path = f"{folder}/{depth}_{colour}_{i}.png"
                pathlib.Path(path).write_bytes(png_bytes(rng, width, height, depth, colour, i % 2))
                pixels = decode_with_pillow(path)
                boxes = boxes_of(rng, width, height, 2)
                for box in boxes + [(0, 0, width, height)]:
                    comparison.box(f"png colour {colour}, {depth} bits", path, pixels, box)
                comparison.resize(path, pixels, rng.choice(boxes), [7, 31, 64])
        comparison.run()


def odd_files(comparison):
    """Every odd file that Pillow decodes must decode here, equally; what Pillow refuses must be answered, not crash."""
    folder = DATA / "odd"
    files = sorted(p for p in folder.glob("*") if p.suffix in (".jpg", ".jpeg", ".png", ".mpo", ".poc", ".bin"))

    def ask(requests, raw=False):
        """One start of the tool for all of them: it answers one after the other, and must get to the last."""
        answer = subprocess.run([comparison.tool, *["--raw"] * raw], input="".join(line + "\n" for line in requests),
                                capture_output=True, text=True)
        lines, rest = [], answer.stdout
        while rest:
            line, _, rest = rest.partition("\n")
            if raw and line.startswith("ok "):  # how many letters follow
                size = int(line[3:])
                line, rest = "ok " + rest[:size], rest[size:]
            lines.append(line)
        assert answer.returncode == 0 and len(lines) == len(requests), (requests[len(lines):][:1], answer.stderr[-500:])
        return lines

    equal, refused, tolerated, differing = 0, 0, [], []
    known, unknown = [], []  # (path, digest by Pillow, width, height); what Pillow refuses
    for path in files:
        start = path.read_bytes()[:8]
        if not (start.startswith(b"\xff\xd8\xff") or start == b"\x89PNG\r\n\x1a\n"):
            continue
        try:
            pixels = decode_with_pillow(path)
        except Exception:  # whatever Pillow raises means that it refuses
            unknown.append(path)
            continue
        known.append((path, digest(pixels), *pixels.shape[1::-1]))
    for path, line in zip(unknown, ask([f"header\t{path}" for path in unknown], raw=True)):
        if line.startswith("ok"):
            known.append((path, None, *map(int, line.split()[1].split("x"))))
        else:
            assert line.startswith("bad "), (path, line)
            refused += 1
    lines = ask([f"decode\t{path}\t0\t0\t{width}\t{height}" for path, _, width, height in known])
    for (path, expected, _, _), line in zip(known, lines):
        if expected is None:
            refused += line.startswith("bad ")
            if not line.startswith("bad "):
                tolerated.append(path.name)
        elif line == "ok " + expected:
            equal += 1
        else:
            differing.append((f"odd {path.name}", line))
    if files:
        print(f"odd files: {equal} equal, {refused} refused by both, {len(tolerated)} decoded here that Pillow refuses: "
              f"{', '.join(tolerated)}")
        comparison.differing += differing


def table(comparison, markdown):
    lines = []
    for sampling, counts in comparison.counts.items():
        cells = [f"{counts[c]:,}" for c in CLASSES]
        if markdown:
            lines.append(f"| {sampling} | " + " | ".join(cells) + " |")
        else:
            lines.append(f"  {sampling:<22}" + "".join(f"{c:>10}" for c in cells))
    head = (["| sampling | " + " | ".join(CLASSES) + " |", "|---" * (len(CLASSES) + 1) + "|"] if markdown
            else [f"  {'sampling':<22}" + "".join(f"{c:>10}" for c in CLASSES)])
    return "\n".join(head + lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", default=FULL)
    parser.add_argument("--seed", type=int, default=20240229)
    parser.add_argument("--markdown", help="write the table to this file")
    args = parser.parse_args()
    print(f"seed {args.seed}; Pillow {Image.__version__}, libjpeg-turbo {features.version('libjpeg_turbo')}")
    rng = random.Random(args.seed)
    comparison = Comparison(rng)
    started = time.monotonic()
    for part in (generated_jpegs, photos, generated_pngs):
        part(comparison, rng, args.full)
        print(f"{part.__name__}: {time.monotonic() - started:.0f} s", flush=True)
    odd_files(comparison)

    print("boxes compared (distinct within a file):\n" + table(comparison, False))
    print("resampled windows: " + ", ".join(f"{k} {v:,}" for k, v in sorted(comparison.resized.items())) +
          f"; {comparison.planes:,} of them as planes")
    minimum = 10000 if args.full else 25
    thin = [(s, c) for s in SAMPLINGS for c in CLASSES if comparison.counts[s][c] < minimum]
    print(f"{len(comparison.differing)} differ")
    for request, answer in comparison.differing[:20]:
        print(f"  {request}\n    -> {answer}")
    if args.markdown:
        with io.open(args.markdown, "w") as out:
            out.write(table(comparison, True) + "\n")
    if thin:
        print(f"fewer than {minimum} boxes in {thin}")
    return 1 if comparison.differing or thin else 0


if __name__ == "__main__":
    sys.exit(main())
