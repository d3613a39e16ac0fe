"""`penstock index` with an installed pyarrow: Parquet as pyarrow writes it gives the stream of the folder and of tar shards.
What is refused, and without pyarrow: tests/datasets/parquet_test.py."""

import json
import os
import sys
import tempfile

import pyarrow
import pyarrow.parquet

import containers
import leftovers
from jobs import PENSTOCK, demo_photos, run_tests

PHOTOS = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
SAMPLES = containers.samples_of(PHOTOS)
TYPES = {"binary": pyarrow.binary(), "string": pyarrow.string(), "int64": pyarrow.int64(), "double": pyarrow.float64(),
         "list<element: float>": pyarrow.list_(pyarrow.float32()),
         "struct<bytes: binary, path: string>": pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})}
JOB = """\
seed: 11
roles: {{trainers: 1}}
splits:
  train:
    mode: train
    dataset: {dataset}
    pipeline: [{{RandomResizedCrop: {{size: 32}}}}, RandomHorizontalFlip]
    sampler: {{shuffle: true}}
    batch_size: 8
"""


def write(folder, nested, large=False):
    os.makedirs(folder)
    for number, part in enumerate((SAMPLES[:16], SAMPLES[16:])):
        arrays = {}
        for name, (type_, values) in containers.parquet_columns(part, 16 * number, nested).items():
            array = pyarrow.array(values, TYPES.get(type_, pyarrow.string()))
            arrays[name] = array.dictionary_encode() if type_.startswith("dictionary") else array
        if large:
            arrays["image"] = arrays["image"].cast(pyarrow.large_binary())
            arrays["box"] = pyarrow.array(arrays["box"].to_pylist(), pyarrow.list_(pyarrow.float32(), 3))
        pyarrow.parquet.write_table(pyarrow.table(arrays), os.path.join(folder, f"train-{number}.parquet"), row_group_size=5)
    return os.path.join(folder, "train-*.parquet")


def penstock(*words):
    result = leftovers.run([PENSTOCK, *words], 120, env={**os.environ, "PENSTOCK_PYTHON": sys.executable})
    assert result.returncode == 0, f"{' '.join(words)}: {result.stdout}\n{result.stderr}"
    return result.stdout


def pixel_hash(top, dataset):
    job = os.path.join(top, "job.yaml")
    with open(job, "w") as file:
        file.write(JOB.format(dataset=json.dumps(dataset)))
    if "index" in dataset:
        print(penstock("index", job))
    report = json.loads(penstock("run", job, "--json", "--quiet").splitlines()[-1])["splits"]["train"]
    assert report["images"] == 24, report
    print(list(dataset)[0], report["order_hash"], report["pixel_hash"])
    return report["order_hash"], report["pixel_hash"]


def test_one_stream():
    with tempfile.TemporaryDirectory(prefix="parquet-") as top:
        wanted = pixel_hash(top, {"folder": PHOTOS})
        assert pixel_hash(top, {"tar": containers.write_tars(os.path.join(top, "tar"), SAMPLES)}) == wanted
        for form in ((False, False), (True, False), (False, True)):
            files = write(os.path.join(top, f"p{form[0]:d}{form[1]:d}"), *form)
            assert pixel_hash(top, {"parquet": files, "index": "x.index"}) == wanted, form
            assert pixel_hash(top, {"parquet": files, "label": "class", "index": "x.index"}) == wanted, form


def test_fields():
    with tempfile.TemporaryDirectory(prefix="parquet-") as top:
        csv = containers.write_csv(os.path.join(top, "csv", "x.csv"), SAMPLES)
        text = pixel_hash(top, {"csv": csv, "fields": "name:text"})
        number = pixel_hash(top, {"csv": csv, "fields": "number"})
        boxes = set()
        for large in (False, True):
            files = write(os.path.join(top, f"p{large:d}"), False, large)
            assert pixel_hash(top, {"parquet": files, "fields": "name", "index": "x.index"}) == text
            assert pixel_hash(top, {"parquet": files, "fields": "number", "index": "x.index"}) == number
            boxes.add(pixel_hash(top, {"parquet": files, "fields": "box", "index": "x.index"}))
        assert len(boxes) == 1 and boxes.isdisjoint({text, number}), boxes


def test_a_damaged_file():
    with tempfile.TemporaryDirectory(prefix="parquet-") as top:
        files = write(os.path.join(top, "p"), False)
        path = files.replace("*", "1")
        with open(path, "r+b") as file:
            file.seek(os.path.getsize(path) // 2)
            file.write(bytes(os.path.getsize(path) // 4))
        job = os.path.join(top, "job.yaml")
        with open(job, "w") as file:
            file.write(JOB.format(dataset=json.dumps({"parquet": files, "index": "x.index"})))
        for cut in (False, True):
            if cut:
                os.truncate(path, os.path.getsize(path) - 100)
            result = leftovers.run([PENSTOCK, "index", job, "--no-headers"], 60, env={**os.environ, "PENSTOCK_PYTHON": sys.executable})
            print(result.returncode, result.stderr)
            if cut:
                assert result.returncode == 4 and "train-1.parquet' as Parquet" in result.stderr, result.stderr
            else:  # pages may have no checksum: pictures of other bytes are the decoder's affair
                assert result.returncode in (0, 4), result.stderr


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
