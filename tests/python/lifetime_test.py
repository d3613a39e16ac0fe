"""Memory of batches: what the program keeps stays valid and unchanged, what it drops comes back, nothing leaks."""

import ctypes
import gc
import os
import queue
import shutil
import struct
import sys
import threading
import time
import warnings
import zlib

import numpy as np
import torch

import penstock
from jobs import FULL, run_tests
from leftovers import BUSY_S
from photos import WORK, digest, open_files, raises, rss_mb, script, tiny_job
from small_photos import JOB, TRAIN


def array_of(loader, name="image"):
    """The compiled module's array: what __dlpack__ is called on."""
    return next(iter(loader))._native[name]


def test_kept_tensors_outlive_the_loader():
    kept = []
    for output in ("torch", "numpy") if FULL else ("torch",):
        for how in ("close", "del", "kept iterator"):
            loader = penstock.DataLoader(JOB, split="train", output=output)
            steps = iter(loader)
            images, labels = next(steps)
            valid = next(steps).valid
            kept.append((images, digest(images), labels, digest(labels), valid))
            if how == "close":
                loader.close()
            if how == "del":
                del steps
            del loader
            gc.collect()
    # Others use memory meanwhile.
    with penstock.DataLoader(JOB, split="train", batch_size=7) as other:
        for images, _ in other:
            images.fill_(1.0)
    for images, before, labels, labels_before, valid in kept:
        assert digest(images) == before and digest(labels) == labels_before and bool(valid.all())
        images += 1  # still mapped, and writable
        assert digest(images) != before
    wanted = kept[0][1]
    assert all(before == wanted for _, before, _, _, _ in kept)


def test_a_view_keeps_the_batch():
    with penstock.DataLoader(JOB, split="train") as train:
        wanted = [digest(images[3, 1]) for images, _ in train]
        train.set_epoch(0)
        steps = iter(train)
        view = next(steps)[0][3, 1]
        flat = next(steps)[0].view(-1).numpy()[2 * 64 * 64 + 5:]
        before = digest(flat)
        for batch in steps:
            del batch
        train.set_epoch(0)
        for images, _ in train:
            images.zero_()
        assert digest(view) == wanted[0] and digest(flat) == before


def test_writing_in_place_changes_nobody_elses_batch():
    with penstock.DataLoader(JOB, split="train") as train:
        plain = [digest(images) for images, _ in train]
        train.set_epoch(0)
        kept = []
        seen = []
        for images, _ in train:
            seen.append(digest(images))
            images.mul_(0).add_(len(seen))
            kept = kept[-1:] + [(images, digest(images))]
            for one, before in kept:
                assert digest(one) == before  # batch buffers in use are never handed out again
        assert seen == plain
        del images, one, kept
        train.set_epoch(0)
        assert [digest(images) for images, _ in train] == plain  # nothing of the writing stays in a batch buffer


def test_batches_dropped_in_other_threads():
    with penstock.DataLoader(tiny_job(batch_size=4)) as loader:
        plain = [digest(images) for images, _ in loader]
        hand_over = queue.Queue(1)
        problems = []

        def dropper():
            while True:
                item = hand_over.get()
                if item is None:
                    return
                batch, before = item
                if digest(batch[0]) != before:
                    problems.append(before)
                del batch, item

        threads = [threading.Thread(target=dropper) for _ in range(3)]
        for thread in threads:
            thread.start()
        for epoch in range(4):
            loader.set_epoch(0)
            seen = []
            for batch in loader:
                seen.append(digest(batch[0]))
                hand_over.put((batch, seen[-1]))
                del batch
            assert seen == plain
        for _ in threads:
            hand_over.put(None)
        for thread in threads:
            thread.join()
        assert not problems


def test_dlpack_consumers():
    with penstock.DataLoader(JOB, split="train") as loader:
        array = array_of(loader)
        assert array.__dlpack_device__() == (1, 0)
        assert array.shape == (16, 3, 64, 64) and array.nbytes == 16 * 3 * 64 * 64 * 4 and array.dtype == "float32"
        one = torch.from_dlpack(array) if hasattr(torch, "from_dlpack") else torch.utils.dlpack.from_dlpack(array)
        other = np.from_dlpack(array)
        third = array.numpy()
        assert one.data_ptr() == other.__array_interface__["data"][0] == third.__array_interface__["data"][0]
        one[0, 0, 0, 0] = 42.0
        assert other[0, 0, 0, 0] == third[0, 0, 0, 0] == 42.0
        before = digest(one)
        del array, other, third
    gc.collect()
    assert digest(one) == before


def capsule_name(capsule):
    ctypes.pythonapi.PyCapsule_GetName.restype = ctypes.c_char_p
    ctypes.pythonapi.PyCapsule_GetName.argtypes = [ctypes.py_object]
    return ctypes.pythonapi.PyCapsule_GetName(capsule)


def test_dlpack_arguments():
    with penstock.DataLoader(JOB, split="train") as loader:
        array = array_of(loader)
        for arguments, name in (({}, b"dltensor"), ({"max_version": None}, b"dltensor"), ({"max_version": (0, 8)}, b"dltensor"),
                                ({"max_version": (1, 0)}, b"dltensor_versioned"),
                                ({"max_version": (2, 1)}, b"dltensor_versioned"), ({"stream": None}, b"dltensor"),
                                ({"dl_device": (1, 0)}, b"dltensor"), ({"dl_device": array.__dlpack_device__()}, b"dltensor"),
                                ({"copy": False}, b"dltensor"), ({"copy": True, "max_version": (1, 1)}, b"dltensor_versioned")):
            assert capsule_name(array.__dlpack__(**arguments)) == name, arguments
        import enum
        device = enum.IntEnum("Device", {"cpu": 1, "cuda": 2})
        assert capsule_name(array.__dlpack__(dl_device=(device.cpu, 0))) == b"dltensor"
        raises(BufferError, lambda: array.__dlpack__(dl_device=(device.cuda, 0)), "memory of the host")
        raises(BufferError, lambda: array.__dlpack__(dl_device=(2, 0)), "memory of the host")
        raises(ValueError, lambda: array.__dlpack__(stream=1), "stream")
        raises(TypeError, lambda: array.__dlpack__(None))  # keywords only
        raises(TypeError, lambda: array.__dlpack__(max_version="1.0"))
        raises(TypeError, lambda: array.__dlpack__(dl_device=3))
        # A capsule is taken once, and is then called used_.
        capsule = array.__dlpack__()
        tensor = torch.utils.dlpack.from_dlpack(capsule)
        assert capsule_name(capsule) == b"used_dltensor"
        raises(Exception, lambda: torch.utils.dlpack.from_dlpack(capsule))
        del capsule
        copied = torch.utils.dlpack.from_dlpack(array.__dlpack__(copy=True))
        assert torch.equal(copied, tensor) and copied.data_ptr() != tensor.data_ptr()
        copied.zero_()
        assert float(tensor.abs().sum()) > 0
    with penstock.DataLoader(JOB, split="train", channels_last=True) as loader:
        array = array_of(loader)
        copied = torch.utils.dlpack.from_dlpack(array.__dlpack__(copy=True))
        assert copied.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(copied, torch.utils.dlpack.from_dlpack(array))


def threads_of_the_process(no_more_than):
    """How many there are once it is so few; one that was joined may have a way to go in the kernel."""
    until = time.monotonic() + 30
    while (found := len(os.listdir("/proc/self/task"))) > no_more_than and time.monotonic() < until:
        time.sleep(0.01)
    return found


class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


class Versioned(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


def test_versioned_capsules_as_a_consumer_reads_them():
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    rename = ctypes.pythonapi.PyCapsule_SetName
    rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
    used = b"used_dltensor_versioned"
    with penstock.DataLoader(JOB, split="train", dtype="bfloat16") as loader:
        array = array_of(loader)
        for copy, flags in ((None, 0), (False, 0), (True, 2)):
            capsule = array.__dlpack__(max_version=(1, 0), copy=copy)
            address = get(capsule, b"dltensor_versioned")
            managed = Versioned.from_address(address)
            assert (managed.major, managed.flags) == (1, flags)
            t = managed.tensor
            assert (t.device_type, t.device_id, t.ndim, t.code, t.bits, t.lanes, t.byte_offset) == (1, 0, 4, 4, 16, 1, 0)
            assert t.shape[:4] == [16, 3, 64, 64] and t.strides[:4] == [3 * 64 * 64, 64 * 64, 64, 1]
            rename(capsule, used)
            del capsule  # leaves the tensor alone: it has been taken
            assert ctypes.string_at(t.data, 16) is not None
            managed.deleter(address)


def test_unused_capsules_give_the_batch_back():
    with penstock.DataLoader(JOB, split="train", trainer__hold=1) as loader:
        for version in (None, (1, 0)):
            for _ in range(3):
                for batch in loader:
                    capsules = [batch._native[name].__dlpack__(max_version=version) for name in ("image", "label")]
                    del batch
                del capsules  # with any of them held, the third batch would never come


def test_non_blocking_copy_dropped_at_once():
    """On the CPU the copy is synchronous; the rule that makes it safe for CUDA is that batch buffers are not page-locked."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with penstock.DataLoader(JOB, split="train") as train:
        plain = [digest(images) for images, _ in train]
        train.set_epoch(0)
        copies = []
        for images, labels in train:
            if torch.cuda.is_available():
                assert not images.is_pinned()
            copies.append(images.to(device, non_blocking=True, copy=True))
            del images, labels  # the batch buffer is filled again meanwhile
        assert [digest(one) for one in copies] == plain


def test_a_failed_next_holds_nothing():
    with penstock.DataLoader(JOB, split="train", dtype="bfloat16", output="numpy") as loader:
        for _ in range(8):
            raises(penstock.UsageError, lambda: next(iter(loader)), "bfloat16")


def test_hundreds_of_loaders_leak_nothing():
    import tracemalloc

    def use(count):
        for i in range(count):
            loader = penstock.DataLoader(tiny_job(), batch="dict" if i % 2 else "list", output=["torch", "numpy"][i % 2])
            batch = next(iter(loader))
            loader.state_dict()
            batch.valid
            if i % 3 == 0:
                loader.close()
            elif i % 3 == 1:
                loader.cycle = loader  # only the collector frees it
            del loader, batch
        gc.collect()

    use(20 if FULL else 10)
    threads, files, memory = threading.active_count(), open_files(), rss_mb()
    os_threads = len(os.listdir("/proc/self/task"))
    tracemalloc.start()
    use(10)
    before = tracemalloc.take_snapshot()
    use(120 if FULL else 40)
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    grown = sum(max(0, one.size_diff) for one in after.compare_to(before, "filename")
                if "penstock" in one.traceback[0].filename)
    assert grown < 20_000, grown
    assert open_files() <= files and threading.active_count() == threads
    assert threads_of_the_process(os_threads) <= os_threads
    assert rss_mb() < memory + 40, (memory, rss_mb())


def test_thousands_of_batches_leak_nothing():
    with penstock.DataLoader(tiny_job(batch_size=1), output="numpy") as loader:
        def use(epochs):
            for _ in range(epochs):
                for batch in loader:
                    batch.valid, batch.indices
        use(5)
        gc.collect()
        objects, memory = len(gc.get_objects()), rss_mb()
        use(25 if FULL else 10)
        gc.collect()
        assert abs(len(gc.get_objects()) - objects) < 50 and rss_mb() < memory + 10
        array = next(iter(loader))._native
        count = sys.getrefcount(None)
        for _ in range(1000):
            array["image"].__dlpack__(max_version=(1, 0))
            array.indices
        assert abs(sys.getrefcount(None) - count) < 100


def test_close_ends_another_threads_wait():
    loader = penstock.DataLoader(JOB, split="train", output="numpy", batch_size=4, trainer__hold=1, loader__prefetch=1)
    kept, said = [], []

    def take_all():  # and keep them: at last the next one is waited for
        try:
            steps = iter(loader)
            next(steps)  # given back: a program that keeps all of them has some seconds only, not trainer.timeout_s
            kept.extend(steps)
        except penstock.UsageError as problem:
            said.append(str(problem))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the program holds all batches
        thread = threading.Thread(target=take_all)
        thread.start()
        until, count = time.monotonic() + 30, -1
        while (len(kept) < 2 or len(kept) != count) and time.monotonic() < until:  # until no more come
            count = len(kept)
            time.sleep(1)
        assert not said and 2 <= len(kept) < len(loader), (said, len(kept))
        began = time.monotonic()
        loader.close()
        thread.join(30)
    assert "was closed while a batch of split 'train' was waited for" in said[0], said
    assert time.monotonic() - began < 3 + BUSY_S  # by itself the wait would have ended in trainer.timeout_s


def slow_picture(path):
    """A small file whose pixels take long to get at: RGB rows of zeros, 16 bits each."""
    width, height = 15000, 11000 if FULL else 4000
    packer = zlib.compressobj(1)
    packed = b"".join([packer.compress(bytes(1 + 6 * width)) for _ in range(height)] + [packer.flush()])
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for name, body in ((b"IHDR", struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)), (b"IDAT", packed), (b"IEND", b"")):
            file.write(struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)))


def test_the_last_of_a_loader_goes_while_other_threads_run():
    folder = os.path.join(WORK, "slow", "a")
    os.makedirs(folder)
    shutil.copy(next(os.path.join(at, names[0]) for at, _, names in os.walk(TRAIN) if names), os.path.join(folder, "0.jpg"))
    slow_picture(os.path.join(folder, "1.png"))
    for number in range(2, 5):
        os.link(os.path.join(folder, "1.png"), os.path.join(folder, f"{number}.png"))
    job = tiny_job(dataset={"folder": os.path.dirname(folder)}, mode="eval", batch_size=1,
                   pipeline=[{"CenterCrop": {"size": [10500 if FULL else 3800, 32]}}])  # nearly all rows
    def drop(what):
        """Seconds that dropping it took, and the longest that another thread stood still meanwhile. Of this process's CPU time: decoding
        uses it all along, and where other programs have the cores it stands still, too."""
        loader = penstock.DataLoader(job, split="train")
        steps = iter(loader)
        batch = next(steps)
        last = {"loader": loader, "iterator": steps}[what]
        del loader, steps, batch
        gaps, over = [], threading.Event()

        def tick():
            before = time.process_time()
            while not over.is_set():
                time.sleep(0.002)
                now = time.process_time()
                gaps.append(now - before)
                before = now

        ticking = threading.Thread(target=tick)
        ticking.start()
        while not gaps:
            time.sleep(0.001)
        began = time.process_time()
        del last  # waits until the pictures that are being decoded are done
        took = time.process_time() - began
        over.set()
        ticking.join()
        return round(took, 3), round(max(gaps), 3)

    ran = {}
    for what in ("loader", "iterator"):
        for _ in range(5):
            ran[what] = drop(what)
            if ran[what][0] > 0.1:  # else no picture was being decoded just then, which shows nothing
                break
        took, gap = ran[what]
        assert took > 0.1 and gap < took / 2, ran
    print("CPU seconds that dropping it took, and that others stood still meanwhile:", ran)


def test_a_batch_that_outlives_its_loader_keeps_its_memory_alone():
    with penstock.DataLoader(tiny_job(), split="train") as loader:
        next(iter(loader))
    threads, descriptors, kept, sums = len(os.listdir("/proc/self/task")), open_files(), [], []
    for number in range(6):
        loader = penstock.DataLoader(tiny_job(), split="train", seed=number)
        steps = iter(loader)
        batch = next(steps)
        kept.append([batch, batch[0], batch._native["image"].__dlpack__()][number % 3])
        sums.append(int(np.asarray(batch[0]).astype("int64").sum()))
        del loader, steps, batch
    assert threads_of_the_process(threads) <= threads and open_files() <= descriptors + len(kept), (threads, descriptors)
    assert [int(np.asarray(one[0] if number % 3 == 0 else one).astype("int64").sum())
            for number, one in enumerate(kept) if number % 3 < 2] == [one for number, one in enumerate(sums) if number % 3 < 2]


_AT_EXIT = """
import sys, threading, gc
import penstock
loader = penstock.DataLoader({job!r}, split="train", output={output!r})
steps = iter(loader)
kept = next(steps)
{more}
print("done", flush=True)
"""


def test_nothing_is_said_at_exit():
    endings = {
        "kept by the module": "",
        "kept by a cycle": "class A: pass\na = A(); a.a = a; a.kept = kept; a.loader = loader; a.steps = steps",
        "kept by a module": "sys.kept = (loader, steps, kept)",
        "closed": "loader.close()",
        "no collection": "gc.disable(); x = []; x.append(x); x.append(loader)",
        "a thread that waits": "kept2 = next(steps); kept3 = next(steps)\n"
                               "import warnings; warnings.simplefilter('ignore')\n"
                               "threading.Thread(target=lambda: next(steps), daemon=True).start()\n"
                               "import time; time.sleep(0.3)",
        "a thread that loads": "import itertools\ndef run():\n  for _ in itertools.count():\n    for b in loader: pass\n"
                               "threading.Thread(target=run, daemon=True).start()\nimport time; time.sleep(0.3)",
        "sys.exit": "print('done', flush=True); sys.exit(0)",
    }
    some = ("kept by a cycle", "a thread that waits", "sys.exit")
    for what, more in endings.items() if FULL else [(what, endings[what]) for what in some]:
        # A thread that lives on holds references for good; elsewhere a leak is a mistake of the binding.
        env = dict(os.environ, PENSTOCK_LEAK_WARNINGS="0" if "thread" in what else "1")
        result = script(_AT_EXIT.format(job=JOB, output="numpy", more=more), timeout=30, env=env)
        assert result.returncode == 0 and "done" in result.stdout, (what, result.returncode, result.stderr[-2000:])
        assert not result.stderr.strip(), (what, result.stderr[-2000:])
    unfreed = _AT_EXIT.format(job=JOB, output="numpy", more="import ctypes; ctypes.pythonapi.Py_IncRef(ctypes.py_object("
                              "loader._native))")
    for setting in ("1", "0") if FULL else ("1",):  # the check itself can fail
        result = script(unfreed, timeout=30, env=dict(os.environ, PENSTOCK_LEAK_WARNINGS=setting))
        assert ("nanobind: leaked" in result.stderr) == (setting == "1"), result.stderr


run_tests(globals())
