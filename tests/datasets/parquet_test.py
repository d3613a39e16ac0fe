"""`penstock index` of Parquet files, pyarrow being a stand-in (support/fake_pyarrow): the same stream as from the folder, and
what does not fit is refused by name. With an installed pyarrow: tests/frameworks/parquet_test.py."""

import glob
import json
import os
import sys
import tempfile

import containers
import leftovers
from conversions_test import hashes, refused, write_job
from jobs import FULL, PENSTOCK, demo_photos, run_tests

FAKE = {**os.environ, "PENSTOCK_PYTHON": sys.executable,
        "PYTHONPATH": os.path.join(os.path.dirname(os.path.abspath(containers.__file__)), "fake_pyarrow")}
PHOTOS = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
SAMPLES = containers.samples_of(PHOTOS)


def index(folder, dataset, code=0, env=None):
    result = leftovers.run([PENSTOCK, "index", write_job(folder, dataset)], 60, env=env or FAKE)
    assert result.returncode == code, f"{result.returncode}: {result.stdout}\n{result.stderr}"
    return result.stdout + result.stderr


def test_same_stream():
    with tempfile.TemporaryDirectory(prefix="parquet-") as top:
        wanted = hashes(top, {"folder": PHOTOS})
        for nested in (False, True) if FULL else (True,):
            files = containers.write_parquet(os.path.join(top, f"p{nested:d}"), SAMPLES, 3, nested)
            dataset = {"parquet": files, "index": "x.index"}
            said = index(top, dataset)
            assert "24 samples" in said and "0 unusable" in said, said
            assert hashes(top, dataset) == wanted
            assert sorted(os.path.basename(path) for path in glob.glob(os.path.join(top, "x.index*"))) == ["x.index", "x.index.data"]


def test_fields_and_class_names():
    with tempfile.TemporaryDirectory(prefix="parquet-") as top:
        dataset = {"parquet": containers.write_parquet(os.path.join(top, "p"), SAMPLES), "label": "class", "fields": "name", "index": "x.index"}
        index(top, dataset)
        csv = containers.write_csv(os.path.join(top, "csv", "x.csv"), SAMPLES)
        assert hashes(top, dataset) == hashes(top, {"csv": csv, "fields": "name:text"})
        if not FULL:
            return
        index(top, {**dataset, "fields": "number"})
        assert hashes(top, {**dataset, "fields": "number"}) == hashes(top, {"csv": csv, "fields": "number"})
        index(top, {**dataset, "fields": "box, name:bytes"})
        out = os.path.join(top, "out")
        hashes(top, {**dataset, "fields": "box, name:bytes"})
        with open(os.path.join(top, "x.index"), "rb") as file:
            described = file.read().decode("latin-1")
        assert '["box","tensor","float32",[3]]' in described and '["name","bytes"' in described, described[-2000:]
        assert '"cat' not in described and f'"{SAMPLES[0][0].split("/")[0]}"' in described, described[-2000:]
        assert os.path.isdir(out)


def test_bad_pictures_are_statuses():
    """A null and damaged bytes: samples like any other, unusable, counted."""
    def spoil(columns):
        columns["image"][1][1] = None
        columns["image"][1][2] = b"no picture"
        return columns
    with tempfile.TemporaryDirectory(prefix="parquet-") as top:
        dataset = {"parquet": containers.write_parquet(os.path.join(top, "p"), SAMPLES, 2, change=spoil), "index": "x.index"}
        said = index(top, dataset)
        assert "24 samples" in said and "4 unusable" in said, said
        code, said = refused("inspect", write_job(top, dataset), "--raw", "--steps=9", "--sheet=0", "--out", os.path.join(top, "out"))
        assert code == 4 and "train-" in said and ".parquet[" in said, said


def test_what_is_refused():
    with tempfile.TemporaryDirectory(prefix="parquet-") as top:
        files = containers.write_parquet(os.path.join(top, "p"), SAMPLES)
        dataset = {"parquet": files, "index": "x.index"}
        code, said = refused("check", write_job(top, {"parquet": files}))
        assert code == 3 and "'parquet' needs 'index'" in said and "run `penstock index` once" in said, said
        code, said = refused("check", write_job(top, dataset))
        assert code == 4 and "x.index" in said and "make it with `penstock index`" in said and "leave" not in said, said

        def complaint(code, change=None, metadata=None, env=None, **words):
            if change:
                words["parquet"] = containers.write_parquet(os.path.join(top, "q"), SAMPLES, 2, change=change, metadata=metadata)
            said = index(top, {**dataset, **words}, code, env)
            assert not glob.glob(os.path.join(top, "x.index*")), os.listdir(top)
            return said

        def put(name, row, value):
            def change(columns):
                columns[name][1][row] = value
                return columns
            return change

        assert "has no column 'picture'" in complaint(4, image="picture")
        assert "train-0.parquet', row 3: column 'label' holds nothing (null)" in complaint(4, put("label", 3, None))
        assert "train-0.parquet' as Parquet: Corrupt snappy" in complaint(4, put("name", 3, "damaged"), fields="name")
        if FULL:
            assert "column 'name' is of type string, and pictures are" in complaint(4, image="name")
            assert "labels are integers, or class names" in complaint(4, label="box")
            assert "and ':text' was asked for" in complaint(4, fields="number:text")
            assert "holds nothing (null) in some rows" in complaint(4, put("class", 3, None), label="class")
            assert "row 5: column 'box' holds nothing" in complaint(4, put("box", 5, [1, None, 2]), fields="box")
            assert "row 5: column 'box' holds an empty list" in complaint(4, put("box", 5, []), fields="box")
            assert "differs from the first sample's in dtype or shape" in complaint(4, put("box", 5, [1, 2]), fields="box")
            assert "several columns of encoded pictures: a, b" in complaint(
                4, lambda columns: {"a": columns["image"], "b": columns["image"]})
            paths = {"image": ("struct<bytes: binary, path: string>", [{"bytes": None, "path": "a.jpg"}])}
            assert "holds a path, 'a.jpg', and no bytes" in complaint(4, lambda _: paths)
            turns = iter((False, True))
            assert "differ from those of" in complaint(
                4, lambda columns: {**columns, "label": ("int32", columns["label"][1])} if next(turns) else columns)
            with open(os.path.join(top, "q", "train-1.parquet"), "w") as file:
                file.write("no such thing")
            assert "train-1.parquet' as Parquet" in complaint(4, parquet=os.path.join(top, "q", "train-*"))

        without = complaint(1, env={**FAKE, "PYTHONPATH": os.path.join(top, "p"), "PENSTOCK_PYTHON": without_pyarrow(top)})
        assert "has no pyarrow" in without and "pip install pyarrow" in without and "PENSTOCK_PYTHON" in without, without
        result = index(top, dataset, 1, {**FAKE, "FAKE_PYARROW": "crash"})
        assert "reads Parquet files was killed by SIGABRT" in result, result
        index(top, dataset)  # over what that one left
        hashes(top, dataset)
        assert sorted(glob.glob(os.path.join(top, "x.index*"))) == [os.path.join(top, name) for name in ("x.index", "x.index.data")]


def without_pyarrow(top):
    """An interpreter that has none, whatever is installed here."""
    path = os.path.join(top, "python")
    with open(path, "w") as file:
        file.write(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    os.chmod(path, 0o755)
    return path


def test_what_changed_since():
    with tempfile.TemporaryDirectory(prefix="parquet-") as top:
        files = containers.write_parquet(os.path.join(top, "p"), SAMPLES)
        dataset = {"parquet": files, "index": "x.index"}
        index(top, dataset)
        hashes(top, dataset)

        def complaint(changed):
            code, said = refused("check", write_job(top, changed))
            assert code == 4 and "make it again with `penstock index`" in said and "leave" not in said, said
            return said

        assert "made with other options" in complaint({**dataset, "fields": "name"})
        assert "file 1 of the data set is nothing, and was train-1.parquet" in complaint({**dataset, "parquet": files.replace("*", "0")})
        for name in (files.replace("*", "1"), os.path.join(top, "x.index.data")):
            before = os.stat(name)
            os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
            assert f"{os.path.basename(name)}' was changed since" in complaint(dataset)
            os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns))
        hashes(top, dataset)
        os.rename(os.path.join(top, "x.index.data"), os.path.join(top, "y"))
        code, said = refused("check", write_job(top, dataset))
        assert code == 4 and "x.index.data' is gone" in said and "again with `penstock index`" in said, said


def test_folder_by_itself():
    with tempfile.TemporaryDirectory(prefix="parquet-") as top:
        names = ["b", "a", "c"]
        notes = json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": names}}}})
        folder = os.path.dirname(containers.write_parquet(os.path.join(top, "p"), SAMPLES, metadata={"huggingface": notes}))
        result = leftovers.run([PENSTOCK, "index", folder], 60, env=FAKE)
        assert result.returncode == 0 and f'dataset: {{parquet: "{folder}/*.parquet", index: {folder}.index}}' in result.stdout, result
        with open(folder + ".index", "rb") as file:
            assert '"classes":["b","a","c"]' in file.read().decode("latin-1")


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
