"""What a DataLoader was given as job or data set, as the job that the library reads.

    given = read_given(dataset, Asked(split, named, transform, …))
    _penstock.Loader(given.job, is_text=given.is_text, split=given.split, overrides=given.overrides)

A data set of penstock's, or one of torchvision's that is recognised (`_torch_datasets`), is read by the loaders themselves where
its transforms can be translated (`_torch_transforms`). Of any other data set, and behind a transform that cannot be
translated, samples are what the program's own Python makes of them (`_own_samples`): in worker processes, or in this process
(`_here`).
"""

from __future__ import annotations

import os
import sys
from typing import Any, Callable, Mapping, NamedTuple, Optional, Sequence

from . import _job, _penstock
from ._place import has_receiver
from .errors import UsageError, warn


class Given(NamedTuple):
    job: str                      # a path, or a job as text
    is_text: bool
    split: str
    overrides: list
    layout: Any = None            # _own_samples.Layout, where samples are Python's
    here: Any = None              # _here.Here, where they are made in this process
    rows: Optional[Sequence[int]] = None  # of the data set that the job names; None: all
    kept: tuple = ()              # what has to live as long as the loader
    notes: Sequence[Any] = ()     # of describe_transforms
    tv_image: bool = False        # its pictures are torchvision's tv_tensors.Image to a collate_fn
    target: Optional[Callable[[int], Any]] = None  # of a sample, where it is no label that loaders read
    pair: tuple = ()              # names of a sample's two parts, where Python makes samples of a data set that is known


class Asked(NamedTuple):
    """What the call said besides the data set."""

    split: Optional[str]
    named: Mapping[str, Any]      # keys of the split, by keyword
    transform: Any
    gpu_transform: Any
    seed: Optional[int]
    more: Mapping[str, Any]       # further keywords
    words: Sequence[str]          # overrides
    num_workers: int = 0          # worker processes for samples in Python; 0: this process makes them
    asked_for_here: bool = False  # num_workers=0 was said
    worker_init_fn: Optional[Callable] = None
    sampler: Any = None           # the program's, where it says every index
    whole: bool = True            # no other rank has a share of the data
    collates: bool = False        # a collate_fn was given


_PAIR = ("image", "label")
_IN_THIS_PROCESS = {"workers": 1, "attempts": 100, "timeout_s": 1e6, "start_timeout_s": 1e6}  # a debugger may stop in it


def says_a_job(job: Any) -> bool:
    """A job's file or the job itself, and no data set: of a dict of samples the keys are numbers, and a job's are words."""
    return isinstance(job, (str, os.PathLike)) or (isinstance(job, Mapping) and isinstance(next(iter(job), ""), str))


def read_given(given: Any, asked: Asked) -> Given:
    if asked.split is not None and not isinstance(asked.split, str):
        raise UsageError(f"split={asked.split!r}", "a split has a name")
    return _read_job(given, asked) if says_a_job(given) else _read_dataset(given, asked)


def _read_job(job: Any, asked: Asked) -> Given:
    for name, one in (("transform", asked.transform), ("gpu_transform", asked.gpu_transform)):
        if one is not None:
            key = name.replace("transform", "pipeline")
            raise UsageError(f"{name} belongs to a dataset; a job has its {key}", f"write splits.NAME.{key} in the job")
    more = asked.more if asked.seed is None else dict(asked.more, seed=asked.seed)
    is_text = isinstance(job, Mapping)
    source = _job.text_of(job) if is_text else os.fspath(job)
    split = asked.split
    if split is None:
        split = _only_split(source, is_text, _job.overrides_of("", {}, more, asked.words))
    return Given(source, is_text, split, _job.overrides_of(split, asked.named, more, asked.words))


def _read_dataset(dataset: Any, asked: Asked) -> Given:
    from . import _torch_datasets
    if _torch_datasets.is_iterable_only(dataset):
        raise UsageError(f"{type(dataset).__name__} is an IterableDataset, of which no sample can be asked for by its number",
                         "give one with __len__ and __getitem__, or files that penstock reads: penstock.WebDataset, MDS, "
                         "TFRecord, Parquet; torch's own DataLoader goes on reading this one")
    if hasattr(dataset, "to_spec"):
        found = _torch_datasets.Recognised(source=dataset, transform=getattr(dataset, "transform", None))
    elif hasattr(dataset, "__len__") and (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")):
        found = _torch_datasets.recognise(dataset)
    else:
        raise UsageError(f"a {type(dataset).__name__} is no dataset that penstock can read",
                         "give a job file's path, a job as a dict, penstock.ImageFolder(root), or an object with "
                         "__len__ and __getitem__")
    if found.why:
        return _read_own(dataset, found, asked)
    if asked.transform is not None and found.transform is not None:
        raise UsageError("both the data set and the DataLoader have a transform", "give one of the two")
    transform = found.transform if asked.transform is None else asked.transform
    torchs = not hasattr(dataset, "to_spec")
    if transform is None and torchs:
        if asked.collates:
            return _read_python(dataset, None, "it has no transform: its pictures are the collate_fn's", asked)._replace(pair=_PAIR)
        raise UsageError(f"{type(dataset).__name__} has no transform: its pictures cannot be put together to batches",
                         "give it a transform that ends in tensors of one size, as for torch's DataLoader")
    translated = _translated(transform, asked)
    if translated.rest:
        return _read_partly(dataset, found, transform, translated, asked)
    why = _why_in_python(found, translated, asked) if torchs and asked.transform is None else ""
    if why:
        return _read_partly(dataset, found, transform, translated._replace(rest=[transform], steps=[], why=why), asked)
    return _read_native(found, translated, asked)


def _why_in_python(found: Any, translated: Any, asked: Asked) -> str:
    """Of a transform whose steps loaders know all, and that comes to what they do not give."""
    from . import _prefix
    if asked.collates and translated.gives == "PIL":
        return "its transform leaves PIL pictures to the collate_fn; with ToTensor loaders would read it"
    if not found.side and not (translated.steps and _prefix.end_in_one_size(translated.steps)):
        return "its transform leaves pictures in sizes of their own; with CenterCrop((height, width)) loaders would read it"
    return ""


def _read_partly(dataset: Any, found: Any, transform: Any, translated: Any, asked: Asked) -> Given:
    """One that penstock knows, with a transform that it knows in part: the first steps, or none."""
    from . import _prefix, _transform_notes
    begun = None
    if found.target is None:
        begun = _prefix.Begun.of(found.source, translated.steps, translated.rest, _job.overrides_of("", {}, asked.more, asked.words))
    if begun is not None:
        notes = _transform_notes.begun_in_python(translated.notes)
        return _read_python(begun, None, translated.why, asked, notes, found.rows, found.kept)._replace(pair=_PAIR)
    does_it_itself = asked.transform is None and not hasattr(dataset, "to_spec")
    return _read_python(dataset, None if does_it_itself else transform, translated.why, asked,
                        _transform_notes.all_in_python(translated.notes))._replace(pair=_PAIR)


def _read_own(dataset: Any, found: Any, asked: Asked) -> Given:
    """One that Python has to read: its pictures for our transforms, or its samples as they are."""
    from . import _torch_datasets
    if asked.transform is None:
        return _read_python(dataset, None, found.why if _torch_datasets.is_of_torchvisions(dataset) else "", asked)
    from . import _here, _pickled, _transform_notes
    translated = _translated(asked.transform, asked)
    if translated.rest:
        return _read_python(dataset, asked.transform, translated.why, asked,
                            _transform_notes.all_in_python(translated.notes))._replace(pair=_PAIR)
    if asked.asked_for_here:
        here = _here.Here(dataset)
        return _made({"path": _pickled.import_path(), "pickle": here.text}, translated.steps, asked, here=here,
                     notes=translated.notes, python=_IN_THIS_PROCESS)
    kept: list = []
    spec = {"path": _pickled.import_path(), **_pickled.dataset_spec(dataset, kept)}
    python = {"interpreter": sys.executable, **({"workers": asked.num_workers} if asked.num_workers else {})}
    return _made(spec, translated.steps, asked, kept=tuple(kept), notes=translated.notes, python=python)


def _translated(transform: Any, asked: Asked) -> Any:
    """A _torch_transforms.Translated, of all steps where there is a second list for GPUs."""
    from . import _torch_transforms
    translated = _torch_transforms.translate(transform)
    if translated.rest and asked.gpu_transform is not None:
        raise UsageError(f"transform: {translated.why}", "with gpu_transform every step has to be one of penstock's")
    return translated


def _read_native(found: Any, translated: Any, asked: Asked) -> Given:
    steps = translated.steps
    spec = found.source.to_spec()
    _doubt_classes(spec.get("folder"))
    if not steps and not found.side:
        raise UsageError("transform is missing: what becomes of a picture",
                         "as in transform=penstock.transforms.Compose([penstock.transforms.CenterCrop(224)])")
    _doubt_truncated(found)
    if found.side:  # changes nothing, and says the size of what would depend on the picture
        steps = [{"CenterCrop": {"size": found.side}}, *steps]
    return _made(spec, steps, asked, rows=found.rows, kept=found.kept, notes=translated.notes)._replace(
        target=found.target, tv_image=translated.gives == "Image")


def _read_python(dataset: Any, transform: Any, why: str, asked: Asked, notes: Sequence[Any] = (),
                 rows: Optional[Sequence[int]] = None, kept_already: tuple = ()) -> Given:
    """Samples as they are, made by the program's own code."""
    from . import _generators, _here, _own_samples, _pickled, _prefix, _transform_notes, _worker
    if asked.gpu_transform is not None:
        raise UsageError("gpu_transform is for pictures that loaders make", "leave it out, or give penstock.transforms")
    given = dataset if transform is None else _own_samples.Transformed(dataset, _steps_in_python(transform, why))
    where = f"in {asked.num_workers} worker processes" if asked.num_workers else "in this process (num_workers=0)"
    if why:
        begun = isinstance(dataset, _prefix.Begun)
        what = f"{type(dataset.source).__name__}'s transforms from there on run" if begun else \
            f"{type(dataset).__name__} is read and transformed"
        warn(f"{what} in Python, {where}: {why}")
    kept: list = list(kept_already)
    if asked.num_workers:
        try:
            _pickled.copy_of(asked.worker_init_fn)
        except TypeError as error:
            raise UsageError(f"worker_init_fn: {error}") from None
        # Looked at is a copy, as workers get it: what the first __getitem__ opens cannot be pickled any more.
        looked_at = _pickled.copy_of(given)
        beside = _own_samples.as_worker(0, asked.num_workers, asked.seed or 0, looked_at)
    else:
        looked_at = given
        beside = _generators.unchanged(given)
    elsewhere = has_receiver()  # workers may be no children of this process, or on another node
    with _generators.kept_alone(), beside:
        _worker.seed_generators(0)  # sizes that are drawn are the same in every run
        among = _asked_for(looked_at, rows, None if elsewhere or not asked.whole else asked.sampler)
        layout, sizes, problem = _own_samples.look_at(looked_at, among, asked.collates, not asked.num_workers)
    if problem:
        warn(f"none of the samples that were looked at, to see what they are, can be made ({problem}): each travels by itself, "
             "which takes longer")
    room = _own_samples.room_for(list(sizes.values()), layout, large_parts=not elsewhere) if any(sizes.values()) else \
        _own_samples.ROOM_FOR_ODD
    own = _own_samples.OwnSamples(given, layout, asked.worker_init_fn, 0 if elsewhere else _room_said(asked, room), asked.seed or 0,
                                  _last_word(asked, "on_error", "fail") == "fail")
    here = None
    if asked.num_workers:
        spec = {"path": _pickled.import_path(), **_pickled.dataset_spec(own, kept, title=type(dataset).__name__)}
        spec["pickle"] = _worker.OWN + spec["pickle"]
        python = {"interpreter": sys.executable, "workers": asked.num_workers}
    else:
        notes = _transform_notes.in_this_process(notes)
        here = _here.Here(own)
        spec = {"path": _pickled.import_path(), "pickle": here.text}
        python = _IN_THIS_PROCESS
    return _made(spec, [{"CenterCrop": {"size": 1}}], asked, layout=layout, here=here, rows=rows, kept=tuple(kept), notes=notes,
                 python=python, limits={"max_field_bytes": room})


def _steps_in_python(transform: Any, why: str) -> list:
    """What is called for each picture, one after the other: a list, or a Compose of penstock's, is nothing that can be called."""
    from . import _torch_transforms
    own = next((step for step in _torch_transforms.flattened(transform) if hasattr(step, "to_spec")), None)
    if own is not None:
        raise UsageError(f"{own!r} of penstock's cannot run in Python, where all steps of this transform would: {why}",
                         _torch_transforms.APART)
    return _called(transform)


def _called(transform: Any) -> list:
    """A Compose of torchvision's stays as it is: the program may change its steps between epochs."""
    if callable(transform):
        return [transform]
    return [step for one in getattr(transform, "transforms", transform) for step in _called(one)]


def _asked_for(dataset: Any, rows: Optional[Sequence[int]], sampler: Any) -> Sequence[int]:
    """The samples that the order may ask for, in ascending order, as far as that is known before it is evaluated. `sampler`: None where
    ranks have shares of their own, which have to come to the same layout."""
    from ._program_order import indices_of
    every: Sequence[int] = range(len(dataset)) if rows is None else rows
    named = indices_of(sampler)
    if named is not None:
        every = [every[place] for place in named if 0 <= place < len(every)] or every
    return every if isinstance(every, range) else sorted(set(every))


def _room_said(asked: Asked, otherwise: int) -> int:
    """limits.max_field_bytes, where the call names it."""
    text = _last_word(asked, "limits.max_field_bytes", str(otherwise))
    return int(text) if text.isdigit() else otherwise


def _last_word(asked: Asked, key: str, otherwise: str) -> str:
    """What the call says for a key of the job."""
    said = [word.partition("=")[2] for word in asked.words if word.startswith(f"{key}=")]
    return str(said[-1] if said else asked.more.get(key.replace(".", "__"), otherwise))


def _made(spec: Mapping[str, Any], steps: Sequence[Any], asked: Asked, *, layout: Any = None, here: Any = None,
          rows: Optional[Sequence[int]] = None, kept: tuple = (), notes: Sequence[Any] = (), python: Any = None,
          limits: Optional[Mapping[str, Any]] = None) -> Given:
    from . import _pickled, transforms
    split = asked.split or "train"
    gpu_steps = transforms.pipeline_of(asked.gpu_transform)
    if any("Python" in step for step in [*steps, *gpu_steps]):
        python = python or {"interpreter": sys.executable}  # that has what this program has
        spec = {"path": _pickled.import_path(), **spec}
    listed = rows is not None and asked.sampler is None
    if listed:
        from ._memory_file import MemoryFile
        file = MemoryFile("penstock-rows", "".join(f"{row}\n" for row in rows).encode())
        kept = (*kept, file)
    made = _job.build(spec, split, steps, asked.named, asked.seed, gpu_steps)
    if listed:
        made["splits"][split].setdefault("sampler", {})["indices"] = file.path
    if python:
        made["python"] = dict(python)
    if limits:
        made["limits"] = dict(limits)
    if here is not None:
        made["trainer"] = {"timeout_s": 1e6}  # the program's own thread makes the samples: there is nobody else to be late
    if here is not None and layout is not None:
        made["loader"] = {"threads": 1}  # sample after sample, in their order
    overrides = _job.overrides_of(split, {}, asked.more, asked.words)
    return Given(_job.text_of(made), True, split, overrides, layout, here, rows, kept, notes)


def _doubt_truncated(found: Any) -> None:
    pillow = sys.modules.get("PIL.ImageFile")
    if pillow is not None and pillow.LOAD_TRUNCATED_IMAGES and not found.side:
        warn("PIL.ImageFile.LOAD_TRUNCATED_IMAGES has no meaning for pictures that loaders read: a truncated one is an error; "
             'say on_error="substitute" for another sample in its place')


def _doubt_classes(folder: Optional[str]) -> None:
    """What may be meant so, and hardly ever is."""
    names = _penstock.splits_as_classes(folder) if folder else []
    if names:
        warn(f"the classes of '{folder}' are {', '.join(names)}, which hold class folders of their own: the splits' "
             f"folders may be meant, as in penstock.ImageFolder('{folder}/{names[0]}')")


def _only_split(job: str, is_text: bool, overrides: Sequence[str]) -> str:
    names = _penstock.split_names(job, is_text=is_text, overrides=overrides)
    if len(names) != 1:
        raise UsageError(f"the job has {len(names)} splits: {', '.join(map(repr, names))}", "say split=…")
    return names[0]
