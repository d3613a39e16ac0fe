"""penstock.DataLoader: batches of a job's split, for a training program in Python.

    import penstock

    train = penstock.DataLoader("job.yaml", split="train")
    for epoch in range(90):
        for images, labels in train:          # torch tensors, ready: float32 [n, 3, 224, 224] and int64 [n]
            step(images, labels)

Where batches come from is not the program's affair: from this trainer's receiver under `penstock run`, else from threads of
this process. The stream is the same, bit for bit.
"""

from __future__ import annotations

import array
import contextlib
import inspect
import json
import os
import threading
import sys
import types
import weakref
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence, Tuple, Union

from . import _generators, _given, _here, _job, _penstock, _torch_datasets, _torch_transforms, _torch_words, _worker
from ._no_batches import Cut, NoBatches
from ._place import has_receiver, of_distributed, place
from ._program_order import BatchOrder, OfRows, Order, ProgramOrder, epoch_of
from ._tensors import made_as
from .batch import DictBatch, Facts, ListBatch, TupleBatch
from .errors import ConfigError, DatasetError, Error, RunError, UsageError, as_raised, warn

__all__ = ["DataLoader"]

_NOTHING_YET = {"images": 0, "batches": 0, "order_hash": "0" * 32, "pixel_hash": "0" * 32, "ranges": [],
                "bad_samples": [], "substituted": 0, "padding": 0}
_FIRST = ("image", "label")  # of a tuple; other fields follow in the dataset's order


class _Unsaid:
    def __repr__(self) -> str:
        return "1, or the job's"


_UNSAID = _Unsaid()
_MOST_IN_BATCH = 1 << 20  # of a job


def _place(num_replicas: Optional[int], rank: Optional[int], ranks_per_replica: Optional[int]):
    """(num_replicas, rank, do they count ranks): arguments, which count replicas; else torch.distributed where it is
    initialised; else None for both, and the library looks at RANK and WORLD_SIZE."""
    if ranks_per_replica is not None and _job.whole("ranks_per_replica", ranks_per_replica) < 1:
        raise UsageError(f"ranks_per_replica={ranks_per_replica}: it is 1 or more")
    if num_replicas is not None or rank is not None:
        if num_replicas is None or rank is None:
            raise UsageError("num_replicas and rank come together", "give both, or neither")
        return _job.whole("num_replicas", num_replicas), _job.whole("rank", rank), False
    if (ranks_per_replica or 1) > 1 and place() == (None, None):
        raise UsageError("ranks_per_replica without ranks",
                         "initialise torch.distributed, or set RANK and WORLD_SIZE, or give num_replicas and rank")
    return (*of_distributed(), True)


class DataLoader:
    """An iterable over the batches of one split; each `iter()` is one iteration over an epoch.

    The parameters up to `in_order` are those of torch's DataLoader, in its order and with its meaning.

    Parameters
    ----------
    dataset
        A job file's path; or a job as a dict; or a data set, with `transform` and the keywords below saying the rest:
        `penstock.ImageFolder(root)`, one of torchvision's or torch's, or an object of your own with `__len__` and `__getitem__`.
        torchvision's ImageFolder, DatasetFolder, CIFAR10, CIFAR100, MNIST and its kin, the pictures of CocoDetection and
        CocoCaptions, Subset and ConcatDataset of them are read by the loaders themselves, with their own `transform` where every
        step of it can be translated (`penstock.describe_transforms` says which). Any other data set runs in Python: with a
        `transform` it gives pictures for it (what it may return: `penstock._worker`), without one its samples are taken as they
        are, tensors, numbers, texts, tuples and dicts of them, as torch's DataLoader takes them. An IterableDataset is refused.
    batch_size
        Samples of a batch; 1 for a data set, for a job what the job says. None with a data set, torch's way of asking for samples
        without batches, is refused.
    shuffle, drop_last
        Keys of the split (job file: `sampler.shuffle`, `drop_last`).
    sampler
        Any iterable of indices: evaluated at the start of each iteration, after its set_epoch(epoch) where it has one, and
        taken as this rank's share. Excludes `shuffle`. For the hashes its i-th index stands at position
        i * num_replicas + rank. len(loader) follows from len(sampler), which has to be the same on all ranks. Exactly
        torch's DistributedSampler, RandomSampler or SequentialSampler over a torch data set only tells the loader what to do:
        the order is then the library's, the same as DistributedSampler's, and can be resumed with other numbers of ranks (as
        load_state_dict says).
    batch_sampler
        Any iterable of lists of indices, such as penstock.BatchSampler or torch's. Its attribute `batch_size` says how many
        each has; the last one may have fewer, no other. Excludes `batch_size`, `shuffle`, `sampler` and `drop_last`, and
        stands for what the job says of them and of `tail`; otherwise as `sampler`.
    num_workers
        Threads that load, for a loader in this process; left out, or 0: the job's loader.threads (2). Where samples are made in
        Python: worker processes, and 0 (the default) makes them in this process, where a debugger can stop; the data set is not
        pickled then. Of a data set of your own with penstock's `transform` the default is a worker process for each thread.
    collate_fn
        Called in this process with a list of the batch's samples, views of its memory: `(image, label, …)` of a job or a data
        set that loaders read, else what the data set returned. What it returns is the batch. The generators of random, NumPy and
        torch are seeded for it from (seed, epoch, step, rank), and put back. `pin_memory` and `device` are for what it returns.
    pin_memory
        Give tensors in page-locked memory that torch allocated; without a CUDA device a RuntimeWarning, as torch's own
        DataLoader gives. The loader's own memory is never registered with CUDA: a non_blocking copy out of memory that is
        dropped at once would race.
    timeout
        Seconds that next() waits before it raises; the next one waits for the same batch. 0: trainer.timeout_s of the job.
        With balancer.on_all_lost: wait it is longer by wait_s and lost_after_s.
    worker_init_fn
        Called with its number in each worker process, where samples are made in Python; torch's get_worker_info() answers there.
    generator
        A torch.Generator: its initial_seed() is the seed. Without one, and without `seed`, the seed of a torch data set is drawn
        from torch's generator when the loader is made, or is torch.initial_seed() where nothing is shuffled. Where ranks share
        the data, by `num_replicas` or under `penstock run`, it is 0 on all of them, as DistributedSampler's: say `seed` for others.
    prefetch_factor
        Batches made ahead for each of `num_workers`; left out: the job's loader.prefetch (2 in all).
    persistent_workers, in_order
        Always so here.
    multiprocessing_context, pin_memory_device
        Have no meaning here, which a RuntimeWarning says.
    split
        Which of the job's splits. May be left out where there is one only.
    tail, mode
        Keys of the split (job file: `tail`, `mode`). For a torch data set `tail` is "torch" and `mode` "train".
    transform
        For a data set: a `penstock.transforms.Compose`, torchvision's (v1 or v2), one transform, or a list of them.
    gpu_transform, cpu_fraction
        A second list for a dataset, and the share (0 to 1) of the samples that `transform` makes: keys of the split
        (job file: `gpu_pipeline`, `cpu_fraction`). Which list a sample gets follows from seed, epoch and index, not from
        who makes it; both have to end in the same size, dtype and normalisation. With one list, cpu_fraction="auto" shares
        the images between CPU and GPUs by learned speeds (job file: `loader.cpu_fraction: auto`), and changes none.
    seed
        The seed of order and draws.
    output
        "torch" (default where torch is installed) or "numpy".
    batch
        "list": `images, labels = batch`, and a dataset's further fields after them; "dict": `batch["image"]`,
        `batch["label"]`. A text field is a list of str, a bytes field a list of bytes, as torch's default_collate has it. Of a data set
        of your own whose samples Python makes as they are, "dict" is for dicts, and refused for others without a `collate_fn`.
    keys
        New names of fields for batch="dict", as in {"image": "pixel_values", "label": "labels"}.
    dtype
        The dtype of images, instead of the pipeline's: "float32", "float16", "bfloat16"; or "uint8", pixels as they are,
        neither scaled nor normalised.
    channels_last
        Memory format of images; their shape stays [n, 3, height, width].
    copy
        Give tensors memory of their own (one copy more), so that any number of batches may be kept.
    device
        Copy tensors to this torch device; "auto": this rank's CUDA device (LOCAL_RANK) where there is one, else the CPU.
        To a CUDA device they are copied on a stream of their own, through page-locked memory with `pin_memory`; the
        stream that is current when a batch is taken waits for that copy, and the batch's memory goes back behind it.
        Images are copied as uint8 and finished there (ToDtype, Normalize, `dtype`, `channels_last`), with the CPU's bytes,
        in 8 MiB of the device's memory; stats()["device"] says so, or why the CPU finishes. A device that fails at a
        batch that was given: RunError. A CUDA device that torch does not see: UsageError.
    attach
        True: be fed by the `penstock serve` of this job on this host, which torchrun's or Slurm's programs find by
        LOCAL_RANK; False: do not. Default: what PENSTOCK_ATTACH says (1 or 0), else False, with a warning where one runs.
    num_replicas, rank
        This process's place among the trainers, where it loads for itself. Default: torch.distributed where it is
        initialised, else RANK and WORLD_SIZE. Under `penstock run` the receiver knows. For a torch data set without a
        DistributedSampler every rank gets everything, as from torch's DataLoader, unless num_replicas is "auto".
    ranks_per_replica
        So many consecutive ranks get the same data (tensor and pipeline parallelism). Under `penstock run` the job's
        key roles.ranks_per_replica says it.
    overrides
        More keys of the job: ["loader.threads=4"] or {"loader.threads": 4}; also as keywords, `loader__threads=4`.

    Raises
    ------
    ConfigError, DatasetError, UsageError, PeerLostError, RunError (`penstock.errors`). Errors of `__getitem__` and of transforms are
    DatasetErrors, and of their own classes as well. They come with the batch that the sample is in; next() then goes on with the next
    batch, where the program loads for itself.

    Notes
    -----
    A batch owns its memory by reference count. A program may keep `trainer.hold` batches (2) besides the one in use;
    with more it is warned, and `next()` waits until one is dropped; `copy=True` lifts that. For a torch data set each further
    batch that is kept is a copy. `copy=True` also makes batches fit
    to be inherited by a child that is forked: without it parent and child write into the same memory.
    """

    def __init__(self, dataset: Union[str, os.PathLike, Mapping[str, Any], Any], batch_size: Any = _UNSAID,
                 shuffle: Optional[bool] = None, sampler: Any = None, batch_sampler: Any = None,
                 num_workers: Optional[int] = None, collate_fn: Optional[Callable] = None, pin_memory: bool = False,
                 drop_last: Optional[bool] = None, timeout: float = 0, worker_init_fn: Optional[Callable] = None,
                 multiprocessing_context: Any = None, generator: Any = None, *, prefetch_factor: Optional[int] = None,
                 persistent_workers: bool = False, pin_memory_device: str = "", in_order: bool = True,
                 split: Optional[str] = None, tail: Optional[str] = None, mode: Optional[str] = None, transform: Any = None,
                 gpu_transform: Any = None, cpu_fraction: Union[None, float, str] = None,
                 seed: Optional[int] = None, output: Optional[str] = None, batch: str = "list",
                 keys: Optional[Mapping[str, str]] = None, dtype: Any = None, channels_last: Optional[bool] = None,
                 attach: Optional[bool] = None, copy: bool = False, device: Any = None,
                 num_replicas: Union[None, int, str] = None, rank: Optional[int] = None,
                 ranks_per_replica: Optional[int] = None,
                 overrides: Union[str, Sequence[str], Mapping[str, Any]] = (), **more: Any) -> None:
        _job.check_keywords(more, _PARAMETERS)
        of_job = _given.says_a_job(dataset)
        if isinstance(batch_size, str):
            raise UsageError(f"batch_size={batch_size!r}", "it is a number" if batch_size.strip().isdigit() else
                             f"a split is named by split={batch_size!r}")
        if isinstance(batch_size, bool) or isinstance(batch_size, int) and batch_size < 1:
            raise UsageError(f"batch_size={batch_size!r}", "it is 1 or more")
        if batch_size is not None and batch_size is not _UNSAID and not hasattr(batch_size, "__index__"):
            raise UsageError(f"batch_size={batch_size!r}", "it is a whole number")
        shuffle, drop_last = (bool(one) if isinstance(one, int) else one for one in (shuffle, drop_last))  # torch's may be 0 or 1
        if batch_size is None and not of_job:
            raise UsageError("batch_size=None: samples without batches are not made here",
                             "batch_size=1 gives batches of one sample; torch's own DataLoader goes on without batches")
        batch_size = None if batch_size is _UNSAID else batch_size
        torchs = not of_job and (_torch_datasets.is_torchs(dataset) or not (hasattr(dataset, "to_spec") or transform is not None))
        order = _torch_words.order_of(dataset, torchs, batch_size=batch_size, shuffle=shuffle, sampler=sampler,
                                      batch_sampler=batch_sampler, drop_last=drop_last, generator=generator, seed=seed,
                                      num_replicas=num_replicas, rank=rank, split=split)
        work = _torch_words.machinery(num_workers, prefetch_factor, timeout, multiprocessing_context, pin_memory_device)
        if tail is None and (torchs or batch_sampler is not None):
            tail = "torch"
        cpu_fraction, more = _job.with_share(cpu_fraction, {**work.keys, **more})
        self._batch_size_said = batch_size = order.batch_size
        # Room is taken for whole batches, of which the data set may have less than one. Padding would fill it up.
        self._may_be_cut = torchs and order.sampler is None and batch_size is not None and not order.drop_last and tail == "torch"
        if self._may_be_cut and batch_size > _MOST_IN_BATCH >= len(dataset):  # more than a job may say
            batch_size = _MOST_IN_BATCH
        named = {"batch_size": batch_size, "shuffle": order.shuffle, "drop_last": order.drop_last, "tail": tail,
                 "mode": mode, "cpu_fraction": cpu_fraction}
        self._output = output
        self._tensors = made_as(output, copy, pin_memory, device)
        if batch not in ("list", "dict"):
            raise UsageError(f"batch={batch!r}", 'say "list" or "dict"')
        if keys is not None and batch != "dict":
            raise UsageError("keys are for batch=\"dict\"")
        renamed = [*keys, *keys.values()] if isinstance(keys, Mapping) else [None]
        if keys is not None and not all(isinstance(name, str) for name in renamed):
            raise UsageError(f"keys={keys!r}", 'say the new names of fields, as in {"image": "pixel_values"}')
        channels_last, attach = _job.flag("channels_last", channels_last), _job.flag("attach", attach)
        self._as_dict = batch == "dict"
        self._keys = dict(keys or {})
        given = _given.read_given(dataset, _given.Asked(split, named, transform, gpu_transform, order.seed, more,
                                                        _job.words_of(overrides), work.num_workers, num_workers == 0,
                                                        worker_init_fn, order.sampler,
                                                        order.num_replicas in (None, 1) and place()[0] in (None, 1),
                                                        collate_fn is not None))
        self.split, self._given = given.split, given
        for name, value in (("dtype", dtype), ("channels_last", channels_last)):
            if given.layout is not None and value is not None:
                raise UsageError(f"{name}={value!r} is for pictures that loaders make, and {type(dataset).__name__}'s samples are made in "
                                 "Python", "let the data set or the collate_fn convert them")
        known = None if given.layout is None else given.layout.names(given.pair)  # of samples made in Python
        if self._as_dict and known is not None and not known and collate_fn is None:
            raise UsageError(f"batch=\"dict\": {type(dataset).__name__}'s samples are made in Python, and are no dicts",
                             "let the data set return dicts, or a collate_fn make them")
        self._pair = given.pair if self._as_dict and known in (None, given.pair) else ()
        lines = list(given.overrides)
        programs = order.sampler if given.rows is None or order.sampler is None else OfRows(order.sampler, given.rows)
        self._order = None if programs is None else \
            ProgramOrder(programs, self.split, as_torchs=torchs, generator=generator)
        if self._order is not None:
            lines += [f"splits.{self.split}.sampler.program=true", f"splits.{self.split}.sampler.shuffle=false"]
        if order.drop_uneven:
            lines += [f"splits.{self.split}.sampler.drop_last=true"]
        if ranks_per_replica is not None:
            lines += [f"roles.ranks_per_replica={ranks_per_replica}"]
        replicas, replica, of_ranks = _place(order.num_replicas, order.rank, ranks_per_replica)
        self._options = dict(
            is_text=given.is_text, name="<job>", split=self.split, overrides=lines, num_replicas=replicas, rank=replica,
            places_are_ranks=of_ranks, dtype=_job.dtype_name(dtype), channels_last=channels_last, attach=attach, timeout_s=work.timeout_s,
            on_warning=_warn)
        self._dataset: Any = None if of_job else dataset  # of a job, once it was asked for
        self._cut: Optional[Cut] = None  # of torch's data sets, whose epochs may be without a batch
        if torchs:
            self._cut = _cut_of(order, tail, mode, _replicas(replicas, of_ranks, ranks_per_replica), ranks_per_replica or 1)
            self._length = len(dataset) if given.rows is None else len(given.rows)
        self._collate_fn, self.generator, self.worker_init_fn = collate_fn, generator, worker_init_fn
        self._native = self._open(self._tensors.wants_raw_images() and not self._collates())
        if order.shuffle and order.followed is None and isinstance(self._native, NoBatches) and self._length == 0:
            raise as_raised(DatasetError(f"the dataset {type(dataset).__name__} is empty, and cannot be shuffled",
                                         "leave shuffle out, as for torch"), [ValueError])
        self._given_sampler, self._given_batches = order.given, batch_sampler
        self._followed, self._followed_epoch = order.followed, 0
        self._follows = False                   # the program has said epochs to it
        self._seed_is_torchs, self._may_be_kept = order.seed_is_torchs, torchs
        self._num_workers = work.num_workers
        translated = torchs and given.layout is None and transform is None
        self._translated = [(leaf, *_translated_of(leaf)) for leaf in _torch_datasets.leaves_of(dataset)] if translated else []
        self._seeded_by, self._seed_then = order.seeded_by if order.shuffle else None, order.seed
        self.pin_memory_device = pin_memory_device
        self.pin_memory, self.timeout, self.prefetch_factor = pin_memory, timeout, prefetch_factor
        self.persistent_workers, self.multiprocessing_context, self.in_order = persistent_workers, multiprocessing_context, in_order
        self._finish_images("MixUp mixes batches that are finished")
        if replicas is None and ranks_per_replica is not None:
            replicas = place()[0]
        if replicas is not None and of_ranks:
            replicas //= self._native.ranks_per_replica
        if replicas is not None and replicas != self._native.num_replicas:
            raise UsageError(f"this process is one of {replicas} replicas, and its receiver belongs to a job of "
                             f"{self._native.num_replicas}", "start as many trainers as the job has")
        spec = json.loads(self._native.spec())
        self._take_facts_of(spec)
        self._training = spec["split"]["mode"] == "train"
        fields = self._native.fields()  # "label" is among them where the dataset has labels
        self._names = [name for name in _FIRST if name in fields] + [n for n in fields if n not in _FIRST]
        if given.layout is not None:
            self._names.remove("image")  # one pixel, for the pipeline
        named = self._names if given.layout is None else known if collate_fn is None else None
        if named is not None:
            for name in self._keys:
                if name not in named:
                    raise UsageError(f"keys: a batch has no field {name!r}", f"its fields are {list(named)}")
            if len({self._keys.get(name, name) for name in named}) < len(named):
                raise UsageError(f"keys={self._keys}: two fields would have the same name", f"its fields are {list(named)}")
        self._raw = frozenset(at for at, name in enumerate(self._names) if self._native.is_image(name))
        self._collating = threading.RLock()     # one batch of samples made in Python at a time
        self._iterations: Any = weakref.WeakSet()   # not yet at their end; close() ends them
        self._next_epoch: Optional[int] = None  # set_epoch's, until the next iter()
        self._resumed: Optional[tuple] = None   # (epoch, step) of load_state_dict, until used up
        self._cursor = (0, 0)                   # of the next batch, in the iteration that moved last
        self._last_epoch = -1
        self._resumed_epoch_reported = False        # by set_epoch, since
        # The newest iteration (weakly), epoch, step, of a loaded state?; while nobody asked that iteration for a batch.
        self._unasked: Optional[tuple] = None
        self._loads = 0                         # how often load_state_dict was called

    __class_getitem__ = classmethod(types.GenericAlias)  # DataLoader[Any], as in a program's annotations
    _capped = False  # the job has a smaller batch size than the program said, by _open()

    # ---- iteration ---------------------------------------------------------------------------------------------------
    def __iter__(self) -> Iterator:
        self._follow()
        loaded = self._resumed is not None or (self._unasked is not None and self._unasked[3])
        with self._starting() as (epoch, step):
            made = _Iteration(self, epoch, step)
        self._unasked = weakref.ref(made), epoch, step, loaded
        return made

    def __len__(self) -> int:
        """Batches per epoch: exact, and equal on all ranks."""
        if not self._iterations:  # else those of the iteration
            self._follow_length()
        if self._order is None:
            return self._native.size
        samples, size = self._order.samples(), self.batch_size
        return samples // size if self._drop_last else -(-samples // size)

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next `iter()`. Without it a `train` split advances by itself and an `eval` split replays
        epoch 0. An iteration that is dropped before its first batch does not count: Lightning calls `iter()` to see whether it
        can."""
        self._follows = False
        self._set_epoch(_job.epoch_of(epoch))

    def _set_epoch(self, epoch: int) -> None:
        if self._resumed is not None and self._resumed[0] == epoch:
            self._resumed_epoch_reported = True
            return  # a training loop that says what the state says
        self._resumed = self._unasked = None
        self._next_epoch = epoch
        self._cursor = (self._next_epoch, 0)

    @property
    def epoch(self) -> int:
        """The epoch that the next `iter()` will give."""
        return self._where_next()[0]

    def _where_next(self) -> tuple:
        if self._resumed is not None:
            epoch, step = self._resumed
            # Saved after an epoch's last batch. A loop that names that epoch finds it empty; others begin the next one.
            if step >= max(1, len(self)) and not self._resumed_epoch_reported:
                return (epoch + 1 if self._training else 0), 0
            return epoch, step
        if self._next_epoch is not None:
            return self._next_epoch, 0
        # `steps = iter(train)` once more, as in a notebook, still has the iteration before it: a loaded place is not
        # lost by that.
        if self._unasked is not None and (self._unasked[0]() is None or self._unasked[3]):
            return self._unasked[1:3]
        return (self._last_epoch + 1 if self._training else 0), 0

    @contextlib.contextmanager
    def _starting(self, exactly: bool = False):
        """Where the iteration that is begun inside begins. One that fails or is interrupted there was none: the place stays."""
        before = self._resumed, self._next_epoch, self._unasked, self._last_epoch, self._cursor
        where = self._resumed if exactly else self._where_next()
        self._resumed = self._next_epoch = self._unasked = None
        self._last_epoch = where[0]
        self._cursor = where
        try:
            yield where
        except BaseException:
            self._resumed, self._next_epoch, self._unasked, self._last_epoch, self._cursor = before
            raise

    # ---- state -------------------------------------------------------------------------------------------------------
    def state_dict(self, consumed: Optional[int] = None) -> dict:
        """Where this split stands, for a checkpoint: small, plain, the same on every rank; no rank waits for another.

        Counts the batches that `next()` has returned in the iteration that moved last; `consumed` says how many batches of
        that epoch, from its beginning, the program has really used, where something reads ahead of it.
        """
        epoch, step = self._cursor
        if consumed is not None:
            consumed = _job.integer(f"state_dict(consumed={consumed!r})", consumed)
            if not 0 <= consumed <= len(self):
                raise UsageError(f"state_dict(consumed={consumed}): an epoch has {len(self)} batches")
            # What a reader ahead has ended is not ended for the program.
            if step == 0 and consumed and self._last_epoch >= 0:
                epoch = self._last_epoch
            step = consumed
        if self._order is None:
            return json.loads(self._native.state(epoch, step))
        state = json.loads(self._who_states().state(epoch, step, self._order.samples()))
        return self._order.add_to(state, self.rank, self.num_replicas)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next batch is the one after those counted in `state`, whether `iter()` was called before or is after.

        ConfigError where the job is not the one the state was saved with, naming every key that differs, or where the
        decoders are not (another libjpeg-turbo, a library more or less; a RuntimeWarning where only other libraries have
        other versions). The number of loaders is free. That of replicas is where replicas x batch_size is kept and `tail` is
        "pad" or "drop"; with "torch" only where both numbers give the same samples.
        """
        text = self._with_this_room(_job.state_text(state, "load_state_dict"))
        before = self._native, self._seed, self._options["overrides"]
        expected = None if self._order is None else self._order.expected
        try:
            self._take_seed_of(state)
            where = self._place_in(state, text)
        except BaseException:
            if self._native is not before[0]:
                self._native.close()
            self._native, self._seed, self._options["overrides"] = before
            if self._order is not None:
                self._order.expected = expected
            raise
        self._close_unused(before[0])
        self._resumed = where
        self._resumed_epoch_reported = False
        self._next_epoch = self._unasked = None
        self._cursor = self._resumed
        self._loads += 1

    def _with_this_room(self, text: str) -> str:
        """The state with this loader's limits.max_field_bytes, unless the program named that: of samples that Python makes it follows from
        the sizes of those that were looked at, and says how their parts travel, not what they are."""
        said = any(line.partition("=")[0] in ("limits", "limits.max_field_bytes") for line in self._given.overrides)
        if self._given.layout is None or said:
            return text
        try:
            state = json.loads(text)
            then = json.loads(state["spec"])
            now = json.loads(self._native.spec())["limits"]
            then["limits"].pop("max_field_bytes", None)
            if "max_field_bytes" in now:  # else it is the usual one, which no spec says
                then["limits"]["max_field_bytes"] = now["max_field_bytes"]
            return json.dumps({**state, "spec": json.dumps(then)})
        except (AttributeError, KeyError, TypeError, ValueError):
            return text  # no such state: whoever reads it says so

    def _place_in(self, state: Mapping[str, Any], text: str) -> Tuple[int, int]:
        if self._order is None:
            where = self._native.resume(text)
        else:
            self._order.check(state, self.rank, self.num_replicas)
            where = self._who_states().resume(text, self._order.samples())
        said = state.get("epoch"), state.get("batch")
        if said != tuple(where):
            raise ConfigError(f"cannot resume split {self.split!r}: the state says epoch {said[0]!r} and batch {said[1]!r}, and "
                              f"its position is epoch {where[0]}, batch {where[1]}", "load a state as it was saved; for "
                              "another place there are state_dict(consumed=…) and set_epoch()")
        return tuple(where)

    def _who_states(self) -> Any:
        """The library refuses to say where an order without a batch stands."""
        return self._no_batches(self._length) if self._cut is not None and len(self) == 0 else self._native

    def _take_seed_of(self, state: Mapping[str, Any]) -> None:
        """Nobody named a seed, and torch's is another one in each process: the run that is resumed goes on with its own."""
        try:
            seed = json.loads(state["spec"])["seed"]
        except (KeyError, TypeError, ValueError):
            return
        if self._seed_is_torchs and seed != self._seed:
            self._options["overrides"] = [*self._options["overrides"], f"seed={seed}"]
            self._native = self._open(self._native.raw_images)
            self._seed = seed

    # ---- facts -------------------------------------------------------------------------------------------------------
    @property
    def batch_size(self) -> int:
        return self._batch_size_said if self._capped else self._native.batch_size

    @property
    def num_samples(self) -> int:
        """Samples of this rank that count, per epoch: padding of an `eval` split does not."""
        if self._order is None:
            return self._native.num_samples
        return min(self._order.samples(), len(self) * self.batch_size)

    @property
    def dataset(self) -> Any:
        """The data set that was given; of a job, what len(), `classes`, `class_to_idx`, `samples`, `targets` and `[i]` say of
        its split (`penstock.datasets`). `[i]` is what lies there: nothing is transformed."""
        if self._dataset is None:
            from . import datasets
            self._dataset = datasets.OfJob(self._given.job, self._given.is_text, self.split, self._options["overrides"],
                                           self.dataset_size)
        return self._dataset

    @property
    def sampler(self) -> Any:
        """The sampler that was given; else one for `set_epoch(epoch)`, which is this loader's, and len(): this rank's samples
        of an epoch. It gives their indices in the order of the coming epoch, as the loader will."""
        given = self._given_sampler
        if given is None:
            return Order(self)
        return given if self._given_batches is None else getattr(given, "sampler", None) or Order(self)

    @property
    def batch_sampler(self) -> Any:
        """The batch_sampler that was given; else one with `sampler`, `batch_size`, `drop_last`, `set_epoch(epoch)` and len(), which
        gives the lists of indices of all batches that this rank has in the coming epoch."""
        return BatchOrder(self) if self._given_batches is None else self._given_batches

    @property
    def drop_last(self) -> bool:
        """Whether the last batch of an epoch is left out where it is not full."""
        return self._drop_last

    @property
    def collate_fn(self) -> Optional[Callable]:
        """As it was given; else, over a data set of torch's, torch's default_collate, and None over any other."""
        return _default_collate if self._collate_fn is None and self._may_be_kept else self._collate_fn

    @collate_fn.setter
    def collate_fn(self, function: Optional[Callable]) -> None:
        self._collate_fn = None if function is _default_collate else function

    @property
    def num_workers(self) -> int:
        """As it was given, to a data set; else threads that load in this process, for this loader and others of it, and 0 where
        loader ranks do."""
        if self._may_be_kept:
            return self._num_workers
        if not self.embedded:
            return 0
        ranks = json.loads(self._native.report_json())["ranks"]
        return sum(rank["threads"] for rank in ranks if rank["role"] == "loader")

    @property
    def dataset_size(self) -> int:
        """Samples of the whole data set, whoever loads them."""
        return self._native.dataset_size

    @property
    def num_replicas(self) -> int:
        """How many ranks share the data set."""
        return self._native.num_replicas

    @property
    def rank(self) -> int:
        """The place of this replica among `num_replicas`."""
        return self._native.rank

    @property
    def ranks_per_replica(self) -> int:
        """So many consecutive ranks get the same data."""
        return self._native.ranks_per_replica

    @property
    def classes(self) -> list:
        """Names of the classes, by label; empty where the data set has none."""
        return self._native.class_names

    @property
    def embedded(self) -> bool:
        """Loading in threads of this process?"""
        return self._native.embedded

    def stats(self) -> dict:
        """What this DataLoader has given so far, and what held it up.

        This DataLoader alone: `images`, `padding` (of them, an `eval` split's), `batches`; `order_hash` and `pixel_hash` (32 hexadecimal digits) over all of
        it, and `ranges`, the same for each iteration; `bad_samples` and `substituted`; `images_per_s`, and `wait_fraction`, the
        share (0 to 1) of the time since its first next() that the program waited for data.
        Everything that this rank's receiver, or this process, has delivered: `splits`, by name, as in a job's report; `ranks`,
        the report of this rank, and of the loader where it lives in this process; `bottleneck`, one sentence.
        `device`, with a CUDA device: its `name`; who is `finishing` images there, "gpu" or "cpu", and `why` not the GPU;
        `images` finished on it, `uploaded_bytes`, `copied_bytes` from loaders' GPUs (`loader.gpu_export_mb`),
        `gpu_memory_bytes` taken, and the GPU's `copy_s` and `finish_s`.
        """
        report = json.loads(self._native.report_json())
        own = report["ranks"][0].pop("client").get(self.split, _NOTHING_YET)
        seconds, wait_s = own.pop("elapsed_s", 0.0), own.pop("wait_s", 0.0)
        return {**_NOTHING_YET, **own, "images_per_s": own["images"] / seconds if seconds else 0.0,
                "wait_fraction": wait_s / seconds if seconds else 0.0, "device": self._tensors.figures(), **report}

    def close(self) -> None:
        """Lets go of the loader, and ends its iterations; batches that are kept stay valid. The end of a `with` block does
        it, too."""
        for one in list(self._iterations):
            one._stream = None
        self._tensors.close()
        self._native.close()
        if self._given.here is not None:
            self._given.here.close()

    def __enter__(self) -> "DataLoader":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._native.closed:
            return f"<penstock.DataLoader of split {self.split!r}, closed>"
        return (f"<penstock.DataLoader of split {self.split!r}: {len(self)} batches of {self.batch_size}, "
                f"replica {self.rank} of {self.num_replicas}{', embedded' if self.embedded else ''}>")

    def __reduce__(self):
        raise TypeError("a DataLoader cannot be pickled: it is a connection; make one in each process")

    def _open(self, raw: bool) -> Any:
        self._capped = False
        if self._cut is not None:
            here = self._given.here
            if here is not None and self._given.rows is None:
                self._length = len(here.dataset)
            if self._cut.leaves_nothing(self._length):
                return self._no_batches(self._length if here is None else len(here.dataset))
        options = self._options
        self._capped = self._may_be_cut and self._batch_size_said > self._length
        if self._capped:
            options = {**options, "overrides": [*options["overrides"], f"splits.{self.split}.batch_size={self._length}"]}
        def opened() -> Any:
            return _penstock.Loader(self._given.job, raw_images=raw, gpu_images=raw, **options)
        here = self._given.here
        if here is None:
            return opened()
        call = _here.Call(opened)
        try:
            return _with_warnings(call, lambda call: here.run(call, opens=True))
        finally:
            call.drop()

    def _no_batches(self, dataset_size: int) -> NoBatches:
        job = json.loads(self._given.job)
        layout = self._given.layout
        fields = ["image", *(name for name, *_ in layout.field_table())] if layout is not None else list(_FIRST)
        rank = self._options["rank"] if self._options["rank"] is not None else place()[1] or 0
        alike = self._cut.ranks_per_replica if self._options["places_are_ranks"] else 1
        return NoBatches(self.split, self._cut, seed=job.get("seed", 0), training=job["splits"][self.split]["mode"] == "train",
                         rank=rank // alike, dataset_size=dataset_size, fields=fields)

    def _take_facts_of(self, spec: Mapping[str, Any]) -> None:
        self._seed, self._drop_last = spec["seed"], spec["split"]["drop_last"]

    def _open_again(self) -> None:
        """With nothing delivered, as stats() counts it. Iterations that were begun go on with what they have."""
        before, self._native = self._native, self._open(self._native.raw_images)
        if isinstance(before, NoBatches) and not isinstance(self._native, NoBatches):  # which knows less of the job
            self._take_facts_of(json.loads(self._native.spec()))
        self._close_unused(before)

    def _close_unused(self, native: Any) -> None:
        if native is not self._native and not self._iterations:
            native.close()

    def _follow(self) -> None:
        """What the program has said since, to its sampler or by its data set: of the coming epoch."""
        epoch = epoch_of(self._followed)
        if epoch is not None and epoch >= 0:
            said = epoch != self._followed_epoch
            # Who has said an epoch to it once gets that until it says another, as from torch's.
            if said or (self._follows and self._next_epoch is None and self._resumed is None):
                self._followed_epoch, self._follows = epoch, True
                self._set_epoch(_job.epoch_of(epoch))
        if self._seeded_by is not None and _torch_words.seed_of(self._seeded_by) != self._seed_then:
            self._seeded_by = None
            warn("the generator was seeded again after this DataLoader was made, whose order follows from the seed it had then and the epoch: "
                 "say set_epoch(), or make a new DataLoader")
        changed = [leaf for leaf, *before in self._translated if list(_translated_of(leaf)) != before]
        if changed:
            self._translated = []
            warn(f"{type(changed[0]).__name__} has another transform than when this DataLoader was made, and loaders go on with that "
                 "one: make a new DataLoader")
        self._follow_length()

    def _epoch_was_sent(self) -> None:
        """Of the loader's own epoch: not by the program."""
        epoch = epoch_of(self._followed)
        if epoch is not None:
            self._followed_epoch = epoch

    def _follow_length(self) -> None:
        """A data set in this process may have another length in each epoch, which torch's samplers ask for anew."""
        here = self._given.here
        if here is not None and len(here.dataset) != self._native.dataset_size:
            before = json.dumps(here.text)
            here.name_anew()
            self._given = self._given._replace(job=self._given.job.replace(before, json.dumps(here.text)))
            self._open_again()

    def _start_in_order(self, epoch: int, step: int, indices: Sequence[int]) -> Any:
        batches_cut = Cut(self.batch_size, drop_last=self._drop_last)
        if self._cut is not None and self._length and batches_cut.leaves_nothing(len(indices)):
            return self._no_batches(self._length)
        return self._native.start_at(epoch, step, indices)

    def _move_to(self, device: Any) -> None:
        """From now on as if the constructor had been given this device; the CPU's tensors stay where they are."""
        import torch
        if torch.device(device).type != "cpu":
            self._tensors.settle()
            moved = made_as(self._output, False, self._tensors.pinned, device)
            if self._native.raw_images and moved.figures() is None:
                raise UsageError(f"this DataLoader leaves images raw for {self._tensors.figures()['name']}, and cannot be "
                                 f"moved to {device}", "make it with that device")
            untouched = not self._iterations and self._last_epoch < 0
            if moved.wants_raw_images() and not self._native.raw_images and untouched and not self._collates():
                finished, self._native = self._native, self._open(True)
                finished.close()
            self._tensors.close()
            if self._native.raw_images:
                self._native.use_no_memory()  # of loaders' GPUs, which this device may not reach
            self._tensors = moved
            self._finish_images("the DataLoader was made without this device, and had begun" if not untouched else
                                "MixUp mixes batches that are finished")

    def _finish_images(self, why_not: str) -> None:
        """Raw images are finished where they go; the receiver does it for all others."""
        if self._native.raw_images:
            self._tensors.finish_with(self._native.finisher())
        else:
            self._tensors.get_finished("batches are put together by the program" if self._collates() else why_not)

    def _fields_of(self, native: Any) -> Tuple[list, Any, Optional[Callable]]:
        """(the batch's fields, what it says of itself, and what makes an array of that the program's, or None where it is). Copied
        fields hold nothing of the batch's memory."""
        tensors = self._tensors
        collates = self._collates() and not self._native.raw_images
        one = tensors.plain if collates else tensors.one
        values = [native[name] for name in self._names]
        # torch's batches may be kept, however many; and a collate_fn's samples, by the frames of an error, too.
        too_many = (self._may_be_kept or collates) and native.held > self._native.hold
        if not tensors.copies and not too_many:
            return [value if isinstance(value, list) else one(value) for value in values], native, one
        values += [native.indices, native.valid, native.substituted]
        if tensors.copies and not collates:
            tensors.meet(self._native)
            values = tensors.of(values, self._raw, native.gpu_images())
        else:
            values = [value if isinstance(value, list) else _copy_of(one(value)) for value in values]
        return values[:-3], Facts(native, *values[-3:]), None

    def _batch_of(self, values: list, facts: Any, one: Optional[Callable]) -> Any:
        if self._collates():
            return self._collated(values, facts, one)
        if self._as_dict:
            named = zip((self._keys.get(name, name) for name in self._names), values)
            return DictBatch(named)._describe(facts, one)
        return ListBatch(values)._describe(facts, one)

    def _collates(self) -> bool:
        """Are batches put together here?"""
        return self._given.layout is not None or self._given.target is not None or self._collate_fn is not None

    def _collated(self, values: list, facts: Any, one: Optional[Callable]) -> Any:
        """What collate_fn makes of the samples; without one, what torch's default_collate would make of them."""
        layout = self._given.layout
        fields = dict(zip(self._names, values))
        if layout is not None and self._collate_fn is None:
            try:
                batch = self._named(layout.batch(fields))
            except (RuntimeError, TypeError, ValueError, LookupError) as error:
                odd = [] if isinstance(error, Error) else layout.unlike(fields)
                if not odd:
                    raise
                indices = facts.indices if one is None else one(facts.indices)
                raise as_raised(DatasetError(f"samples {indices[odd].tolist()} are not like those that were looked at, and cannot be put "
                                             f"together with the others of their batch: {error}"), type(error).__mro__, error)
        else:
            samples = [self._named(one, self._keys) for one in layout.samples(fields)] if layout is not None else \
                self._read_samples(values, facts.indices if one is None else one(facts.indices))
            with _generators.kept_alone():
                _worker.seed_generators(_worker.seed_of(f"{self._seed} {facts.epoch} {facts.step} {self.rank}".encode()))
                batch = (self._collate_fn or _default_collate)(samples)
        batch = self._tensors.place(batch)
        if type(batch) is list:
            return ListBatch(batch)._describe(facts, one)
        if type(batch) is tuple:
            return TupleBatch(batch)._describe(facts, one)
        if type(batch) is dict:
            return DictBatch((self._keys.get(name, name), value) for name, value in batch.items())._describe(facts, one)
        return batch

    def _named(self, pair: Any, keys: Optional[Mapping[str, str]] = None) -> Any:
        """A sample or batch of two parts, made in Python, as batch="dict" wants it."""
        if not self._pair or type(pair) not in (tuple, list) or len(pair) != len(self._pair):
            return pair
        return {(keys or {}).get(name, name): part for name, part in zip(self._pair, pair)}

    def _read_samples(self, values: list, indices: Any) -> list:
        """The samples of a batch whose pictures loaders read, as the data set would return them."""
        columns = [_rows_of(value) for value in values]
        if self._given.tv_image:
            columns[0] = list(map(_tv_image(), columns[0]))
        if self._given.target is not None:
            columns[1] = [self._given.target(index) if index >= 0 else None for index in indices.tolist()]
        rows = zip(*columns)
        if self._as_dict:
            names = [self._keys.get(name, name) for name in self._names]
            return [dict(zip(names, row)) for row in rows]
        return list(rows)


def _tv_image() -> Any:
    """torchvision's class of pictures, for which v2's transforms look."""
    names = ("torchvision.tv_tensors", "torchvision.datapoints")  # the older one's name
    return next((sys.modules[name].Image for name in names if name in sys.modules), lambda picture: picture)


def _copy_of(array: Any) -> Any:
    return array.clone() if hasattr(array, "clone") else array.copy(order="K")


def _default_collate(samples: list) -> Any:
    from torch.utils.data import default_collate
    return default_collate(samples)


def _rows_of(column: Any) -> Sequence[Any]:
    """A batch's field, sample by sample; labels are numbers, as in torchvision's data sets."""
    return column.tolist() if getattr(column, "ndim", 0) == 1 else column


def _replicas(replicas: Optional[int], of_ranks: bool, ranks_per_replica: Optional[int]) -> Optional[int]:
    """As _place() has them, or None where a receiver knows."""
    if replicas is None:
        if has_receiver():
            return None
        replicas = place()[0] or 1
    return replicas // (ranks_per_replica or 1) if of_ranks else replicas


def _cut_of(order: Any, tail: Optional[str], mode: Optional[str], replicas: Optional[int], ranks_per_replica: int) -> Cut:
    """A sampler of the program says the order of each iteration by itself; what contradicts `mode` is for the library to refuse."""
    plain = Cut(order.batch_size or 1, replicas, ranks_per_replica)
    if order.sampler is not None or mode == "eval":
        return plain
    return plain._replace(drop_last=bool(order.drop_last), drop_uneven=bool(order.drop_uneven), tail=tail or "torch")


class _Iteration:
    """One iteration. It notices a load_state_dict that came after it was begun, and goes on from there. Behind a batch that cannot be
    made it goes on with the next one, as torch's does."""

    def __init__(self, loader: DataLoader, epoch: int, step: int) -> None:
        self._loader = loader
        self._over = False
        self._lock = threading.RLock()  # one batch at a time, also for threads that share it
        self._process = os.getpid()
        self._begin(epoch, step)
        loader._iterations.add(self)

    def _begin(self, epoch, step):
        if self._loader._given.here is not None:
            self._loader._given.here.forget_errors()
        if self._loader._given.layout is not None and not self._loader._iterations:
            self._loader._given.layout.forget()
        order = self._loader._order
        self._indices = None
        if order is not None:
            indices, self._order_seen = order.evaluate(epoch, step, self._loader.dataset_size)
            self._loader._epoch_was_sent()
            self._indices = array.array("q", indices)
        self._start(epoch, step)
        if order is not None:
            order.seen = self._order_seen
        self._loads = self._loader._loads

    def _start(self, epoch, step):
        loader = self._loader
        self._stream = loader._native.start_at(epoch, step) if self._indices is None else \
            loader._start_in_order(epoch, step, self._indices)
        self._epoch, self._step = epoch, step
        self._call = None  # that waits for the next batch, also where the program was interrupted
        self._native = None  # the library's next batch, until it is put together
        self._failed = False

    def __iter__(self):
        return self

    def __next__(self):
        if os.getpid() != self._process:  # in a child a thread may have the lock that is not there
            return self._next_batch()
        with self._lock:
            return self._next_batch()

    def _next_batch(self):
        loader = self._loader
        if self._over:
            raise StopIteration
        if self._loads != loader._loads:
            if loader._resumed is None:  # a newer iteration has taken the loaded place
                self._loads = loader._loads
            else:
                with loader._starting(exactly=True) as (epoch, step):
                    self._begin(epoch, step)
        if loader._unasked is not None and loader._unasked[0]() is self:
            loader._unasked = None
        if self._stream is None:
            raise UsageError("this DataLoader was closed", "make a new one")
        loader._tensors.settle()
        if self._failed and self._step < (len(loader) if self._indices is None else -(-len(self._indices) // loader.batch_size)):
            self._start(self._epoch, self._step)
        if self._native is None and not self._failed:
            self._native = self._next_native()
        if self._native is None:
            self._over = True
            loader._iterations.discard(self)
            if loader._last_epoch == self._epoch:
                loader._cursor = loader._where_next()
            raise StopIteration
        batch = self._put_together()
        try:
            loader._cursor = (self._epoch, self._step)
            if loader._order is not None:
                loader._order.seen = self._order_seen
            return batch
        finally:
            del batch  # as in _put_together()

    def _put_together(self):
        """The program's batch of the library's. Where that is interrupted it is the next one again.

        Errors that the program keeps have frames, and through these all that called them: no frame that was left may hold a batch."""
        loader, layout = self._loader, self._loader._given.layout
        self._step = self._native.step + 1
        failure = batch = None
        with loader._collating if layout is not None else contextlib.nullcontext():
            if layout is not None:
                layout.settle(False)  # of a batch that was interrupted
            try:
                batch = loader._batch_of(*loader._fields_of(self._native))
                self._done()
                return batch
            except DatasetError as error:  # of one of its samples
                failure = error.with_traceback(None)
                self._done()
            except Exception:  # of the collate_fn
                self._done()
                raise
            finally:
                del batch
        try:
            raise failure if loader._given.here is None else loader._given.here.problem_of(failure)
        finally:
            del failure

    def _done(self):
        """With the library's batch."""
        call, self._call, self._native = self._call, None, None
        if call is not None:
            call.drop()
        if self._loader._given.layout is not None:
            self._loader._given.layout.settle(True)

    def _next_native(self):
        """The library's batch. Where the program is interrupted before it has that, it is given again."""
        here = self._loader._given.here
        try:
            if here is None:
                return self._stream.next()
            samples = len(self._indices) if self._indices is not None else self._loader._native.num_samples
            size = self._loader.batch_size
            if self._call is None or self._call.failed:
                self._call = _here.Call(self._stream.next, self._epoch)
            return _with_warnings(self._call, lambda call: here.run(call, max(1, min(size, samples - self._step * size))))
        except Error as error:
            self._call = None  # which has no result
            if isinstance(error, (DatasetError, RunError)) and self._loader.embedded:  # else it has ended the run
                self._failed = True
                self._step += 1
            raise error if here is None else here.problem_of(error)

    def __len__(self) -> int:
        return len(self._loader)

    def __del__(self) -> None:
        # A loop that was left asks for no further batch, which is what sees to the end of a copy to a GPU.
        if not getattr(self, "_over", True):
            try:
                self._loader._tensors.settle()
            except Exception:  # at the end of the interpreter
                pass


def _translated_of(dataset: Any) -> Tuple[Any, Any]:
    """(its transform, what is made of that)"""
    transform = getattr(dataset, "transform", None)
    return transform, None if transform is None else _torch_transforms.translate(transform).steps


def _with_warnings(call: Any, run: Callable[[Any], Any]) -> Any:
    """What run(call) returns. What was said in the call's own thread is said here."""
    try:
        return run(call)
    finally:
        said, call.warnings = call.warnings, []
        for text in said:
            warn(text)


def _warn(text: str) -> None:
    if "the program holds all" in text:
        text += "; penstock.DataLoader(..., copy=True) lifts the limit"
    call = _here.call_of_this_thread()
    if call is not None:
        call.warnings.append(text)
        return
    warn(text)


_PARAMETERS = [name for name, one in inspect.signature(DataLoader.__init__).parameters.items()
               if one.kind is not one.VAR_KEYWORD and name not in ("self", "dataset")]
