"""What becomes of a batch's arrays: views of its memory, copies, page-locked copies, or tensors on a device.

    tensors = made_as(output="torch", copy=False, pin_memory=False, device="cuda:0")
    images, labels = tensors.of([native["image"], native["label"]])     # of one batch, all at once
    tensors.settle()                                                    # nothing reads the batch's memory any more

A batch's memory is never registered with CUDA. What is copied to a CUDA device is copied on a stream of its own, and raw
images are finished there (_gpu_images.py); the CUDA stream that is current for the caller waits for that, and the batch's
memory is kept until it has ended: until the next of() or settle() at the latest, or until this object goes. One batch is
under way at a time.
Any thread may call; the tensors are meant for the CUDA stream that was current when they were made, as torch's are.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
from typing import Any, Callable, Collection, Mapping, Optional, Sequence

from . import _job, _penstock
from ._gpu_images import GpuImages
from .batch import register_with
from .errors import RunError, UsageError, warn

__all__ = ["Tensors", "has_torch", "made_as"]


class Tensors:
    """An array after another, each by itself."""

    def __init__(self, one: Optional[Callable], copies: bool, pinned: bool = False, plain: Optional[Callable] = None,
                 place: Optional[Callable[[Any], Any]] = None) -> None:
        self.one = one
        self.plain = plain or one  # a view of an array in the batch's memory
        self._place = place
        self.copies = copies  # what it makes has memory of its own
        self.pinned = pinned

    def of(self, arrays: Sequence[Any], raw: Collection[int] = (), elsewhere: Sequence[Any] = ()) -> list:
        """Lists, which are fields of text or bytes, stay as they are. `raw`: places of images that are to be finished;
        `elsewhere`: of the first of those, samples that are in memory of loaders' GPUs."""
        return [array if isinstance(array, list) else self.one(array) for array in arrays]

    def place(self, batch: Any) -> Any:
        """What a collate_fn made of views, with its tensors where the program wants them."""
        return batch if self._place is None else self._place(batch)

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self.settle()

    def wants_raw_images(self) -> bool:
        """Would it finish them, better than the receiver?"""
        return False

    def get_finished(self, why: str) -> None:
        """The receiver's images are; why they are not left raw, unless there was another reason."""

    def meet(self, loader: Any) -> None:
        """Opens memory that the loaders' GPUs export, where images can be read there."""

    def figures(self) -> Optional[dict]:
        """Of a CUDA device."""
        return None


class _OnGpu(Tensors):
    """Copies to a CUDA device, and finishes images there where it was told how."""

    def __init__(self, device: Any, pinned: bool) -> None:
        from torch.utils.dlpack import from_dlpack
        super().__init__(None, True, pinned, plain=from_dlpack, place=lambda batch: _moved(_pinned(batch) if pinned else batch, device, pinned))
        self._device = device
        self._stream: Any = None
        self._under_way: Optional[tuple] = None  # the copies' event, and what they read
        self._images: Optional[GpuImages] = None
        self._why = ""                           # the receiver finishes
        self._lost: list = []                    # what a GPU that failed may still read
        # The garbage collector may run inside of(), and end an iteration of the same loader: in this thread, and with
        # settle().
        self._lock = threading.RLock()

    def wants_raw_images(self) -> bool:
        self._why = _penstock.why_no_gpu()
        return not self._why

    def finish_with(self, finisher: Any) -> None:
        """From now on of() is given raw images."""
        if finisher.dtype != "uint8" or finisher.channels_last:  # else they are what is wanted
            self._images = GpuImages(finisher)

    def get_finished(self, why: str) -> None:
        self._why = self._why or why

    def of(self, arrays: Sequence[Any], raw: Collection[int] = (), elsewhere: Sequence[Any] = ()) -> list:
        import torch
        from torch.utils.dlpack import from_dlpack
        with self._lock:
            self._settle()
            if self._stream is None:
                self._stream = torch.cuda.Stream(self._device)
            sources = [array if isinstance(array, list) else from_dlpack(array) for array in arrays]
            if self.pinned:
                sources = [source if isinstance(source, list) else source.pin_memory() for source in sources]
            # Pinned copies keep nothing of the batch, and the CUDA stream reads what is elsewhere all the same.
            done, kept = torch.cuda.Event(), [*sources, *elsewhere]
            try:
                with torch.cuda.stream(self._stream):
                    # Field "image", the first, is what loaders' GPUs make.
                    out = [self._start(source, at in raw, kept, elsewhere if at == min(raw, default=-1) else ())
                           for at, source in enumerate(sources)]
                    done.record(self._stream)
            except BaseException:
                self._end_all(kept)
                raise
            self._under_way = done, kept
            consumer = torch.cuda.current_stream(self._device)
            consumer.wait_event(done)
            for tensor in out:
                if not isinstance(tensor, list):
                    tensor.record_stream(consumer)  # or the allocator gives its memory to the next copy too early
            return out

    def settle(self) -> None:
        with self._lock:
            self._settle()

    def close(self) -> None:
        with self._lock:
            try:
                self._settle()
            finally:
                if self._images is not None and self._stream is not None:
                    with self._on_stream():
                        self._images.close()

    def figures(self) -> Optional[dict]:
        """`finishing`: who finishes images, "gpu", "cpu", or None where nothing is left to do; `why` not the GPU."""
        with self._lock:
            images = self._images
            why = images.why if images is not None else self._why
            who = "cpu" if why else "gpu" if images is not None else None
            return {"name": str(self._device), "finishing": who, "why": why,
                    **(images.figures() if images is not None else {})}

    def meet(self, loader: Any) -> None:
        with self._lock:
            if self._images is not None and self._stream is not None:
                with self._on_stream():
                    self._images.meet(loader)

    def _start(self, source: Any, raw: bool, kept: list, elsewhere: Sequence[Any]) -> Any:
        if isinstance(source, list):
            return source
        if not raw or self._images is None:
            return source.to(self._device, non_blocking=True)
        tensor, read = self._images.start(source, self._device, self._stream, elsewhere)
        kept.append(read)
        return tensor

    def _on_stream(self) -> Any:
        import torch
        return torch.cuda.stream(self._stream)

    def _settle(self) -> None:
        if self._under_way is None:
            return
        (done, sources), self._under_way = self._under_way, None
        if self._images is not None:
            try:
                with self._on_stream():
                    self._images.wait()  # which has a time limit, and says what went wrong
            except RunError:
                self._lost.append(sources)
                raise
        done.synchronize()

    def _end_all(self, sources: list) -> None:
        """Of a batch that nobody gets: nothing reads its memory any more, or it stays."""
        try:
            with self._on_stream():
                if self._images is not None:
                    self._images.wait()
        except RunError:
            self._lost.append(sources)  # and `why` says so; synchronize() might wait for ever
        else:
            self._stream.synchronize()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # at the end of the interpreter torch may be gone, and every copy with it
            pass


def made_as(output: Optional[str], copy: bool, pin_memory: bool, device: Any) -> Tensors:
    """As the parameters of penstock.DataLoader say."""
    copy, pin_memory = _job.flag("copy", copy), _job.flag("pin_memory", pin_memory)
    if output is None:
        output = "torch" if has_torch() else "numpy"
    if output == "numpy":
        if pin_memory or device is not None:
            raise UsageError("pin_memory and device are torch's", 'use output="torch"')
        # The first batch would be late to say so. Not imported here: Ctrl-C in the middle of that leaves half a module.
        if importlib.util.find_spec("numpy") is None:
            raise UsageError(f'output is "numpy", and {sys.executable} has no NumPy',
                             "pip install numpy; or install torch, whose tensors are then the default")
        return Tensors((lambda array: array.numpy().copy(order="K")) if copy else (lambda array: array.numpy()), copy,
                       plain=lambda array: array.numpy())
    if output != "torch":
        raise UsageError(f"output={output!r}", 'say "torch" or "numpy"')
    import torch
    import torch.utils._pytree
    from torch.utils.dlpack import from_dlpack
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # it is torch's own affair
        register_with(torch)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if pin_memory and not gpus:
        warn("pin_memory: this torch sees no CUDA device; tensors stay in ordinary memory")
        pin_memory = False
    if device == "auto":
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % gpus}" if gpus else None
    if device is not None:
        try:
            target = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise UsageError(f"device={device!r}: {str(error).splitlines()[0]}",
                             'say "auto", "cuda:0" or the like') from None
        if target.type == "cuda":
            _check_gpu(device, target, gpus)
            return _OnGpu(target, pin_memory)
        # A copy that has ended when it returns: the batch's memory may go back at once.
        return Tensors(lambda array: from_dlpack(array).to(target, copy=True), True, plain=from_dlpack,
                       place=lambda batch: _moved(batch, target, False))
    if pin_memory:
        return Tensors(lambda array: from_dlpack(array).pin_memory(), True, True, plain=from_dlpack, place=_pinned)
    if copy:
        return Tensors(lambda array: from_dlpack(array).clone(), True, plain=from_dlpack)
    return Tensors(from_dlpack, False)


def _pinned(batch: Any) -> Any:
    return _each(batch, lambda one: one.pin_memory(), "pin_memory")


def _moved(batch: Any, device: Any, non_blocking: bool) -> Any:
    """On the CUDA stream that is current."""
    return _each(batch, lambda one: one.to(device, non_blocking=non_blocking), "to")


def _each(batch: Any, move: Callable[[Any], Any], method: str) -> Any:
    """The batch with all its tensors moved, in whatever mappings, tuples and lists, and objects that have such a method, as torch's
    own DataLoader goes through one that it pins."""
    if isinstance(batch, (str, bytes)):
        return batch
    if type(batch) not in (dict, list, tuple) and hasattr(batch, method):  # a tensor, or an object of the program's
        return move(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_each(one, move, method) for one in batch))
    parts: Any = {name: _each(one, move, method) for name, one in batch.items()} if isinstance(batch, Mapping) else \
        [_each(one, move, method) for one in batch] if isinstance(batch, (tuple, list)) else None
    if parts is None or type(batch) in (dict, list):
        return batch if parts is None else parts
    try:
        return type(batch)(parts)
    except TypeError:
        return parts


def _check_gpu(device: Any, target: Any, gpus: int) -> None:
    if not gpus:
        raise UsageError(f"device={str(device)!r}: this torch sees no CUDA device",
                         'device="auto" takes the CPU then; nvidia-smi, CUDA_VISIBLE_DEVICES and torch.version.cuda tell why')
    if target.index is not None and target.index >= gpus:
        raise UsageError(f"device={str(device)!r}: this process sees {gpus} CUDA device{'s' if gpus > 1 else ''}, "
                         "counted from 0", 'device="auto" takes the one of LOCAL_RANK; CUDA_VISIBLE_DEVICES hides others')


def has_torch() -> bool:
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None
