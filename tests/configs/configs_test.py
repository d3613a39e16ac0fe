"""Every job of configs/ runs: `penstock check`, then the job itself on small generated data, with nothing else changed
than folders, batch sizes and, where the job is for a larger machine, trainers. By default one of them is launched as its
own text says, and the others run in one process; with PENSTOCK_FULL=1 all are launched, and served."""

import glob
import json
import os
import shutil
import sys
import tempfile
import time

import containers
from jobs import FULL, demo_photos
from leftovers import no_leftovers, run
from trainers import Serving, run_trainers

BUILD = os.environ["PENSTOCK_BUILD"]
CONFIGS = os.path.join(os.environ["PENSTOCK_SOURCE"], "configs")
PENSTOCK = os.path.join(BUILD, "penstock")
CONSUME = os.path.join(BUILD, "consume")
TRAIN, VAL, BATCH = 24, 8, 4
# Overrides and ranks of each job; ranks 0: `penstock run` without mpirun.
JOBS = {
    "single_node.yaml": (4, []),
    "imagenet_train_val.yaml": (3, ["roles.trainers=2", "loader.threads=1"]),
    "embedded.yaml": (0, []),
    "large_photos.yaml": (0, []),
    "two_lists.yaml": (0, []),
    "small_pictures_png.yaml": (3, []),
    "substitute_bad_samples.yaml": (3, []),
    "multi_node.yaml": (3, ["roles.trainers=2", "loader.threads=1"]),
    "low_memory.yaml": (2, []),
    "python_dataset.yaml": (3, ["loader.threads=1"]),
    "attach.yaml": (3, []),
    "paired_pictures.yaml": (3, []),
    "segmentation_masks.yaml": (3, []),
    "cifar10.yaml": (3, ["loader.threads=1"]),
    "tar.yaml": (3, ["loader.threads=1"]),
    "csv.yaml": (3, ["loader.threads=1"]),
}
# The key that says where the data is, where that is not `folder`, and where this test puts it.
PLACES = {
    "cifar10.yaml": ("cifar10", "cifar"),
    "tar.yaml": ("tar", "tars/{split}-*.tar"),
    "csv.yaml": ("csv", "{split}.csv"),
}
# Folders of a split, where its dataset is no folder of classes.
PAIRED = {"paired_pictures.yaml": {"images": "pictures", "targets": "blurred"},
          "segmentation_masks.yaml": {"images": "pictures", "masks": "masks"}}
# Jobs for `penstock serve`: programs of two trainers attach, twice, instead of being started.
SERVED = {"attach.yaml"}


def make_png_folders(top):
    from PIL import Image
    for split, count in (("train", TRAIN), ("val", VAL)):
        for i in range(count):
            folder = os.path.join(top, split, "cat" if i % 2 else "dog")
            os.makedirs(folder, exist_ok=True)
            picture = Image.effect_noise((32, 32), 40 + i).convert("RGB")
            picture.save(os.path.join(folder, f"{i:04}.png"))


def make_pairs(top):
    from PIL import Image, ImageFilter
    for split, count in (("train", TRAIN), ("val", VAL)):
        for i in range(count):
            picture = Image.effect_noise((150 + i, 140), 40 + i).convert("RGB")
            made = {"pictures": picture, "blurred": picture.filter(ImageFilter.GaussianBlur(2)),
                    "masks": picture.convert("L").point(lambda value: value // 64)}
            for name, one in made.items():
                folder = os.path.join(top, split, name, "street")
                os.makedirs(folder, exist_ok=True)
                one.save(os.path.join(folder, f"{i:04}.png"))


def make_cifar(folder):
    os.makedirs(folder)
    for name, count in [(f"data_batch_{i}.bin", TRAIN // 5 + (i <= TRAIN % 5)) for i in range(1, 6)] + [("test_batch.bin", VAL)]:
        with open(os.path.join(folder, name), "wb") as file:
            for i in range(count):
                file.write(bytes([i % 10]) + bytes((i * 7 + k) % 256 for k in range(3072)))


def make_containers(top, photos):
    make_cifar(os.path.join(top, "cifar"))
    for split in ("train", "val"):
        samples = containers.samples_of(os.path.join(photos, split))
        made = containers.write_tars(os.path.join(top, "tars", split), samples, 2)
        for number in range(2):
            os.rename(made.replace("{000..001}", f"{number:03}"), os.path.join(top, "tars", f"{split}-{number:03}.tar"))
        with open(os.path.join(top, f"{split}.csv"), "w") as file:
            file.write("image,age,label\n")
            for number, (key, path, _) in enumerate(samples):
                file.write(f'"{path}",{number}.5,{key.split("/")[0]}\n')


def spoil(top):
    """A cut-off photo and a text named .jpg among the training photos, one empty file among the others."""
    train = sorted(glob.glob(os.path.join(top, "train", "*", "*.jp*g")))
    with open(train[3], "r+b") as file:
        file.truncate(os.path.getsize(train[3]) // 10)
    with open(train[11], "w", encoding="ascii") as file:
        file.write("not a photo\n")
    with open(sorted(glob.glob(os.path.join(top, "val", "*", "*.jp*g")))[2], "w", encoding="ascii"):
        pass


def serve(job, env, ranks, overrides):
    """The report of a served job that one pair of trainers after another attached to, an epoch each."""
    unique = f"name=configs_test_{os.getpid()}"  # the file's own name may be in use on this machine
    with Serving(job, env, ranks, [*overrides, unique]) as serving:
        for _ in range(2):
            for code, out, err in run_trainers([CONSUME, job, "--epochs=1", unique], 2, env):
                assert code == 0, out + err
        report = serving.end()
    report["splits"]["val"]["images"] //= 2  # one validation an attach
    return report


def must(command, env):
    result = run(command, 60, env)
    assert result.returncode == 0, f"{' '.join(command)} -> {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def main():
    files = sorted(os.path.basename(path) for path in glob.glob(os.path.join(CONFIGS, "*.yaml")))
    assert files == sorted(JOBS), f"configs/ and this test's list differ: {sorted(set(files) ^ set(JOBS))}"
    with no_leftovers() as env, tempfile.TemporaryDirectory(prefix="configs_test-") as top:
        env["PENSTOCK_PYTHON"] = sys.executable
        env["ASAN_OPTIONS"] = "detect_leaks=0"  # Open MPI keeps memory to the end
        photos = demo_photos(TRAIN, VAL, classes=2)
        wild, small, pairs = (os.path.join(top, name) for name in ("wild", "small", "pairs"))
        shutil.copytree(photos, wild)
        spoil(wild)
        make_png_folders(small)
        make_pairs(pairs)
        make_containers(top, photos)
        for name, (ranks, overrides) in JOBS.items():
            began = time.monotonic()
            job = os.path.join(CONFIGS, name)
            data = {"small_pictures_png.yaml": small, "substitute_bad_samples.yaml": wild}.get(name, photos)
            shown = must([PENSTOCK, "config", "show", job], env).stdout
            splits = [split for split in ("train", "val") if f"\n  {split}:" in shown]
            assert "train" in splits, shown
            arguments = [job, *overrides]
            for split in splits if name != "python_dataset.yaml" else []:
                folders = {key: os.path.join(pairs, split, part) for key, part in PAIRED.get(name, {}).items()}
                key, place = PLACES.get(name, ("folder", os.path.join(data, split)))
                folders = folders or {key: os.path.join(top, place.replace("{split}", split))}
                arguments += [f"splits.{split}.dataset.{key}={folder}" for key, folder in folders.items()]
                arguments.append(f"splits.{split}.batch_size={BATCH}")
            checked = must([PENSTOCK, "check", *arguments], env).stdout
            classes = {"cifar10.yaml": " in 10 classes", "tar.yaml": ","}.get(name, "" if name in PAIRED else " in 2 classes")
            assert f"split train: {TRAIN} samples{classes}" in checked, checked
            ranks = ranks if FULL or name == "single_node.yaml" else 0
            served = FULL and name in SERVED  # attach_test and serve_test serve always
            epochs = 2 if FULL else 1
            if served:
                report = serve(job, env, ranks, arguments[1:])
            elif ranks:
                command = [PENSTOCK, "launch", "--run", "-n", str(ranks), "--json", "--epochs", str(epochs), *arguments]
            else:
                command = [PENSTOCK, "run", "--json", "--epochs", str(epochs), *arguments]
            if not served:
                result = must(command, env)
                report = json.loads(result.stdout.splitlines()[-1])
            images = {split: report["splits"][split]["images"] for split in splits}
            wanted = {"train": epochs * TRAIN, "val": VAL}
            assert images == {split: wanted[split] for split in splits}, f"{name}: {images}\n{result.stderr}"
            if data == wild:
                said = result.stdout + result.stderr
                bad = [os.path.basename(path) for path in
                       (sorted(glob.glob(os.path.join(wild, "train", "*", "*")))[i] for i in (3, 11))]
                bad.append(os.path.basename(sorted(glob.glob(os.path.join(wild, "val", "*", "*")))[2]))
                assert all(name in said for name in bad), f"the report should list {bad}:\n{said}"
            print(f"{name}: {images} in {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
