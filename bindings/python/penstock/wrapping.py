"""penstock.wrap: an existing torch DataLoader, with decoding and augmentation taken out of its worker processes.

    dataset = MyFiles(...)                            # its __getitem__(i) returns (i, encoded bytes, label)
    loader = torch.utils.data.DataLoader(dataset, batch_size=64, shuffle=True, num_workers=1)
    train = penstock.wrap(loader, "job.yaml", split="train")
    for epoch in range(90):
        for images, labels in train:                  # float32 [n, 3, 224, 224], int64 [n]
            step(images, labels)

The program keeps its Dataset, sampler and DataLoader; the job file's pipeline makes the pixels, on threads of this
process. A sample's draws follow from (seed, epoch, index, occurrence): its pixels are those that `penstock.DataLoader`
gives for that index in that epoch, whoever reads it and in whatever batch.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import signal
import weakref
from collections import deque
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from . import _job, _penstock
from ._program_order import send_epoch
from ._tensors import has_torch
from .batch import ListBatch
from .errors import DatasetError, UsageError, typed
from .preprocessor import Preprocessor

__all__ = ["collate_bytes", "wrap", "WrappedLoader"]

_IGNORED_LABEL = -100
_EPOCH = "penstock_epoch"  # in a state, beside the wrapped loader's own
_SHAPE = "(indices, encoded images, labels, …)"


def collate_bytes(samples: Sequence[Any]) -> tuple:
    """For torch's DataLoader(collate_fn=…) where encoded images are not `bytes`, which torch's default_collate would
    stack: samples (index, encoded image, label, …) become (int64 [n], list of n, labels, …), with default_collate for
    labels and what follows them."""
    import torch
    from torch.utils.data import default_collate
    if not samples or not isinstance(samples[0], (tuple, list)) or len(samples[0]) < 3:
        got = type(samples[0]).__name__ if samples else "an empty list"
        raise UsageError(f"collate_bytes: a sample is a tuple (index, encoded image, label, …), not {got}",
                         "return such a tuple from the Dataset's __getitem__")
    indices, images, *rest = zip(*samples)
    return (torch.tensor([int(index) for index in indices], dtype=torch.int64),
            # Tensors would each come from a worker process in shared memory of their own; memoryviews not at all.
            [image.numpy() if hasattr(image, "numpy") else bytes(image) if isinstance(image, memoryview) else image
             for image in images],
            *(default_collate(list(column)) for column in rest))


def wrap(loader: Any, job: Union[str, os.PathLike, Mapping[str, Any]], split: Optional[str] = None, *,
         prefetch: int = 1, cpu_fraction: Union[None, float, str] = None, device: Any = None, pin_memory: bool = False,
         dtype: Any = None, channels_last: Optional[bool] = None, output: Optional[str] = None,
         threads: Optional[int] = None, overrides: Sequence[str] = (), **more: Any) -> "WrappedLoader":
    """The same loader, giving finished batches `(images, labels, …)` instead of encoded ones.

    Parameters
    ----------
    loader
        An iterable of batches (indices, encoded images, labels, …): a torch DataLoader whose Dataset returns
        (index, encoded bytes, label, …). torch's default collate passes `bytes` on as they are; arrays and tensors need
        `collate_fn=penstock.collate_bytes`. What follows the labels is passed on.
    job, split
        Pipeline, mode, seed, limits and on_error come from this split; its dataset, sampler and batch size are not used.
    prefetch
        So many batches are decoded while the program works on the one before: 0 or more.
    cpu_fraction
        Share of the samples (0 to 1) that the CPU takes. With two lists of transforms in the split (`pipeline` for these
        samples, `gpu_pipeline` for the others) it says which list a sample gets, by a draw from seed, epoch and index:
        the same whoever makes it. With one list it says who makes a sample where `loader.executor` has GPUs, and
        changes nothing in it; "auto" then shares by learned speeds. Default: what the job says.
    device, pin_memory, dtype, channels_last, output, threads, overrides
        As for `penstock.Preprocessor`; `device` and `pin_memory` hold for labels and indices, too.

    Returns
    -------
    An iterable with `len`, `set_epoch`, `reset`, `close`. Batches are tuples that also know `indices`, `valid`,
    `substituted`, `epoch` and `step`. Other names are looked up at `loader`. `state_dict` and `load_state_dict`, where `loader`
    has them (torchdata's StatefulDataLoader), keep the epoch, too, and are of the batches that the program was given: with
    `prefetch` the loader is asked for its state before each batch.

    Notes
    -----
    A `train` split advances its epoch at every `iter()` unless `set_epoch` was called; an `eval` split replays epoch 0.
    The wrapped loader is iterated in the caller's thread, `prefetch` batches ahead of it: no other thread runs the
    program's code, so its random numbers come in one order.

    A sample that cannot be used ends the iteration with a DatasetError under `on_error: fail`. Under `substitute` it is
    masked in an `eval` split (label -100, `valid` false), and in a `train` split replaced by the sample that penstock's
    own loader would take, asked from `loader.dataset`; more than the budget (`bad_samples`) end the iteration.

    Ctrl-C reaches torch's worker processes as well. They leave it to this process, which ends them: a worker that ends
    itself first waits for somebody to read the encoded images that it has made, and torch waits 5 s for each such worker.

    Occurrences of an index are counted in this process. Where a DistributedSampler repeats samples to fill up its last
    step, another rank has had the first one, and the repetition draws as the first did.
    """
    return WrappedLoader(loader, prefetch, Preprocessor(
        job, split, device=device, pin_memory=pin_memory, dtype=dtype, channels_last=channels_last, output=output,
        threads=threads, cpu_fraction=cpu_fraction, overrides=overrides, **more))


class WrappedLoader:
    """What `penstock.wrap` gives."""

    def __init__(self, loader: Any, prefetch: int, preprocessor: Preprocessor) -> None:
        if prefetch < 0:
            raise UsageError(f"prefetch={prefetch}: it is 0 or more")
        self.loader = loader
        self.preprocessor = preprocessor
        self.prefetch = prefetch
        spec = json.loads(preprocessor._native.spec())
        self._training = spec["split"]["mode"] == "train"
        self._substitutes = spec["on_error"] == "substitute"
        self._seed = spec["seed"]
        self._bad_samples = spec["bad_samples"]
        self._next_epoch: Optional[int] = None
        self._last_epoch = -1
        self._iterations: weakref.WeakSet = weakref.WeakSet()
        self._place: Optional[_Place] = None  # of the newest iteration

    def __iter__(self) -> Iterator:
        before = self._last_epoch, self._next_epoch
        self._last_epoch, self._next_epoch = self.epoch, None
        try:
            made = _WrappedIteration(self, self._last_epoch)
        except BaseException:  # the loader's iter() failed, or Ctrl-C: that used up no epoch
            self._last_epoch, self._next_epoch = before
            raise
        self._iterations.add(made)
        self._place = made._place
        return made

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter()` will give."""
        if self._next_epoch is not None:
            return self._next_epoch
        return self._last_epoch + 1 if self._training else 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next `iter()`; told to the loader's sampler as well, where it has a set_epoch."""
        self._next_epoch = _job.epoch_of(epoch)
        batches = getattr(self.loader, "batch_sampler", None)
        send_epoch(self._next_epoch, batches, getattr(batches, "sampler", None), getattr(self.loader, "sampler", None))

    def reset(self) -> None:
        """Ends the iteration that is under way and drops what was decoded ahead; the next `iter()` begins the next epoch. After
        an iteration that ran to its end it does nothing."""
        for made in list(self._iterations):
            made._stop("was ended by reset()")

    def close(self) -> None:
        """Ends iterations and threads; tensors that are kept stay valid. The end of a `with` block does it, too."""
        for made in list(self._iterations):
            made._stop("was ended by close()")
        self.preprocessor.close()

    def __enter__(self) -> "WrappedLoader":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "loader" not in self.__dict__:
            raise AttributeError(name)
        found = getattr(self.loader, name)
        return {"state_dict": self._state_dict, "load_state_dict": self._load_state_dict}.get(name, found)

    def _state_dict(self) -> dict:
        place = self._place
        epoch = self.epoch if place is None or place.over else place.epoch
        state = place.states[0] if place is not None and place.states else self.loader.state_dict()
        if isinstance(state, Exception):
            raise state
        return {_EPOCH: epoch, "loader": state}

    def _load_state_dict(self, state: Any) -> None:
        epoch = self._next_epoch
        if isinstance(state, Mapping) and _EPOCH in state:  # else the loader's own, which knows of no epoch here
            epoch, state = _job.epoch_of(state[_EPOCH]), state["loader"]
        self.loader.load_state_dict(state)
        self._next_epoch, self._place = epoch, None

    def __repr__(self) -> str:
        return f"<penstock.wrap({type(self.loader).__name__}) with {self.preprocessor!r}>"

    def _budget(self) -> int:
        """Unusable samples that an iteration may have, as the receiver counts them."""
        sampler = getattr(self.loader, "sampler", None)
        samples = len(sampler) if hasattr(sampler, "__len__") else 0
        return max(self._bad_samples["max_count"], int(self._bad_samples["max_fraction"] * samples))


@dataclasses.dataclass
class _Place:
    """Where an iteration stands, also once nobody has that any more."""

    epoch: int
    # The loader's before each batch that it has given and the program was not given; empty where it has none, or none is ahead. An
    # exception where it could not tell.
    states: deque = dataclasses.field(default_factory=deque)
    over: bool = False


class _Facts(NamedTuple):
    """What a batch says of itself besides its fields."""

    indices: Any
    valid: Any
    substituted: Any
    num_valid: int
    epoch: int
    step: int
    arithmetic: str


@dataclasses.dataclass
class _Begun:
    pending: Any
    indices: list
    occurrences: Optional[list]
    labels: Any
    rest: list
    made: Optional[tuple] = None  # (images, reasons), once they were waited for


def _begin_iteration(loader: Any) -> Iterator:
    """iter(loader), whose worker processes, where it starts some, leave Ctrl-C to this process."""
    if not getattr(loader, "num_workers", 0) or not hasattr(loader, "worker_init_fn"):
        return iter(loader)
    torchs = getattr(loader, "base_dataloader", loader)  # inside Accelerate's
    users = torchs.worker_init_fn
    torchs.worker_init_fn = _LeaveInterrupts(users)
    try:
        return iter(loader)
    finally:
        torchs.worker_init_fn = users


class _LeaveInterrupts:
    """A worker_init_fn, pickled where workers are spawned."""

    def __init__(self, then: Any) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        # A handler, not SIG_IGN, which programs that a Dataset starts would inherit.
        signal.signal(signal.SIGINT, _ignore)
        if self._then is not None:
            self._then(worker)


def _ignore(number: int, frame: Any) -> None:
    pass


class _WrappedIteration:
    def __init__(self, owner: WrappedLoader, epoch: int) -> None:
        self._owner = owner
        self._epoch = epoch
        self._place = _Place(epoch)
        self._keeps_states = owner.prefetch > 0 and hasattr(owner.loader, "state_dict")
        self._step = 0
        self._bad = 0
        self._unusable: set = set()  # (place in the dataset, occurrence) of samples that searches have seen
        self._source: Optional[Iterator] = _begin_iteration(owner.loader)
        self._begun: deque = deque()
        self._failure: Optional[Exception] = None  # of the loader, to be raised behind the batches before it
        self._stopped = ""
        self._seen = _Seen(getattr(owner.loader, "dataset", None)) if owner.preprocessor.random_transforms else None

    def __iter__(self):
        return self

    def __len__(self) -> int:
        return len(self._owner)

    def _stop(self, why: str = "") -> None:
        self._stopped = why
        self._source = None
        self._begun.clear()  # takes back what no thread has begun

    def __next__(self):
        if self._stopped:
            raise UsageError(f"this iteration {self._stopped}", "begin a new one")
        while self._source is not None and len(self._begun) <= self._owner.prefetch:
            self._pull()
        if not self._begun:
            failure, self._failure = self._failure, None
            if failure is not None:
                try:
                    raise failure
                finally:
                    # Its traceback holds this frame: no cycle of ours shall keep torch's iterator and its workers.
                    del failure
            self._place.over = True
            raise StopIteration
        try:
            # Ctrl-C ends this waiting, not the iteration: the batch stays the next one until it is there.
            begun = self._begun[0]
            if begun.made is None:
                begun.made = self._owner.preprocessor._finish(begun.pending)
            batch = self._finish(begun, *begun.made)
            self._bad += sum(map(bool, begun.made[1]))
            self._begun.popleft()
            if self._place.states:
                self._place.states.popleft()
            self._place.over = self._source is None and not self._begun and self._failure is None
        except Exception:
            self._stop("failed")
            raise
        self._step += 1
        return batch

    def _pull(self) -> None:
        """Takes one batch of the loader, and begins to decode it."""
        try:
            before = [self._state()] if self._keeps_states else []
            try:
                batch = next(self._source)
                self._place.states.extend(before)
            except StopIteration:
                self._source = None
                return
            self._begun.append(self._begin(batch))
        except Exception as problem:
            self._failure = problem
            self._source = None

    def _state(self) -> Any:
        try:
            return copy.deepcopy(self._owner.loader.state_dict())
        except Exception as problem:  # of whoever asks for it
            return problem

    def _begin(self, batch: Any) -> _Begun:
        if not isinstance(batch, (tuple, list)) or len(batch) < 3:
            got = type(batch).__name__ + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")
            raise UsageError(f"the wrapped loader gave a {got}, not {_SHAPE}",
                             "return (index, encoded bytes, label) from the Dataset, "
                             "and use collate_fn=penstock.collate_bytes")
        indices, images, labels, *rest = batch
        try:
            indices = [int(index) for index in (indices.tolist() if hasattr(indices, "tolist") else indices)]
        except (TypeError, ValueError):
            raise UsageError(f"the wrapped loader's batches begin with a {type(indices).__name__}, not with indices",
                             f"a batch is {_SHAPE}") from None
        if not isinstance(images, (list, tuple)) or any(isinstance(image, str) for image in images):
            raise UsageError(f"the wrapped loader's encoded images are {type(images).__name__}"
                             f"{' of texts' if isinstance(images, (list, tuple)) else ''}, not a list of bytes",
                             "use collate_fn=penstock.collate_bytes")
        count = labels.shape[0] if getattr(labels, "shape", ()) else len(labels) if isinstance(labels, (list, tuple)) else None
        if count is not None and count != len(images):
            raise UsageError(f"the wrapped loader gave {count} labels for {len(images)} images", f"a batch is {_SHAPE}")
        occurrences = self._seen.count(indices) if self._seen else None
        owner = self._owner
        pending = owner.preprocessor._submit(images, indices, self._epoch, occurrences)
        return _Begun(pending, indices, occurrences, labels, rest)

    def _finish(self, begun: _Begun, images: Any, reasons: list) -> ListBatch:
        """May be called again for the same batch, where it was interrupted."""
        owner = self._owner
        indices, labels = list(begun.indices), begun.labels
        valid, substituted = [1] * len(indices), [0] * len(indices)
        bad = [place for place, reason in enumerate(reasons) if reason]
        if bad:
            self._check_bad(begun, bad, reasons)
            labels = _copy(labels)
            for place in bad:
                if owner._training:
                    indices[place] = self._substitute(begun, place, reasons[place], images, labels)
                    substituted[place] = 1
                else:
                    labels[place] = _IGNORED_LABEL
                    valid[place] = 0
        convert = _like(images, owner.preprocessor.pins)
        facts = _Facts(convert(indices, "int64"), convert(valid, "uint8"), convert(substituted, "uint8"), sum(valid),
                       self._epoch, self._step, owner.preprocessor.arithmetic)
        return ListBatch([images, convert(labels, None),
                          *(convert(column, None) for column in begun.rest)])._describe(facts)

    def _check_bad(self, begun: _Begun, bad: list, reasons: list) -> None:
        owner, place = self._owner, bad[0]
        if not owner._substitutes:
            raise typed(DatasetError(f"unusable sample {begun.indices[place]} in epoch {self._epoch} of the wrapped loader: "
                                     f"{reasons[place]}", "repair or remove the file, or say on_error=\"substitute\""))
        if self._bad + len(bad) > owner._budget():
            last = bad[-1]
            raise DatasetError(f"more than {owner._budget()} samples of the wrapped loader are unusable in epoch "
                               f"{self._epoch}; the last: {begun.indices[last]}: {reasons[last]}",
                               "repair or remove the files, or raise bad_samples__max_fraction or bad_samples__max_count")

    def _substitute(self, begun: _Begun, place: int, reason: str, images: Any, labels: Any) -> int:
        """Puts another sample into the place of an unusable one, as SampleMaker does; returns its index."""
        owner, index, reason = self._owner, begun.indices[place], reason.partition("\n")[0]
        dataset = getattr(owner.loader, "dataset", None)
        if begun.rest or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise DatasetError(f"unusable sample {index} in epoch {self._epoch} of the wrapped loader: {reason}; and "
                               "nothing can stand in for it",
                               "on_error=\"substitute\" needs a Dataset with __getitem__ and __len__ whose samples are "
                               "(index, encoded bytes, label)")
        occurrence = begun.occurrences[place] if begun.occurrences else 0
        self._unusable.add((index, occurrence))
        others = _penstock.Substitutes(owner._seed, self._epoch, index, len(dataset), **owner._bad_samples)
        while (other := others.next()) is not None:
            if (other, occurrence) in self._unusable:
                continue
            other_index, encoded, label = dataset[other]
            pending = owner.preprocessor._submit([encoded], [int(other_index)], self._epoch, [occurrence])
            image, why = owner.preprocessor._finish(pending)
            if not why[0]:
                images[place] = image[0]
                labels[place] = label
                return int(other_index)
            self._unusable.add((other, occurrence))
        raise DatasetError(f"unusable sample {index} in epoch {self._epoch} of the wrapped loader: {reason}; and none "
                           f"of {others.given} substitutes is usable", "repair or remove the files")


class _Seen:
    """How often each index stood earlier in the iteration."""

    def __init__(self, dataset: Any) -> None:
        self._size = len(dataset) if hasattr(dataset, "__len__") else 0
        self._counts = bytearray(self._size)   # a byte for each sample of the dataset: an epoch of millions is no dict
        self._more: dict = {}                  # of indices outside, and beyond 254 times

    def count(self, indices: Sequence[int]) -> list:
        out = []
        for index in indices:
            if 0 <= index < self._size and self._counts[index] < 255:
                out.append(self._counts[index])
                self._counts[index] += 1
            else:
                first = 255 if 0 <= index < self._size else 0
                out.append(self._more.get(index, first))
                self._more[index] = out[-1] + 1
        return out


def _copy(labels: Any) -> Any:
    """Labels that may be written to."""
    for name in ("clone", "copy"):
        if hasattr(labels, name):
            return getattr(labels, name)()
    return list(labels)


def _like(images: Any, pinned: bool):
    """Puts lists and tensors of a batch where its images are: torch on their device or in page-locked memory, or NumPy."""
    if has_torch():
        import torch
        if isinstance(images, torch.Tensor):
            def to_torch(value, dtype):
                if not isinstance(value, torch.Tensor):
                    if dtype is None and not _numbers(value):
                        return value
                    value = torch.as_tensor(value, dtype=getattr(torch, dtype) if dtype else None)
                if value.device != images.device:
                    return value.to(images.device)
                # Columns of labels; what is on a GPU needs no pinning.
                return value.pin_memory() if pinned and value.device.type == "cpu" and not value.is_pinned() else value
            return to_torch
    import numpy

    def to_numpy(value, dtype):
        if dtype is None and not hasattr(value, "numpy") and not _numbers(value):
            return value
        return value.numpy() if hasattr(value, "numpy") else numpy.asarray(value, dtype=dtype)
    return to_numpy


def _numbers(value: Any) -> bool:
    """Something that is an array already, or a list of numbers, and so a column of labels."""
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, (bool, int, float)) for item in value)
    return hasattr(value, "__array__")
