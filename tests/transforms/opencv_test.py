"""arithmetic: opencv against PyPI's cv2, byte for byte: imread's decoding of every kind of file, cv2.resize inside Resize and
RandomResizedCrop with each filter, windows of its result, masks, EXIF, and the order of the channels.

With IPP off: OpenCV from PyPI has Intel's library beside its own code, and how far that is away is printed. With PENSTOCK_FULL=1
all of ../shared/data, and more sizes. The package's virtual environment has cv2 4, that of tests/frameworks cv2 5."""

import os
import struct
import tempfile
import zlib

os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
from jobs import FULL  # noqa: E402
from pipeline_request import need, request  # noqa: E402

need("numpy", "PIL", "cv2")
import cv2  # noqa: E402
import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402

SHARED = os.path.join(os.environ["PENSTOCK_SOURCE"], "..", "shared", "data")
FILTERS = {"nearest": cv2.INTER_NEAREST, "bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC, "area": cv2.INTER_AREA,
           "lanczos4": cv2.INTER_LANCZOS4}
WORK = tempfile.TemporaryDirectory()
OUT = os.path.join(WORK.name, "out.bin")
cv2.ipp.setUseIPP(False)
random = np.random.default_rng(11)


def opencv(pipeline, files, size, **more):
    """(draws, pixels [file, 3, height, width]) by the pipeline."""
    lines = request(mode="pixels", pipeline=pipeline, files=files, out=OUT, arithmetic="opencv", **more)
    return lines, np.fromfile(OUT, dtype=np.uint8).reshape(len(files), 3, *size)


def imread(path, flags=cv2.IMREAD_COLOR):
    """As cv2 has it, in RGB, or None."""
    try:
        image = cv2.imread(path, flags)
    except cv2.error:
        return None
    return None if image is None else image[:, :, ::-1]


def planes(image):
    return image.transpose(2, 0, 1)


def picture(width, height):
    small = random.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def png(path, colour, depth, samples, before=b"", width=37, height=29):
    """A file of random bits of a kind that Pillow does not write."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    row = (width * depth * samples + 7) // 8
    data = b"".join(b"\0" + random.bytes(row) for _ in range(height))
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)))
        for name, content in before:
            file.write(chunk(name, content))
        file.write(chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b""))


def make_files():
    """One file of each kind: {name: path}."""
    top = os.path.join(WORK.name, "kinds")
    os.makedirs(top)
    base = picture(37, 29)
    alpha = base.copy()
    alpha.putalpha(Image.fromarray(random.integers(0, 256, (29, 37), dtype=np.uint8)))
    grey = base.convert("L")
    kinds = {"rgb": base, "rgba": alpha, "l": grey, "la": alpha.convert("LA"), "p": base.quantize(100), "one": grey.convert("1"),
             "cmyk": base.convert("CMYK"), "i16": Image.fromarray(random.integers(0, 65536, (29, 37), dtype=np.uint16))}

    def save(image, name, **options):
        image.save(os.path.join(top, name), **options)

    for name in ("rgb", "l", "cmyk"):
        save(kinds[name], f"{name}.jpg")
    for subsampling in range(3):
        save(base, f"{subsampling}.jpg", subsampling=subsampling)
        save(base, f"{subsampling}_progressive.jpg", subsampling=subsampling, progressive=True)
    for name in ("rgb", "rgba", "l", "la", "p", "one", "i16"):
        save(kinds[name], f"{name}.png")
    for name in ("rgb", "l", "p", "one", "rgba"):
        save(kinds[name], f"{name}.bmp")
    for name in ("rgb", "rgba", "l", "p", "one", "i16", "cmyk"):
        save(kinds[name], f"{name}.tif")
        save(kinds[name], f"{name}_lzw.tif", compression="tiff_lzw")
    for name, ending in (("rgb", "ppm"), ("l", "pgm"), ("one", "pbm")):
        save(kinds[name], f"{name}.{ending}")
    for name in ("rgb", "rgba"):
        save(kinds[name], f"{name}.webp", quality=80)
        save(kinds[name], f"{name}_lossless.webp", lossless=True)
    for name in ("p", "l"):
        save(kinds[name], f"{name}.gif")
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x112] = orientation
        save(base, f"turned_{orientation}.jpg", exif=exif)
        save(base, f"turned_{orientation}.png", exif=exif)
    for colour, samples in ((0, 1), (2, 3), (4, 2), (6, 4)):
        png(os.path.join(top, f"colour{colour}_16.png"), colour, 16, samples)
    for depth in (1, 2, 4):
        png(os.path.join(top, f"grey_{depth}.png"), 0, depth, 1)
        png(os.path.join(top, f"palette_{depth}.png"), 3, depth, 1, [(b"PLTE", random.bytes(3 << depth))])
        png(os.path.join(top, f"transparent_{depth}.png"), 3, depth, 1,
            [(b"PLTE", random.bytes(3 << depth)), (b"tRNS", random.bytes(1 << depth))])
    png(os.path.join(top, "short_palette.png"), 3, 8, 1, [(b"PLTE", random.bytes(30))])
    for name, head, data in (("16.pgm", b"P5\n37 29\n65535\n", random.bytes(37 * 29 * 2)), ("16.ppm", b"P6\n37 29\n65535\n", random.bytes(37 * 29 * 6)),
                             ("max100.pgm", b"P5\n37 29\n100\n", random.integers(0, 101, 37 * 29, dtype=np.uint8).tobytes()),
                             ("plain15.pgm", b"P2\n3 2\n15\n", b"0 1 2\n3 4 15\n"), ("plain100.ppm", b"P3\n2 1\n100\n", b"0 50 100 99 1 7\n"),
                             ("plain.ppm", b"P3\n3 2\n255\n", " ".join(map(str, random.integers(0, 256, 18))).encode() + b"\n"),
                             ("plain.pbm", b"P1\n3 2\n", b"1 0 1\n0 1 0\n")):
        with open(os.path.join(top, name), "wb") as file:
            file.write(head + data)
    wide = random.integers(0, 65536, (29, 37, 4), dtype=np.uint16)
    for name, array in (("rgb16", wide[..., :3]), ("rgba16", wide), ("rgba8", (wide >> 8).astype(np.uint8)), ("grey16", wide[..., 0])):
        cv2.imwrite(os.path.join(top, f"by_cv2_{name}.tif"), np.ascontiguousarray(array))
    save(grey, "white_is_zero.tif", tiffinfo={262: 0})
    for name, masks in (("555", (0x7C00, 0x3E0, 0x1F)), ("565", (0xF800, 0x7E0, 0x1F))):
        rows = random.integers(0, 65536, (6, 8), dtype=np.uint16)
        head = struct.pack("<IiiHHIIiiII", 40, 8, 6, 1, 16, 3, rows.nbytes, 0, 0, 0, 0) + struct.pack("<III", *masks)
        with open(os.path.join(top, f"bits_{name}.bmp"), "wb") as file:
            file.write(b"BM" + struct.pack("<IHHI", 14 + len(head) + rows.nbytes, 0, 0, 14 + len(head)) + head + rows.tobytes())
    return {name: os.path.join(top, name) for name in sorted(os.listdir(top))}


def whole(path, height, width, **more):
    """The file decoded, nothing resized; None: refused."""
    try:
        return opencv([{"Resize": {"size": [height, width]}}], [path], (height, width), **more)[1][0]
    except RuntimeError:
        return None


def whole_of_each(paths, flags=cv2.IMREAD_COLOR, **more):
    """(path, by cv2, as whole() has it) of each file that cv2 reads. A start of pipeline_tool for all those of one size, and for
    each of them alone only where it refuses one."""
    of_size = {}
    for path in paths:
        theirs = imread(path, flags)
        of_size.setdefault(None if theirs is None else theirs.shape[:2], []).append((path, theirs))
    yield from ((path, None, None) for path, _ in of_size.pop(None, []))
    for size, files in of_size.items():
        try:
            found = opencv([{"Resize": {"size": list(size)}}], [path for path, _ in files], size, **more)[1]
        except RuntimeError:
            found = [whole(path, *size, **more) for path, _ in files]
        yield from ((path, theirs, ours) for (path, theirs), ours in zip(files, found))


def test_every_kind_of_file_is_what_imread_makes_of_it():
    different = []
    for path, theirs, ours in whole_of_each(KINDS.values()):
        name = os.path.basename(path)
        if theirs is None and name.endswith(".gif"):
            continue  # OpenCV reads GIF since 4.11
        if ours is None or not (ours == planes(theirs)).all():
            different.append(name)
    print(f"{len(KINDS)} kinds of files")
    assert not different, different


def shared_files():
    folders = ["odd", "photos", "hires", "photos_apache", os.path.join("paired", "test")] if FULL else ["odd"]
    for folder in folders:
        for top, _, names in sorted(os.walk(os.path.join(SHARED, folder))):
            for name in sorted(names):
                yield os.path.join(top, name)


def test_real_files():
    """What Pillow and OpenCV both read; what one of them alone reads is counted: damaged files have as many readings as readers."""
    if not os.path.isdir(SHARED):
        print("no ../shared/data")
        return
    equal, different, we_alone, they_alone = 0, [], 0, 0
    for number, path in enumerate(shared_files()):
        if not FULL and number % 4:  # a start of pipeline_tool each
            continue
        theirs = imread(path)
        size = theirs.shape[:2] if theirs is not None else (8, 8)
        ours = whole(path, *size)
        if theirs is None or ours is None:
            we_alone += theirs is None and ours is not None
            they_alone += ours is None and theirs is not None
        elif (ours == planes(theirs)).all():
            equal += 1
        elif path.endswith(".webp") and cv2.__version__[0] != "4":
            pass  # 5 turns some of them; we do as 4 does
        else:
            different.append(os.path.basename(path))
    print(f"real files: {equal} equal, {len(different)} differ, {we_alone} read here alone, {they_alone} by cv2 alone")
    assert equal > (100 if FULL else 25) and not different, different


def photos():
    for number, (width, height) in enumerate([(640, 480), (333, 499), (257, 255), (90, 201)]):
        path = os.path.join(WORK.name, f"photo_{number}.jpg")
        if not os.path.exists(path):
            noise = random.normal(0, 9, (height, width, 3))
            Image.fromarray(np.clip(np.asarray(picture(width, height)) + noise, 0, 255).astype(np.uint8)).save(path, quality=88)
        yield path
    if os.path.isdir(SHARED):
        for path in list(shared_photos())[:None if FULL else 2]:
            yield path


def shared_photos():
    for top, _, names in sorted(os.walk(os.path.join(SHARED, "photos"))):
        for name in sorted(names)[:2]:
            if name.endswith((".jpg", ".jpeg", ".JPEG")):
                yield os.path.join(top, name)


def test_random_resized_crop_is_cv2_resize_of_the_crop():
    files, compared = list(photos()), 0
    for seed, (name, filter_) in enumerate(FILTERS.items()):
        for size in ((24, 24), (224, 224), (9, 160), (400, 300)) if FULL else ((9, 160), (224, 224)):
            lines, pixels = opencv([{"RandomResizedCrop": {"size": list(size), "interpolation": name}}], files, size, seed=seed)
            for path, draws, ours in zip(files, lines, pixels):
                x, y, w, h = draws[0]
                theirs = cv2.resize(imread(path)[y:y + h, x:x + w], size[::-1], interpolation=filter_)
                assert (ours == planes(theirs)).all(), (path, name, size, draws)
                compared += 1
    print(f"{compared} crops")


def test_sizes_in_whole_ratios():
    """Bicubic alone depends on how OpenCV was built: its vector code rounds otherwise than what it does with the end of a row."""
    values, off = 0, 0
    for number in range(40 if FULL else 1):
        image = np.asarray(picture(4 * random.integers(8, 60), 4 * random.integers(8, 60)))
        image = np.clip(image + random.normal(0, 20, image.shape), 0, 255).astype(np.uint8)
        path = os.path.join(WORK.name, f"ratio_{number}.png")
        Image.fromarray(image).save(path)
        for name, filter_ in FILTERS.items():
            for height, width in ((image.shape[0] // 4, image.shape[1] // 4), (image.shape[0] // 2, image.shape[1]), (image.shape[0] * 3, image.shape[1] * 2)):
                _, ours = opencv([{"Resize": {"size": [height, width], "interpolation": name}}], [path], (height, width))
                apart = np.abs(ours[0].astype(int) - planes(cv2.resize(image, (width, height), interpolation=filter_)))
                if name != "bicubic":
                    assert apart.max() == 0, (number, name, height, width)
                    continue
                assert apart.max() <= 1, (number, height, width)
                values, off = values + apart.size, off + (apart > 0).sum()
    print(f"bicubic at whole ratios: {off} of {values} values are 1 off")
    assert off < values / 10000


def test_resize_by_the_shorter_edge_windows_and_flips():
    files, compared = list(photos()), 0
    for name, filter_ in FILTERS.items():
        for edge, crop in ((72, 64), (256, 224), (500, 40)) if FULL else ((72, 64), (500, 40)):
            pipeline = [{"Resize": {"size": edge, "interpolation": name, "antialias": False}}, {"RandomHorizontalFlip": {"p": 1.0}},
                        {"CenterCrop": {"size": crop}}]
            _, pixels = opencv(pipeline, files, (crop, crop))
            for path, ours in zip(files, pixels):
                image = imread(path)
                height, width = image.shape[:2]
                wide = width > height
                size = (edge * width // height, edge) if wide else (edge, edge * height // width)  # torchvision's int()
                theirs = cv2.resize(image, size, interpolation=filter_)[:, ::-1]
                top, left = round((size[1] - crop) / 2), round((size[0] - crop) / 2)
                assert (ours == planes(theirs[top:top + crop, left:left + crop])).all(), (path, name, edge)
                compared += 1
    print(f"{compared} resized")


def test_colour_steps_come_between_and_bgr_is_swapped_last():
    files = list(photos())[:4]
    pipeline = [{"RandomResizedCrop": {"size": 32}}, {"RandomSolarize": {"threshold": 100, "p": 1.0}}]
    _, rgb = opencv(pipeline, files, (32, 32))
    _, bgr = opencv(pipeline, files, (32, 32), color="bgr")
    assert (rgb == bgr[:, ::-1]).all() and not (rgb == bgr).all()
    lines, _ = opencv(pipeline, files, (32, 32))
    x, y, w, h = lines[0][0]
    theirs = cv2.resize(imread(files[0])[y:y + h, x:x + w], (32, 32))
    assert (rgb[0] == planes(np.where(theirs >= 100, 255 - theirs, theirs))).all()


def test_exif_can_be_ignored():
    turned = [KINDS[f"turned_{orientation}.{ending}"] for orientation in range(1, 9) for ending in ("jpg", "png")]
    compared = list(whole_of_each(turned, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION, exif=False))
    assert len(compared) == 16
    for path, theirs, ours in compared:
        assert ours is not None and (ours == planes(theirs)).all(), path


def test_masks_are_cv2s_nearest():
    path = KINDS["l.png"]
    _, ours = opencv([{"Resize": {"size": [50, 21]}}], [path], (50, 21), role="mask")
    theirs = cv2.resize(cv2.imread(path, cv2.IMREAD_UNCHANGED), (21, 50), interpolation=cv2.INTER_NEAREST)
    assert (ours[0][0] == theirs).all()


def test_how_far_ipp_is():
    if not cv2.ipp.getIppVersion() or cv2.ipp.getIppVersion() == "disabled":
        print("cv2 is built without IPP")
        return
    path = next(photos())
    for name, filter_ in FILTERS.items():
        image = imread(path)
        without = cv2.resize(image, (224, 224), interpolation=filter_).astype(int)
        cv2.ipp.setUseIPP(True)
        difference = np.abs(cv2.resize(image, (224, 224), interpolation=filter_) - without)
        cv2.ipp.setUseIPP(False)
        print(f"with IPP, {name}: at most {difference.max()}, {(difference > 0).mean():.4f} of the values")


if __name__ == "__main__":
    KINDS = make_files()
    print(f"cv2 {cv2.__version__}")
    for test_name, test in list(globals().items()):
        if test_name.startswith("test_"):
            test()
