"""`penstock pack` and `penstock unpack`: the same stream, the same files, and what goes wrong said by name."""

import fcntl
import filecmp
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

import containers
import leftovers
from jobs import FULL, PENSTOCK, demo_photos, hashes_of, left_to_full, run_job, run_tests

JOB = """\
seed: 11
roles: {{trainers: 2}}
on_error: {on_error}
splits:
  train:
    mode: train
    dataset: {dataset}
    pipeline: [{pipeline}]
    sampler: {{shuffle: true}}
    batch_size: 10
"""
PHOTOS = os.path.join(demo_photos(count=24, val_count=8, classes=3), "train")


def penstock(*words, code=0, **kwargs):
    result = leftovers.run([PENSTOCK, *words], 60, **kwargs)
    assert result.returncode == code, f"{' '.join(words)}: exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout if code == 0 else result.stderr + result.stdout


def write_job(top, dataset, name="job.yaml", on_error="substitute", pipeline="{RandomResizedCrop: {size: 32}}, RandomHorizontalFlip"):
    path = os.path.join(top, name)
    with open(path, "w") as file:
        file.write(JOB.format(dataset=json.dumps(dataset), on_error=on_error, pipeline=pipeline))
    return path


def stream(top, dataset, **kwargs):
    job = write_job(top, dataset, "stream.yaml", **kwargs)
    return penstock("inspect", job, "--raw", "--steps=9", "--sheet=0", "--out", os.path.join(top, "out")).splitlines()


def same_files(a, b):
    names = sorted(os.listdir(a))
    return names == sorted(os.listdir(b)) and all(filecmp.cmp(os.path.join(a, name), os.path.join(b, name), shallow=False) for name in names)


def shards(pack):
    return sorted(name for name in os.listdir(pack) if name.endswith(".pack"))


def copy_photos(top):
    target = os.path.join(top, "photos")
    shutil.copytree(PHOTOS, target)
    return target


def test_the_same_stream_from_run():
    """The key test: what `penstock run` reports of the folder and of its packs, rewritten ones too."""
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        packed, rewritten = (os.path.join(top, name) for name in ("packed", "rewritten"))
        said = penstock("pack", PHOTOS, packed, "--shard-size", "700KB")
        assert "24 samples" in said and f"dataset: {{pack: {packed}}}" in said and len(shards(packed)) > 2, said
        report = json.loads(penstock("pack", PHOTOS, rewritten, "--rewrite", "--json"))
        assert report["rewritten"] > 4 and report["restart_points"] == 24 and not report["bad"], report

        def figures(dataset):
            result = run_job(write_job(top, dataset), overrides=["roles.trainers=1"], options=["--epochs=2"])
            return hashes_of(result.report)

        wanted = figures({"folder": PHOTOS})
        assert figures({"pack": packed}) == wanted and figures({"pack": rewritten}) == wanted
        checked = penstock("check", write_job(top, {"pack": packed}))
        assert "24 samples in 3 classes" in checked and "0 unusable" in checked, checked
        assert "pack" in penstock("check", packed) and f"{report['rewritten']} rewritten" in penstock("check", rewritten)
        # Crops are decoded from the restart points of the pack.
        bench = json.loads(penstock("bench", write_job(top, {"pack": packed}), "--json", "--seconds=0.1"))
        assert bench["jpeg_indexed"] > 0, bench


def test_every_kind():
    samples = containers.samples_of(PHOTOS)
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        kinds = {
            "tar": lambda: ({"tar": containers.write_tars(os.path.join(top, "tar"), samples), "fields": "txt"}, "class00/000000.jpg"),
            "gz": lambda: ({"tar": containers.write_tars(os.path.join(top, "gz"), samples, packed=True), "fields": "txt"},
                           "class00/000000.jpg"),
            "mds": lambda: ({"mds": containers.write_mds(os.path.join(top, "mds"), samples), "fields": "name"}, None),
            "tfrecord": lambda: ({"tfrecord": containers.write_tfrecords(os.path.join(top, "tf"), samples)}, None),
            "csv": lambda: ({"csv": containers.write_csv(os.path.join(top, "csv", "x.csv"), samples), "fields": "number,name:text"}, None),
            "list": lambda: ({"list": containers.write_list(os.path.join(top, "x.txt"), samples)}, None),
        }
        for name in kinds if FULL else ("tar", "csv"):  # one that can be unpacked, and one whose names lead out
            dataset, file = kinds[name]()
            pack = os.path.join(top, name + ".pack")
            penstock("pack", write_job(top, dataset), pack, "--shard-size", "1MB")
            assert stream(top, {"pack": pack}) == stream(top, dataset), name
            files = os.path.join(top, name + ".files")
            if name in ("csv", "list"):  # their names lead out of any folder
                said = penstock("unpack", pack, files, code=2)
                assert "cannot be written below" in said and ("absolute" in said or "'..'" in said), said
                continue
            penstock("unpack", pack, files)
            again = {"csv": os.path.join(files, "samples.csv")}
            fields = dataset.get("fields")
            if fields:
                again["fields"] = f"{fields}:text"
            assert stream(top, again)[1] == stream(top, dataset)[1], name
            if file:
                assert filecmp.cmp(os.path.join(files, file), os.path.join(PHOTOS, file), shallow=False)


def test_through_an_index():
    """Of a data set with an index the pack is that of the data set; and Parquet is packed through its index alone."""
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        plain, indexed = os.path.join(top, "plain"), os.path.join(top, "indexed")
        penstock("pack", PHOTOS, plain)
        job = write_job(top, {"folder": PHOTOS, "index": "f.index"})
        penstock("index", job)
        penstock("pack", job, indexed)
        assert same_files(plain, indexed)
        if not FULL:
            return  # parquet_test has indexes of Parquet files
        fake = {**os.environ, "PENSTOCK_PYTHON": sys.executable,
                "PYTHONPATH": os.path.join(os.path.dirname(os.path.abspath(containers.__file__)), "fake_pyarrow")}
        files = containers.write_parquet(os.path.join(top, "parquet"), containers.samples_of(PHOTOS), 3)
        dataset = {"parquet": files, "index": "p.index", "fields": "box, name"}
        said = penstock("pack", os.path.dirname(files), os.path.join(top, "q"), code=2)
        assert "has none" in said and "penstock index" in said, said
        penstock("index", write_job(top, dataset), env=fake)
        packed = os.path.join(top, "p")
        penstock("pack", write_job(top, dataset), packed)
        assert stream(top, {"pack": packed}) == stream(top, dataset)
        penstock("unpack", packed, os.path.join(top, "files"))
        assert os.path.exists(os.path.join(top, "files", "train-0.parquet[0].jpg"))
        import numpy
        assert list(numpy.load(os.path.join(top, "files", "train-1.parquet[2].box.npy"))) == [2, 0.5, -2]


def test_pairs_and_pixels():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        photos, masks = os.path.join(top, "photos"), os.path.join(top, "masks")
        os.makedirs(os.path.join(photos, "a"))
        os.makedirs(os.path.join(masks, "a"))
        for number in range(6):  # a P5 picture is no mask: a bad sample is packed as it is
            with open(os.path.join(photos, "a", f"{number}.ppm"), "wb") as file:
                file.write(b"P6\n9 7\n255\n" + bytes((number * 31 + at) % 256 for at in range(189)))
            with open(os.path.join(masks, "a", f"{number}.PNG" if number else "0.pgm"), "wb") as file:
                file.write(grey_png(9, 7, bytes((number + at) % 5 for at in range(63))) if number else b"P5\n9 7\n255\n" + bytes(63))
        dataset = {"images": photos, "masks": masks}
        pack = os.path.join(top, "pairs.pack")
        report = json.loads(penstock("pack", write_job(top, dataset), pack, "--json"))
        assert [one["key"] for one in report["bad"]] == ["a/0.ppm"] and "mask" in report["bad"][0]["reason"], report
        words = {"pipeline": "{RandomCrop: {size: 4}}"}
        assert stream(top, {"pack": pack}, **words) == stream(top, dataset, **words)
        penstock("unpack", pack, os.path.join(top, "files"))
        for folder, source in (("images", photos), ("masks", masks)):
            assert same_files(os.path.join(top, "files", folder, "a"), os.path.join(source, "a"))
        for packed in (write_job(top, dataset), pack):
            penstock("pack", packed, os.path.join(top, "shards"), "--tar")  # and of the pack the same
        with tarfile.open(os.path.join(top, "shards", "shard-00000.tar")) as shard:
            assert shard.getnames()[:4] == ["000000000.ppm", "000000000.mask.ppm", "000000001.ppm", "000000001.mask.png"]

        dataset = write_cifar(top)
        pack = os.path.join(top, "cifar.pack")
        penstock("pack", write_job(top, dataset), pack)
        assert stream(top, {"pack": pack}) == stream(top, dataset)
        penstock("unpack", pack, os.path.join(top, "pixels"))
        assert stream(top, {"csv": os.path.join(top, "pixels", "samples.csv")})[1] == stream(top, dataset)[1]


def write_cifar(top):
    """Twelve made pictures as CIFAR-10's test part."""
    folder = os.path.join(top, "cifar")
    os.makedirs(folder)
    with open(os.path.join(folder, "test_batch.bin"), "wb") as file:
        for number in range(12):
            file.write(bytes([number % 10]) + bytes((number * 7 + at) % 251 for at in range(3072)))
    return {"cifar10": folder, "train": False}


def test_tar_shards():
    """`pack --tar`: the folder's stream, the files that it had, and the same bytes whatever made them."""
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        shards_of = os.path.join(top, "a b")
        words = ("--tar", "--shard-size=700KB")
        said = penstock("pack", PHOTOS, shards_of, *words)
        made = sorted(os.listdir(shards_of))
        assert made[0] == "classes.txt" and made[1:] == [f"shard-{number:05}.tar" for number in range(len(made) - 1)] and len(made) > 3, made
        pattern = os.path.join(shards_of, "shard-*.tar")
        assert f"24 samples of {PHOTOS} in {len(made) - 1} shards" in said and pattern in said, said
        assert stream(top, {"tar": pattern})[1] == stream(top, {"folder": PHOTOS})[1]
        names = []
        for name in made[1:]:
            path = os.path.join(shards_of, name)
            with tarfile.open(path) as shard:
                for member in shard:
                    names.append(member.name)
                    assert (member.uid, member.gid, member.mode, member.mtime, member.isfile()) == (0, 0, 0o644, 315532800, True)
                    if member.name.endswith(".jpg"):
                        key = member.pax_headers["comment"]
                        with open(os.path.join(PHOTOS, key), "rb") as file:
                            assert shard.extractfile(member).read() == file.read(), key
                    else:
                        assert shard.extractfile(member).read() == str(int(key[len("class"):][:2])).encode(), key
            said = subprocess.run(["tar", "-C", top, "-xvf", path], capture_output=True, text=True)
            assert said.returncode == 0 and not said.stderr, said
        assert names == [f"{row:09}.{end}" for row in range(24) for end in ("jpg", "cls")]
        with open(os.path.join(shards_of, "classes.txt")) as file:
            assert file.read().split() == sorted(os.listdir(PHOTOS))

        for no_pack in (shards_of, os.path.join(shards_of, made[1])):
            said = penstock("unpack", no_pack, os.path.join(top, "unpacked"), code=2)
            assert f"'{no_pack}' is no pack, but tar shards" in said and "help: tar unpacks them: " in said, said

        pack, again = os.path.join(top, "p"), os.path.join(top, "again")
        penstock("pack", PHOTOS, pack, "--shard-size=1MB")
        penstock("pack", pack, again, *words, "--threads=7", "--no-verify")
        assert same_files(again, shards_of)
        # As a run that was broken off leaves them.
        for name in made[1:]:
            os.rename(os.path.join(again, name), os.path.join(again, name + ".unfinished"))
        os.remove(os.path.join(again, made[-1] + ".unfinished"))
        part = os.path.join(again, made[-1] + ".unfinished.00000000-0123456789ab.part")  # another host's, of two days ago
        open(part, "wb").close()
        os.utime(part, times=(time.time() - 172800,) * 2)
        penstock("check", write_job(top, {"tar": os.path.join(again, "*.tar")}), code=4)  # there is nothing to read yet
        report = json.loads(penstock("pack", pack, again, *words, "--json"))
        assert 0 < report["found"] < 24 and report["samples"] == 24 and report["shards"] == len(made) - 1, report
        assert same_files(again, shards_of)
        said = penstock("pack", PHOTOS, again, "--tar", "--shard-size=800KB", code=2)
        assert f"{made[1]}' is there, and is not what would be written" in said, said
        shutil.copy(os.path.join(again, made[1]), os.path.join(again, "shard-00099.tar"))
        said = penstock("pack", PHOTOS, again, *words, code=2)
        assert "'shard-00099.tar' is there, and no sample is left for it" in said, said
        assert "something else than tar shards" in penstock("pack", PHOTOS, pack, "--tar", code=2)

        # A damaged record of a pack is named, and nothing is made of it.
        with open(os.path.join(pack, shards(pack)[0]), "r+b") as file:
            file.seek(5000)
            file.write(b"damage")
        said = penstock("pack", pack, os.path.join(top, "damaged"), "--tar", code=1)
        assert "is damaged: the record of sample 'class00/" in said, said
        assert not [name for name in os.listdir(os.path.join(top, "damaged")) if name.endswith(".tar")]


def test_tar_shards_of_fields_and_pixels():
    samples = containers.samples_of(PHOTOS)
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        table = {"csv": containers.write_csv(os.path.join(top, "csv", "x.csv"), samples), "fields": "number,name:text"}
        out = os.path.join(top, "table")
        penstock("pack", write_job(top, table), out, "--tar")
        with tarfile.open(os.path.join(out, "shard-00000.tar")) as shard:
            members = shard.getnames()[:4]
            assert members == ["000000000.jpg", "000000000.cls", "000000000.number.npy", "000000000.name.txt"], members
        again = {"tar": os.path.join(out, "shard-*.tar"), "fields": "number, name.txt"}
        assert stream(top, again)[1] == stream(top, table)[1]

        dataset = write_cifar(top)
        out = os.path.join(top, "pixels")
        penstock("pack", write_job(top, dataset), out, "--tar")
        assert stream(top, {"tar": os.path.join(out, "shard-*.tar")})[1] == stream(top, dataset)[1]
        with tarfile.open(os.path.join(out, "shard-00000.tar")) as shard:
            assert shard.getnames()[:2] == ["000000000.ppm", "000000000.cls"]


def grey_png(width, height, pixels):
    import zlib
    rows = b"".join(b"\0" + pixels[y * width:(y + 1) * width] for y in range(height))

    def chunk(kind, data):
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\0\0\0\0"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_a_mask_that_is_too_large_is_named():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        photos, masks = os.path.join(top, "photos"), os.path.join(top, "masks")
        for folder, name, size in ((photos, "0.ppm", 1), (masks, "0.pgm", 2**30 + 1)):
            os.makedirs(folder)
            with open(os.path.join(folder, name), "wb") as file:
                file.truncate(size)
        said = penstock("pack", write_job(top, {"images": photos, "masks": masks}), os.path.join(top, "p"), code=4)
        assert f"0.pgm' has {2**30 + 1} bytes, and a pack holds up to {2**30} of one" in said, said
        assert "penstock index" not in said, said


def test_bad_samples_stay_bad():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        photos = copy_photos(top)
        first = os.path.join(photos, "class00", "000000.jpg")
        second = os.path.join(photos, "class01", "000001.jpg")
        third = os.path.join(photos, "class02", "000002.jpg")
        with open(first, "r+b") as file:
            file.truncate(os.path.getsize(first) // 2)
        with open(second, "wb") as file:
            file.write(b"no picture at all")
        open(third, "wb").close()
        pack = os.path.join(top, "p")
        said = penstock("pack", photos, pack, "--rewrite")
        assert "3 unusable, packed as they are" in said and "'class01/000001.jpg': " in said, said
        said = penstock("check", pack)
        assert "in 1 shard, " in said and "3 unusable when packed, 0 damaged" in said, said
        assert stream(top, {"pack": pack}) == stream(top, {"folder": photos})
        files = os.path.join(top, "files")
        penstock("unpack", pack, files)
        for path in (first, second, third):
            assert filecmp.cmp(path, path.replace(photos, files), shallow=False)


def test_any_number_of_threads_makes_the_same_bytes():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        photos = PHOTOS if FULL else os.path.join(os.path.dirname(PHOTOS), "val")  # 8 of them
        one = os.path.join(top, "1")
        penstock("pack", photos, one, "--rewrite", "--threads=1", f"--shard-size={500 if FULL else 200}KB")
        for threads in (2, 7) if FULL else (7,):
            other = os.path.join(top, str(threads))
            penstock("pack", photos, other, "--rewrite", f"--threads={threads}", f"--shard-size={500 if FULL else 200}KB")
            assert same_files(one, other), threads


def test_a_newcomers_way_through_a_pack():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        pack = os.path.join(top, "p")
        penstock("pack", PHOTOS, pack)
        job = os.path.join(top, "job.yaml")
        with open(job, "w") as file:
            file.write(penstock("init", "--data", pack, "--val", os.path.join(os.path.dirname(PHOTOS), "val")))
        assert "check: fine" in penstock("check", job)
        said = penstock("check", pack, "--decode", code=2)
        assert "is a pack" in said and "leave out --decode" in said, said
        said = penstock("unpack", pack, pack, code=2)
        assert "is a pack itself" in said, said
        files = os.path.join(top, "files")
        os.mkdir(files)
        open(os.path.join(files, ".penstock-unpack.part"), "wb").close()  # what a killed one leaves
        penstock("unpack", pack, files)
        assert ".penstock-unpack.part" not in os.listdir(files)


def test_names_that_lead_out_are_told_when_they_are_packed():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        photo = os.path.join(PHOTOS, "class00", sorted(os.listdir(os.path.join(PHOTOS, "class00")))[0])
        table = os.path.join(top, "table.csv")
        with open(table, "w") as file:
            file.write(f"image,label\n{photo},0\n")
        job = write_job(top, {"csv": table, "label": "label"})
        pack = os.path.join(top, "p")
        said = penstock("pack", job, pack)
        assert "1 samples have names that lead out of a folder" in said and photo in said, said
        assert "cannot be written below" in penstock("unpack", pack, os.path.join(top, "files"), code=2)


def begin_and_end(photos, target, how):
    """Starts to pack, sends the signal once there are whole shards, and gives the exit code. A pack that was finished by
    then is removed and begun again."""
    for _ in range(20):
        code, said = _begin_and_end(photos, target, how)
        if code != 0:
            return code, said
        shutil.rmtree(target)
    raise AssertionError("packs are always finished before the signal")


def _begin_and_end(photos, target, how):
    process = subprocess.Popen([PENSTOCK, "pack", photos, target, "--shard-size=20KB", "--threads=1", "--rewrite"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        deadline = time.monotonic() + 30
        while process.poll() is None and not (os.path.isdir(target) and len(shards(target)) > 1):
            assert time.monotonic() < deadline, "no shard in 30 s"
            time.sleep(0.001)
        process.send_signal(how)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


def interrupt_at_once():
    """Of a process to be: a SIGINT that is there already, and waits for whoever asks for it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.kill(os.getpid(), signal.SIGINT)


def test_broken_off_and_resumed():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        photos = copy_photos(top)
        words = ("--shard-size=20KB", "--rewrite")
        whole = os.path.join(top, "whole")
        penstock("pack", photos, whole, *words)
        ways = ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130), (signal.SIGTERM, 143))
        for how, code in ways if FULL else ways[:1]:
            target = os.path.join(top, how.name)
            got, said = begin_and_end(photos, target, how)
            assert got == code, (how, got, said)
            assert how == signal.SIGKILL or "the same command goes on from there" in said, said
            assert "pack.state" in os.listdir(target) and "pack.index" not in os.listdir(target)
            said = penstock("check", write_job(top, {"pack": target}), code=4)
            assert "is not finished" in said and "run the same `penstock pack` again" in said, said
            made = {name: os.stat(os.path.join(target, name)).st_ino for name in shards(target)}
            known = json.load(open(os.path.join(target, "pack.state")))["shards"]
            assert len(known) >= len(made) > 1, how  # the state knows a shard a moment before that has its name
            report = json.loads(penstock("pack", photos, target, *words, "--json"))
            assert report["found"] == sum(one[0] for one in known[:len(made)]) and report["samples"] == 24, report
            for name, inode in made.items():
                assert os.stat(os.path.join(target, name)).st_ino == inode, f"{name} was made again"
            assert same_files(whole, target), how

        if not FULL:
            return  # test_interrupted_while_an_earlier_part_is_read has a damaged part, too

        # Killed between the last two steps, when the index is there and the state not gone yet.
        target = os.path.join(top, "late")
        begin_and_end(photos, target, signal.SIGKILL)
        state = containers.content(os.path.join(target, "pack.state"))
        penstock("pack", photos, target, *words)
        with open(os.path.join(target, "pack.state"), "wb") as file:
            file.write(state)
        assert json.loads(penstock("pack", photos, target, *words, "--json"))["finished"] and same_files(whole, target)

        # Nothing is taken for granted: a changed picture, another order of words, a damaged shard.
        target = os.path.join(top, "again")
        begin_and_end(photos, target, signal.SIGKILL)
        said = penstock("pack", photos, target, "--shard-size=30KB", "--rewrite", code=2)
        assert "other options: shard size was 20000 and is 30000" in said, said
        first = os.path.join(target, "shard-00000.pack")
        with open(first, "r+b") as file:
            file.seek(-70, os.SEEK_END)
            file.write(b"x")
        said = leftovers.run([PENSTOCK, "pack", photos, target, *words], 60)
        assert said.returncode == 0 and "made again: '" in said.stderr and same_files(whole, target), said.stderr

        # Zeros among the records, as after a loss of power.
        target = os.path.join(top, "zeros")
        begin_and_end(photos, target, signal.SIGKILL)
        with open(os.path.join(target, "shard-00000.pack"), "r+b") as file:
            file.seek(5000)
            file.write(bytes(1000))
        # Reading what is there may take hours, so Ctrl-C ends that too; here it is there before anything is read.
        state = containers.content(os.path.join(target, "pack.state"))
        said = leftovers.run([PENSTOCK, "pack", photos, target, *words], 60, preexec_fn=interrupt_at_once)
        assert said.returncode == 130 and "the same command goes on from there" in said.stderr, said.stderr
        known = len(json.loads(state)["shards"])
        assert "made again" not in said.stderr and f"with {known} whole shards" in said.stderr, said.stderr
        assert containers.content(os.path.join(target, "pack.state")) == state
        said = leftovers.run([PENSTOCK, "pack", photos, target, *words], 60)
        assert said.returncode == 0 and "has a wrong checksum" in said.stderr and same_files(whole, target), said.stderr

        target = os.path.join(top, "changed")
        begin_and_end(photos, target, signal.SIGKILL)
        picture = os.path.join(photos, "class00", "000000.jpg")
        with open(picture, "r+b") as file:  # in place: no folder tells
            file.write(containers.content(picture))
        said = penstock("pack", photos, target, *words, code=4)
        assert "a file of the data set was changed since" in said and "class00/000000.jpg" in said, said
        os.remove(os.path.join(photos, "class02", "000002.jpg"))
        said = penstock("pack", photos, target, *words, code=4)
        assert "'class02' in it was changed" in said, said


def interrupted_at_once():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    os.kill(os.getpid(), signal.SIGINT)  # waits for whoever asks for it


def test_interrupted_while_an_earlier_part_is_read():
    """Of a large pack that takes minutes."""
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        photos, target = copy_photos(top), os.path.join(top, "p")
        begin_and_end(photos, target, signal.SIGKILL)
        whole = len(shards(target))
        flip(os.path.join(target, "shard-00000.pack"), 70)
        words = [PENSTOCK, "pack", photos, target, "--shard-size=20KB", "--threads=1", "--rewrite"]
        result = subprocess.run(words, capture_output=True, text=True, timeout=60, preexec_fn=interrupted_at_once)
        # Before the damage is come upon.
        assert result.returncode == 130 and "made again" not in result.stderr, (result.returncode, result.stderr)
        assert "interrupted with " in result.stderr and " 0 whole" not in result.stderr and len(shards(target)) == whole, result.stderr
        assert "24 samples" in penstock(*words[1:]) and "0 damaged" in penstock("check", target)


def test_names_that_a_terminal_would_obey():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        photos = copy_photos(top)
        with open(os.path.join(photos, "class00", "\x1b[2J.jpg"), "wb") as file:
            file.write(b"no picture")
        said = penstock("pack", photos, os.path.join(top, "p"))
        assert "\x1b" not in said and "'class00/\\x1b[2J.jpg'" in said, said
        said = penstock("check", os.path.join(top, "p"))
        assert "\x1b" not in said and "'class00/\\x1b[2J.jpg'" in said, said
        said = penstock("run", write_job(top, {"pack": os.path.join(top, "p")}, on_error="fail"), "roles.trainers=1", code=4)
        assert "\x1b" not in said and "\\x1b[2J.jpg" in said, said


def test_more_threads_than_there_are_to_have():
    with open(os.path.join(os.path.dirname(PENSTOCK), "CMakeCache.txt"), encoding="utf-8") as file:
        if re.search(r"^PENSTOCK_SANITIZE:\w+=.", file.read(), re.M):
            print("sanitizers need more address space than this test leaves")
            return
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        limit = ["prlimit", f"--as={1 << 30}"]
        job = write_job(top, {"folder": PHOTOS})
        for words in (("pack", PHOTOS, os.path.join(top, "p"), "--threads=500"), ("bench", job, "--seconds=0.1", "loader.threads=500"),
                      ("run", job, "roles.trainers=1", "loader.threads=500")):
            for _ in range(3):
                result = leftovers.run([*limit, PENSTOCK, *words], 60)
                # glibc itself ends a process that has no memory to note a thread's destructors; it rarely comes to that.
                if result.returncode != -6 or "Fatal glibc error" not in result.stderr:
                    break
            problems = ["cannot start 500 threads"]
            if words[0] == "pack":
                # It is made by as many threads as there are; their stacks may or may not leave enough to make it in.
                if result.returncode == 0:
                    continue
                problems = ["no memory left", "out of memory"]
            said = any(problem in result.stderr for problem in problems)
            assert result.returncode == 1 and said, (words[0], result.returncode, result.stderr)
            assert "threads" in result.stderr.split("help:")[1], result.stderr


@left_to_full("test_broken_off_and_resumed: killed once")
def test_killed_again_and_again():
    seed = int.from_bytes(os.urandom(4), "big")
    print("seed", seed)
    draw = random.Random(seed)
    photos = os.path.join(demo_photos(), "train")
    words = ("--shard-size=100KB", "--rewrite", "--quiet")
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        whole = os.path.join(top, "whole")
        penstock("pack", photos, whole, *words)
        kills = 0
        for number in range(20):
            target = os.path.join(top, str(number))
            for attempt in range(200):
                process = subprocess.Popen([PENSTOCK, "pack", photos, target, *words, f"--threads={draw.randint(1, 4)}"],
                                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                try:
                    _, said = process.communicate(timeout=draw.uniform(0, 0.02) * (1 + attempt))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                    kills += 1
                    continue
                # Killed after the last step, it is finished all the same.
                assert process.returncode == 0 or "holds a finished pack" in said, said
                break
            assert same_files(whole, target), number
        assert kills > 0


def test_places_that_are_refused():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        photos = copy_photos(top)
        said = penstock("pack", photos, os.path.join(photos, "p"), code=2)
        assert "would lie in the data set's folder" in said and not os.path.exists(os.path.join(photos, "p")), said
        assert "lies in it" in penstock("pack", photos, top, code=2)
        assert "lies in it" in penstock("pack", photos, photos, code=2)
        os.symlink(photos, os.path.join(top, "link"))
        assert "would lie in" in penstock("pack", photos, os.path.join(top, "link", "p"), code=2)
        full = os.path.join(top, "full")
        os.makedirs(full)
        open(os.path.join(full, "mine.txt"), "w").close()
        assert "it is not empty: 'mine.txt' is in it" in penstock("pack", photos, full, code=2)
        taken = os.path.join(top, "taken")
        os.makedirs(taken)
        lock = os.open(taken, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another `penstock pack` writes to it" in penstock("pack", photos, taken, code=2)
        os.close(lock)
        pack = os.path.join(top, "p")
        penstock("pack", photos, pack)
        assert "holds a finished pack" in penstock("pack", photos, pack, code=2)
        assert "is a pack already" in penstock("pack", pack, os.path.join(top, "q"), code=2)
        said = penstock("pack", os.path.join(top, "nowhere"), os.path.join(top, "q"), code=3)
        assert f"'{top}/nowhere' is neither a folder of data nor a job file" in said, said
        said = penstock("check", os.path.join(top, "nowhere"), code=3)
        assert f"'{top}/nowhere' is neither a job file nor the folder of a pack" in said, said
        assert "empty name" in penstock("pack", photos, "", code=2) and "empty name" in penstock("unpack", pack, "", code=2)
        job = write_job(top, {"python": "a:b"})
        assert "in Python cannot be packed" in penstock("pack", job, os.path.join(top, "q"), code=2)
        said = penstock("pack", job, os.path.join(top, "q"), "--split=val", code=2)
        assert "has no split 'val'\n  help: it has train\n" in said, said
        sizes = ("abc", "18446744073709551616", "1GG", "0", "-1", "1.5GiB", "0x10", "16EiB", "5000000TB")
        for size in sizes if FULL else sizes[:2]:
            said = penstock("pack", photos, os.path.join(top, "q"), f"--shard-size={size}", code=2)
            assert f"--shard-size: '{size}' is no size: say a number above 0, as 500MB or 1GiB\n" in said, said
        assert not os.path.exists(os.path.join(top, "q"))


def test_trouble_of_disks():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        photos = copy_photos(top)

        def small_disk():  # a write beyond this is an error, as on a full disk
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

        target = os.path.join(top, "p")
        result = subprocess.run([PENSTOCK, "pack", photos, target], capture_output=True, text=True, timeout=60, preexec_fn=small_disk)
        assert result.returncode == 1 and f"cannot write '{target}/shard-00000.pack': File too large" in result.stderr, result.stderr
        assert "make room" in result.stderr and os.listdir(target) == ["pack.state"], os.listdir(target)
        penstock("pack", photos, target)
        result = subprocess.run([PENSTOCK, "unpack", target, os.path.join(top, "files")], capture_output=True, text=True, timeout=60,
                                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)))
        assert result.returncode == 1 and "cannot write '" in result.stderr and "File too large" in result.stderr, result.stderr
        left = [name for _, _, names in os.walk(os.path.join(top, "files")) for name in names]
        assert not any(name.endswith(".part") for name in left), left

        gone = os.path.join(photos, "class01", "gone.jpg")
        os.symlink(os.path.join(top, "nowhere"), gone)
        said = penstock("pack", photos, os.path.join(top, "q"), code=1)
        assert f"'{gone}'" in said and "No such file" in said, said


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_damage_is_named():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        good = os.path.join(top, "good")
        penstock("pack", PHOTOS, good, "--shard-size=1MB")
        job = write_job(top, {"pack": os.path.join(top, "p")})

        def damaged(change):
            pack = os.path.join(top, "p")
            shutil.rmtree(pack, ignore_errors=True)
            shutil.copytree(good, pack)
            change(pack)
            return pack

        shard = lambda pack: os.path.join(pack, "shard-00001.pack")  # noqa: E731
        size = os.path.getsize(shard(good))
        # A record: the disk is to blame, not the picture, and a job does not train on it.
        pack = damaged(lambda pack: flip(shard(pack), 5000))
        said = penstock("check", pack, code=1)
        assert "shard-00001.pack': sample 'class" in said and "wrong checksum" in said and "1 damaged" in said, said
        said = penstock("check", job, code=1)
        assert "shard-00001.pack' is damaged: the record of sample 'class" in said and "cannot be read at all" in said, said
        result = run_job(job, overrides=["roles.trainers=1", "balancer.retry_s=0"], options=["--epochs=1"])
        assert result.code == 1 and "has a wrong checksum" in result.log, result.log
        for change, words, code in (
                (lambda pack: flip(shard(pack), size - 30), "the checksum of its trailer is wrong", 4),
                (lambda pack: os.truncate(shard(pack), size - 100), f"has {size - 100} bytes, and had {size}", 4),
                (lambda pack: os.remove(shard(pack)), "shard-00001.pack': No such file", 4),
                (lambda pack: shutil.copy(os.path.join(pack, "shard-00000.pack"), shard(pack)), "shard-00001.pack' has", 4),
                (lambda pack: flip(os.path.join(pack, "pack.index"), 500), "its checksum is wrong", 4),
                (lambda pack: flip(os.path.join(pack, "pack.index"), 30), "its header is damaged", 4),
                (lambda pack: os.truncate(os.path.join(pack, "pack.index"), 700), "it should be", 4),
                (lambda pack: os.remove(os.path.join(pack, "pack.index")), "dataset.pack names a folder that `penstock pack` made", 4)):
            damaged(change)
            commands = (["check", job], ["unpack", os.path.join(top, "p"), os.path.join(top, "files")], ["check", os.path.join(top, "p")],
                        ["init", "--data", os.path.join(top, "p")])
            for command in commands if FULL else commands[:1]:
                if words.startswith("dataset.pack") and command[0] in ("check", "init") and command[-1] != job:
                    continue  # without its index it is a folder like any other
                said = penstock(*command, code=code)
                assert words in said and "penstock index" not in said, (command, said)
        for at, words in ((20, "the checksum of its header is wrong"), (size - 200, "the checksum of its table is wrong")):
            pack = damaged(lambda pack: flip(shard(pack), at))
            assert words in penstock("check", pack, code=1)


def test_unpack_overwrites_nothing():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        pack, files = os.path.join(top, "p"), os.path.join(top, "files")
        penstock("pack", PHOTOS, pack)
        penstock("unpack", pack, files)
        assert "0 files of 24 samples" in penstock("unpack", pack, files) and all(
            same_files(os.path.join(files, name), os.path.join(PHOTOS, name)) for name in os.listdir(PHOTOS))
        victim = os.path.join(files, "class01", "000001.jpg")
        with open(victim, "w") as file:
            file.write("mine")
        said = penstock("unpack", pack, files, code=2)
        assert f"'{victim}' is there already" in said and "--overwrite" in said and open(victim).read() == "mine", said
        precious = os.path.join(top, "precious")
        with open(precious, "w") as file:
            file.write("mine")
        os.remove(victim)
        os.symlink(precious, victim)
        penstock("unpack", pack, files, code=2)
        penstock("unpack", pack, files, "--overwrite")
        assert open(precious).read() == "mine" and not os.path.islink(victim)
        shutil.rmtree(os.path.join(files, "class01"))
        os.makedirs(os.path.join(top, "elsewhere"))
        os.symlink(os.path.join(top, "elsewhere"), os.path.join(files, "class01"))
        for words in ((), ("--overwrite",)):
            said = penstock("unpack", pack, files, *words, code=2)
            assert "class01' is a link or a file" in said and not os.listdir(os.path.join(top, "elsewhere")), said


def test_unpack_rescues_what_is_sound():
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        pack, files = os.path.join(top, "p"), os.path.join(top, "files")
        penstock("pack", PHOTOS, pack)
        with open(os.path.join(pack, "shard-00000.pack"), "r+b") as file:
            file.seek(5000)
            file.write(b"not what was here")
        said = penstock("unpack", pack, files, code=1)
        assert "23 files of 23 samples" in said and "wrong checksum" in said and "1 damaged samples are left out" in said, said


def test_unpack_is_interrupted():
    photos = os.path.join(demo_photos(), "train")
    with tempfile.TemporaryDirectory(prefix="pack-") as top:
        pack = os.path.join(top, "p")
        penstock("pack", photos, pack)
        for number in range(40):
            files = os.path.join(top, str(number))
            process = subprocess.Popen([PENSTOCK, "unpack", pack, files, "--quiet"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True, start_new_session=True)
            deadline = time.monotonic() + 30
            while process.poll() is None and not os.path.isdir(files):
                assert time.monotonic() < deadline, "no folder in 30 s"
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
            if process.returncode != 0:
                break
        assert process.returncode == 130 and "the same command goes on from there" in said, (process.returncode, said)
        left = sum(len(names) for _, _, names in os.walk(files))
        assert not any(name.endswith(".part") for _, _, names in os.walk(files) for name in names)
        said = penstock("unpack", pack, files)
        assert f"{80 - left} files of 80 samples" in said, said
        for name in os.listdir(photos):
            assert same_files(os.path.join(files, name), os.path.join(photos, name))


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
