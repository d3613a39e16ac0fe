"""NumPy and Pillow read the files that people are given."""
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    from PIL import Image
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

with tempfile.TemporaryDirectory() as folder:
    subprocess.run([os.path.join(os.environ["PENSTOCK_BUILD"], "tests/report/write_observe_files"), folder], check=True)

    def load(name):
        return np.load(os.path.join(folder, name + ".npy"))

    pixels = (np.arange(120) * 2).astype(np.uint8)
    images = load("uint8")
    assert images.dtype == np.uint8 and (images == pixels.reshape(2, 3, 4, 5)).all()
    last = load("channels_last")
    assert (last == pixels.reshape(2, 4, 5, 3).transpose(0, 3, 1, 2)).all() and last.flags.c_contiguous
    assert load("int64").dtype == np.int64 and load("int64").tolist() == [-1, 1 << 40, 7]
    assert load("scalar").shape == () and load("scalar") == -1
    assert load("float32").dtype == np.float32
    assert (load("float32") == np.array([[0.5, -2], [3e30, 0]], np.float32)).all()
    assert load("float16").dtype == np.float16 and load("float16").tolist() == [1, -2]
    assert load("bool").dtype == np.bool_ and load("bool").tolist() == [True, False, True]
    bits = load("bfloat16")
    assert bits.dtype == np.uint16 and (bits.astype(np.uint32) << 16).view(np.float32).tolist() == [1, -2]

    sheet = np.asarray(Image.open(os.path.join(folder, "sheet.png")))
    assert sheet.shape == (6, 13, 3), sheet.shape
    for n in range(2):
        left = 1 + 6 * n
        assert (sheet[1:5, left:left + 5] == images[n].transpose(1, 2, 0)).all()
    print("8 arrays and 1 contact sheet read back equal")
