#!/usr/bin/python3
"""Tests of the benchmark itself, without the peers: the trace, the pixel check, the statistics, the comparison, and
the whole driver against a stand-in for penstock. Exit 77 (skipped) without numpy and Pillow.

    bench/selftest.py
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

try:
    import numpy as np
    from PIL import Image
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

import compare
import crop_trace
import figures
import run

HERE = os.path.dirname(os.path.abspath(__file__))

# A stand-in for `penstock`: inspect replays a seeded trace through reference.py; launch just starts the program.
# FAKE_BREAK=flip makes it forget the mirroring, which the check must notice.
FAKE_PENSTOCK = """#!/usr/bin/python3
import json, os, subprocess, sys
sys.path[:0] = [{here!r}, {here!r} + "/delivery"]
if sys.argv[1] == "--version":
    print("penstock stand-in")
elif sys.argv[1] == "launch":
    sys.exit(subprocess.call(sys.argv[sys.argv.index("--") + 1:]))
elif sys.argv[1] == "inspect":
    import re
    import numpy as np
    import common, crop_trace, reference, run
    job = open(sys.argv[2]).read()
    value = lambda flag: sys.argv[sys.argv.index(flag) + 1]
    folder = json.loads(re.search(r"folder: (.*)}}", job).group(1))
    batch = int(re.search(r"batch_size: (\\d+)", job).group(1))
    records, _ = crop_trace.make_trace(folder, 1, batch, int(value("--epoch")))
    os.makedirs(value("--out"))
    with open(value("--out") + "/manifest.jsonl", "w") as file:
        for at, record in enumerate(records[: batch * int(value("--steps"))]):
            file.write(json.dumps(dict(record, step=at // batch, slot=at % batch, trainer=0)) + "\\n")
    for step in range(min(int(value("--steps")), len(records) // batch)):
        samples = [common.Sample(record) for record in records[step * batch : (step + 1) * batch]]
        if os.environ.get("FAKE_BREAK") == "flip":
            for sample in samples:
                sample.flip = False
        pixels = np.stack([reference.reference(sample) for sample in samples])
        np.save(value("--out") + f"/t0_s{{step}}_images.npy", run.normalised(pixels))
"""
FAKE_CONSUMER = """#!/usr/bin/python3
import json, time
print(json.dumps({"event": "first"}), flush=True)
print("progress for people", flush=True)
print(json.dumps({"event": "open"}), flush=True)
begin = time.process_time()
while time.process_time() - begin < 0.5:
    pass
print(json.dumps({"images": 640, "seconds": 0.5, "slowest_batch_s": 0.1, "checksum": 1.0}), flush=True)
time.sleep(0.2)
"""


def photos(folder, count=20, seed=1):
    """Class folders with JPEGs of random texture: enough detail that a crop moved by a pixel shows."""
    draw = np.random.default_rng(seed)
    for number in range(count):
        height, width = (int(extent) for extent in draw.integers(80, 400, size=2))
        coarse = draw.integers(0, 256, size=(height // 4 + 1, width // 4 + 1, 3), dtype=np.uint8)
        pixels = np.repeat(np.repeat(coarse, 4, axis=0), 4, axis=1)[:height, :width]
        parent = os.path.join(folder, f"class{number % 3}")
        os.makedirs(parent, exist_ok=True)
        Image.fromarray(pixels).save(os.path.join(parent, f"{number:03}.jpg"), quality=90)


def results_of(speeds, cpu=1.0, rounds=11, seed=3):
    """A results file's content: each competitor around its speed, all of them slowed by the same noise in a round."""
    draw = random.Random(seed)
    records = [{"kind": "header", "names": list(speeds), "baseline": next(iter(speeds))}]
    for number in range(rounds):
        weather = draw.uniform(0.6, 1.0)
        for name, speed in speeds.items():
            images = speed * weather * draw.uniform(0.99, 1.01) * 5
            block = {"kind": "block", "round": number, "name": name, "images": images, "seconds": 5.0}
            records.append({**block, "cpu_seconds": cpu * images / 1000, "first_batch_s": 1.0, "pss": 5e8})
    return figures.Results(records)


class Trace(unittest.TestCase):
    def test_header_agrees_with_pillow(self):
        with tempfile.TemporaryDirectory() as folder:
            for number, mode in enumerate(("RGB", "L", "CMYK")):
                path = os.path.join(folder, f"{mode}.jpg")
                Image.new(mode, (31 + number, 17)).save(path, progressive=number == 1)
                self.assertEqual(crop_trace.jpeg_header(path), (31 + number, 17, len(mode)))
            broken = os.path.join(folder, "broken.jpg")
            with open(broken, "wb") as file:
                file.write(b"\xff\xd8\xff\xe0\x00")
            self.assertIsNone(crop_trace.jpeg_header(broken))

    def test_crops_lie_inside_and_cover_the_rule(self):
        draw = random.Random(7)
        for _ in range(3000):
            width, height = draw.randint(1, 600), draw.randint(1, 600)
            x, y, w, h = crop_trace.random_resized_crop(width, height, draw)
            self.assertTrue(0 <= x and 0 <= y and w >= 1 and h >= 1 and x + w <= width and y + h <= height)
        areas = [np.prod(crop_trace.random_resized_crop(500, 375, draw)[2:]) / (500 * 375) for _ in range(3000)]
        self.assertGreater(min(areas), 0.07)
        self.assertGreater(np.mean(areas), 0.4)  # 0.08 to 1, a little less because tall boxes do not fit

    def test_trace_is_reproducible_and_whole_batches(self):
        with tempfile.TemporaryDirectory() as folder:
            photos(folder)
            with open(os.path.join(folder, "class0", "notes.txt"), "w", encoding="utf-8") as file:
                file.write("not a photo")
            first, seen = crop_trace.make_trace(folder, 3, 8, 5)
            self.assertEqual(first, crop_trace.make_trace(folder, 3, 8, 5)[0])
            self.assertNotEqual(first, crop_trace.make_trace(folder, 3, 8, 6)[0])
            self.assertEqual((len(first) % 8, len(first)), (0, 56))
            self.assertEqual(seen, {"files": 20, "left_out": 1})


class Pixels(unittest.TestCase):
    def test_equal_is_zero_and_small_errors_show(self):
        draw = np.random.default_rng(11)
        reference = draw.integers(0, 256, size=(4, 3, 224, 224), dtype=np.uint8)
        exact = run.normalised(reference)
        self.assertFalse(run.too_far(run.difference(exact, reference), run.EXACT))
        off = reference.copy()
        off[2, 1, 100, 100] ^= 1  # one step in one pixel of one photo
        self.assertTrue(run.too_far(run.difference(run.normalised(off), reference), run.EXACT))
        swapped = exact[[1, 0, 2, 3]]
        for entry in run.COMPETITORS.values():
            if entry.tolerance is not None:
                self.assertTrue(run.too_far(run.difference(swapped, reference), entry.tolerance))

    def test_refuses_nan_and_wrong_shapes(self):
        reference = np.zeros((2, 3, 224, 224), dtype=np.uint8)
        array = run.normalised(reference)
        array[0, 0, 0, 0] = np.nan
        with self.assertRaises(run.Failed):
            run.difference(array, reference)
        with self.assertRaises(run.Failed):
            run.difference(array[:1], reference)


class Statistics(unittest.TestCase):
    def test_ratios_within_a_round_cancel_the_weather(self):
        results = results_of({"penstock": 1000, "dali": 500})
        median, low, high = figures.median_with_interval(results.ratios("penstock", "dali", figures.images_per_s))
        self.assertAlmostEqual(median, 2.0, delta=0.03)
        self.assertTrue(1.95 < low <= median <= high < 2.05)

    def test_table_and_picture(self):
        results = results_of({"penstock": 1000, "dali & co": 500})
        text = figures.table(results, "penstock")
        self.assertIn("| dali & co |", text)
        self.assertIn("Medians of 11 rounds", text)
        xml.etree.ElementTree.fromstring(figures.svg(results, "penstock"))  # well-formed


class Comparison(unittest.TestCase):
    def worse(self, old, new, **options):
        return [row[1] for row in compare.compare(old, new, ["penstock"], 0.05, **options) if row[5]]

    def test_only_the_bad_direction_fails(self):
        old = results_of({"penstock": 1000, "dali": 500})
        self.assertEqual(self.worse(old, results_of({"penstock": 1300, "dali": 500}, seed=4)), [])
        self.assertEqual(self.worse(old, results_of({"penstock": 990, "dali": 500}, seed=4)), [])
        self.assertEqual(self.worse(old, results_of({"penstock": 800, "dali": 500}, seed=4)), ["images/s / peers"])

    def test_a_slower_machine_is_not_a_slower_penstock(self):
        old = results_of({"penstock": 1000, "dali": 500})
        new = results_of({"penstock": 500, "dali": 250}, cpu=2.0, seed=4)
        self.assertEqual(self.worse(old, new), [])
        self.assertEqual(self.worse(old, new, absolute=True), ["images/s", "CPU ms/image"])


class Driver(unittest.TestCase):
    def drive(self, folder, *flags, **environment):
        command = [sys.executable, os.path.join(HERE, "run.py"), "--data", os.path.join(folder, "photos")]
        command += ["--build", folder, "--out", os.path.join(folder, "out"), "--batch", "8", "--check", "8"]
        command += ["--rounds", "2", "--seconds", "0.2", "--warmup", "0", "--epochs", "1", *flags]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **environment}
        )

    def test_from_trace_to_table(self):
        with tempfile.TemporaryDirectory() as folder:
            photos(os.path.join(folder, "photos"))
            for name, text in (("penstock", FAKE_PENSTOCK.format(here=HERE)), ("bench_consumer", FAKE_CONSUMER)):
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
                os.chmod(os.path.join(folder, name), 0o755)
            done = self.drive(folder, "--only", "penstock,penstock_embedded")
            self.assertEqual(done.returncode, 0, done.stderr)
            files = sorted(os.listdir(os.path.join(folder, "out")))
            self.assertEqual([os.path.splitext(name)[1] for name in files], [".jsonl", ".md", ".svg"])
            results = figures.load(os.path.join(folder, "out", files[0]))
            self.assertEqual(results.names, ["penstock", "penstock_embedded"])
            self.assertEqual([len(results.by_round(name, figures.images_per_s)) for name in results.names], [2, 2])
            self.assertTrue(all(record["ok"] and record["max"] < 0.001 for record in results.checks.values()))
            # The stand-in burns 0.5 s of CPU for 640 images after "open"; the accounting must see it, and little else.
            for milliseconds in results.by_round("penstock", figures.cpu_ms_per_image).values():
                self.assertTrue(0.5 < milliseconds < 1.3, milliseconds)

            broken = self.drive(folder, "--only", "penstock", FAKE_BREAK="flip")
            self.assertEqual(broken.returncode, 1, broken.stderr)
            self.assertIn("pixels differ", broken.stderr)

    def test_usage_errors(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "photos"))
            self.assertEqual(self.drive(folder, "--only", "dally").returncode, 2)
            self.assertEqual(self.drive(folder, "--only", "penstock").returncode, 2)  # not built there
            self.assertEqual(self.drive(folder, "--cpus", "4095").returncode, 2)


if __name__ == "__main__":
    unittest.main()
