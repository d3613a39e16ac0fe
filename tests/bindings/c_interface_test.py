"""bindings/c, called as a C program would: the same bytes as penstock.Preprocessor, on the host and on a GPU (this CPU plays it);
statuses; what is used wrongly; many threads; the functions that the library exports; and the example in C."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

import torch

from jobs import BUILD, demo_photos, run_tests, write_job

os.environ["PENSTOCK_GPUS"] = "host"
import penstock  # noqa: E402

SOURCE = os.environ["PENSTOCK_SOURCE"]
LIBRARY = os.path.join(BUILD, "libpenstock_c.so")
OK, RUNTIME, USAGE, CONFIG, DATASET = range(5)
work = tempfile.TemporaryDirectory(prefix="c_interface_test-")
PHOTOS = demo_photos()
JOB = write_job(work.name, PHOTOS)
library = ctypes.CDLL(LIBRARY)
library.penstock_last_error.restype = library.penstock_version.restype = ctypes.c_char_p
library.penstock_close.restype = None


class Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("overrides", ctypes.POINTER(ctypes.c_char_p)), ("override_count", ctypes.c_size_t),
                ("threads", ctypes.c_int), ("gpu", ctypes.c_int)]


class Output(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("views", ctypes.c_int32), ("channels", ctypes.c_int32), ("height", ctypes.c_int32),
                ("width", ctypes.c_int32), ("dtype", ctypes.c_int32), ("channels_last", ctypes.c_int32), ("bytes_per_image", ctypes.c_size_t)]


class Image(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char_p), ("size", ctypes.c_size_t), ("index", ctypes.c_int64), ("epoch", ctypes.c_int64),
                ("occurrence", ctypes.c_int64)]


class Status(ctypes.Structure):
    _fields_ = [("usable", ctypes.c_int32), ("reason", ctypes.c_char * 252)]


def error():
    return library.penstock_last_error().decode()


class Pipeline:
    def __init__(self, split="val", overrides=(), threads=0, gpu=-1):
        words = (ctypes.c_char_p * len(overrides))(*(word.encode() for word in overrides))
        options = Options(ctypes.sizeof(Options), words, len(overrides), threads, gpu)
        self.handle = ctypes.c_void_p()
        assert library.penstock_open(JOB.encode(), split.encode(), ctypes.byref(options), ctypes.byref(self.handle)) == OK, error()
        self.output = Output(ctypes.sizeof(Output))
        assert library.penstock_describe(self.handle, ctypes.byref(self.output)) == OK, error()

    def __enter__(self):
        return self

    def __exit__(self, *problem):
        library.penstock_close(self.handle)

    def run(self, files, indices=None, code=OK, room=None, statuses=True):
        """(bytes of the output, [reason])"""
        images = (Image * len(files))(*(Image(file, len(file), -1 if indices is None else indices[i], 1, 0) for i, file in enumerate(files)))
        size = len(files) * self.output.bytes_per_image if room is None else room
        memory = ctypes.create_string_buffer(size)
        told = (Status * len(files))()
        found = library.penstock_run(self.handle, images, len(files), memory, size, told if statuses else None)
        assert found == code, (found, error())
        return memory.raw, [None if one.usable else one.reason.decode() for one in told]


def files(split="val"):
    return [open(os.path.join(top, name), "rb").read() for top, _, names in sorted(os.walk(os.path.join(PHOTOS, split)))
            for name in sorted(names)][:12]


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def test_the_same_bytes_as_python_has():
    encoded = files()
    encoded.insert(3, encoded[0][:500])
    for gpu in (-1, 0):
        for overrides, dtype in (([], 2), (["splits.val.pipeline.2.ToDtype.dtype=bfloat16"], 4), (["arithmetic=fast"], 2)):
            wanted, statuses = penstock.Preprocessor(JOB, split="val", overrides=overrides)(encoded, errors="status")
            with Pipeline(overrides=overrides, gpu=gpu) as pipeline:
                assert (pipeline.output.dtype, pipeline.output.views, pipeline.output.channels) == (dtype, 1, 3)
                assert [pipeline.output.height, pipeline.output.width] == list(wanted.shape[2:])
                memory, reasons = pipeline.run(encoded)
            assert memory == bytes_of(wanted), (gpu, overrides)
            assert reasons == statuses and reasons[3] and reasons.count(None) == len(encoded) - 1


def test_channels_last_and_several_views():
    encoded = files()[:3]
    crops = "splits.val.pipeline=[{FiveCrop: {size: 40}}]"
    wanted = penstock.Preprocessor(JOB, split="val", overrides=[crops])(encoded)
    with Pipeline(overrides=[crops]) as pipeline:
        assert (pipeline.output.views, pipeline.output.dtype, pipeline.output.bytes_per_image) == (5, 0, 5 * 3 * 40 * 40)
        assert pipeline.run(encoded)[0] == bytes_of(wanted)
    wanted = penstock.Preprocessor(JOB, split="val")(encoded)
    with Pipeline(overrides=["splits.val.channels_last=true"]) as pipeline:
        assert pipeline.output.channels_last == 1
        assert pipeline.run(encoded)[0] == bytes_of(wanted.permute(0, 2, 3, 1))


def test_a_pipeline_that_draws_gives_what_a_loader_gives():
    encoded = files("train")
    wanted = penstock.Preprocessor(JOB, split="train")(encoded, index=range(12), epoch=1)
    with Pipeline("train") as pipeline:
        assert pipeline.run(encoded, indices=range(12))[0] == bytes_of(wanted)
        pipeline.run(encoded, code=USAGE)
        assert "has no index to draw for" in error()


def test_identity():
    digits = ctypes.create_string_buffer(33)
    one = penstock.Preprocessor(JOB, split="val")
    other = penstock.Preprocessor(JOB, split="val", arithmetic="fast")
    import json
    with Pipeline() as pipeline:
        assert library.penstock_fingerprint(pipeline.handle, digits) == OK
        assert digits.value.decode() == one.fingerprint
        states = [json.dumps(each.state_dict()) if not isinstance(each.state_dict(), str) else each.state_dict() for each in (one, other)]
        assert library.penstock_check(pipeline.handle, states[0].encode()) == OK, error()
        assert library.penstock_check(pipeline.handle, states[1].encode()) == CONFIG
        assert "arithmetic (saved: fast, now: exact)" in error(), error()
        assert library.penstock_check(pipeline.handle, b"nonsense") == CONFIG
    assert library.penstock_version().decode() == penstock.__version__


def test_what_is_used_wrongly_is_told():
    handle = ctypes.c_void_p(1)
    for words, code, why in (((None, b"val"), USAGE, "job_file is a null pointer"), ((JOB.encode(), None), USAGE, "split is a null"),
                             ((b"nowhere.yaml", b"val"), CONFIG, "nowhere.yaml"), ((JOB.encode(), b"vall"), USAGE, "did you mean 'val'")):
        assert library.penstock_open(*words, None, ctypes.byref(handle)) == code and why in error(), (words, error())
        assert not handle.value
    assert library.penstock_open_text(b"seed: x\n", b"made.yaml", b"val", None, ctypes.byref(handle)) == CONFIG
    assert "made.yaml:1:7" in error(), error()
    for size, gpu, why in ((0, -1, "begin with PENSTOCK_OPTIONS"), (ctypes.sizeof(Options), -7, "gpu is -7")):
        options = Options(size, None, 0, 0, gpu)
        assert library.penstock_open(JOB.encode(), b"val", ctypes.byref(options), ctypes.byref(handle)) == USAGE and why in error(), error()
    # A program that was compiled with fewer fields.
    options = Options(Options.threads.offset, None, 0, 12345, 99)
    assert library.penstock_open(JOB.encode(), b"val", ctypes.byref(options), ctypes.byref(handle)) == OK, error()
    library.penstock_close(handle)
    library.penstock_close(None)
    encoded = files()[:2]
    with Pipeline() as pipeline:
        pipeline.run(encoded, room=2 * pipeline.output.bytes_per_image - 1, code=USAGE)
        assert "have no room for 2 images" in error()
        pipeline.run([encoded[0], b"no picture"], statuses=False, code=DATASET)
        assert error().startswith("unusable image 1: "), error()
        assert library.penstock_run(pipeline.handle, None, 1, None, 0, None) == USAGE and "images is a null pointer" in error()
        assert library.penstock_run(pipeline.handle, None, 0, None, 0, None) == OK
        assert pipeline.run([b""])[1][0], "an empty file is usable"
        assert library.penstock_describe(pipeline.handle, ctypes.byref(Output(0))) == USAGE


def test_threads_share_a_pipeline():
    encoded = files()
    for gpu in (-1, 0):
        with Pipeline(threads=2, gpu=gpu) as pipeline:
            wanted = pipeline.run(encoded)[0]
            found, starters = [], []
            for _ in range(6):
                starters.append(threading.Thread(target=lambda: found.extend(pipeline.run(encoded)[0] for _ in range(5))))
            for one in starters:
                one.start()
            for one in starters:
                one.join()
            assert len(found) == 30 and all(one == wanted for one in found)


def test_what_is_exported_is_the_committed_list():
    with open(os.path.join(SOURCE, "bindings", "c", "exports.map")) as file:
        listed = set(re.findall(r"\b(penstock_\w+);", file.read()))
    with open(os.path.join(SOURCE, "bindings", "c", "penstock.h")) as file:
        declared = set(re.findall(r"\b(penstock_\w+)\([^*]", re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)))
    lines = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", LIBRARY], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1] for line in lines.splitlines()} - {"PENSTOCK_0", "PENSTOCK_0@@PENSTOCK_0"}
    assert exported == {f"{name}@@PENSTOCK_0" for name in listed}, exported
    assert declared == listed, declared ^ listed


def test_the_example_in_c():
    compiler = shutil.which("cc")
    if compiler is None:
        print("no C compiler")
        return
    program = os.path.join(work.name, "preprocess")
    subprocess.run([compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", os.path.join(SOURCE, "examples", "preprocess.c"), "-I", SOURCE,
                    "-L", BUILD, "-lpenstock_c", f"-Wl,-rpath,{BUILD}", "-o", program], check=True)
    paths = []
    for number, encoded in enumerate([*files()[:2], b"no picture"]):
        paths.append(os.path.join(work.name, f"{number}.jpg"))
        with open(paths[-1], "wb") as file:
            file.write(encoded)
    done = subprocess.run([program, JOB, "val", *paths], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done
    wanted = penstock.Preprocessor(JOB, split="val")(files()[:2])
    lines = done.stdout.splitlines()
    assert lines[0].startswith("pipeline ") and len(lines) == 4, lines
    for line, tensor in zip(lines[1:], wanted):
        shape, mean = re.fullmatch(r".*: \[(.*)\], mean (\S+)", line).groups()
        assert shape == "3, 64, 64" and abs(float(mean) - tensor.double().mean().item()) < 1e-4, line
    assert "2.jpg: " in lines[3] and "mean" not in lines[3], lines
    failed = subprocess.run([program, "nowhere.yaml", "val", paths[0]], capture_output=True, text=True, timeout=60)
    assert failed.returncode == 1 and "nowhere.yaml" in failed.stderr, failed


if __name__ == "__main__":
    if not os.path.exists(LIBRARY):
        sys.exit(f"{LIBRARY} is not built")
    run_tests(globals())
