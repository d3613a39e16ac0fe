"""Hostile and odd files, whole: statuses as Pillow's, time and memory bounded.

    PENSTOCK_BUILD=build/release python3 tests/decode/odd_files_test.py

Part one, files of ../shared/data/odd (left out where they are not there): the status is the manifest's, measured with
Pillow 13, and the installed Pillow's, except for EXCEPTIONS; what is decoded equals the installed Pillow's bytes; with
EXIF orientation too. Each takes at most 250 ms.
Part two, generated, runs everywhere: bombs of every format, refused from their header within 5 ms of CPU time and 1 MiB, and files
that are costly without being large.
"""
import csv
import io
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import warnings
import zlib

try:
    import numpy as np
    import xxhash
    from PIL import Image, ImageOps
except ImportError as missing:
    print(f"SKIP: {missing}")
    sys.exit(77)

SOURCE = pathlib.Path(os.environ.get("PENSTOCK_SOURCE", pathlib.Path(__file__).resolve().parents[2]))
BUILD = pathlib.Path(os.environ.get("PENSTOCK_BUILD", SOURCE / "build" / "release"))
ODD = SOURCE.parent / "shared" / "data" / "odd"
TOOL = BUILD / "tests" / "decode" / "format_tool"
# Where our status is not the manifest's, or not the installed Pillow's, and why.
EXCEPTIONS = {
    "libvips__avif-orientation-6.avif": "AVIF: Debian's Pillow 9.4 does not read it, and its status is ours",
    "pillow__hopper.avif": "AVIF: as above",
    "pillow__icc_profile_none.avif": "AVIF: as above",
    "sharp__testimgl.jpg": "lossless JPEG: needs libjpeg-turbo 3, which Pillow 13 brings and Debian's does not have",
    "pillow__truncated_exif_dpi.jpg": "Pillow 9.4 fails on the EXIF resolution; pixels are fine, as Pillow 13 finds",
}
LIMIT_US = 250_000
BOMB_US = 5_000
BOMB_KB = 1024


def ask(requests):
    text = "".join(line + "\n" for line in requests)
    done = subprocess.run([TOOL], input=text, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    if done.returncode != 0 or len(lines) != len(requests):
        sys.exit(f"format_tool ended ({done.returncode}) after {len(lines)} of {len(requests)} files:"
                 f" {requests[len(lines):][:1]}\n{done.stderr[-3000:]}")
    return [line.split(" ") for line in lines]


def cost(words):
    at = 4 if words[0] == "ok" else 1
    return int(words[at]), int(words[at + 1])


def within(request, words, limit):
    """Slow once may be the machine; slow three times is the file."""
    return any(cost(w)[0] <= limit for w in [words] + [ask([request])[0] for _ in range(3 if cost(words)[0] > limit else 0)])


def pillow(path, oriented):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(path)
            if oriented:
                image = ImageOps.exif_transpose(image)
            return xxhash.xxh3_64_hexdigest(np.ascontiguousarray(np.asarray(image.convert("RGB"))))
        except Exception:  # whatever it is, Pillow does not read this file
            return None


JOB = """\
roles: {trainers: 1}
on_error: substitute
bad_samples: {max_fraction: 1}
splits:
  odd:
    mode: eval
    dataset: {list: files.txt}
    pipeline: [{RandomInvert: {p: 1}}, {Resize: {size: [32, 32]}}]
    batch_size: 5
    tail: pad
"""


def odd_job(failures, statuses):
    """`statuses`: {name: whether it decodes}."""
    with tempfile.TemporaryDirectory(prefix="penstock-odd-") as folder:
        pathlib.Path(folder, "files.txt").write_text("".join(f"{ODD / name} 0\n" for name in statuses))
        pathlib.Path(folder, "job.yaml").write_text(JOB)
        done = subprocess.run([BUILD.resolve() / "penstock", "run", f"{folder}/job.yaml", "--json", "--quiet"], capture_output=True,
                              text=True, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
        if done.returncode != 0:
            failures.append(f"the job ended with {done.returncode}: {done.stderr[-3000:]}")
            return
        split = json.loads(done.stdout.splitlines()[-1])["splits"]["odd"]
        bad = sorted(os.path.basename(one["path"]) for one in split["bad_samples"])
        if bad != sorted(name for name, good in statuses.items() if not good):
            failures.append(f"the job's bad samples are others than the decoder's: {bad}")
        if not all(one["reason"] for one in split["bad_samples"]):
            failures.append("a bad sample without a reason")
        print(f"  a job of {split['images']} files, {len(bad)} of them listed as bad")


def odd_files(failures, limit):
    rows = list(csv.DictReader(open(ODD / "manifest.csv")))
    unused = set(EXCEPTIONS)
    slowest = 0
    statuses = {}
    every = rows
    for oriented in (False, True):
        rows = [row for row in every if not oriented or b"exif" in (ODD / row["file"]).read_bytes().lower()]
        requests = [f"{ODD / row['file']}" + ("\texif" if oriented else "") for row in rows]
        for row, request, words in zip(rows, requests, ask(requests)):
            name = row["file"]
            ours = words[3] if words[0] == "ok" else None
            theirs = pillow(ODD / name, oriented)
            manifest = row["decodable_by_pillow"] == "yes"
            statuses.setdefault(name, ours is not None)
            slowest = max(slowest, cost(words)[0])
            if not within(request, words, limit):
                failures.append(f"{name}: takes {cost(words)[0]} us")
            if (ours is not None) == manifest and ours == theirs:
                continue
            if name not in EXCEPTIONS:
                failures.append(f"{name}: {' '.join(words)}; the manifest says {row['decodable_by_pillow']}, the"
                                f" installed Pillow {theirs or 'no'}")
            unused.discard(name)
    if unused:
        failures.append(f"exceptions that are none: {sorted(unused)}")
    print(f"  {len(every)} odd files, {len(rows)} of them oriented too, {len(EXCEPTIONS)} exceptions, slowest {slowest} us")
    odd_job(failures, statuses)


def chunk(kind, body):
    return struct.pack(">L", len(body)) + kind + body + struct.pack(">L", zlib.crc32(kind + body))


def png(width, height, depth, colour, body=b"", extra=b""):
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">LLBBBBB", width, height, depth, colour, 0, 0, 0)) + extra
            + chunk(b"IDAT", body) + chunk(b"IEND", b""))


def jpeg(width, height, components=3):
    body = struct.pack(">BHHB", 8, height, width, components) + b"".join(bytes([i + 1, 0x11, 0]) for i in range(components))
    return b"\xff\xd8\xff\xc0" + struct.pack(">H", len(body) + 2) + body + b"\xff\xda\0\x0c"


def webp(width, height):
    extended = struct.pack("<L", 0x10) + struct.pack("<L", width - 1)[:3] + struct.pack("<L", height - 1)[:3]
    body = b"WEBP" + b"VP8X" + struct.pack("<L", 10) + extended + b"VP8L" + struct.pack("<L", 8) + bytes(8)
    return b"RIFF" + struct.pack("<L", len(body)) + body


def lossless_webp(width, height):
    body = b"WEBP" + b"VP8L" + struct.pack("<L", 10) + b"\x2f" + struct.pack("<L", (width - 1) | (height - 1) << 14) + bytes(5)
    return b"RIFF" + struct.pack("<L", len(body)) + body


def tiff(tags, data=b""):
    at = 8 + len(data)
    entries = b"".join(struct.pack("<HHLL", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    return b"II*\0" + struct.pack("<L", at) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def tiff_image(width, height, **more):
    tags = {256: width, 257: height, 258: 8, 259: 1, 262: 1, 273: 8, 278: height, 279: 64}
    return {**tags, **{int(k[1:]): v for k, v in more.items()}}


def scans_without_end():
    out = io.BytesIO()
    Image.new("L", (400, 400), 70).save(out, "JPEG", progressive=True)
    data = out.getvalue()
    last = data.rfind(b"\xff\xda")
    return data[:-2] + data[last:-2] * 1000 + data[-2:]


def bombs():
    squeezed = zlib.compress(bytes(30 << 20), 9)
    yield "jpeg.jpg", jpeg(65535, 65535)
    yield "jpeg_side.jpg", jpeg(65535, 1)
    yield "jpeg_pixels.jpg", jpeg(60000, 60000)
    yield "png.png", png(2 ** 31 - 1, 2 ** 31 - 1, 16, 6)
    yield "png_1bit.png", png(65536, 65536, 1, 0, squeezed)
    yield "png_pixels.png", png(60000, 60000, 16, 6, squeezed)
    yield "gif.gif", b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + b"," + bytes(9) + b"\x08\0;"
    yield "gif_frame.gif", b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"," + struct.pack("<HHHHB", 60000, 60000, 5000, 5000, 0) + b"\x08\0;"
    yield "bmp.bmp", b"BM" + bytes(8) + struct.pack("<LLLLHHLLLLLL", 54, 40, 2 ** 31, 2 ** 31, 1, 24, 0, 0, 0, 0, 0, 0)
    yield "bmp_runs.bmp", b"BM" + bytes(8) + struct.pack("<LLLLHHLLLLLL", 54, 40, 60000, 60000, 1, 8, 1, 0, 0, 0, 0, 0) + bytes(1024) + b"\0\1"
    yield "ppm.ppm", b"P6 60000 60000 255\n"
    yield "plain.ppm", b"P3 9999999999 9999999999 255\n1"
    yield "webp.webp", webp(1 << 24, 1 << 24)
    yield "webp_lossless.webp", lossless_webp(16384, 16384)
    yield "tiff.tif", tiff(tiff_image(60000, 60000))
    yield "tiff_sides.tif", tiff(tiff_image(2 ** 32 - 1, 2 ** 32 - 1))
    tile = tiff_image(1, 1, t322=60000, t323=60000, t324=8, t325=64, t259=8)
    del tile[273], tile[278], tile[279]
    yield "tiff_tile.tif", tiff(tile, bytes(64))
    # The tags' lists are not longer than the file, whatever their counts say.
    yield "tiff_counts.tif", b"II*\0\x08\0\0\0\x02\0" + struct.pack("<HHLL", 256, 4, 2 ** 30, 8) + struct.pack("<HHLL", 273, 16, 2 ** 31, 8) + bytes(4)


def costly():
    """Within the limits, and dear all the same: (name, bytes, what has to come of it)."""
    squeezed = zlib.compress(bytes(64 << 20), 9)
    yield "scans.jpg", scans_without_end(), "bad"
    yield "text.png", png(1, 1, 8, 0, zlib.compress(b"\0\0"), chunk(b"zTXt", b"a\0\0" + squeezed)), "bad"
    yield "profile.png", png(1, 1, 8, 0, zlib.compress(b"\0\0"), chunk(b"iCCP", b"a\0\0" + squeezed)), "bad"
    yield "surplus.png", png(1, 1, 8, 0, squeezed), "ok"  # what follows the last row is not inflated
    yield "surplus.tif", tiff(tiff_image(1, 1, t259=8, t279=len(squeezed)), squeezed), None
    yield "strips.tif", tiff(tiff_image(3000, 3000, t259=8, t278=1)), "bad"
    yield "repeated.ppm", b"P3 3000 3000 255 1", "slow"  # so it is for Pillow: half a minute
    yield "comment.gif", b"GIF89a" + struct.pack("<HHBBB", 1, 1, 0, 0, 0) + b"!\xfe" + (b"\xff" + bytes(255)) * 40000, "bad"
    yield "runs.bmp", b"BM" + bytes(8) + struct.pack("<LLLLHHLLLLLL", 1078, 40, 3000, 3000, 1, 8, 1, 0, 0, 0, 0, 0) + bytes(range(1, 253)) * 4 + bytes(16) + b"\0\2\xff\xff\0\xff" * 50, "ok"
    yield "frames.webp", animation(4000), "ok"


def animation(frames):
    out = io.BytesIO()
    Image.new("RGB", (2, 2)).save(out, "WEBP", lossless=True)
    bitstream = out.getvalue()[12:]
    frame = bytes(6) + struct.pack("<L", 1)[:3] + struct.pack("<L", 1)[:3] + bytes(4) + bitstream
    body = b"WEBP" + b"VP8X" + struct.pack("<L", 10) + struct.pack("<L", 2) + b"\1\0\0\1\0\0" + b"ANIM" + struct.pack("<LLH", 6, 0, 0)
    body += (b"ANMF" + struct.pack("<L", len(frame)) + frame) * frames
    return b"RIFF" + struct.pack("<L", len(body)) + body


def generated(failures, sanitized, limit):
    with tempfile.TemporaryDirectory(prefix="penstock-odd-") as folder:
        files = [(name, data, "bomb") for name, data in bombs()] + list(costly())
        for name, data, _ in files:
            pathlib.Path(folder, name).write_bytes(data)
        requests = [f"{folder}/{name}" for name, _, _ in files]
        for (name, data, wanted), request, words in zip(files, requests, ask(requests)):
            _, kilobytes = cost(words)
            line = " ".join(words)
            if wanted == "bomb":
                if words[0] != "bad" or ("premature" in line):
                    failures.append(f"{name}: a bomb was not refused for its size: {line}")
                if not sanitized and (kilobytes > BOMB_KB or not within(request, words, BOMB_US)):
                    failures.append(f"{name}: refused too late: {line}")
                continue
            if wanted is not None and words[0] != wanted.replace("slow", "ok"):
                failures.append(f"{name}: {line}")
            # Pillow is asked for bytes alone: of some of the others its status takes a quarter of a minute.
            theirs = pillow(request, False) if words[0] == "ok" and wanted != "slow" else None
            if theirs is not None and words[3] != theirs:
                failures.append(f"{name}: other bytes than Pillow's")
            if not within(request, words, limit) or (not sanitized and kilobytes > 64 * 1024):
                failures.append(f"{name}: too dear: {line}")
        print(f"  {len(files)} generated bombs and costly files")


def main():
    sanitized = subprocess.run([TOOL, "--sanitized"]).returncode == 0
    limit = LIMIT_US * (20 if sanitized else 1)
    failures = []
    generated(failures, sanitized, limit)
    if (ODD / "manifest.csv").exists():
        odd_files(failures, limit)
    else:
        print(f"  {ODD}: not there, left out")
    if failures:
        print("\n".join(failures))
        sys.exit(f"{len(failures)} failures")


if __name__ == "__main__":
    main()
