"""torch.cuda without a GPU, as far as penstock uses it: streams whose work happens when somebody waits for it.

    with Cuda(gpus=2) as cuda:               # replaces what penstock needs of torch
        train = penstock.DataLoader(JOB, split="train", device="cuda:0")

Copies read by address when they happen, so memory that went back too early would give other bytes; and every array that is
taken of a batch is watched until it goes. Tensors "on the device" lie in memory of the host, filled with 7 at first. Images
are finished by a GPU that is this CPU where PENSTOCK_GPUS=host is in the environment; without a GPU at all, by the receiver.
"""

import contextlib
import ctypes
import gc
import sys
import weakref
from unittest import mock

import torch
import torch.utils.dlpack

from penstock._gpu_images import GpuImages
from penstock._tensors import _OnGpu

if torch.cuda.is_available():
    print("SKIP: torch sees a CUDA device, which cuda_tensors_test uses")
    sys.exit(77)


class Event:
    def __init__(self):
        self.done = False
        self.stream = None

    def record(self, stream):
        self.stream = stream
        stream.work.append(self)

    def query(self):
        return self.done

    def synchronize(self):
        while not self.done:
            self.stream.advance()


class Stream:
    def __init__(self, device=None):
        self.device = device
        self.work = []    # copies and events, oldest first
        self.waited = []  # events that it lets go first

    @property
    def cuda_stream(self):
        return id(self)

    def synchronize(self):
        while self.work:
            self.advance()

    def wait_event(self, event):
        self.waited.append(event)

    def advance(self):
        one = self.work.pop(0)
        if isinstance(one, Event):
            one.done = True
        else:
            one()


class Cuda:
    def __init__(self, gpus=1):
        self.gpus = gpus
        self.consumer = Stream()   # current, until somebody says otherwise
        self.current = self.consumer
        self.streams = []
        self.reading = {}          # by address: copies that have not happened
        self.watched = []          # arrays that were taken of batches, weakly
        self.gone = 0
        self.gone_too_early = 0    # while a copy still read them
        self.recorded = []
        self.finished = 0          # fields of batches that the GPU was told to finish
        self.pinned = set()

    def alive(self):
        return sum(one() is not None for one in self.watched)

    def __enter__(self):
        real_to = torch.Tensor.to
        real_from_dlpack = torch.utils.dlpack.from_dlpack

        def to(tensor, *args, **more):
            if not (args and isinstance(args[0], torch.device) and args[0].type == "cuda"):
                return real_to(tensor, *args, **more)
            assert more == {"non_blocking": True} and self.current is not self.consumer
            out = torch.full_like(tensor, 7)
            address, into, size = tensor.data_ptr(), out.data_ptr(), tensor.numel() * tensor.element_size()
            self.reading[address] = self.reading.get(address, 0) + 1

            def copy(kept=out):
                ctypes.memmove(into, address, size)
                self.reading[address] -= 1
            self.current.work.append(copy)
            return out

        real_empty_strided, real_start = torch.empty_strided, GpuImages.start

        def empty_strided(*args, device, **more):
            there = isinstance(device, torch.device) and device.type == "cuda"
            assert not there or self.current is not self.consumer
            tensor = real_empty_strided(*args, **more)
            return tensor.fill_(7) if there else tensor

        def start(images, source, device, stream, elsewhere=()):
            assert stream is self.current
            tensor, kept = real_start(images, source, device, stream, elsewhere)
            if kept is source:  # the GPU reads it when it comes to that
                self.finished += 1
                address, gpu = source.data_ptr(), images._gpu
                self.reading[address] = self.reading.get(address, 0) + 1

                def work():
                    gpu.wait()
                    self.reading[address] -= 1
                self.current.work.append(work)
            return tensor, kept

        def from_dlpack(array):
            tensor = real_from_dlpack(array)
            address = tensor.data_ptr()

            def went(_):
                self.gone += 1
                self.gone_too_early += bool(self.reading.get(address))
            self.watched.append(weakref.ref(tensor, went))
            return tensor

        def pin_memory(tensor):
            out = tensor.clone()
            self.pinned.add(out.data_ptr())
            return out

        @contextlib.contextmanager
        def stream(which):
            before, self.current = self.current, which
            yield
            self.current = before

        def make_stream(device=None):
            self.streams.append(Stream(device))
            return self.streams[-1]

        self._patches = [
            mock.patch.object(torch.cuda, "is_available", lambda: True),
            mock.patch.object(torch.cuda, "device_count", lambda: self.gpus),
            mock.patch.object(torch.cuda, "Stream", make_stream),
            mock.patch.object(torch.cuda, "Event", Event),
            mock.patch.object(torch.cuda, "stream", stream),
            mock.patch.object(torch.cuda, "current_device", lambda: 0),
            mock.patch.object(torch, "empty_strided", empty_strided),
            mock.patch.object(GpuImages, "start", start),
            mock.patch.object(torch.cuda, "current_stream", lambda device=None: self.current),
            mock.patch.object(torch.Tensor, "to", to),
            mock.patch.object(torch.Tensor, "pin_memory", pin_memory),
            mock.patch.object(torch.Tensor, "is_pinned", lambda tensor: tensor.data_ptr() in self.pinned),
            mock.patch.object(torch.Tensor, "record_stream", lambda tensor, s: self.recorded.append((tensor, s))),
            mock.patch.object(torch.utils.dlpack, "from_dlpack", from_dlpack)]
        for one in self._patches:
            one.start()
        return self

    def __exit__(self, *exc):
        for one in self._patches:
            one.stop()


def gone_too_early(loader):
    """How many fields of a batch the watch sees go before they are read, of a loader (a function makes it) that waits for
    nothing: the test of the watch itself."""
    def careless(self, arrays, raw=(), elsewhere=(), of=_OnGpu.of):
        out = of(self, arrays, raw, elsewhere)
        self._under_way = (self._under_way[0], None)
        return out

    with Cuda() as cuda, mock.patch.object(_OnGpu, "of", careless), loader() as train:
        next(iter(train))
        gc.collect()
        return cuda.gone_too_early
