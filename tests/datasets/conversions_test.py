"""The same samples in class folders, tar, .tar.gz, MDS, TFRecord, CSV and a list give the same stream, bit for bit.

Each is a run of the program: without PENSTOCK_FULL=1 of half the pictures, and each container in one test at least."""

import json
import os
import sys
import tarfile
import tempfile

import containers
import leftovers
from jobs import FULL, PENSTOCK, demo_photos, run_tests

JOB = """\
seed: 11
roles: {{trainers: 2}}
splits:
  train:
    mode: train
    dataset: {dataset}
    pipeline: [{{RandomResizedCrop: {{size: 32}}}}, RandomHorizontalFlip]
    sampler: {{shuffle: true}}
    batch_size: 10
"""


def penstock(*words, env=None):
    result = leftovers.run([PENSTOCK, *words], 120, env=env)
    assert result.returncode == 0, f"{' '.join(words)}: {result.stdout}\n{result.stderr}"
    return result.stdout


def refused(*words):
    result = leftovers.run([PENSTOCK, *words], 120)
    assert result.returncode != 0, result.stdout
    return result.returncode, result.stdout + result.stderr


def write_job(folder, dataset, name="job.yaml"):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(JOB.format(dataset=json.dumps(dataset)))
    return path


def hashes(folder, dataset):
    job = write_job(folder, dataset)
    return penstock("inspect", job, "--raw", "--steps=9", "--sheet=0", "--out", os.path.join(folder, "out")).splitlines()


def all_forms(top, folder):
    samples = containers.samples_of(folder)
    return {
        "folder": {"folder": folder},
        "tar": {"tar": containers.write_tars(os.path.join(top, "tar"), samples)},
        "gnu tar": {"tar": containers.write_tars(os.path.join(top, "gnu"), samples, 1, format=tarfile.GNU_FORMAT)},
        "tar.gz": {"tar": containers.write_tars(os.path.join(top, "packed"), samples, packed=True)},
        "mds": {"mds": containers.write_mds(os.path.join(top, "mds"), samples)},
        "tfrecord": {"tfrecord": containers.write_tfrecords(os.path.join(top, "tf"), samples)},
        "csv": {"csv": containers.write_csv(os.path.join(top, "csv", "x.csv"), samples)},
        "list": {"list": containers.write_list(os.path.join(top, "x.txt"), samples)},
    }


COUNT = 24 if FULL else 12


def test_same_stream():
    folder = os.path.join(demo_photos(count=COUNT, val_count=6, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="conversions-") as top:
        wanted = None
        for name, dataset in all_forms(top, folder).items():
            if name == "tar.gz" and not FULL:
                continue
            got = hashes(top, dataset)
            assert len(got) == 2 and all(line.split()[1] for line in got), got
            wanted = wanted or got
            assert got == wanted, f"{name}: {got} instead of {wanted}"


def test_the_same_text():
    """A field of varying length, from whatever each container calls a text. Its name is not part of the hash."""
    folder = os.path.join(demo_photos(count=COUNT, val_count=6, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="conversions-") as top:
        forms = all_forms(top, folder)
        names = {"tar": "txt", "tar.gz": "txt", "mds": "name", "tfrecord": "image/filename:text", "csv": "name:text"}
        if not FULL:
            names = {kind: names[kind] for kind in ("tar", "tar.gz", "tfrecord")}
        got = {kind: hashes(top, {**forms[kind], "fields": name}) for kind, name in names.items()}
        assert len(set(map(tuple, got.values()))) == 1, got
        assert got["tar"] != hashes(top, forms["tar"])


def test_check_names_what_is_wrong():
    folder = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    samples = containers.samples_of(folder)
    with tempfile.TemporaryDirectory(prefix="conversions-") as top:
        pattern = containers.write_tars(os.path.join(top, "tar"), samples, 2)
        second = pattern.replace("{000..001}", "001")
        with open(second, "r+b") as file:
            file.truncate(os.path.getsize(second) - 20480)
        code, said = refused("check", write_job(top, {"tar": pattern}))
        assert code == 4 and "shard-001.tar' at byte " in said and "cut off" in said, said
        code, said = refused("check", write_job(top, {"tar": pattern, "folder": folder}))
        assert code == 3 and "a dataset has one of folder, images, tar," in said, said
        code, said = refused("check", write_job(top, {"folder": folder, "image": "jpg"}))
        assert code == 3 and "'image' belongs to tar, csv, mds, tfrecord and parquet" in said, said
        said = penstock("check", write_job(top, {"tar": pattern.replace("{000..001}", "000")}))
        assert "samples, " in said and "without labels" not in said, said
        with open(os.path.join(top, "bare.csv"), "w") as file:
            file.write(f"image\n{samples[0][1]}\n")
        said = penstock("check", write_job(top, {"csv": os.path.join(top, "bare.csv")}))
        assert "1 sample without labels" in said, said
        code, said = refused("check", write_job(top, {"tarr": pattern}))
        assert code == 3 and "did you mean 'tar'?" in said, said
        csv = containers.write_csv(os.path.join(top, "csv", "x.csv"), samples)
        with open(csv, "a") as file:
            file.write("a.jpg,cat,1\n")
        code, said = refused("check", write_job(top, {"csv": csv}))
        assert code == 4 and f"x.csv:{len(samples) + 2}: 3 cells instead of 4" in said, said


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
