"""Every image format against Pillow: whole images, boxes, EXIF orientation, files cut off and damaged.

    PENSTOCK_BUILD=build/release python3 tests/decode/formats_test.py [--full] [--seed N]

Files are generated, so this runs everywhere. For each: the same status as Image.open(f).convert("RGB"), and the same
bytes. A status that differs on purpose is listed in ALLOWED with its reason; what is not listed there fails.
PENSTOCK_FULL=1 is --full: more files of each kind.
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
import warnings
import zlib

try:
    import numpy as np
    import xxhash
    from PIL import Image, ImageOps, features
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)

from jobs import FULL

SOURCE = pathlib.Path(os.environ.get("PENSTOCK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("PENSTOCK_BUILD", SOURCE / "build" / "release"))

# Reasons of ours for refusing what Pillow reads, and Pillow's errors on what we read: (format, part of the reason, why).
ALLOWED = [
    ("jpeg", "over 100 warnings", "limits.max_warnings: floods of warnings are damage"),
    ("tiff", "not supported", "tiff_header.h lists what is left to Pillow, or what Pillow 9.4 reads as other bytes"),
    ("tiff", "the headers contradict each other", "Pillow and libtiff read different values; Pillow takes libtiff's"),
    ("tiff", "more strips or tiles than the image has", "Pillow paints the surplus over the image"),
    ("tiff", "no offsets of strips or tiles", "libtiff guesses them"),
    ("tiff", "starts with 4d 4d 00 2b", "the mark of big-endian BigTIFF, which Pillow takes for classic TIFF"),
    ("tiff", "empty strips or tiles", "of tiles without a width Pillow's loop takes the first for the whole image"),
    ("tiff", "TIFF tile: image of", "tiles over the limits are refused before they are decoded"),
    ("gif", "over the limit", "limits.max_pixels refuses a little less than Pillow"),
    ("bmp", "over the limit", "limits.max_side"),
    ("tiff", "over the limit", "limits.max_side"),
    ("pnm", "over the limit", "limits.max_side"),
    ("webp", "over the limit", "limits"),
]


def picture(draw, width, height, bands):
    state = np.random.RandomState(draw.getrandbits(32))
    pixels = state.randint(0, 256, (height, width, bands), dtype=np.uint8)
    ramp = (np.arange(width)[None, :, None] * 5 + np.arange(height)[:, None, None] * 3) & 255
    kind = draw.randrange(3)
    if kind == 0:
        pixels = np.broadcast_to(ramp, pixels.shape).astype(np.uint8)
    elif kind == 1:
        pixels = ((pixels >> 4) + ramp).astype(np.uint8)
    return np.ascontiguousarray(pixels[..., 0] if bands == 1 else pixels)


def image(draw, mode, size=None):
    width, height = size or (draw.choice([1, 2, 3, 7, 8, 9, 16, 33, 61]), draw.choice([1, 2, 3, 8, 17, 40]))
    if mode == "P":
        made = Image.fromarray(picture(draw, width, height, 1) % draw.choice([2, 16, 200, 256])).convert("L")
        made = Image.frombytes("P", made.size, made.tobytes())
        made.putpalette(bytes(draw.randrange(256) for _ in range(768)))
        return made
    if mode == "1":
        return Image.fromarray(picture(draw, width, height, 1)).convert("1")
    if mode in ("I;16", "I", "F"):
        base = picture(draw, width, height, 1).astype(np.int64) * draw.choice([1, 3, 257]) - draw.choice([0, 40])
        if mode == "I;16":
            return Image.fromarray((base & 65535).astype(np.uint16))
        return Image.fromarray(base.astype(np.int32 if mode == "I" else np.float32))
    bands = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "RGBX": 4, "CMYK": 4}[mode]
    return Image.fromarray(picture(draw, width, height, bands), mode)


def saved(made, kind, **options):
    out = io.BytesIO()
    made.save(out, kind, **options)
    return out.getvalue()


# -- makers: (format, name) -> bytes; each draws a file of its kind -------------------------------------------------

def exif_block(draw, orientation):
    order = draw.choice(["<", ">"])
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "L", 8)
    entries = [(274, 3, 1, struct.pack(order + "H", orientation) + b"\0\0")]
    if draw.random() < 0.5:
        entries.insert(0, (271, 2, 4, b"abc\0"))
    body = struct.pack(order + "H", len(entries))
    for tag, kind, count, value in entries:
        body += struct.pack(order + "HHL", tag, kind, count) + value
    return head + body + b"\0\0\0\0"


def jpeg(draw):
    mode = draw.choice(["L", "RGB", "CMYK", "RGB"])
    options = {"quality": draw.choice([5, 50, 90, 100]), "progressive": draw.random() < 0.4}
    if mode == "RGB":
        options["subsampling"] = draw.choice([0, 1, 2])
    return saved(image(draw, mode), "JPEG", **options)


def jpeg_adobe(draw):
    """Three or four components with Adobe markers of every transform, other ids, and none at all."""
    data = bytearray(saved(image(draw, draw.choice(["RGB", "CMYK"])), "JPEG", quality=90))
    at = data.find(b"\xff\xee")
    if at > 0:
        del data[at:at + 2 + struct.unpack(">H", data[at + 2:at + 4])[0]]
    at = data.find(b"\xff\xe0")
    if at > 0 and draw.random() < 0.6:  # JFIF decides before Adobe does
        del data[at:at + 2 + struct.unpack(">H", data[at + 2:at + 4])[0]]
    if draw.random() < 0.8:
        body = b"Adobe" + struct.pack(">HHHB", 100, 0, 0, draw.choice([0, 1, 2, 3, 255]))
        data[2:2] = b"\xff\xee" + struct.pack(">H", len(body) + 2) + body
    frame = data.find(b"\xff\xc0")
    if draw.random() < 0.5:
        components = data[frame + 9]
        ids = draw.choice([b"RGB!", b"rgb!", bytes([0, 1, 2, 3]), bytes([1, 2, 3, 4]), bytes([9, 7, 5, 3])])
        scan = data.find(b"\xff\xda")
        for i in range(components):
            data[frame + 10 + 3 * i] = ids[i]
            data[scan + 5 + 2 * i] = ids[i]
    return bytes(data)


def jpeg_two(draw):
    """A frame header of two components: Pillow refuses it."""
    data = bytearray(saved(image(draw, "RGB"), "JPEG"))
    frame = data.find(b"\xff\xc0")
    data[frame + 9] = 2
    data[frame + 2:frame + 4] = struct.pack(">H", 14)
    del data[frame + 16:frame + 19]
    return bytes(data)


def chunk(kind, body):
    return struct.pack(">L", len(body)) + kind + body + struct.pack(">L", zlib.crc32(kind + body))


def png(draw):
    depth, colour = draw.choice([(d, 0) for d in (1, 2, 4, 8, 16)] + [(d, 3) for d in (1, 2, 4, 8)]
                                + [(d, c) for c in (2, 4, 6) for d in (8, 16)])
    width, height = draw.choice([1, 3, 8, 9, 17, 40]), draw.choice([1, 2, 5, 8, 19])
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    interlaced = draw.random() < 0.4
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    raw = b""
    for x0, y0, dx, dy in passes if interlaced else [(0, 0, 1, 1)]:
        w, h = (width - x0 + dx - 1) // dx, (height - y0 + dy - 1) // dy
        for _ in range(h if w > 0 else 0):
            raw += bytes([draw.randrange(5)]) + bytes(draw.randrange(256) for _ in range((w * bits + 7) // 8))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">LLBBBBB", width, height, depth, colour, 0, 0, interlaced))
    extras = [(b"gAMA", struct.pack(">L", 45455)), (b"sRGB", b"\0"), (b"pHYs", struct.pack(">LLB", 9, 9, 1)),
              (b"tEXt", b"Comment\0hello"), (b"cHRM", bytes(32)), (b"acTL", struct.pack(">LL", 2, 0))]
    for kind, body in draw.sample(extras, draw.randrange(4)):
        data += chunk(kind, body)
    if colour == 3:
        data += chunk(b"PLTE", bytes(draw.randrange(256) for _ in range(3 * draw.choice([1 << depth, draw.randint(1, 1 << depth)]))))
        if draw.random() < 0.5:
            data += chunk(b"tRNS", bytes(draw.randrange(256) for _ in range(draw.randint(1, 1 << min(depth, 3)))))
    elif colour in (0, 2) and draw.random() < 0.4:
        data += chunk(b"tRNS", bytes(2 if colour == 0 else 6))
    packed = zlib.compress(raw, draw.choice([0, 1, 9]))
    cuts = sorted(draw.randint(0, len(packed)) for _ in range(draw.randrange(3)))
    for first, last in zip([0] + cuts, cuts + [len(packed)]):
        data += chunk(b"IDAT", packed[first:last])
    if b"acTL" in data:
        data += chunk(b"fcTL", struct.pack(">LLLLLHHBB", 0, width, height, 0, 0, 1, 1, 0, 0))
        data += chunk(b"fdAT", struct.pack(">L", 1) + packed)
    return data + chunk(b"IEND", b"")


def pnm(draw):
    kind = draw.randint(1, 6)
    width, height = draw.choice([1, 2, 7, 8, 9, 30]), draw.choice([1, 2, 5, 12])
    bands = 3 if kind in (3, 6) else 1
    maxval = draw.choice([1, 7, 100, 254, 255, 256, 1000, 65534, 65535])
    gap = lambda: draw.choice([b" ", b"\n", b"\t", b" # c\n", b"\r\n"])
    head = b"P%d" % kind + draw.choice([b"\n", b" "]) + b"%d" % width + gap() + b"%d" % height
    if kind not in (1, 4):
        head += gap() + b"%d" % maxval
    head += b"\n"
    count = width * height * bands
    if kind == 4:
        return head + bytes(draw.randrange(256) for _ in range((width + 7) // 8 * height))
    if kind == 1:
        return head + draw.choice([b"", b" "]).join(b"%d" % draw.randrange(2) for _ in range(count)) + draw.choice([b"", b"\n"])
    values = [draw.randrange(maxval + 1) for _ in range(count)]
    if kind in (2, 3):
        return head + b"".join(b"%d" % v + gap() for v in values)
    if maxval < 256:
        return head + bytes(v if draw.random() < 0.98 else draw.randrange(256) for v in values)
    return head + struct.pack(f">{count}H", *values)


def bmp(draw):
    bits = draw.choice([1, 4, 8, 16, 24, 32])
    width, height = draw.choice([1, 2, 5, 8, 9, 31, 33]), draw.choice([1, 2, 9])
    stride = (width * bits + 31) // 32 * 4
    header_bytes = draw.choice([12, 40, 40, 64, 108, 124])
    colours = draw.choice([0, 1 << bits, draw.randint(1, 1 << bits)]) if bits <= 8 else 0
    entry = 3 if header_bytes == 12 else 4
    shown = (1 << bits) if colours == 0 or header_bytes == 12 else colours
    palette = b""
    if bits <= 8:
        palette = bytes(draw.randrange(256) for _ in range(entry * shown))
        if draw.random() < 0.3:  # greys, which Pillow takes apart
            steps = (0, 255) if shown == 2 else range(shown)
            palette = b"".join(bytes([v & 255]) * 3 + b"\0" * (entry - 3) for v in steps)
    compression, masks = 0, b""
    data = bytes(draw.randrange(256) for _ in range(stride * height))
    if bits >= 16 and header_bytes > 12 and draw.random() < 0.5:
        compression = 3
        table = {16: [(0xF800, 0x7E0, 0x1F, 0), (0x7C00, 0x3E0, 0x1F, 0)], 24: [(0xFF0000, 0xFF00, 0xFF, 0)],
                 32: [(0xFF0000, 0xFF00, 0xFF, 0), (0xFF000000, 0xFF0000, 0xFF00, 0), (0xFF, 0xFF00, 0xFF0000, 0xFF000000),
                      (0xFF000000, 0xFF0000, 0xFF00, 0xFF), (0xFF0000, 0xFF00, 0xFF, 0xFF000000), (0, 0, 0, 0), (1, 2, 4, 8)]}
        masks = struct.pack("<4L", *draw.choice(table[bits]))
    elif bits in (4, 8) and header_bytes > 12 and draw.random() < 0.5:
        compression = 2 if bits == 4 else 1
        data = b""
        for _ in range(height):
            left = width
            while left > 0:
                run = draw.randint(1, min(left, 255))
                if run >= 3 and draw.random() < 0.4:
                    stored = bytes(draw.randrange(256) for _ in range((run + 1) // 2 if bits == 4 else run))
                    data += bytes([0, run]) + stored + b"\0" * (len(stored) % 2)
                else:
                    data += bytes([run, draw.randrange(256)])
                left -= run
            data += draw.choice([b"\0\0", b"\0\0", b"\0\2\1\0", b""])
        data += b"\0\1"
    if header_bytes == 12:
        info = struct.pack("<LHHHH", 12, width, height, 1, bits)
    else:
        flipped = (2 ** 32 - height) if draw.random() < 0.3 else height
        info = struct.pack("<LLLHHLLLLLL", header_bytes, width, flipped, 1, bits, compression, len(data), 2835, 2835,
                           colours, 0)
        if header_bytes > 40:
            info += (masks + bytes(124))[:header_bytes - 40]
        elif compression == 3:
            info += masks[:12]
    offset = 14 + len(info) + len(palette)
    return b"BM" + struct.pack("<LHHL", offset + len(data), 0, 0, draw.choice([offset, offset, offset, 0])) + info + palette + data


def gif(draw):
    made = image(draw, draw.choice(["P", "L", "1"]))
    options = {"interlace": draw.random() < 0.5}
    if draw.random() < 0.4:
        options["transparency"] = draw.randrange(256)
    if draw.random() < 0.3:
        options.update(save_all=True, append_images=[image(draw, "P", made.size)], duration=50, loop=0)
    if draw.random() < 0.3:
        options["comment"] = b"x" * draw.randint(1, 600)
    data = bytearray(saved(made, "GIF", **options))
    if draw.random() < 0.4:  # the frame not where the screen is
        data[6:10] = struct.pack("<HH", made.width + draw.randrange(-1, 9) if made.width > 1 else 5, made.height + draw.randrange(5))
        at = data.find(b",\0\0\0\0", 13)
        if at > 0:
            data[at + 1:at + 5] = struct.pack("<HH", draw.randrange(6), draw.randrange(6))
    return bytes(data)


def webp(draw):
    made = image(draw, draw.choice(["RGB", "RGBA"]))
    options = {"lossless": draw.random() < 0.4, "quality": draw.choice([0, 50, 95]), "method": 0}
    if draw.random() < 0.3:
        options.update(save_all=True, append_images=[image(draw, "RGB", made.size) for _ in range(2)], duration=40)
    if draw.random() < 0.3:
        options["exif"] = b"Exif\0\0" + exif_block(draw, draw.randint(1, 8))
    return saved(made, "WEBP", **options)


def tiff(draw):
    mode = draw.choice(["1", "L", "P", "RGB", "RGBA", "CMYK", "LA", "I;16", "I", "F", "RGBX"])
    made = image(draw, mode)
    choices = [None, "raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "tiff_deflate", "zstd"]
    if mode == "1":
        choices += ["group3", "group4", "tiff_ccitt"]
    if mode in ("L", "RGB"):
        choices += ["jpeg", "jpeg"]
    compression = draw.choice(choices)
    tags = {274: draw.randint(1, 8)} if draw.random() < 0.3 else {}
    options = {"compression": compression} if compression else {}
    return saved(made, "TIFF", tiffinfo=tags, **options)


def tiff_by_hand(draw):
    """Uncompressed, and deflated by hand: tiles, many strips, separate planes, both byte orders, every depth."""
    order = draw.choice(["<", ">"])
    width, height = draw.choice([1, 3, 8, 17, 30]), draw.choice([1, 2, 9, 20])
    layouts = [(0, 1, 1), (1, 1, 1), (1, 2, 1), (0, 4, 1), (1, 4, 1), (0, 8, 1), (1, 8, 1), (1, 12, 1), (1, 16, 1), (0, 16, 1),
               (1, 32, 1), (2, 8, 3), (2, 16, 3), (2, 8, 4), (2, 16, 4), (2, 8, 5), (5, 8, 4), (5, 16, 4), (5, 8, 5), (3, 8, 1),
               (3, 4, 1), (3, 1, 1), (1, 8, 2), (3, 8, 2), (6, 8, 3), (8, 8, 3)]
    photometric, bits, samples = draw.choice(layouts)
    extra = {(2, 4): draw.choice([(), (0,), (1,), (2,)]), (2, 5): draw.choice([(0, 0), (1, 0), (2, 0)]), (5, 5): (0,),
             (1, 2): (2,), (3, 2): (2,)}.get((photometric, samples), ())
    form = draw.choice([1, 1, 2, 3]) if bits in (16, 32) and samples == 1 else 1
    fill = 2 if draw.random() < 0.2 else 1
    separate = samples > 1 and draw.random() < 0.25
    compression = draw.choice([1, 1, 1, 8, 32773])
    tiled = draw.random() < 0.4
    block_w, block_h = (draw.choice([16, 32]), draw.choice([16, 32])) if tiled else (width, draw.choice([1, 2, 5, height, 2 ** 32 - 1]))
    rows = block_h if tiled else min(block_h, height)
    across, down = -(-width // block_w), -(-height // rows)
    blocks = []
    for plane in range(samples if separate else 1):
        for i in range(across * down):
            lines = rows if tiled else min(rows, height - i * rows)
            body = bytes(draw.randrange(256) for _ in range((block_w * bits * (1 if separate else samples) + 7) // 8 * lines))
            if compression == 8:
                body = zlib.compress(body)
            elif compression == 32773:
                body = b"".join(bytes([len(body[k:k + 128]) - 1]) + body[k:k + 128] for k in range(0, len(body), 128))
            blocks.append(body)
    tags = {256: ("L", [width]), 257: ("L", [height]), 258: ("H", [bits] * samples), 259: ("H", [compression]),
            262: ("H", [photometric]), 266: ("H", [fill]), 277: ("H", [samples]), 284: ("H", [2 if separate else 1])}
    if form != 1:
        tags[339] = ("H", [form] * samples)
    if extra:
        tags[338] = ("H", list(extra))
    if photometric == 6:
        tags[530] = ("H", [1, 1])  # as many samples of each colour
    if photometric == 3:
        tags[320] = ("H", [draw.randrange(65536) for _ in range(3 << bits)])
    if draw.random() < 0.3:
        tags[274] = ("H", [draw.randint(1, 8)])
    if tiled:
        tags.update({322: ("L", [block_w]), 323: ("L", [block_h])})
    else:
        tags[278] = ("L", [block_h])
    data = (b"II*\0" if order == "<" else b"MM\0*") + b"\0\0\0\0"
    offsets = []
    for body in blocks:
        offsets.append(len(data))
        data += body
    tags[324 if tiled else 273] = ("L", offsets)
    tags[325 if tiled else 279] = ("L", [len(b) for b in blocks])
    entries = b""
    for tag, (kind, values) in sorted(tags.items()):
        packed = struct.pack(order + f"{len(values)}{kind}", *values)
        if len(packed) > 4:
            at, data = len(data), data + packed
            packed = struct.pack(order + "L", at)
        entries += struct.pack(order + "HHL", tag, 3 if kind == "H" else 4, len(values)) + packed.ljust(4, b"\0")
    at = len(data)
    return data[:4] + struct.pack(order + "L", at) + data[8:] + struct.pack(order + "H", len(tags)) + entries + b"\0\0\0\0"


MAKERS = {"jpeg": [jpeg, jpeg_adobe, jpeg_two], "png": [png], "pnm": [pnm], "bmp": [bmp], "gif": [gif], "webp": [webp],
          "tiff": [tiff, tiff_by_hand]}


# -- what Pillow says ------------------------------------------------------------------------------------------------

def pillow(data, oriented=False):
    """(pixels, None) or (None, error)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = Image.open(io.BytesIO(data))
            kind = made.format
            if oriented:
                made = ImageOps.exif_transpose(made)
            return kind, np.asarray(made.convert("RGB")), None
        except Exception as error:  # whatever it is, Pillow does not read this file
            return None, None, f"{type(error).__name__}: {error}"


def pillow_on_other_memory(path):
    """Digests of the file by fresh processes whose memory is not zero: libtiff leaves parts of Pillow's buffers unset."""
    program = ("import sys, io, warnings, xxhash, numpy as np; from PIL import Image; warnings.simplefilter('ignore');"
               "a = np.asarray(Image.open(sys.argv[1]).convert('RGB')); print(xxhash.xxh3_64_hexdigest(np.ascontiguousarray(a)))")
    return {subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True,
                           env={**os.environ, "MALLOC_PERTURB_": str(fill)}).stdout.strip() for fill in (0, 17, 255)}


class Tool:
    def __init__(self, folder):
        self.folder = folder
        self.requests = []

    def ask(self, data, words, check):
        path = f"{self.folder}/{len(self.requests)}"
        pathlib.Path(path).write_bytes(data)
        self.requests.append((path, words, check))

    def run(self):
        lines = "".join("\t".join([path, *words]) + "\n" for path, words, _ in self.requests)
        answer = subprocess.run([BUILD / "tests" / "decode" / "format_tool"], input=lines, capture_output=True, text=True)
        answers = answer.stdout.splitlines()
        if answer.returncode != 0 or len(answers) != len(self.requests):
            place = self.requests[min(len(answers), len(self.requests) - 1)][0]
            keep = pathlib.Path(tempfile.gettempdir()) / "penstock_formats_test_crash"
            keep.write_bytes(pathlib.Path(place).read_bytes())
            sys.exit(f"format_tool ended ({answer.returncode}) at {keep}: {answer.stderr[-3000:]}")
        for (path, words, check), line in zip(self.requests, answers):
            check(line, path, words)
            os.remove(path)
        self.requests = []


def digest(pixels):
    return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(pixels))


class Comparison:
    def __init__(self, tool):
        self.tool = tool
        self.counts = collections.defaultdict(collections.Counter)
        self.allowed = collections.Counter()
        self.differing = []

    def add(self, kind, what, data, words=(), oriented=False, box=None):
        opened, pixels, error = pillow(data, oriented)
        if pixels is not None and box is not None:
            x, y, w, h = box(pixels.shape[1], pixels.shape[0])
            words = (*words, f"box={x},{y},{w},{h}")
            pixels = pixels[y:y + h, x:x + w]
        if oriented:
            words = (*words, "exif")

        def check(line, path, words):
            word = line.split(" ")
            self.counts[kind][what] += 1
            if word[0] == "ok" and pixels is not None:
                self.counts[kind]["same bytes"] += 1
                if word[3] == digest(pixels):
                    self.counts[kind][what + ", decoded"] += 1
                    return
                fresh = pillow_on_other_memory(path) if what == "damaged" and kind == "tiff" else set()
                if len(fresh) > 1 or word[3] in fresh:
                    self.allowed["tiff: Pillow shows what was in memory before"] += 1
                    return
            elif word[0] == "bad" and pixels is None:
                self.counts[kind]["refused by both"] += 1
                return
            reason = " ".join(word[3:]) if word[0] == "bad" else f"Pillow: {error}"
            for which, part, _ in ALLOWED:
                if which == kind and part in reason and word[0] == "bad":
                    self.allowed[f"{kind}: {part}"] += 1
                    return
            if word[0] == "ok" and pixels is None and box is None and self.is_laxer(kind, what, error, data):
                return
            kept = pathlib.Path(tempfile.gettempdir()) / f"penstock_formats_{kind}_{len(self.differing)}"
            if len(self.differing) < 40:
                kept.write_bytes(data)
            self.differing.append(f"{kind}, {what}: ours '{line}', Pillow's {error or pixels.shape} ({kept}, {words})")

        self.tool.ask(data, words, check)

    # What we read though Pillow does not: damaged files only, with their damage behind the pixels.
    def is_laxer(self, kind, what, error, data):
        if what == "made":
            return False
        # libjpeg goes on to the end marker when all rows are there, and Pillow reads a PNG's last chunks; here a file is
        # done with its last row.
        # Only the default image of an APNG is read. Pillow refuses (-9) more rows a strip than an int holds, whatever the image has.
        for part in {"jpeg": ["image file is truncated", "broken data stream"], "png": ["Truncated File Read", "APNG contains frame sequence errors"],
                     "tiff": ["OSError: -9"]}.get(kind, []):
            if part in error:
                self.allowed[f"{kind}: Pillow alone refuses ({part})"] += 1
                return True
        # libjpeg skips a marker TEM, of which Pillow knows nothing.
        if kind == "jpeg" and "UnidentifiedImageError" in error and b"\xff\x01" in data[:data.find(b"\xff\xda")]:
            self.allowed["jpeg: Pillow alone refuses (marker TEM)"] += 1
            return True
        return False


def damaged(draw, data):
    data = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(data) if draw.random() < 0.5 else min(len(data), 64))
        data[at] = draw.choice([0, 255, draw.randrange(256), data[at] ^ 1 << draw.randrange(8)])
    return bytes(data)


def some_box(draw):
    def choose(width, height):
        w, h = draw.randint(1, width), draw.randint(1, height)
        return draw.randint(0, width - w), draw.randint(0, height - h), w, h
    return choose


def with_exif(draw, data, kind):
    orientation = draw.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    block = exif_block(draw, orientation)
    if kind == "jpeg":
        body = b"Exif\0\0" + block
        return data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]
    if draw.random() < 0.5:
        return data[:33] + chunk(b"eXIf", block) + data[33:]
    text = b"\nexif\n%8d\n" % (len(block) + 6) + (b"Exif\0\0" + block).hex().encode() + b"\n"
    return data[:33] + chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text)) + data[33:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only")
    options = parser.parse_args()
    full = options.full or FULL
    if options.seed is None:  # the daily run is always the same, the full one looks further
        options.seed = random.SystemRandom().randrange(1 << 30) if full else 7
    print(f"seed {options.seed}", flush=True)
    draw = random.Random(options.seed)
    left_out = set()
    for kind in ("webp", "tiff"):
        if subprocess.run([BUILD / "tests" / "decode" / "format_tool", "--has", kind]).returncode != 0:
            left_out.add(kind)
            print(f"{kind}: left out of this build, not compared")
    with tempfile.TemporaryDirectory(prefix="penstock-formats-") as folder:
        comparison = Comparison(Tool(folder))
        for kind, makers in MAKERS.items():
            if kind in left_out or (options.only and kind != options.only):
                continue
            for maker in makers:
                for _ in range(1000 if full else 12):
                    data = maker(draw)
                    comparison.add(kind, "made", data)
                    comparison.add(kind, "box", data, box=some_box(draw))
                    if kind in ("jpeg", "png") and maker is not jpeg_two:
                        turned = with_exif(draw, data, kind)
                        comparison.add(kind, "oriented", turned, oriented=True)
                        comparison.add(kind, "oriented box", turned, oriented=True, box=some_box(draw))
                    elif kind == "webp":
                        comparison.add(kind, "oriented", data, oriented=True)
                        comparison.add(kind, "oriented box", data, oriented=True, box=some_box(draw))
                    for _ in range(2):
                        comparison.add(kind, "cut off", data[:draw.randrange(len(data))])
                        comparison.add(kind, "damaged", damaged(draw, data))
                    if len(comparison.tool.requests) > 3000:
                        comparison.tool.run()
        comparison.tool.run()
    for kind, counts in comparison.counts.items():
        print(f"  {kind}: " + ", ".join(f"{n} {what}" for what, n in sorted(counts.items())))
        if counts["same bytes"] < (50 if full else 25) or counts["refused by both"] < (20 if full else 10):
            sys.exit(f"{kind}: too few files of one sort were compared")
    for reason, count in sorted(comparison.allowed.items()):
        print(f"  allowed, {reason}: {count}")
    if comparison.differing:
        print("\n".join(comparison.differing[:25]))
        sys.exit(f"{len(comparison.differing)} answers differ from Pillow's")


if __name__ == "__main__":
    main()
