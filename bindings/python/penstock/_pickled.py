"""A dataset object of this program, on its way to the loaders' Python workers.

    from penstock._pickled import dataset_spec
    job["splits"]["train"]["dataset"] = dataset_spec(MyDataset("photos"))

The object travels as a pickle inside the job, so every loader rank, on whatever node, makes the same object of it. With
cloudpickle installed, what this program defines itself (classes and functions of `__main__`) travels by value. Without
it, pickle names such a class, and workers first run the program's file under the name `__mp_main__`, as
multiprocessing's spawn does, with the program's arguments: what the file does at the top level then happens in the process that
workers are forked from, or in every worker (_fork_server.py), so keep it under `if __name__ == "__main__":`.

All trainers must open the same dataset. They are compared by these bytes, so an object whose pickle differs from one
process to the next (it holds a set of strings, a time, an address) is refused where several trainers open it, and so is a
class of the program itself where the programs' arguments differ (a launcher that passes --local-rank); give it a
`__getstate__` without those, or name a factory instead: `dataset: {python: "module:function"}`.

Trust: unpickling runs code. Workers unpickle only what a program of the same job and user sent through the job's own
processes; nothing of the kind is ever read from data, checkpoints or state files. A job file with `pickle:` in it is a
program: run it as you would run one.
"""

import base64
import io
import json
import operator
import os
import pickle
import sys
import types
import zlib

# A job's text may have 1 MiB: room for a dataset's description, not for its pictures.
MAX_BYTES = 700_000
# From here on it travels compressed: lists of paths and labels shrink to a tenth. No pickle begins like zlib's output.
COMPRESS_FROM = 50_000


class UnpicklableDataset(TypeError):
    """The dataset cannot be sent to worker processes; the text says what in it is in the way."""


def import_path():
    """Where this program finds its modules, for workers to find them too."""
    return ":".join(dict.fromkeys(os.path.abspath(folder or ".") for folder in sys.path if ":" not in folder))


def dataset_spec(obj, kept=None, title=None):
    """The `dataset:` section of a split for `obj`, any object with `__len__` and `__getitem__`: a dict of texts.

    `kept`: a list. A pickle that is too large for a job's text then stays in this process's memory, which its own workers
    read, and what holds it is appended; it has to live as long as the loader. `title`: for messages, in place of the class.

    Raises UnpicklableDataset (a TypeError) where it cannot be pickled, does not survive it, or is too large; TypeError
    where it is no dataset.
    """
    for method, *others in (["__len__"], ["__getitem__", "__getitems__"]):
        if not any(hasattr(obj, one) for one in (method, *others)):
            raise TypeError(f"{type(obj).__name__} has no {method}: a dataset has __len__ and __getitem__")
    data, named = _dumps(obj)
    size = len(data)
    if size >= COMPRESS_FROM and (kept is None or size <= MAX_BYTES):
        data = zlib.compress(data)
    if len(data) > MAX_BYTES and kept is not None:
        text = _in_memory(data, kept)
    elif len(data) > MAX_BYTES:
        raise UnpicklableDataset(
            f"{type(obj).__name__} is {size:,} bytes when pickled, {len(data):,} compressed, and at most {MAX_BYTES:,} "
            "travel with a job: keep "
            "its index in a file that __init__ or the first __getitem__ reads, or name a factory that workers call "
            "(dataset={'python': 'module:function', 'args': {...}})")
    else:
        text = base64.b64encode(data).decode("ascii")
    spec = {"pickle": text, "path": import_path()}
    main = getattr(sys.modules["__main__"], "__file__", None)
    if named is not None:
        if main is None or not os.path.exists(main):
            raise UnpicklableDataset(
                f"{named} is defined in a program without a file (a notebook or `python -c`), where workers "
                "cannot find it: pip install cloudpickle, or move the class into a module")
        by_name = getattr(sys.modules["__main__"], "__spec__", None)  # python -m: imports within its package work by name
        spec["main"] = json.dumps({"file": os.path.abspath(main), "module": by_name.name if by_name else "",
                                   "arguments": sys.argv[1:]})
    return spec


def copy_of(obj):
    """What a worker process will have of it. Raises as dataset_spec() does."""
    data = _dumps(obj)[0]
    try:
        return pickle.loads(data)
    except RecursionError as error:
        raise UnpicklableDataset(
            f"{type(obj).__name__} does not survive pickling: a __getattr__ in it asks for an attribute that is not there yet while the "
            "object is being made again. Let it raise AttributeError for names that begin with '_' and for the one that it hands on to; or "
            "say num_workers=0, for which nothing is pickled") from error


def _in_memory(data, kept):
    """What stands in the place of a large pickle: the name of its contents, under which workers find it (_worker.py)."""
    from ._memory_file import MemoryFile
    from ._worker import IN_MEMORY
    kept.append(MemoryFile("penstock", data))
    return IN_MEMORY + kept[-1].name


def tensor_of(dtype, shape, data):
    """A torch tensor of these bytes."""
    import torch
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return flat.view(getattr(torch, dtype)).reshape(shape)


def is_plain(one):
    """A tensor that is its numbers and nothing else?"""
    torch = sys.modules.get("torch")
    return torch is not None and type(one) is torch.Tensor and not vars(one) and one.device.type == "cpu" and \
        one.layout == torch.strided and not getattr(one, "is_nested", False) and not (one.requires_grad or one.is_quantized or one.is_conj() or one.is_neg())


def _reduced(one):
    """A plain tensor as its numbers: torch's own pickle has addresses in it, which differ from one process to the next, and of
    a view the whole storage. Tensors that share memory do not share it any more."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(one, torch.Tensor):
        return NotImplemented
    if not is_plain(one):
        return _reduced_by_torch(torch, one)
    data = one.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor_of, (str(one.dtype).rpartition(".")[2], tuple(one.shape), data)


def _reduced_by_torch(torch, one):
    """What torch 1.13 forgets is put beside: that numbers are to be conjugated or negated, attributes, and, under Python 3.11, that a
    class of the program's own has no state."""
    if one.layout == torch.strided and (one.is_conj() or one.is_neg()):
        return _reduced(one.resolve_conj().resolve_neg())
    function, arguments, *more = one.__reduce_ex__(5)
    if function.__name__ == "_rebuild_from_type_v2":
        return function, tuple({} if argument is None else argument for argument in arguments), *more
    if type(one) is torch.Tensor and vars(one):
        return function, arguments, vars(one), None, None, set_attributes
    return function, arguments, *more


def set_attributes(one, attributes):
    vars(one).update(attributes)


def of_main(name):
    """The program's own class or function of that name."""
    return operator.attrgetter(name)(sys.modules["__main__"])


class _Parts(pickle.Pickler):
    def reducer_override(self, one):
        # A worker's __main__ is another, and does not have what came to it by value.
        of_program = isinstance(one, (type, types.FunctionType)) and one.__module__ in ("__main__", "__mp_main__")
        if of_program and "<locals>" not in one.__qualname__:
            return of_main, (one.__qualname__,)
        return _reduced(one)


_NUMPYS = {f"torch.{name}" for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64",
                                        "complex128")}


def pickled_value(value):
    """A part of a sample, on its way from a worker to the program. A plain tensor goes as an array, which pickles are fastest with."""
    if is_plain(value) and str(value.dtype) in _NUMPYS:
        return _OF_TENSOR + pickle.dumps(value.numpy(), protocol=5)
    if type(value).__module__ == "numpy" and not getattr(getattr(value, "dtype", None), "hasobject", True):
        return pickle.dumps(value, protocol=5)
    file = io.BytesIO()
    _Parts(file, protocol=5).dump(value)
    return file.getvalue()


def unpickled_value(data):
    """Of this program's own worker."""
    if data[:1] == _OF_TENSOR:
        return sys.modules["torch"].from_numpy(pickle.loads(memoryview(data)[1:]))
    return pickle.loads(data)


_OF_TENSOR = b"T"  # no pickle begins so


def _dumps(obj):
    """(bytes, the name of a class or function that whoever reads them looks up in the program, if there is one)."""
    try:
        import cloudpickle
    except ImportError:
        cloudpickle = None
    try:
        return (_by_value(obj, cloudpickle), None) if cloudpickle else _with_name(obj)
    except UnpicklableDataset:
        raise
    except Exception as error:
        dataset, transforms = _programs_own(obj)
        step = _step_to_blame(transforms, cloudpickle or pickle)
        culprit = _culprit(dataset, cloudpickle or pickle)
        what = f"{type(dataset).__name__} cannot be pickled for the worker processes{culprit}" if step is None else \
            f"the transform {_shown(step)} of {type(dataset).__name__} cannot be pickled for the worker processes"
        advice = "Open files, connections and locks in the first __getitem__ instead of __init__; " if step is None else \
            "Let it be a function or class of a module, which opens files and locks when it is first called; "
        raise UnpicklableDataset(
            f"{what}: {type(error).__name__}: {error}. {advice}"
            + ("" if cloudpickle else "lambdas and local classes need cloudpickle (pip install cloudpickle); ")
            + ("name a factory (dataset={'python': 'module:function'}); " if step is None else "")
            + "or say num_workers=0, for which nothing is pickled") from error


def _by_value(obj, cloudpickle):
    class Reducing(cloudpickle.Pickler):
        def reducer_override(self, one):
            reduced = _reduced(one)
            return super().reducer_override(one) if reduced is NotImplemented else reduced

    file = io.BytesIO()
    Reducing(file).dump(obj)
    return file.getvalue()


def _with_name(obj):
    """As _dumps(). The data set's class may be another's and its transform the program's own, or any part of it."""
    found = []

    class Noticing(pickle.Pickler):
        def reducer_override(self, one):
            if isinstance(one, (type, types.FunctionType)):
                if one.__module__ == "__mp_main__":
                    raise UnpicklableDataset(
                        "the program makes its DataLoader at its top level, and that runs in every worker, because "
                        f"{one.__qualname__} is defined there: put what the program does under if __name__ == \"__main__\":, or "
                        "move that into a module")
                if one.__module__ == "__main__":
                    found.append(one.__qualname__)
            return _reduced(one)

    file = io.BytesIO()
    Noticing(file).dump(obj)
    return file.getvalue(), found[0] if found else None


def _programs_own(obj):
    """(the data set as the program gave it, the transforms that stand with it) of what this package has put around them."""
    parts = getattr(type(obj), "programs_own", None)
    if parts is None:
        return obj, []
    inside, transforms = parts(obj)
    dataset, more = _programs_own(inside)
    return dataset, [*transforms, *more]


def _step_to_blame(transforms, pickler):
    """The step that cannot be pickled, without what stands around it (Compose, lists); None: there is no such step."""
    for one in transforms:
        if _survives(one, pickler):
            continue
        inside = one if isinstance(one, (list, tuple)) else getattr(one, "transforms", None)
        step = _step_to_blame(inside, pickler) if isinstance(inside, (list, tuple)) else None
        return one if step is None else step
    return None


def _survives(value, pickler):
    try:
        pickler.dumps(value)
    except Exception:
        return False
    return True


def _shown(step):
    """A function by its name, which says more than its address."""
    text = getattr(step, "__qualname__", None) or " ".join(repr(step).split())
    return text if len(text) <= 100 else text[:97] + "..."


def _culprit(obj, pickler):
    """" (its attribute 'file', of type TextIOWrapper)", where one attribute alone is to blame."""
    for name, value in getattr(obj, "__dict__", {}).items():
        if not _survives(value, pickler):
            step = _step_to_blame([value], pickler)
            why = "" if step is value else f", because of {_shown(step)}"
            return f" (its attribute '{name}', of type {type(value).__name__}{why})"
    return ""
