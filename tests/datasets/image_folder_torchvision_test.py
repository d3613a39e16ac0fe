"""The samples, labels and order of ImageFolder are torchvision's, for hand-made odd trees and for random ones."""
import os
import random
import subprocess
import sys
import tempfile

try:
    from torchvision.datasets import ImageFolder
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

from jobs import FULL

TOOL = os.path.join(os.environ["PENSTOCK_BUILD"], "tests/datasets/list_image_folder")


def ours(root):
    done = subprocess.run([TOOL, root], capture_output=True, timeout=60)
    if done.returncode:
        return done.returncode, done.stderr.decode(errors="replace")
    rows = [row.split(b"\t", 1) for row in done.stdout.split(b"\0")[:-1]]
    return 0, [(os.path.join(root, os.fsdecode(key)), int(label)) for label, key in rows]


def theirs(root):
    try:
        return 0, ImageFolder(root).samples
    except FileNotFoundError as error:
        return 4, str(error)


def touch(root, name):
    path = os.path.join(os.fsencode(root), name if isinstance(name, bytes) else name.encode())
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb"):
        pass


def compare(root, what):
    code, mine = ours(root)
    expected_code, expected = theirs(root)
    assert code == expected_code, f"{what}: exit {code}, expected {expected_code}: {mine} / {expected}"
    if code == 0:
        for i, (a, b) in enumerate(zip(mine, expected)):
            assert a == b, f"{what}: sample {i} is {a!r}, torchvision has {b!r}"
        assert len(mine) == len(expected), f"{what}: {len(mine)} samples, torchvision has {len(expected)}"
        return len(mine)
    return 0


ODD = [
    "cat/1.jpg", "cat/10.jpg", "cat/2.JPG", "cat/A.Jpeg", "cat/a b.png", "cat/.hidden.png", "cat/.jpg", "cat/x.webp",
    "cat/x.tiff", "cat/x.TIF", "cat/x.bmp", "cat/x.pgm", "cat/x.ppm", "cat/x.gif", "cat/notes.txt", "cat/jpg",
    "cat/x.jpg.bak", "cat/.hidden/deep/1.png", "cat/a/1.jpg", "cat/a-b/1.jpg", "cat/a/b/1.jpg", "cat/a.b/1.jpg",
    "cat/a!/1.jpg", "Zebra/1.jpg", "dog house/1.jpg", "Äpfel/ä.jpg", "Äpfel/\uffee.jpg", "Äpfel/\U0001F600.jpg",
    "Äpfel/\ue000.jpg", "Äpfel/z.jpg", "日本/写真.jpg", ".dot/1.jpg", "10/1.jpg", "9/1.jpg", "K\u212a/1.jp\u212ag.jpg",
    "cat/İ.tİf", "cat/back\\slash.jpg", "cat/new\nline.jpg", "cat/tab\t.jpg", "cat/folder.jpg/inside.png",
    b"raw/\xff.jpg", b"raw/\x80.jpg", b"raw/\xc3.jpg", b"raw/\xc3\xa9.jpg", b"raw/\xed\xa0\x80.jpg", b"raw/\xee\x80\x80.jpg",
    b"raw/\xf0\x9f\x98\x80.jpg", b"raw/\xe2\x82.jpg", b"raw/\xe2\x82\xac.jpg", b"raw/\xc0\x80.jpg", b"raw/\xed\x9f\xbf.jpg",
    b"raw/\xf4\x90\x80\x80.jpg", b"raw\xff/1.jpg", b"raw\xc3/1.jpg", b"raw\xc3\xa9/1.jpg",
]


def odd_tree():
    with tempfile.TemporaryDirectory() as root:
        for name in ODD:
            touch(root, name)
        touch(root, "loose.jpg")
        outside = os.path.join(root, "cat")
        os.symlink(os.path.join(outside, "a"), os.path.join(root, "linked class"))  # a class that is a link
        os.symlink(os.path.join(outside, "a"), os.path.join(root, "dog house", "linked"))
        os.symlink("/nowhere/at/all.jpg", os.path.join(root, "dog house", "broken.jpg"))
        os.symlink("/nowhere", os.path.join(root, "broken class"))
        samples = compare(root, "odd tree")
        assert samples >= len(ODD) - 8, samples
        compare(root + "/", "trailing slash")
        print(f"odd tree: {samples} samples equal")


def errors():
    with tempfile.TemporaryDirectory() as root:
        compare(root, "empty folder")
        compare(os.path.join(root, "missing"), "missing folder")
        touch(root, "flat.jpg")
        compare(root, "flat folder")
        touch(root, "full/1.jpg")
        compare(root, "one class")
        os.mkdir(os.path.join(root, "void"))
        touch(root, "text/readme.txt")
        compare(root, "classes without files")
        code, message = ours(root)
        assert code == 4 and "void" in message and "text" in message, message
        assert ours(os.path.join(root, "flat.jpg"))[0] == 4


def random_trees(seed, trees):
    draw = random.Random(seed)
    pieces = [b"a", b"b", b"B", b"1", b"2", b"10", b"-", b".", b" ", b"_", b"/", b"/", b"\xc3\xa9", b"\xc3", b"\xff",
              b"\xf0\x9f\x98\x80", b"\xef\xbf\xbd", b"\xe2\x82", b"\xa9"]
    total = 0
    for tree in range(trees):
        with tempfile.TemporaryDirectory() as root:
            for _ in range(draw.randint(1, 60)):
                parts = b"".join(draw.choices(pieces, k=draw.randint(1, 9))).split(b"/")
                parts = [b"p" + part if part in (b".", b"..") else part for part in parts if part] or [b"x"]
                name = b"/".join([draw.choice([b"c1", b"c2", b"c-", b"c\xc3", b"c\xc3\xa9"])] + parts)
                try:
                    touch(root, name + draw.choice([b".jpg", b".PNG", b".jpeg", b".txt", b""]))
                except OSError:  # a folder stands where a file should, or the other way round
                    pass
            total += compare(root, f"random tree {tree} of seed {seed}")
    assert total > trees, total
    print(f"random trees: seed {seed}, {trees} trees, {total} samples equal")


odd_tree()
errors()
random_trees(seed=20240611, trees=150 if FULL else 30)
