"""`penstock index`: the same stream with and without, and an index that does not fit is refused by name."""

import fcntl
import glob
import json
import os
import shutil
import stat
import sys
import tempfile
import time

import containers
import leftovers
from conversions_test import all_forms, penstock, refused, write_job
from jobs import FULL, PENSTOCK, demo_photos, run_tests


def hashes(folder, dataset, *more):
    job = write_job(folder, dataset)
    return penstock("inspect", job, "--raw", "--steps=9", "--sheet=0", "--out", os.path.join(folder, "out"), *more).splitlines()


def index(folder, dataset, *more):
    return penstock("index", write_job(folder, dataset), *more)


def test_every_kind():
    folder = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        wanted = hashes(top, {"folder": folder})
        for number, (name, dataset) in enumerate(all_forms(top, folder).items()):
            if not FULL and name not in ("folder", "tar", "csv"):
                continue
            indexed = {**dataset, "index": f"{number}.index"}
            said = index(top, indexed)
            assert f"{number}.index: 24 samples" in said and "0 unusable" in said and "median 0." in said, said
            got = hashes(top, indexed)
            assert got == wanted, f"{name}: {got} instead of {wanted}"


def test_some_of_the_files_are_here():
    photos = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        folder = os.path.join(top, "photos")
        shutil.copytree(photos, folder)
        dataset = {"folder": folder, "index": "x.index", "local": True}
        assert "of what is on this node; dataset.local wants an index of all files" in index(top, dataset)
        shutil.rmtree(os.path.join(folder, sorted(os.listdir(folder))[1]))
        said = penstock("check", write_job(top, dataset))
        assert "16 of the samples are on this node's disks (dataset.local)" in said, said
        assert "16 files looked at" in said and "check: fine" in said, said
        code, said = refused("run", write_job(top, dataset))
        assert code == 4 and "no loader can read 8 of the 24 samples of split 'train', the first being number 8" in said, said


def test_a_long_list_is_told_of():
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        os.makedirs(os.path.join(top, "photos"))
        os.makedirs(os.path.join(top, "all"))
        for number in range(1_600):
            os.close(os.open(os.path.join(top, "all", f"{number}.jpg"), os.O_CREAT))
        for name in range(10):  # ten classes of the same files
            os.symlink(os.path.join(top, "all"), os.path.join(top, "photos", str(name)))
        dataset = {"folder": os.path.join(top, "photos")}
        indexed = {**dataset, "index": "x.index"}
        index(top, indexed, "--no-headers")
        for listed, spec in ((True, dataset), (False, indexed)):
            said = leftovers.run([PENSTOCK, "check", write_job(top, spec), "--most=10"], 60).stdout  # the files are empty
            assert "split train: 16,000 samples in 10 classes" in said, said
            assert ("the list of files takes about 1 MB at each loader" in said) == listed, said


def test_folder_by_itself():
    photos = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        out = os.path.join(top, "x.index")
        said = penstock("index", photos, "--out", out, "--no-headers")
        assert f"dataset: {{folder: {photos}, index: {out}}}" in said, said
        tars = os.path.dirname(containers.write_tars(os.path.join(top, "tar"), containers.samples_of(photos)))
        said = penstock("index", tars)
        assert f'dataset: {{tar: "{tars}/*.tar", index: {tars}.index}}' in said, said


def test_what_killed_writers_left():
    photos = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        left, used, others = (os.path.join(top, f"x.index.new.{end}") for end in ("1", "2", "mine"))
        for path in (left, used, others, os.path.join(top, "y.index.new.1")):
            open(path, "w").close()
        with open(used) as file:  # as its writer does
            fcntl.flock(file, fcntl.LOCK_EX)
            penstock("index", photos, "--out", os.path.join(top, "x.index"))
        assert sorted(os.listdir(top)) == ["x.index", "x.index.new.2", "x.index.new.mine", "y.index.new.1"], os.listdir(top)


def test_what_does_not_fit():
    folder = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    samples = containers.samples_of(folder)
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        tars = containers.write_tars(os.path.join(top, "tar"), samples)
        dataset = {"tar": tars, "index": "t.index"}
        code, said = refused("check", write_job(top, dataset))
        assert code == 4 and "t.index" in said and "make it with `penstock index`" in said, said
        index(top, dataset)
        path = os.path.join(top, "t.index")

        def complaint(changed):
            code, said = refused("check", write_job(top, changed))
            assert code == 4 and f"the index '{path}': " in said and "make it again with `penstock index`" in said, said
            return said

        other = {**dataset, "label": "cls"}
        assert "made with other options" in complaint(other)
        assert "file 2 of the data set is nothing, and was shard-002.tar" in complaint({**dataset, "tar": tars.replace("002}", "001}")})
        assert "kind 'tar', and this is one of kind 'mds'" in complaint({"mds": top, "index": "t.index"})

        shard = tars.replace("{000..002}", "001")
        before = os.stat(shard)
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        assert "'shard-001.tar' was changed since" in complaint(dataset)
        os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
        hashes(top, dataset)
        with open(shard, "ab") as file:
            file.write(b"\0")
        assert f"'shard-001.tar' has {before.st_size + 1} bytes, and had {before.st_size}" in complaint(dataset)
        index(top, dataset)
        hashes(top, dataset)

        with open(path, "r+b") as file:
            file.seek(200)
            file.write(b"x")
        assert "its checksum is wrong" in complaint(dataset)
        with open(path, "r+b") as file:
            file.truncate(150)
        assert "it should be" in complaint(dataset)
        with open(path, "w") as file:
            file.write("no index at all" * 20)
        assert "it is no index of penstock" in complaint(dataset)
        open(path, "w").close()
        assert "it is empty" in complaint(dataset)

        index(top, dataset)
        os.remove(shard)  # a shard that is not there is a mistake about the data, with an index and without
        for command in ("check", "index"):
            for changed in (dataset, {"tar": tars}):
                words = ["--split=train", f"--out={top}/none"] if command == "index" else []
                code, said = refused(command, write_job(top, changed), *words)
                why = "is gone" if command == "check" and changed is dataset else "cannot "  # the index knows it was there
                assert code == 4 and why in said and shard in said, (command, said)

        assert "says where its index is" in refused("index", write_job(top, {"tar": tars}))[1]


def test_restart_points():
    """Decoding enters JPEG files at the crop, with the same bytes; a file that was replaced since is decoded as it is."""
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        source = containers.samples_of(os.path.join(demo_photos(count=24, val_count=8, classes=3), "train"))
        for key, path, _ in source:
            os.makedirs(os.path.join(top, "data", os.path.dirname(key)), exist_ok=True)
            with open(os.path.join(top, "data", key), "wb") as file:
                file.write(containers.content(path))
        plain = {"folder": os.path.join(top, "data")}
        indexed = {**plain, "index": "f.index"}

        def entered(dataset, seconds=0.1):
            job = write_job(top, dataset)
            return json.loads(penstock("bench", job, "--json", f"--seconds={seconds}"))["jpeg_indexed"]

        assert ", restart points for 0" in index(top, indexed, "--no-restart-points")
        assert entered(indexed) == 0
        assert ", restart points for 0" not in index(top, indexed)
        assert entered(indexed, 0.5) > 0 and entered(plain) == 0  # its threads may be late
        before = hashes(top, plain)
        assert hashes(top, indexed) == before
        changed = os.path.join(top, "data", source[0][0])
        with open(changed, "r+b") as file:  # in place: the folder does not tell
            file.truncate()
            file.write(containers.content(source[-1][1]))
        assert hashes(top, indexed) == hashes(top, plain) != before


def test_damage_before_a_crop():
    """A few bits of a file that went bad since: decoding recovers from them further down, as if nothing had been there."""
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        data = os.path.join(top, "data")
        shutil.copytree(os.path.join(demo_photos(count=24, val_count=8, classes=3), "train"), data)
        plain, indexed = {"folder": data}, {"folder": data, "index": "f.index"}
        index(top, indexed)
        before = hashes(top, plain)
        assert hashes(top, indexed) == before
        for path in sorted(glob.glob(os.path.join(data, "*", "*.jpg"))):
            with open(path, "r+b") as file:
                file.seek(os.path.getsize(path) // 5)
                byte = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte ^ 0x10 if byte != 0xEF else 0xEE]))
        assert hashes(top, indexed) == hashes(top, plain) != before


def test_places_are_looked_at_first():
    """Nothing is replaced but files, and nobody waits for hours to be told that a name was wrong."""
    photos = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        pipe = os.path.join(top, "pipe")
        os.mkfifo(pipe)
        for out, why in ((pipe, "would replace a folder or a device"), (top, "would replace a folder or a device"),
                         (os.path.join(top, "none", "x.index"), f"there is no folder '{top}/none'")):
            code, said = refused("index", photos, "--out", out)
            assert code == 2 and why in said, (out, code, said)
        assert stat.S_ISFIFO(os.stat(pipe).st_mode)
        for words in (("--split=train",), ("seed=3",)):
            code, said = refused("index", photos, *words, f"--out={top}/x.index")
            assert code == 2 and "belong to a job file" in said, (words, code, said)
        job = write_job(top, {"folder": photos})
        with open(job, "a") as file:
            file.write(f"  other: {{dataset: {{folder: {photos}}}, pipeline: [{{CenterCrop: {{size: 8}}}}], batch_size: 1}}\n")
        code, said = refused("index", job, f"--out={top}/x.index")
        assert code == 2 and "several splits" in said, said
        code, said = refused("index", job, f"--out={top}/x.index", "--split=trian")
        assert code == 2 and "has no split 'trian'" in said, said
        python = write_job(top, {"python": "module:function"}, "python.yaml")
        for words in ((), ("--split=train", f"--out={top}/x.index")):
            code, said = refused("index", python, *words)
            assert code == 2 and "such data sets have no index" in said and "--out" not in said, (words, said)
        os.remove(python)
        code, said = refused("index", os.path.join(top, "nowhere"))
        assert code == 3 and "is neither a folder of data nor a job file" in said, said
        assert sorted(os.listdir(top)) == ["job.yaml", "pipe"], os.listdir(top)


def test_names_with_a_meaning_in_yaml():
    photos = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        names = ("x: y", "esc\x1b[31m", "a, b", "x #y", "brace}", 'quo"te', "\u00fc")
        for name in names if FULL else names[:2]:
            folder = os.path.join(top, name, "data")
            shutil.copytree(photos, folder)
            said = penstock("index", folder)
            assert "\x1b" not in said, said
            job = os.path.join(top, "named.yaml")
            with open(job, "w") as file:
                file.write(f"splits:\n  train:\n    batch_size: 4\n    pipeline: [{{CenterCrop: {{size: 8}}}}]\n  {said.splitlines()[-1]}\n")
            checked = penstock("check", job)
            assert "24 samples" in checked and "\x1b" not in checked, checked
        folder = os.path.join(top, "a{1,2}b")
        containers.write_tars(folder, containers.samples_of(photos))
        code, said = refused("index", folder)
        assert code == 2 and f"'{folder}' has one of the characters" in said, said


def test_a_folder_that_changed():
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        source = containers.samples_of(os.path.join(demo_photos(count=24, val_count=8, classes=3), "train"))
        for key, path, _ in source[:12]:
            os.makedirs(os.path.join(top, "data", os.path.dirname(key)), exist_ok=True)
            with open(os.path.join(top, "data", key), "wb") as file:
                file.write(containers.content(path))
        dataset = {"folder": os.path.join(top, "data"), "index": "f.index"}
        index(top, dataset)
        hashes(top, dataset)
        time.sleep(0.02)  # a change within the clock's tick would go unnoticed
        first = source[0][0]
        with open(os.path.join(top, "data", os.path.dirname(first), "zz.jpg"), "wb") as file:
            file.write(containers.content(source[0][1]))
        said = refused("check", write_job(top, dataset))[1]
        assert f"'{os.path.dirname(first)}' was changed since" in said, said


def test_an_index_inside_its_class_folders():
    photos = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        folder = os.path.join(top, "photos")
        os.makedirs(folder)
        for name in os.listdir(photos):
            os.symlink(os.path.join(photos, name), os.path.join(folder, name))
        for words in ([folder, "--out", os.path.join(folder, "x.index")],
                      [write_job(top, {"folder": folder, "index": os.path.join(folder, ".", "x.index")})]):
            code, said = refused("index", *words)
            assert code == 2 and "would lie in the data set's folder" in said, (code, said)
        assert "24 samples" in penstock("index", folder, "--out", os.path.join(top, "photos.index"))


def test_cache_changes_nothing():
    folder = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")
    with tempfile.TemporaryDirectory(prefix="index-") as top:
        job = write_job(top, {"tar": containers.write_tars(os.path.join(top, "tar"), containers.samples_of(folder))})
        reports = []
        for cache in ("0", "1", "0.00002"):  # none, all, some
            result = leftovers.run([PENSTOCK, "run", job, "--json", "--quiet", "--epochs=3", "roles.trainers=1", f"loader.cache_gb={cache}"], 60)
            assert result.returncode == 0, result.stderr
            report = json.loads(result.stdout.splitlines()[-1])["splits"]["train"]
            reports.append((report["images"], report["order_hash"], report["pixel_hash"]))
        assert reports[0][0] == 72 and len(set(reports)) == 1, reports


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
