"""Images that come raw, as the uint8 bytes of the loaders, and are finished (ToDtype, Normalize, layout) on a CUDA device.

    images = GpuImages(native_loader.finisher())
    with torch.cuda.stream(stream):
        tensor, kept = images.start(source, device, stream)  # uint8 [n, 3, h, w] of the host
        images.wait()                                        # `kept` may go

A quarter of float32's bytes are copied, and the CPU writes none of them; the bytes are the CPU's. Where the device cannot
be used the CPU finishes, from then on, with a RuntimeWarning. The GPU's memory for it is bounded
(runtime/gpu/gpu_finisher.h), and the context is torch's own.
Every call stands inside `with torch.cuda.stream(stream)`, which puts right what device is current; one thread at a time.
"""

from __future__ import annotations

from typing import Any, Sequence

from .errors import RunError, warn

__all__ = ["GpuImages"]

_NO_FIGURES = {"images": 0, "uploaded_bytes": 0, "copied_bytes": 0, "linked_bytes": 0,
               "gpu_memory_bytes": 0, "copy_s": 0.0, "finish_s": 0.0}


class GpuImages:
    def __init__(self, finisher: Any) -> None:
        self._finisher = finisher
        self._gpu: Any = None
        self._under_way = False  # something that the GPU was told, and that nobody has waited for
        self._ended = dict(_NO_FIGURES)
        self._reads = False      # memory of loaders' GPUs
        self._loader: Any = None  # that was met last, whose batches come next
        self._linked = False      # some of it by links
        self._joining: list = []  # memory that is linked, before it is used
        self.why = ""            # the CPU finishes

    def meet(self, loader: Any) -> None:
        """Memory that loaders' GPUs export, as it is offered: images come from there once it is open, or joined by a link, and
        by the host where this device does not reach it."""
        self._loader = loader
        if self._gpu is None and not self.why:
            return  # no batch yet
        if self.why:
            if self._reads:
                loader.use_no_memory()
                self._reads = False
            return
        for memory in loader.offered_memory():
            try:
                if memory.linked:
                    self._meet_linked(memory, loader)
                    continue
                self._gpu.open(memory)
                self._use(memory, loader)
            except RunError as error:
                self._by_the_host(f"{error.message} ({error.remedy})" if error.remedy else error.message)
        for memory in list(self._joining):
            why_not = self._gpu.joined(memory)
            if why_not is None:
                continue
            self._joining.remove(memory)
            if why_not:
                self._by_the_host(why_not)
            else:
                self._use(memory, loader)

    def _meet_linked(self, memory: Any, loader: Any) -> None:
        """First it is offered, then opened by the loader, or not; and a link may end later."""
        if memory.problem:
            self._by_the_host(memory.problem)
        elif memory.opened:
            self._gpu.join(memory)
            self._linked = True
            self._joining.append(memory)
        elif self._gpu.why_no_links():
            self._by_the_host(self._gpu.why_no_links())
        else:
            loader.ask_for_link(memory, self._gpu.identity())

    def _use(self, memory: Any, loader: Any) -> None:
        loader.use_memory(memory)
        self._reads = True

    @staticmethod
    def _by_the_host(why: str) -> None:
        warn(f"{why}; images of one of the loaders' GPUs come by the host")

    def start(self, source: Any, device: Any, stream: Any, elsewhere: Sequence[Any] = ()) -> tuple:
        """The tensor, and what has to stay until wait(). `elsewhere`: samples whose images are in memory of loaders' GPUs.
        Errors of the device before it has taken the images cost nothing, but for those."""
        if not self.why:
            import torch
            try:
                if self._gpu is None:
                    number = device.index if device.index is not None else torch.cuda.current_device()
                    self._gpu = self._finisher.gpu(number, stream.cuda_stream)
                tensor = self._empty(source, device)
                if elsewhere and self._linked:
                    for memory, places in self._gpu.receives(source.numel(), len(source), list(elsewhere)):
                        self._loader.ask_for_images(memory, places)
                self._gpu.start(source.data_ptr(), source.numel(), len(source), tensor.data_ptr(), list(elsewhere))
                self._under_way = True
                return tensor, source
            except RunError as error:
                self._give_up(error)
                warn(f"{device}: {error.message}; images are finished by the CPU from here on")
        if elsewhere:
            raise RunError(f"{device}: {self.why}; images of the next batch are in a loader's GPU's memory, which it does not "
                           "read any more", "resume with loader.gpu_export_mb=0")
        here = self._empty(source, "cpu")
        self._finisher.run(source.data_ptr(), source.numel(), len(source), here.data_ptr())
        return here.to(device, non_blocking=True), here

    def wait(self) -> None:
        """RunError where the device failed: a batch that was given is then unknown."""
        if not self._under_way:
            return
        self._under_way = False
        try:
            self._gpu.wait()
        except RunError as error:
            self._give_up(error)
            what_ails = "with a loader goes what its GPU had not sent yet" if self._linked else \
                "nvidia-smi and dmesg may tell what ails the GPU"
            raise RunError(f"{error.message}; the images that it was finishing, of the last batch given, are unknown",
                           f"train on from a checkpoint before it; {what_ails}") from None

    def close(self) -> None:
        """Gives the GPU's memory back."""
        if self._gpu is not None:
            self._ended = self._gpu.figures()
            self._gpu = None
            self._joining.clear()

    def figures(self) -> dict:
        return dict(self._ended if self._gpu is None else self._gpu.figures())

    def _give_up(self, error: RunError) -> None:
        self.why = error.message
        # Another field of this batch may be under way, in a tensor that will be given.
        gpu, told, self._under_way = self._gpu, self._under_way, False
        self.close()
        if told:
            gpu.wait()

    def _empty(self, source: Any, device: Any) -> Any:
        import torch
        strides = list(source.stride())
        if self._finisher.channels_last:
            channels, _, width = source.shape[-3:]
            strides[-3:] = 1, width * channels, channels
        return torch.empty_strided(source.shape, strides, dtype=getattr(torch, self._finisher.dtype), device=device)
