"""penstock.Preprocessor: encoded bytes in, the tensor that validation sees out. For serving.

    import penstock

    preprocess = penstock.Preprocessor("job.yaml", split="val")
    preprocess.check(checkpoint["val"])              # what DataLoader.state_dict() gave: refuses another pipeline
    logits = model(preprocess(request.body))         # float32 [1, 3, 224, 224]

The tensor is, byte for byte, what a DataLoader of that split gives for the same file.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

from . import _job, _penstock
from ._tensors import made_as
from . import _given
from .errors import DatasetError, UsageError, typed

__all__ = ["Preprocessor"]


class Preprocessor:
    """A split's pipeline without its dataset; calls may come from any thread.

    Parameters
    ----------
    job
        A job file's path, or a job as a dict. Its dataset is not looked at.
    split
        Which of the job's splits. May be left out where there is one only.
    device
        Copy tensors to this torch device; "auto": this rank's CUDA device where there is one, else the CPU. As for
        `penstock.DataLoader`, as bytes, on a stream of their own, and finished there. (Which device decodes,
        `loader.executor` says.)
    pin_memory
        As for `penstock.DataLoader`.
    dtype
        Instead of the pipeline's ToDtype: "uint8", "float32", "float16", "bfloat16".
    channels_last
        Memory format; the shape stays [n, 3, height, width].
    output
        "torch" (default where torch is installed) or "numpy".
    threads
        Threads of this object's own pool; default: the job's `loader.threads`.
    cpu_fraction
        0 to 1, instead of the split's `cpu_fraction` where it has a `gpu_pipeline` (then it decides pixels, and belongs
        to the fingerprint), else of the job's `loader.cpu_fraction` (then it changes nothing in them).
        "auto": of the latter, by speeds learned while running.
    overrides
        More keys, as "key.sub=value"; also as keywords, `limits__max_pixels=20_000_000`.

    Raises
    ------
    ConfigError, UsageError, RunError (`loader.executor` is `gpu`, and there is none) (`penstock.errors`).
    """

    def __init__(self, job: Union[str, os.PathLike, Mapping[str, Any]], split: Optional[str] = None, *,
                 device: Any = None, dtype: Any = None, channels_last: Optional[bool] = None,
                 output: Optional[str] = None, threads: Optional[int] = None, pin_memory: bool = False,
                 cpu_fraction: Union[None, float, str] = None, overrides: Sequence[str] = (), **more: Any) -> None:
        if not isinstance(job, (str, os.PathLike, Mapping)):
            raise UsageError(f"a {type(job).__name__} is no job", "give a job file's path, or a job as a dict")
        if threads is not None:
            threads = _job.integer("threads", threads)
            if not 1 <= threads <= 1024:
                raise UsageError(f"threads={threads}: it is 1 to 1024")
        cpu_fraction, more = _job.with_share(cpu_fraction, more)
        self._tensors = made_as(output, False, pin_memory, device)
        given = _given.read_given(job, _given.Asked(split, {}, None, None, None, more, _job.words_of(overrides)))
        self.split = given.split
        raw = self._tensors.wants_raw_images()
        self._native = _penstock.Preprocessor(given.job, is_text=given.is_text, name="<job>", split=self.split, overrides=given.overrides,
                                              dtype=_job.dtype_name(dtype), channels_last=channels_last, raw_images=raw,
                                              threads=threads or 0, cpu_fraction=cpu_fraction)
        self._raw = (0,) if raw else ()
        if raw:
            self._tensors.finish_with(self._native.finisher())
        self._arithmetic = json.loads(self._native.spec())["arithmetic"]

    def __call__(self, images: Any, *, index: Union[int, Sequence[int], None] = None, epoch: int = 0,
                 occurrence: Union[int, Sequence[int], None] = None, errors: str = "raise") -> Any:
        """The tensor [1, 3, height, width] of one encoded image, or [n, 3, height, width] of a list of n.

        An image is a whole image file: bytes, bytearray, memoryview, a uint8 array or tensor of one dimension, or
        a path (text or pathlib).

        `index`, `epoch` and `occurrence` are those of the sample in its data set (one, or one for each image): what a
        pipeline that draws, draws for. It is refused without; a pipeline that draws nothing does not ask. One with a
        `Python` transform draws: that gets a generator.

        errors="raise": DatasetError says what is wrong with the first image that cannot be used. "status": return
        (tensor, statuses) instead, with None for each good image and the reason for each other, whose place in the
        tensor is that of a black picture. A path that cannot be read is such an image; alone, or with "raise", it is
        an OSError.
        """
        if errors not in ("raise", "status"):
            raise UsageError(f"errors={errors!r}", 'say "raise" or "status"')
        epoch = _job.integer("epoch", epoch)
        single = not isinstance(images, (list, tuple))
        if not single and not all(one is None or isinstance(one, Iterable) for one in (index, occurrence)):
            raise UsageError("index and occurrence of a list of images are lists", "give one for each image")
        if single:
            images = [images]
            index = None if index is None else [index]
            occurrence = None if occurrence is None else [occurrence]
        unread = {} if errors == "status" and not single else None
        tensor, reasons = self._finish(self._submit(images, index, epoch, occurrence, unread))
        if errors == "status":
            return tensor, [(unread or {}).get(place) or reason.partition("\n")[0] or None for place, reason in enumerate(reasons)]
        for place, reason in enumerate(reasons):
            if reason:
                name = _path_of(images[place])
                which = f"'{name}'" if name else "image" if single else f"image {place} of {len(images)}"
                raise typed(DatasetError(f"{which} cannot be used: {reason}",
                                         "send a whole image file within the job's limits"
                                         + ("" if single else ', or say errors="status"')))
        return tensor

    def _submit(self, images, index, epoch, occurrence, unread=None):
        """`unread` gets, by place, why a path could not be read; None: that is raised."""
        encoded = []
        for place, image in enumerate(images):
            try:
                encoded.append(_encoded(image))
            except OSError as problem:
                if unread is None:
                    raise
                unread[place] = str(problem)
                encoded.append(b"")
        return self._native.submit(encoded, None if index is None else list(index), epoch,
                                   None if occurrence is None else list(occurrence))

    def _finish(self, pending):
        array, reasons = pending.wait()
        return self._tensors.of([array], self._raw)[0], reasons

    # ---- identity ----------------------------------------------------------------------------------------------------
    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, equal exactly where transforms with all parameters, arithmetic and versions of the
        decoders are. Dataset, sampler, batch size, seed, limits and this object's options do not enter."""
        return self._native.fingerprint()

    @property
    def arithmetic(self) -> str:
        """The job's: "exact", "fast" or "opencv"."""
        return self._arithmetic

    def state_dict(self) -> dict:
        """What a checkpoint keeps of the pipeline, for `check`, where it keeps no DataLoader's state of this split."""
        return json.loads(self._native.state())

    def check(self, state: Mapping[str, Any]) -> None:
        """Returns where this pipeline is that of `state`, and raises a ConfigError that names what differs where it is another:
        other transforms or parameters, another arithmetic, other decoders. `state` is what `state_dict()` gave, of a Preprocessor or of
        a DataLoader of this split, and not the whole checkpoint that it is kept in."""
        self._native.check(_job.state_text(state, "check"))

    # ---- facts -------------------------------------------------------------------------------------------------------
    @property
    def height(self) -> int:
        return self._native.height

    @property
    def width(self) -> int:
        return self._native.width

    @property
    def dtype(self) -> str:
        return self._native.dtype

    @property
    def threads(self) -> int:
        return self._native.threads

    @property
    def gpus(self) -> list:
        """What is known of each GPU that makes images here, where `loader.executor` is `gpu` or `auto`: {"name", "images" so far,
        "failure": why it is not asked any more, or ""}. Empty: the CPU makes all. GPUs give the CPU's bytes."""
        return self._native.gpus

    @property
    def no_gpu(self) -> str:
        """Why the CPU makes all where `loader.executor` is `auto`; else ""."""
        return self._native.no_gpu

    @property
    def device(self) -> Optional[dict]:
        """The CUDA device that tensors go to, as `penstock.DataLoader.stats()["device"]`; None: they stay here."""
        return self._tensors.figures()

    @property
    def pins(self) -> bool:
        """Are tensors of the host in page-locked memory?"""
        return self._tensors.pinned

    @property
    def random_transforms(self) -> list:
        """Names of the transforms that draw, after "cpu_fraction" where a draw says which list an image gets; empty:
        nothing is drawn, and bytes are enough."""
        return self._native.random_transforms

    def close(self) -> None:
        """Ends the threads; tensors that are kept stay valid. The end of a `with` block does it, too."""
        self._tensors.close()
        self._native.close()

    def __enter__(self) -> "Preprocessor":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return f"<penstock.Preprocessor of split {self.split!r}, closed>"
        return (f"<penstock.Preprocessor of split {self.split!r}: {self.dtype} [n, 3, {self.height}, {self.width}], "
                f"{self.threads} threads>")

    def __reduce__(self):
        raise TypeError("a Preprocessor cannot be pickled: it has threads; make one in each process")


def _path_of(image: Any) -> Optional[str]:
    return os.fspath(image) if isinstance(image, (str, os.PathLike)) else None


def _encoded(image: Any) -> Any:
    """Something with the buffer protocol."""
    path = _path_of(image)
    if path is not None:
        if not stat.S_ISREG(os.stat(path).st_mode):  # of a pipe the end may never come
            raise OSError(errno.EINVAL, "not a file", path)
        with open(path, "rb") as file:
            return file.read()
    to_numpy = getattr(image, "numpy", None)  # torch tensors have no buffer protocol
    return image if to_numpy is None else to_numpy()
