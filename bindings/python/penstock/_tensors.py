"""What becomes of a batch's arrays: views of its memory, copies, page-locked copies, or tensors on a device.

    tensors = made_as(output="torch", copy=False, pin_memory=False, device="cuda:0")
    images, labels = tensors.of([native["image"], native["label"]])     # of one batch, all at once
    tensors.settle()                                                    # nothing reads the batch's memory any more

A batch's memory is never registered with CUDA. What is copied to a CUDA device is copied on a stream of its own; the
stream that is current for the caller waits for the copy, and the batch's memory is kept until it has ended: until the
next of() or settle() at the latest, or until this object goes. One copy is under way at a time.
Any thread may call; the tensors are meant for the stream that was current when they were made, as torch's are.
"""

from __future__ import annotations

import os
import threading
import warnings
from typing import Any, Callable, Optional, Sequence

from .errors import UsageError

__all__ = ["Tensors", "has_torch", "made_as"]


class Tensors:
    """An array after another, each by itself."""

    def __init__(self, one: Optional[Callable], copies: bool, pinned: bool = False) -> None:
        self.one = one
        self.copies = copies  # what it makes has memory of its own
        self.pinned = pinned

    def of(self, arrays: Sequence[Any]) -> list:
        """Lists, which are fields of text or bytes, stay as they are."""
        return [array if isinstance(array, list) else self.one(array) for array in arrays]

    def settle(self) -> None:
        pass


class _OnCard(Tensors):
    """Copies to a CUDA device."""

    def __init__(self, device: Any, pinned: bool) -> None:
        super().__init__(None, True, pinned)
        self._device = device
        self._stream: Any = None
        self._under_way: Optional[tuple] = None  # the copy's event, and what it reads
        # The garbage collector may run inside of(), and end a pass of the same loader: in this thread, and with settle().
        self._lock = threading.RLock()

    def of(self, arrays: Sequence[Any]) -> list:
        import torch
        from torch.utils.dlpack import from_dlpack
        with self._lock:
            self._settle()
            if self._stream is None:
                self._stream = torch.cuda.Stream(self._device)
            sources = [array if isinstance(array, list) else from_dlpack(array) for array in arrays]
            if self.pinned:
                sources = [source if isinstance(source, list) else source.pin_memory() for source in sources]
            done = torch.cuda.Event()
            with torch.cuda.stream(self._stream):
                out = [source if isinstance(source, list) else source.to(self._device, non_blocking=True)
                       for source in sources]
                done.record(self._stream)
            self._under_way = done, sources
            consumer = torch.cuda.current_stream(self._device)
            consumer.wait_event(done)
            for tensor in out:
                if not isinstance(tensor, list):
                    tensor.record_stream(consumer)  # or the allocator gives its memory to the next copy too early
            return out

    def settle(self) -> None:
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        if self._under_way is not None:
            self._under_way[0].synchronize()
            self._under_way = None

    def __del__(self) -> None:
        try:
            self._settle()
        except Exception:  # at the end of the interpreter torch may be gone, and every copy with it
            pass


def made_as(output: Optional[str], copy: bool, pin_memory: bool, device: Any) -> Tensors:
    """As the parameters of penstock.DataLoader say."""
    if output is None:
        output = "torch" if has_torch() else "numpy"
    if output == "numpy":
        if pin_memory or device is not None:
            raise UsageError("pin_memory and device are torch's", 'use output="torch"')
        return Tensors((lambda array: array.numpy().copy(order="K")) if copy else (lambda array: array.numpy()), copy)
    if output != "torch":
        raise UsageError(f"output={output!r}", 'say "torch" or "numpy"')
    import torch
    from torch.utils.dlpack import from_dlpack
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if pin_memory and not cards:
        warnings.warn("pin_memory: this torch sees no CUDA device; tensors stay in ordinary memory", stacklevel=3)
        pin_memory = False
    if device == "auto":
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % cards}" if cards else None
    if device is not None:
        target = torch.device(device)
        if target.type == "cuda":
            _check_card(device, target, cards)
            return _OnCard(target, pin_memory)
        # A copy that has ended when it returns: the batch's memory may go back at once.
        return Tensors(lambda array: from_dlpack(array).to(target, copy=True), True)
    if pin_memory:
        return Tensors(lambda array: from_dlpack(array).pin_memory(), True, True)
    if copy:
        return Tensors(lambda array: from_dlpack(array).clone(), True)
    return Tensors(from_dlpack, False)


def _check_card(device: Any, target: Any, cards: int) -> None:
    if not cards:
        raise UsageError(f"device={str(device)!r}: this torch sees no CUDA device",
                         'device="auto" takes the CPU then; nvidia-smi, CUDA_VISIBLE_DEVICES and torch.version.cuda tell why')
    if target.index is not None and target.index >= cards:
        raise UsageError(f"device={str(device)!r}: this process sees {cards} CUDA device{'s' if cards > 1 else ''}, "
                         "counted from 0", 'device="auto" takes the one of LOCAL_RANK; CUDA_VISIBLE_DEVICES hides others')


def has_torch() -> bool:
    import importlib.util
    import sys
    return "torch" in sys.modules or importlib.util.find_spec("torch") is not None
