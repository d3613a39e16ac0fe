"""Whole jobs with `loader.executor: gpu`: the stream of the CPU, hashes and all, by GPUs that are this CPU; and what is
said where there is no GPU."""

import functools
import json
import os
import shutil
import tempfile

from jobs import FULL, PENSTOCK, demo_photos, left_to_full, run_job, run_tests, write_job
from leftovers import no_leftovers, run

work = tempfile.TemporaryDirectory(prefix="gpus_test-")
# Steps of 32 of 80 and 26 photos, or by default of 8 of 24 and 8.
TRAIN, VAL = (80, 26) if FULL else (24, 8)
job = write_job(work.name, demo_photos()) if FULL else write_job(work.name, demo_photos(TRAIN, VAL, 3), batch=4)
SOME = 20 if FULL else 6  # images, that GPUs must have made of 128 or 32; the rest met a busy GPU


def go(ranks, overrides, gpus, more_env={}):
    with no_leftovers() as env:
        return run_job(job, ranks=ranks, overrides=overrides, env=dict(env, PENSTOCK_GPUS=gpus, **more_env), timeout=200)


@functools.cache
def by_cpu(*overrides):
    """The hashes where there is no GPU, in one process."""
    return go(0, overrides, "none").hashes()


def gpus_of(result):
    found = [rank["gpus"] for rank in result.report["ranks"] if rank["role"] == "loader"]
    assert found, result.report["ranks"]
    return found


def test_same_stream():
    expected = by_cpu()
    ways = {0: ["loader.executor=gpu"], 4: ["loader.executor=auto", "loader.gpus=2", "loader.gpu_memory_mb=8"]}
    for ranks, overrides in ways.items():
        if ranks and not shutil.which("mpirun"):
            continue
        result = go(ranks, overrides, "host")
        assert result.code == 0, result.log
        assert result.hashes() == expected
        images = [gpus["images"] for gpus in gpus_of(result)]
        assert sum(images) > SOME, result.report["ranks"]
        assert all(gpus["remade"] == 0 and "none" not in gpus for gpus in gpus_of(result))


def test_entropy_is_decoded_by_gpus_with_an_index_and_without():
    # A chunk has all photos of its split, so that no chunk meets a busy GPU, and the same bytes are counted each time.
    whole = [f"splits.train.batch_size={TRAIN}", f"splits.val.batch_size={VAL}", "loader.chunk_samples=128"]
    expected = by_cpu(*whole)
    index = os.path.join(work.name, "train.index")
    with no_leftovers() as env:
        run([PENSTOCK, "index", job, "--split", "train", "--out", index], 60, env=env)
    indexed = ["splits.train.dataset.index=" + index]
    uploaded = []
    for more in (["loader.gpu_entropy=never", *indexed], ["loader.gpu_entropy=index", *indexed], []):
        result = go(0, ["loader.executor=gpu", "loader.threads=1", *whole, *more], "host")
        assert result.code == 0 and result.hashes() == expected, result.log
        gpus = gpus_of(result)[0]
        assert gpus["images"] > SOME and gpus["remade"] == 0 and gpus["cpu_images"] == 0, gpus
        uploaded.append(sum(gpu["uploaded_bytes"] for gpu in gpus["list"]) / gpus["images"])
    # Bytes of files instead of coefficients; the validation split has no index.
    assert uploaded[1] < 0.8 * uploaded[0], uploaded
    assert uploaded[2] < 0.7 * uploaded[0], uploaded


def test_a_library_decodes_in_fast_jobs_alone():
    # Here it is the CPU's decoder at full size. The validation split has no index.
    index = os.path.join(work.name, "library.index")
    with no_leftovers() as env:
        run([PENSTOCK, "index", job, "--split", "train", "--out", index], 60, env=env)
    overrides = ["loader.executor=gpu", "loader.threads=1", "splits.train.dataset.index=" + index,
                 "loader.nvjpeg=interpolated"]
    for arithmetic in ("exact", "fast"):
        expected = by_cpu(*(["arithmetic=fast"] if arithmetic == "fast" else []))
        result = go(0, [*overrides, "arithmetic=" + arithmetic], "host")
        assert result.code == 0, result.log
        assert [result.hashes()[split][0] for split in expected] == [order for order, _ in expected.values()]
        gpus = gpus_of(result)[0]
        if arithmetic == "exact":
            assert result.hashes() == expected and "nvjpeg" not in gpus["list"][0] and "not_by_nvjpeg" not in gpus, gpus
        else:
            library = gpus["list"][0]["nvjpeg"]
            assert library["library"] == "the CPU's decoder" and "failed" not in library and "refused" not in library, library
            assert SOME < library["images"] <= gpus["images"], gpus
            assert set(gpus["not_by_nvjpeg"]) == {"kind", "no_index"}, gpus
            assert result.log.count("without an index are not left to nvJPEG") == 1, result.log
            assert result.log.count("unusual are not left to nvJPEG") == 1, result.log


def test_two_lists_are_one_stream():
    # Which list makes a sample is drawn; whoever makes it, with GPUs or without, with one loader or three.
    overrides = ["splits.train.cpu_fraction=0.4", "splits.train.gpu_pipeline=[{Resize: {size: 64}}, {CenterCrop: "
                 "{size: 64}}, {RandomGrayscale: {p: 0.3}}, {ToDtype: {dtype: float32, scale: true}}, "
                 "{Normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}]"]
    expected = go(0, overrides, "none").hashes()
    assert expected["train"] != by_cpu()["train"]
    result = go(0, [*overrides, "loader.executor=gpu", "loader.threads=1"], "host")
    assert result.hashes() == expected, result.log
    assert sum(gpus["images"] for gpus in gpus_of(result)) > 0, result.report["ranks"]
    for ranks in (3, 4, 5) if FULL else (4,):
        if not shutil.which("mpirun"):
            break
        result = go(ranks, [*overrides, "loader.executor=auto", "loader.gpus=2"], "host" if ranks == 4 else "none")
        assert result.hashes() == expected, result.log
    # The manifest says whose a sample is, and the hash covers it.
    folder = os.path.join(work.name, "inspected")
    with no_leftovers() as env:
        said = run([PENSTOCK, "inspect", job, "--trainers=2", "--steps=9", "--raw", f"--out={folder}", *overrides], 60,
                   env=env)
    order, pixel = (line.split()[1] for line in said.stdout.splitlines()[:2])
    assert (order, pixel) == expected["train"], (said.stdout, expected)
    with open(os.path.join(folder, "manifest.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    variants = [line["variant"] for line in lines]
    assert set(variants) == {"cpu", "gpu"} and 0.2 < variants.count("cpu") / len(variants) < 0.65, variants
    for line in lines:
        assert line["hash_draws"][-1] == [0xFFFE, [["cpu", "gpu"].index(line["variant"])]], line
        assert (line["crop"] is not None and len(line["hash_draws"]) == 3) or line["variant"] == "gpu", line


def test_the_share_of_one_list_changes_no_byte():
    expected = by_cpu()
    images = []
    for share in (0, 1):
        result = go(0, ["loader.executor=gpu", f"loader.cpu_fraction={share}"], "host")
        assert result.hashes() == expected, result.log
        images.append(sum(gpus["images"] for gpus in gpus_of(result)))
    assert images[0] > SOME and images[1] == 0, images


def test_a_share_by_speed_changes_no_byte():
    expected = by_cpu()
    overrides = ["loader.executor=gpu", "loader.gpus=2", "loader.gpu_memory_mb=512", "loader.cpu_fraction=auto"]
    for ranks in (0, 4) if FULL else (0,):
        if ranks and not shutil.which("mpirun"):
            continue
        result = go(ranks, overrides, "host")
        assert result.code == 0 and result.hashes() == expected, result.log
        for gpus in gpus_of(result):
            assert 0 < gpus["by_speed"]["gpu_share"] < 1, gpus
            for gpu in gpus["list"]:
                assert gpu["memory_mb"] == 512, gpu
                assert 0 <= gpu["busy_fraction"] <= 1.01, gpu
                stages = [gpu[stage] for stage in ("copy_s", "decode_s", "augment_s")]
                assert (min(stages) > 0) == (gpu["batches"] > 0) and sum(stages) <= gpu["busy_s"] + 1e-6, gpu
        loaders = [rank for rank in result.report["ranks"] if rank["role"] == "loader"]
        for rank in loaders:
            assert rank["gpus"]["images"] + rank["gpus"]["cpu_images"] == rank["images"], rank
        assert sum(gpus["cpu_images"] for gpus in gpus_of(result)) > 0, result.report
    assert all("by_speed" not in gpus for gpus in gpus_of(go(0, ["loader.executor=gpu"], "host")))


def test_a_gpu_that_a_trainer_shares():
    overrides = ["loader.executor=gpu", "loader.cpu_fraction=auto", "loader.gpu_duty=0.2"]
    result = go(0, overrides, "host", more_env={"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"})
    assert result.code == 0 and result.hashes() == by_cpu(), result.log
    gpus = gpus_of(result)[0]
    assert gpus["duty"] == 0.2 and gpus["mps_percent"] == "30" and gpus["process"] > 1, gpus
    plain = gpus_of(go(0, ["loader.executor=gpu"], "host"))[0]
    assert "duty" not in plain and "mps_percent" not in plain, plain


def test_pixel_transforms_are_made_by_gpus():
    # Colour before the crop, several resizes, all that a policy may draw, blur and noise: a GPU takes every sample that
    # it has a place for, and the stream is the CPU's.
    pipeline = ("[{ColorJitter: {brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.3}}, {RandomResizedCrop: {size: "
                "72}}, RandomHorizontalFlip, {TrivialAugmentWide: {interpolation: bilinear}}, {RandomEqualize: {p: 0.3}}, "
                "{Resize: {size: [60, 50]}}, {RandAugment: {}}, {GaussianBlur: {kernel_size: 5}}, {RandomCrop: {size: 64, "
                "padding: 8, padding_mode: reflect}}, {RandomErasing: {p: 0.5, value: random}}, "
                "{ToDtype: {dtype: float32, scale: true}}]")
    overrides = [f"splits.train.pipeline={pipeline}", "loader.threads=1"]
    expected = go(0, overrides, "none").hashes()
    result = go(0, [*overrides, "loader.executor=gpu", "loader.gpu_memory_mb=600"], "host")
    assert result.code == 0 and result.hashes() == expected, result.log
    assert sum(gpus["images"] for gpus in gpus_of(result)) > SOME, result.report["ranks"]
    assert all(gpus["remade"] == 0 for gpus in gpus_of(result))


@left_to_full("test_pixel_transforms_are_made_by_gpus: others of them")
def test_more_pixel_transforms_are_made_by_gpus():
    pipeline = ("[RGB, {RandomShortestSize: {min_size: [90, 120], max_size: 300}}, {RandomResizedCrop: {size: 72, interpolation: "
                "[bilinear, hamming, bicubic]}}, {RandomPhotometricDistort: {p: 0.7}}, {ScaleJitter: {target_size: [72, 72], "
                "scale_range: [0.9, 1.4]}}, RandomChannelPermutation, {GaussianNoise: {sigma: 0.2}}, {CenterCrop: {size: 64}}, "
                "Grayscale, Identity]")
    overrides = [f"splits.train.pipeline={pipeline}", "loader.threads=1"]
    expected = go(0, overrides, "none").hashes()
    result = go(0, [*overrides, "loader.executor=gpu", "loader.gpu_memory_mb=600"], "host")
    assert result.code == 0 and result.hashes() == expected, result.log
    assert sum(gpus["images"] for gpus in gpus_of(result)) > SOME, result.report["ranks"]


@left_to_full("test_two_lists_are_one_stream: samples of CPUs beside those of GPUs")
def test_jpeg_is_the_cpus():
    # Where the draws choose JPEG, the CPU makes the sample beside GPUs that make the others.
    pipeline = ("[{RandomResizedCrop: {size: 72}}, {RandomApply: {transforms: [{JPEG: {quality: [20, 60]}}], p: 0.5}}, "
                "RandomHorizontalFlip]")
    overrides = [f"splits.train.pipeline={pipeline}", "loader.threads=1"]
    expected = go(0, overrides, "none").hashes()
    result = go(0, [*overrides, "loader.executor=gpu", "loader.gpu_memory_mb=600"], "host")
    assert result.code == 0 and result.hashes() == expected, result.log
    assert sum(gpus["images"] for gpus in gpus_of(result)) > SOME / 2, result.report["ranks"]


def test_the_report_names_gpus():
    with no_leftovers() as env:
        said = run([PENSTOCK, "run", job, "loader.executor=gpu"], 60, env=dict(env, PENSTOCK_GPUS="host"))
        assert "GPUs of loader" in said.stdout and " % busy" in said.stdout, said.stdout
        assert ": the CPU made " in said.stdout and "by learned speeds" not in said.stdout, said.stdout
        said = run([PENSTOCK, "run", job, "loader.executor=gpu", "loader.cpu_fraction=auto"], 60,
                   env=dict(env, PENSTOCK_GPUS="host"))
        assert "by learned speeds" in said.stdout, said.stdout
        said = run([PENSTOCK, "run", job, "loader.executor=auto"], 60, env=dict(env, PENSTOCK_GPUS="none"))
        assert ": none, no GPU can be used: PENSTOCK_GPUS=none" in said.stdout, said.stdout


def test_fast_jobs_have_one_stream_too():
    # From 500 pixels down to 32 and less: what is decoded at a reduced size is the CPU's.
    overrides = ["arithmetic=fast", "splits.train.pipeline.0.RandomResizedCrop.size=24"]
    expected = go(0, overrides, "none").hashes()
    result = go(0, [*overrides, "loader.executor=gpu"], "host")
    assert result.code == 0 and result.hashes() == expected, result.log


def test_real_photos():
    # With PENSTOCK_FULL=1: whatever cameras and programs have written, damaged and odd files among them.
    data = os.path.join(os.environ["PENSTOCK_SOURCE"], "..", "shared", "data")
    sets = [name for name in ("photos", "photos_apache", "hires", "odd") if os.path.isdir(os.path.join(data, name))]
    if not FULL or not sets:
        return
    folder = os.path.join(work.name, "sets")
    os.makedirs(folder)
    for name in sets:
        os.symlink(os.path.join(os.path.realpath(data), name), os.path.join(folder, name))
    overrides = ["on_error=substitute", "bad_samples.max_fraction=1", "bad_samples.max_count=100000",
                 "splits.train.pipeline.0.RandomResizedCrop.size=224", "loader.gpu_memory_mb=600",
                 *(f"splits.{split}.dataset.folder={folder}" for split in ("train", "val"))]
    expected = go(0, overrides, "none").hashes()
    result = go(0, [*overrides, "loader.executor=gpu"], "host")
    assert result.hashes() == expected
    images = sum(gpus["images"] for gpus in gpus_of(result))
    print(f"{images} of {sum(split['images'] for split in result.report['splits'].values())} images by GPUs")
    assert images > 100
    # The same photos through colour before the crop, and everything that RandAugment draws.
    overrides = [*overrides, "splits.train.pipeline=[{ColorJitter: {brightness: 0.4, contrast: 0.4, saturation: 0.4, "
                 "hue: 0.5}}, {RandomResizedCrop: {size: 224}}, RandomHorizontalFlip, {RandAugment: {num_ops: 3}}, {GaussianBlur: "
                 "{kernel_size: 9}}, {ToDtype: {dtype: float32, scale: true}}]"]
    expected = go(0, overrides, "none").hashes()
    result = go(0, [*overrides, "loader.executor=gpu"], "host")
    assert result.hashes() == expected
    images = sum(gpus["images"] for gpus in gpus_of(result))
    print(f"{images} by GPUs with pixel transforms")
    assert images > 100


def test_without_a_gpu():
    result = go(0, ["loader.executor=gpu"], "none")
    assert result.code == 1, result.log
    assert "no GPU can be used: PENSTOCK_GPUS=none" in result.stderr and "loader.executor: cpu" in result.stderr
    result = go(0, ["loader.executor=auto"], "none")
    assert result.code == 0, result.log
    assert gpus_of(result)[0] == {"list": [], "images": 0, "remade": 0,
                                   "none": "no GPU can be used: PENSTOCK_GPUS=none is in the environment"}


run_tests(globals())
