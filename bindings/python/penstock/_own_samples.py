"""Samples of a program's own data set as they are: tensors, numbers, texts, in tuples, lists and dicts, of any shape.

    kind = look_at(dataset, range(9)).layout        # how such samples travel
    sent = OwnSamples(dataset, kind)                # what the loaders' workers run: its items are fields
    kind.batch(fields)                              # as torch's default_collate makes it of those samples
    kind.samples(fields)                            # the samples themselves, for a collate_fn

A sample is a tree whose leaves travel as fields of a batch, beside a picture of one pixel, which the pipeline wants and nobody
sees. A tensor that has one dtype and shape in all samples looked at is a field of that shape: the loaders put the batch
together, and samples are views of it. Everything else travels as bytes, each sample's by itself. One more field has samples that are
not like those looked at, each as a pickle, and errors, which the program gets with the batch that they are in.

Nothing here needs torch unless a sample has tensors.
"""

from __future__ import annotations

import collections
import contextlib
import inspect
import io
import itertools
import math
import pickle
import sys
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence

from ._job import dtype_name
from ._large_parts import LargeParts, Reads, Stayed, escaped, fetched
from ._pickled import is_plain, pickled_value, unpickled_value
from ._prefix import Begun
from ._worker import names_of_dtypes, of_another_kind, sample_of, seed_generators, why, without_image
from .errors import DatasetError, as_raised, typed

# Leaves by what they are for the program.
_TENSOR, _ARRAY, _BOOL, _INT, _FLOAT, _TEXT, _BYTES, _OBJECT = "tensor", "array", "bool", "int", "float", "text", "bytes", "object"
_NUMBERS = {_BOOL: bool, _INT: int, _FLOAT: float}
_DTYPES = ("uint8", "int64", "float32", "float16", "bfloat16", "int32", "float64")  # of fields
_unpicklable = itertools.count()
_MOST_STAYED = 100_000
_INT64 = range(-2**63, 2**63)
_ODD = "odd"                         # the field of what is not like the others: nothing, or one of these and what it is
_SAMPLE, _ERROR = b"S", b"E"
ROOM_FOR_ODD = 8192   # bytes
_SMALL = 1024  # elements
_MORE = 12     # samples
_LARGE = 1 << 20      # bytes
_MOST_ROOM = 4 << 20  # bytes


class _Leaf(NamedTuple):
    kind: str
    dtype: str = ""      # of a tensor or array that is a field of its own shape; else it travels as bytes
    shape: tuple = ()


# Exactly these types: what is derived from them (an IntEnum, numpy.str_) travels as it is.
_SIMPLE = {bool: _Leaf(_BOOL, "uint8"), int: _Leaf(_INT, "int64"), float: _Leaf(_FLOAT, "float64"), str: _Leaf(_TEXT),
           bytes: _Leaf(_BYTES)}


def _walk(sample: Any, leaves: list, like: Any = None) -> Any:
    """The sample without its leaves, which are appended: nested ("tuple" | "list", class, parts), ("dict", class, names,
    parts), or None where a leaf stands. Names come in their order in the tree `like`, where it has the same."""
    if type(sample) in (dict, collections.OrderedDict):  # any other mapping is more than its items
        of_dict = like is not None and like[0] == "dict" and len(like[2]) == len(sample) and all(name in sample for name in like[2])
        names = like[2] if of_dict else tuple(sample)
        return "dict", type(sample), names, _walk_all([sample[name] for name in names], leaves, like)
    if type(sample) is tuple or (isinstance(sample, tuple) and hasattr(sample, "_fields")):
        return "tuple", type(sample), _walk_all(sample, leaves, like)
    if type(sample) is list:
        return "list", list, _walk_all(sample, leaves, like)
    leaves.append(sample)  # of tuples and lists that are more than that, too
    return None


def _walk_all(parts: Sequence[Any], leaves: list, like: Any) -> tuple:
    likes = like[-1] if like is not None and len(like[-1]) == len(parts) else (None,) * len(parts)
    return tuple(_walk(part, leaves, one) for part, one in zip(parts, likes))


def _build(tree: Any, leaves: Any, collated: bool) -> Any:
    """The sample again; `collated`: the batch, with lists where samples have tuples, as default_collate has it."""
    if tree is None:
        return next(leaves)
    kind, made = tree[:2]
    parts = [_build(part, leaves, collated) for part in tree[-1]]
    if collated and kind != "dict":  # of texts default_collate makes a tuple there, and a list in a dict
        parts = [tuple(part) if inside is None and isinstance(part, list) else part for inside, part in zip(tree[-1], parts)]
    if kind == "dict":
        return made(zip(tree[2], parts))
    if hasattr(made, "_fields"):
        return made(*parts)
    if kind == "list" or collated:
        return parts
    return tuple(parts)


def _leaf_of(value: Any) -> _Leaf:
    simple = _SIMPLE.get(type(value))
    if simple is not None:
        fits = value in _INT64 if simple.kind == _INT else simple.kind != _TEXT or value.isascii() or _is_utf8(value)
        return simple if fits else _Leaf(_OBJECT)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        # A sparse tensor, or one of a class of the program's own, is more than its elements.
        return _Leaf(_TENSOR, dtype_name(value.dtype), tuple(value.shape)) if is_plain(value) else _Leaf(_TENSOR)
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        # numpy.memmap's elements are all there is to it. Not by dtype.isbuiltin, which is 0 of an array that was unpickled.
        plain = (type(value) in (numpy.ndarray, numpy.memmap) and value.ndim > 0) or isinstance(value, numpy.generic)
        plain = plain and (value.dtype in names_of_dtypes() or value.dtype == bool)
        return _Leaf(_ARRAY, value.dtype.name, tuple(value.shape)) if plain else _Leaf(_ARRAY)
    return _Leaf(_OBJECT)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # as os.listdir() shows other bytes
        return False
    return True


def _elements(leaf: _Leaf) -> int:
    return math.prod(leaf.shape)


def _fits(leaf: _Leaf) -> bool:
    """As a field of its own shape?"""
    return (leaf.dtype in _DTYPES or leaf.dtype == "bool") and 0 not in leaf.shape


def _is_like(leaf: _Leaf, value: Any) -> bool:
    """Can the value travel so?"""
    if leaf.kind == _OBJECT:
        return True
    found = _leaf_of(value)
    return found == leaf if leaf.dtype else found.kind == leaf.kind


def _blank(leaf: _Leaf) -> Any:
    """What travels where the value is not like that."""
    if leaf.kind == _TEXT:
        return ""
    if not leaf.dtype:
        return b"" if leaf.kind == _BYTES else pickle.dumps(None)
    if leaf.kind == _TENSOR:
        torch = sys.modules["torch"]
        return torch.zeros(leaf.shape, dtype=getattr(torch, leaf.dtype))
    import numpy
    return numpy.zeros(leaf.shape, leaf.dtype)


class Layout:
    """Which leaves samples have, and how each travels. Plain data; the same in the program and in its workers. `in_process`: the program
    has no workers; what is pickled is pickled for the hashes alone then, and the program gets the object itself."""

    def __init__(self, tree: Any, leaves: Sequence[_Leaf], in_process: bool = False) -> None:
        self.tree = tree
        self.leaves = list(leaves)
        self._digits = max(4, len(str(len(self.leaves) - 1)))  # of names, whose order as texts is that of the leaves
        self.stayed = Stayed(_MOST_STAYED) if in_process else None  # objects by their pickles, and large parts by their names
        self.reads = Reads()  # of workers' large parts

    @staticmethod
    def of(samples: Sequence[Any], small_may_differ: bool = False, in_process: bool = False) -> "Layout":
        """Of some samples of a data set; of none, nothing is known. `small_may_differ`: small tensors and arrays
        (boxes, lists of labels) travel by themselves though they have one shape in these: a collate_fn may expect others, too."""
        trees: list = []
        seen = []
        for sample in samples:
            values: list = []
            trees.append(_walk(sample, values, trees[0] if trees else None))
            seen.append([_leaf_of(value) for value in values])
        (tree, count), = collections.Counter(trees).most_common(1) or [(None, 0)]
        if 2 * count <= len(trees):
            return Layout(None, [_Leaf(_OBJECT)], in_process)  # as one object, whatever it is each time
        seen = [forms for one, forms in zip(trees, seen) if one == tree]
        leaves = []
        for forms in zip(*seen):
            kinds = {form.kind for form in forms}
            if len(kinds) > 1:
                leaves.append(_Leaf(_OBJECT))
            elif small_may_differ and forms[0].kind in (_TENSOR, _ARRAY) and forms[0].shape and max(map(_elements, forms)) <= _SMALL:
                leaves.append(_Leaf(forms[0].kind))
            elif len(set(forms)) == 1 and (forms[0].kind in _NUMBERS or (forms[0].dtype and _fits(forms[0]))):
                leaves.append(forms[0])
            else:
                leaves.append(_Leaf(forms[0].kind))
        return Layout(tree, leaves, in_process)

    def name(self, place: int) -> str:
        return f"leaf{place:0{self._digits}d}"

    def field_table(self) -> list:
        """[name, dtype, shape] of each leaf as the field that it travels as."""
        types = [{"bool": "uint8", "": "text" if leaf.kind == _TEXT else "bytes"}.get(leaf.dtype, leaf.dtype) for leaf in self.leaves]
        table = [[self.name(place), dtype, list(leaf.shape)] for place, (dtype, leaf) in enumerate(zip(types, self.leaves))]
        return [*table, [_ODD, "bytes", []]]

    def names(self, of_pair: Sequence[str]) -> Optional[Sequence[str]]:
        """The names of a sample's parts: a dict's own, `of_pair` for a tuple of two; empty where they have none. None: nobody knows."""
        if self._of_objects:
            return None
        kind, made, *_, parts = self.tree or ("", None, ())
        if kind == "dict":
            return self.tree[2]
        return of_pair if made is tuple and len(parts) == len(of_pair) else ()

    @property
    def of_one_shape(self) -> bool:
        """Nothing travels as bytes but texts and bytes: a batch needs no sample of its own."""
        return all(leaf.dtype or leaf.kind in (_TEXT, _BYTES) for leaf in self.leaves)

    # ---- in a worker ---------------------------------------------------------------------------------------------------
    def fields(self, sample: Any, large: Optional[LargeParts] = None) -> dict:
        """`sample` as what `penstock._worker` takes for an item. `large`: keeps what has no room."""
        values: list = []
        tree = _walk(sample, values, self.tree)
        if self._of_objects:
            values = [sample]
        elif tree != self.tree or not all(map(_is_like, self.leaves, values)):
            return self._item(map(_blank, self.leaves), _SAMPLE + self._pickled(sample), large)
        return self._item(map(self._sent, self.leaves, values), b"", large)

    def error(self, text: str, large: Optional[LargeParts] = None) -> dict:
        """What travels in the place of a sample that cannot be made."""
        return self._item(map(_blank, self.leaves), _ERROR + text.encode(errors="replace"), large)

    def fits(self, sample: Any) -> bool:
        values: list = []
        return self._of_objects or (_walk(sample, values, self.tree) == self.tree and all(map(_is_like, self.leaves, values)))

    @property
    def _of_objects(self) -> bool:
        """Samples travel as one object, whatever it is each time."""
        return self.tree is None and len(self.leaves) == 1 and self.leaves[0].kind == _OBJECT

    def _item(self, sent: Iterable[Any], odd: bytes, large: Optional[LargeParts]) -> dict:
        out = {"image": _pixel()}
        for name, one in (*((self.name(place), one) for place, one in enumerate(sent)), (_ODD, odd)):
            if isinstance(one, (str, bytes)):
                one = escaped(one) if large is None else large.sent(one)
            out[name] = one
        return out

    def _sent(self, leaf: _Leaf, value: Any) -> Any:
        if leaf.kind == _OBJECT:
            return self._pickled(value)
        if leaf.kind in (_TENSOR, _ARRAY):
            return value if leaf.dtype else self._pickled(value)
        if leaf.kind in _NUMBERS:
            import numpy
            return numpy.array(value, leaf.dtype)
        return value

    def _pickled(self, value: Any) -> bytes:
        if self.stayed is None:
            return pickled_value(value)
        try:
            data = pickled_value(value)
        except Exception:  # which no worker could send
            data = b"object %d" % next(_unpicklable)
        self.stayed.add(data, value)
        return data

    def _unpickled(self, data: bytes) -> Any:
        for value in () if self.stayed is None else self.stayed.taken(data):
            return value
        return unpickled_value(data)

    # ---- in the program ------------------------------------------------------------------------------------------------
    def batch(self, fields: Mapping[str, Any]) -> Any:
        """As torch's default_collate: tensors [n, …], numbers as tensors [n], texts as lists. `fields`: by name, torch tensors
        or lists. DatasetError where a sample could not be made."""
        if not self.of_one_shape or any(fields[_ODD]):
            from torch.utils.data import default_collate
            return default_collate(self.samples(fields))
        return _build(self.tree, iter([self._of_all(place, leaf, fields) for place, leaf in enumerate(self.leaves)]), True)

    def unlike(self, fields: Mapping[str, Any]) -> List[int]:
        """Places in the batch of samples that are not like those looked at."""
        return [place for place, data in enumerate(fields[_ODD]) if data]

    def _of_all(self, place: int, leaf: _Leaf, fields: Mapping[str, Any]) -> Any:
        column = fields[self.name(place)]
        if leaf.kind in (_TEXT, _BYTES):
            return [fetched(one, self.reads, self.stayed) for one in column]
        return column != 0 if leaf.dtype == "bool" or leaf.kind == _BOOL else column

    def samples(self, fields: Mapping[str, Any]) -> List[Any]:
        """Each sample by itself. Tensors of one shape are views of the batch's memory. DatasetError where one could not be made."""
        odd = {place: fetched(fields[_ODD][place], self.reads, self.stayed) for place in self.unlike(fields)}
        columns = []
        for place, leaf in enumerate(self.leaves):
            column = self._of_all(place, leaf, fields)
            columns.append([None if at in odd else self._one(leaf, value) for at, value in enumerate(column)])
        bare = self.tree is None and len(self.leaves) == 1
        rows: Iterable[tuple] = zip(*columns) if columns else [()] * len(fields[_ODD])
        made = columns[0] if bare else [_build(self.tree, iter(leaves), False) for leaves in rows]
        errors = []
        for place, data in odd.items():
            if data[:1] == _ERROR:
                errors.append(data[1:].decode())
            else:
                made[place] = self._unpickled(data[1:])
        if errors:
            raise typed(DatasetError(errors[0], "mend the program's data set for such samples, or say on_error=\"substitute\""))
        return made

    def forget(self) -> None:
        """Nobody takes what was made for batches until now."""
        self.reads.settle(False)
        if self.stayed is not None:
            self.stayed.clear()

    def settle(self, done: bool) -> None:
        """The batch whose fields were read last was put together, or will be once more."""
        self.reads.settle(done)
        if self.stayed is not None:
            self.stayed.settle(done)

    def _one(self, leaf: _Leaf, value: Any) -> Any:
        if leaf.kind in _NUMBERS:
            return _NUMBERS[leaf.kind](value)
        if leaf.kind in (_TEXT, _BYTES):
            return value
        if not leaf.dtype:
            return self._unpickled(fetched(value, self.reads, self.stayed))
        if leaf.kind == _ARRAY:
            array = value.numpy() if hasattr(value, "numpy") else value  # is one already with output="numpy"
            return array if leaf.shape else array[()]
        return value

    def size_of(self, sample: Any) -> int:
        """Bytes of the longest leaf that travels as bytes."""
        sizes = [len(value.encode()) if isinstance(value, str) else len(value)
                 for value in self.fields(sample).values() if isinstance(value, (str, bytes))]
        self.forget()
        return max(sizes, default=0)


def _pixel() -> Any:
    import numpy
    return numpy.zeros((1, 1, 3), numpy.uint8)


def _picture_of(image: Any) -> Any:
    """What torchvision's transforms take, of an image as `_worker` has it: a file's bytes and an array as a PIL picture. Others stay."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        from PIL import Image
        with Image.open(io.BytesIO(image)) as picture:
            return picture.convert("RGB")
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(image, numpy.ndarray) or image.dtype != numpy.uint8 or image.ndim not in (2, 3):
        return image
    if image.ndim == 3 and image.shape[2] not in (1, 3):
        return image
    from PIL import Image
    return Image.fromarray(image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image)


def takes_pictures(steps: Sequence[Any]) -> bool:
    """Whether the first of these steps is one of torchvision's for pictures. Other functions get what the data set returns."""
    from ._torch_sequences import flattened, home_of
    module, name = home_of(next(flattened(list(steps)), None))
    return module.startswith("torchvision.transforms.") and name not in ("ToPILImage", "Lambda")


class Transformed:
    """A data set of (picture, label, …), or of dicts with an `image`, with steps that penstock cannot translate."""

    def __init__(self, dataset: Any, steps: Sequence[Callable]) -> None:
        self.dataset = dataset
        self.steps = list(steps)
        self._takes_pictures = takes_pictures(self.steps)

    def programs_own(self) -> tuple:
        """(data set, transforms): for messages about what cannot be pickled."""
        return self.dataset, self.steps

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        sample = sample_of(self.dataset, index)
        if isinstance(sample, dict):
            if "image" not in sample:
                raise without_image(sample)
            return {**sample, "image": self._made(sample["image"])}
        if not isinstance(sample, (tuple, list)) or not sample:
            raise of_another_kind(sample)
        picture, *others = sample
        return (self._made(picture), *others)

    def _made(self, image: Any) -> Any:
        picture = _picture_of(image) if self._takes_pictures else image
        for step in self.steps:
            picture = step(picture)
        return picture


def become_worker(number: int, workers: int, seed: int, dataset: Any) -> Callable[[], None]:
    """torch's get_worker_info() answers as in that worker from now on, where it is imported, and until the result is called."""
    torch_worker = sys.modules.get("torch.utils.data._utils.worker")
    if torch_worker is None:
        return lambda: None
    before = torch_worker._worker_info
    torch_worker._worker_info = torch_worker.WorkerInfo(id=number, num_workers=max(workers, number + 1), seed=seed, dataset=dataset)
    return lambda: setattr(torch_worker, "_worker_info", before)


@contextlib.contextmanager
def as_worker(number: int, workers: int, seed: int, dataset: Any) -> Iterator[None]:
    put_back = become_worker(number, workers, seed, dataset)
    try:
        yield
    finally:
        put_back()


class OwnSamples:
    """A program's data set for the loaders' Python workers, which make of its items what a Layout says."""

    def __init__(self, dataset: Any, layout: Layout, started: Optional[Callable] = None, room: int = 0, seed: int = 0,
                 sends_errors: bool = True) -> None:
        """`started`: worker_init_fn. `room`: bytes for a part; 0: what is larger has to be an error. `sends_errors`: in the samples'
        places; else they are the loader's to deal with."""
        self.dataset = dataset
        self.sends_errors = sends_errors
        self.layout = layout
        self.large = LargeParts(room, layout.stayed) if room else None
        inside = dataset.dataset if isinstance(dataset, Transformed) else dataset.source if isinstance(dataset, Begun) else dataset
        self.name = type(inside).__name__
        self._started = started
        self._seed = seed
        torch = sys.modules.get("torch")
        self._torch_state = None if torch is None else (dtype_name(torch.get_default_dtype()), torch.is_grad_enabled())
        for name in ("classes", "fingerprint", "version"):  # what a worker asks a data set, where it means what penstock means by it
            value = getattr(inside, name, None)
            texts = value if name == "classes" and isinstance(value, (list, tuple)) else ()
            if value is not None and all(_is_utf8(str(one)) for one in texts) and (name == "classes" or _answers(value)):
                setattr(self, name, value)

    def programs_own(self) -> tuple:
        """(data set, transforms): for messages about what cannot be pickled."""
        return self.dataset, []

    def __len__(self) -> int:
        return len(self.dataset)

    def field_table(self) -> list:
        return self.layout.field_table()

    def start_worker(self, number: int, workers: int) -> None:
        """Once in each worker process, before its first item: torch's get_worker_info() answers, and worker_init_fn is called, with
        generators that are seeded as torch seeds them there, and with other numbers in each worker."""
        seed_generators(self._seed + number)
        torch = sys.modules.get("torch")
        if torch is not None and self._torch_state is not None:  # as a process that was forked has it
            torch.set_default_dtype(getattr(torch, self._torch_state[0]))
            torch.set_grad_enabled(self._torch_state[1])
        become_worker(number, workers, self._seed + number, self.dataset)
        if self._started is not None:
            self._started(number)

    def item(self, index: int, seed: int, epoch: int, occurrence: int) -> dict:
        """What a worker sends. The global generators have been seeded for this sample."""
        given = self.dataset
        sample = given.sample(index, seed, epoch, occurrence) if isinstance(given, Begun) else sample_of(given, index)
        return self.layout.fields(sample, self.large)

    def instead(self, index: int, reason: str) -> dict:
        """The item of a sample that cannot be made, which the library would call by this name."""
        return self.layout.error(f"unusable sample '{self.name}[{index}]' (index {index}) in the pickled dataset: {reason}", self.large)

    def __getitem__(self, index: int) -> dict:
        return self.layout.fields(sample_of(self.dataset, index), self.large)


def _answers(value: Any) -> bool:
    """Is it a value, or a function that can be called without arguments?"""
    try:
        inspect.signature(value).bind() if callable(value) else None
    except (TypeError, ValueError):
        return False
    return True


class Seen(NamedTuple):
    """What some samples say of all."""

    layout: Layout
    sizes: Dict[int, int]  # by index: bytes of the longest leaf that travels as bytes
    problem: str = ""  # why none could be made: nothing is known of them, and each travels as one object


def look_at(dataset: Any, among: Sequence[int], small_may_differ: bool = False, in_process: bool = False) -> Seen:
    """Of samples that are made here, once: the first two, the middle and the last of `among`, which the order may ask for, in
    ascending order. Where leaves travel as bytes, or none of these can be made, some more are: always the same ones, as what follows
    from the length is compared where a run is resumed. One that cannot be made is passed over: its error is for whoever asks for it,
    as from torch."""
    count, problems = len(among), []
    if count == 0:
        return _seen({}, small_may_differ, in_process)
    first = sorted({0, min(1, count - 1), count // 2, count - 1})
    samples = _made(dataset, [among[place] for place in first], problems)
    seen = _seen(samples, small_may_differ, in_process)
    if samples and not any(seen.sizes.values()):
        return seen
    for place in sorted({number * count // _MORE for number in range(1, _MORE)} - set(first)):
        for index, sample in _made(dataset, [among[place]], problems).items():
            if not samples or not seen.layout.fits(sample):
                samples[index] = sample
                anew = _seen(samples, small_may_differ, in_process)
                seen = anew._replace(sizes={**seen.sizes, **anew.sizes})
            else:
                seen.sizes[index] = _size_of(seen.layout, index, sample)
    return seen if samples else seen._replace(problem=problems[0])


def _seen(samples: Mapping[int, Any], small_may_differ: bool, in_process: bool) -> Seen:
    layout = Layout.of(list(samples.values()), small_may_differ, in_process)
    return Seen(layout, {index: _size_of(layout, index, sample) for index, sample in samples.items()})


def _made(dataset: Any, indices: Sequence[int], problems: List[str]) -> Dict[int, Any]:
    """Those that can be made, and the problems of the others."""
    samples = {}
    for index in indices:
        try:
            samples[index] = sample_of(dataset, index)
        except (Exception, SystemExit, GeneratorExit) as error:
            problems.append(f"sample {index}: {why(error)}")
    return samples


def _size_of(layout: Layout, index: int, sample: Any) -> int:
    try:
        return layout.size_of(sample)
    except Exception as error:
        raise as_raised(DatasetError(f"sample {index}, which was looked at to see what samples are, cannot be sent: {why(error)}",
                                     "let samples have nothing that cannot be pickled"), type(error).__mro__, error)


def room_for(sizes: Sequence[int], layout: Layout, large_parts: bool) -> int:
    """Bytes for each sample's part: what was not looked at may be longer, and all of this is memory. With `large_parts` a few that
    are above a megabyte do not count, as what is longer travels by itself (_large_parts.py); else it is an error."""
    usual = max(sizes)
    if large_parts:
        usual = max(sorted(sizes)[(len(sizes) - 1) * 9 // 10], *(size for size in sizes if size <= _LARGE), 0)
    if usual <= 256 << 10:
        return 65536 + 4 * usual
    limited = not large_parts and any(leaf.kind in (_TEXT, _BYTES) for leaf in layout.leaves)
    return 65536 + (5 * usual // 2 if limited else min(5 * usual // 4, _MOST_ROOM))
