"""A worker process: makes samples of a dataset, and runs transforms, that are written in Python.

Loader ranks (and the embedded loader) have it forked by a process that has imported what it needs (_fork_server.py), or, where
that cannot be, start it as `python _worker.py NUMBER SOCKET LIFELINE`: its own number and those of two descriptors. They talk
to it over the socket; nobody else runs it. With num_workers=0 the program's own thread does the same (`penstock._here`). Needs the
standard library alone, and NumPy where arrays appear. The C++ side is runtime/datasets/python_workers.h, which has the
protocol.

What a dataset may be: any object with `__len__` and `__getitem__(i)`, 0 <= i < len (or torch's `__getitems__([i])`, which is called
where there is one), whose items are
  * a dict of fields: `image` (required), `label` (an integer; in all samples or in none), and any other names: numbers, NumPy arrays
    or tensors, of the same dtype and shape in every sample; `str` or `bytes`, of any length up to the job's
    limits.max_field_bytes (64 KiB); or
  * a tuple `(image, label)`.
An image is `bytes` (a whole image file), a PIL image, or a uint8 array [height, width], [height, width, 1] or
[height, width, 3] (RGB). Optional attributes of the dataset: `classes` (list of str), `fingerprint` or `version` (a value,
or a method without arguments: whatever tells two contents of the same size apart).

Before every `__getitem__` the global generators of `random`, NumPy and torch (where imported) are seeded from (seed,
epoch, index, occurrence) of the sample, so a dataset that draws from them gives the same sample in whatever worker, order
or attempt. A generator that the dataset made for itself is its own affair.

A transform `{Python: {function: "package.module:name"}}` is called as `name(image, rng)` with
  image  numpy.ndarray uint8 [height, width, 3], RGB, writable, its own to keep or change;
  rng    numpy.random.Generator over numpy.random.Philox (4x64-10), used by this call alone:
           key      word 0  seed of the job               word 1  0x70656e73746f636b ("penstock")
           counter  word 0  0, counting up as it draws    word 1  index | occurrence << 48
                    word 2  epoch                         word 3  position of the transform in the pipeline
and returns a uint8 array of the same shape.

Which exceptions make the sample bad, the same wherever it is tried, so that `on_error` of the job applies: all, SystemExit and
KeyboardInterrupt too, except those that say something about the machine (about_the_machine), which are tried again, elsewhere too,
and then end the job. The answer has the exception's classes and its traceback, so that the program gets one that it can catch by its
own class (errors.py).
"""

import base64
import errno
import fcntl
import functools
import hashlib
import importlib
import json
import mmap
import os
import pickle
import random
import select
import signal
import socket
import struct
import sys
import time
import traceback
import zlib

HELLO, LOAD, TRANSFORM = 1, 2, 3
GOOD, BAD, ENVIRONMENT = 0, 1, 2
REQUEST = struct.Struct("<QB")      # bytes of the body, kind
REPLY = struct.Struct("<QB")        # bytes of the body, status
KEY = struct.Struct("<qQIH")        # index, seed, epoch, occurrence
SAMPLE = struct.Struct("<BIIqQ")    # 0 encoded or 1 RGB, height, width, label, bytes of the image
LENGTH = struct.Struct("<I")        # before each value of a field of varying length
PICTURE = struct.Struct("<HHII")    # number of the function, position in the pipeline, height, width
PHILOX_KEY = 0x70656E73746F636B
DTYPES = ("uint8", "int64", "float32", "float16", "bfloat16", "int32", "float64")
VARYING = ("text", "bytes")
HERE = "here:"                      # in the place of a pickle: before the name of a data set of this process (_here.py),
OWN = "own:"                        # before a pickle of _own_samples.py, which no state is compared by,
IN_MEMORY = "memory:"               # before the name of what the program keeps (_memory_file.py)
WAIT_FOR_KEPT_S = 10
IN_SHARED_MEMORY = 0x80             # of a status: the body lies there
SHARE_FROM = 64 << 10               # bytes
F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2  # of fcntl.h
MOST_PARTS = 1000                   # of one sendmsg(), which takes 1,024
LONGEST_REASON = 4096               # bytes
LEARN_FROM = 10                     # the fields are those of the first good sample among so many
TRACEBACK = "Original traceback (most recent call last), of "  # in a reason, before the names of the exception's classes
CUT = b"  ...\n"                    # in the place of its beginning
MAY_PASS = frozenset(getattr(errno, name) for name in (
    "EIO", "EREMOTEIO", "ESTALE", "EAGAIN", "EINTR", "EBUSY", "ETIMEDOUT", "ENOMEM", "ENOBUFS", "EMFILE", "ENFILE", "ENOLCK", "ECOMM",
    "ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH", "ECONNABORTED", "ECONNRESET", "ECONNREFUSED", "ENOTCONN",
    "ESHUTDOWN", "EPIPE"))


class Refused(Exception):
    """What a dataset or function returned, or is, cannot be used: the text says why."""


def die_with(lifeline):
    """The kernel kills this process and its children at once when the other end of `lifeline` closes, even while a
    library holds the interpreter in a call that never returns."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    watch = select.poll()
    watch.register(lifeline, 0)
    if watch.poll(0):  # it closed before we were listening
        os._exit(1)


def close_others(keep):
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                pass


def kept_by(program, name):
    """Bytes that the process `program`, or another of this user on this node, keeps in memory under that name
    (_memory_file.py). Programs of one job make their loaders at about the same time."""
    until = time.monotonic() + WAIT_FOR_KEPT_S
    while True:
        for process in (program, *(one for one in os.listdir("/proc") if one.isdigit())):
            data = kept_in(process, name)
            if data is not None:
                return data
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    raise Refused("the program that made the data set keeps it in its memory, because it is large, and no such program runs on "
                  "this node, in this container: name a factory that workers call, "
                  "dataset={'python': 'module:function', 'args': {...}}")


def kept_in(process, name):
    """What the process keeps under that name, or None."""
    for path, there in memory_files(process):
        data = kept_at(path, name) if there == name else None
        if data is not None:
            return data
    return None


def memory_files(process):
    """(path, name) of each file that the process has in memory."""
    folder = f"/proc/{process}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return  # it has ended, or is another user's
    for one in numbers:
        path = f"{folder}/{one}"
        try:
            target = os.readlink(path)
        except OSError:
            continue  # closed meanwhile
        if target.startswith("/memfd:"):
            yield path, target[len("/memfd:"):].partition(" ")[0]


def kept_at(path, name):
    """What the file in memory keeps under that name, or None. `name` ends in the digest of the contents: what another has put there,
    or is not all there yet, is passed over."""
    try:
        if os.readlink(path).partition(" ")[0] != f"/memfd:{name}":
            return None
        with open(path, "rb") as file:
            data = file.read()
        return data if hashlib.blake2b(data, digest_size=16).hexdigest() == name.rpartition("-")[2] else None
    except OSError:
        return None  # closed meanwhile


def resolve(name):
    """The object that "package.module:attribute" names."""
    module, _, attribute = name.partition(":")
    found = importlib.import_module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Refused(f"module '{module}' has no '{attribute}'")
        found = getattr(found, part)
    return found


def run_main(main):
    """As multiprocessing's spawn does: the program's classes under the name __mp_main__, its `if __name__ ==
    "__main__":` part left out. `main`: _pickled.dataset_spec()."""
    import runpy
    import types
    main = json.loads(main)
    sys.argv[:] = [main["file"], *main["arguments"]]
    module = types.ModuleType("__mp_main__")
    # A package's __main__ has no guard as a rule, and is left alone by spawn too.
    by_name = main["module"] and main["module"].rpartition(".")[2] != "__main__"
    module.__dict__.update(runpy.run_module(main["module"], run_name="__mp_main__", alter_sys=True) if by_name else
                           runpy.run_path(main["file"], run_name="__mp_main__"))
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def about_the_machine(error, only_here):
    """May it pass by itself, or not happen on another machine? `only_here`: no other machine makes samples of this data set, so a
    missing file, a permission or a module that is not installed is the sample's. An OSError without an errno that was raised by Pillow
    (or is plain OSError) is about the picture."""
    if isinstance(error, (MemoryError, ConnectionError, TimeoutError)):  # the last two also without an errno, from Python code
        return True
    if isinstance(error, OSError):
        of_pillow = type(error) is OSError or type(error).__module__.startswith("PIL")
        return error.errno in MAY_PASS or not only_here and not (error.errno is None and of_pillow)
    return isinstance(error, ImportError) and not only_here


def why(error):
    """"ValueError: no such page (my_data.py:12)": one line, for messages."""
    text = str(error) if isinstance(error, Refused) else "".join(traceback.format_exception_only(type(error), error)).strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__
              and not frame.filename.startswith("<")]
    if frames and not isinstance(error, Refused):
        text += f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})"
    return " ".join(text.split()) or type(error).__name__


def from_own_code(frames):
    """The frames of a traceback from the first one that is not penstock's own; None: all are."""
    package = getattr(sys.modules.get("penstock"), "__file__", None)  # in a build folder this file lies elsewhere
    own = {os.path.dirname(os.path.realpath(file)) for file in (__file__, package or __file__)}
    while frames is not None and os.path.dirname(os.path.realpath(frames.tb_frame.f_code.co_filename)) in own:
        frames = frames.tb_next
    return frames


def why_with_traceback(error):
    """why(), and behind that line the exception's classes and its traceback, as much of its end as has room."""
    line, frames = why(error), from_own_code(error.__traceback__)
    if frames is None or isinstance(error, Refused):
        return line
    classes = ", ".join(f"{kind.__module__}:{kind.__qualname__}" for kind in type(error).__mro__ if issubclass(kind, Exception) and kind is not Exception)
    line += f"\n{TRACEBACK}{classes or type(error).__name__}:\n"
    text = "".join(traceback.format_exception(type(error), error, frames)).partition("\n")[2].rstrip().encode(errors="replace")
    room = LONGEST_REASON - len(line.encode(errors="replace")) - len(CUT)
    return line + (text if len(text) <= room else CUT + text[len(text) - max(room, 0):]).decode(errors="ignore")


def classes_in(text):
    """[(module, qualified name), …] of the exception whose traceback a message has, the most special first."""
    names = text.partition("\n" + TRACEBACK)[2].partition(":\n")[0]
    return [(module, name) for module, colon, name in (one.partition(":") for one in names.split(", ")) if colon]


def seed_of(key):
    """64 bits that follow from those bytes."""
    from hashlib import blake2b
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little")


def imported_generators():
    return {name for name in ("numpy", "torch") if name in sys.modules}


def seed_generators(drawn):
    """Seeds the global generators of random, and of NumPy and torch where imported; the names of these."""
    generators = imported_generators()
    random.seed(drawn)
    if "numpy" in generators:
        sys.modules["numpy"].random.seed(drawn & 0xFFFFFFFF)
    if "torch" in generators:
        # torch.manual_seed() would set the CUDA generators, too, of a program whose samples are made in its own process.
        sys.modules["torch"].default_generator.manual_seed(drawn & 0x7FFFFFFFFFFFFFFF)
    return generators


def is_own_samples(dataset):
    """Of _own_samples.py, whose items are ready; nothing that a program's own class could be by chance."""
    return (type(dataset).__module__, type(dataset).__name__) == ("penstock._own_samples", "OwnSamples")


def sample_of(dataset, index):
    """As torch's DataLoader gets it: by __getitems__, which some data sets have for whole batches. Here it is asked for one sample at a
    time, as each is made by whoever is free."""
    several = getattr(dataset, "__getitems__", None)
    if not several:
        return dataset[index]
    samples = several([index])
    if len(samples) != 1:
        raise ValueError(f"__getitems__([{index}]) gave {len(samples)} samples")
    return samples[0]


def as_reply(text):
    """At most LONGEST_REASON bytes of UTF-8; more than that the loader takes for a broken worker."""
    return text.encode(errors="replace")[:LONGEST_REASON].decode(errors="ignore").encode()


def buffer_of(array):
    """Its elements in C order, without a copy where they lie so: what sendmsg() takes and len() counts the bytes of."""
    import numpy
    return numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8)


def as_array(value):
    """(dtype name, shape, buffer) of a number, array or tensor; "text" or "bytes" for the dtype where lengths vary."""
    if isinstance(value, str):
        return "text", [], value.encode()
    if isinstance(value, (bytes, bytearray)):
        return "bytes", [], bytes(value)
    import numpy
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            raw = value.contiguous().view(sys.modules["torch"].int16).numpy()
            return "bfloat16", list(raw.shape), buffer_of(raw)
        value = value.numpy()
    array = numpy.asarray(value)
    if array.dtype == numpy.bool_:
        array = array.astype(numpy.uint8)
    name = names_of_dtypes().get(array.dtype)
    if name is None:
        raise Refused(f"has dtype {array.dtype}, which is none of {', '.join(DTYPES)}")
    return name, list(array.shape), buffer_of(array)


@functools.lru_cache(maxsize=None)
def names_of_dtypes():
    """By NumPy's, whose attribute `name` takes longer to make than a sample's other parts. Another byte order is another dtype."""
    import numpy
    return {numpy.dtype(name): name for name in DTYPES if name != "bfloat16"}


def as_image(image):
    """(0 or 1, height, width, buffer)."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        return 0, 0, 0, bytes(image)
    if hasattr(image, "convert") and hasattr(image, "getbands"):  # PIL
        image = image.convert("RGB")
        return 1, image.height, image.width, image.tobytes()
    import numpy
    if hasattr(image, "detach"):
        image = image.detach().cpu().numpy()
    if not isinstance(image, numpy.ndarray):
        raise Refused(f"'image' is of type {type(image).__name__}: expected bytes, a PIL image or a uint8 array")
    if image.dtype != numpy.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] not in (1, 3)):
        raise Refused(f"'image' is {image.dtype} {list(image.shape)}: expected uint8 [height, width, 3] or [height, width]")
    if image.ndim == 2:
        image = image[:, :, None]
    if image.shape[2] == 1:
        image = numpy.repeat(image, 3, axis=2)
    if 0 in image.shape:
        raise Refused(f"'image' is empty: {list(image.shape)}")
    return 1, image.shape[0], image.shape[1], buffer_of(image)


def of_another_kind(item):
    return Refused(f"__getitem__ returned {type(item).__name__}: expected a dict of fields or a tuple (image, label)")


def without_image(item):
    return Refused(f"the sample has no field 'image', only {sorted(map(str, item))}")


def as_fields(item):
    """A sample as (image, label or None, {name: (dtype, shape, buffer)} in the order of names)."""
    if isinstance(item, tuple) and len(item) == 2:
        item = {"image": item[0], "label": item[1]}
    if not isinstance(item, dict):
        raise of_another_kind(item)
    if "image" not in item:
        raise without_image(item)
    label = item.get("label")
    try:
        if "label" in item:
            label = int(label.item()) if hasattr(label, "item") and float(label.item()).is_integer() else label.__index__()
            label = struct.unpack("<q", struct.pack("<q", label))[0]
    except (AttributeError, TypeError, ValueError, struct.error):
        raise Refused(f"'label' is {str(item['label'])[:60]!r}: expected an integer; other numbers are fields of their own") from None
    others = {}
    for name in sorted(name for name in item if name not in ("image", "label")):
        if not isinstance(name, str) or not name.replace(".", "_").replace("-", "_").isidentifier() or len(name) > 64:
            raise Refused(f"a field cannot be called {name!r}: use letters, digits, '_', '-', '.', at most 64")
        try:
            others[name] = as_array(item[name])
        except Refused as error:
            raise Refused(f"field '{name}' {error}") from None
    return as_image(item["image"]), label, others


def import_from(config):
    """Modules are found from now on where the program finds them, and its own classes under its own name."""
    sys.path[:0] = [folder for folder in config["path"] if folder not in sys.path]
    importlib.invalidate_caches()
    if config["main"] and "__mp_main__" not in sys.modules:
        run_main(config["main"])


class Worker:
    """`program`: the process id of whoever made the dataset, where workers are its children."""

    caught = BaseException  # a worker that ended at a SystemExit or a KeyboardInterrupt would only be replaced

    def __init__(self, connection, number, program=None):
        self.connection = connection
        self.connection.settimeout(None)  # a module may have set another default
        self.number = number
        self.program = program or os.getppid()
        self.dataset = None
        self.only_here = False  # no other machine makes samples of it
        self.fields = None      # [[name, dtype, shape], ...]
        self.labelled = True
        self.functions = []
        self.making = None      # the sample of the newest request
        self.memory = None      # that the loader has too, for large answers
        self.descriptors = []   # to be sent

    def hello(self, body):
        config = json.loads(bytes(body))
        self.only_here = config["only_here"]
        is_here = config["pickle"].startswith(HERE)  # in the program's own process, which finds its modules
        if not is_here:
            import_from(config)
        name = ""
        if config["pickle"]:
            self.dataset = self.given(config["pickle"])
            name = getattr(self.dataset, "name", None) if is_own_samples(self.dataset) else None
            name = name or type(self.dataset).__name__
            if is_own_samples(self.dataset) and not is_here:
                self.dataset.start_worker(self.number, config["workers"])
        elif config["python"]:
            made = resolve(config["python"])
            self.dataset = made(**config["args"]) if callable(made) else made
            name = config["python"]
        self.functions = [resolve(function) for function in config["functions"]]
        for given, function in zip(config["functions"], self.functions):
            if not callable(function):
                raise Refused(f"'{given}' is no function")
        answer = {"name": name, "size": 0, "classes": [], "fingerprint": "", "fields": [], "labelled": True}
        if self.dataset is None:
            return [json.dumps(answer).encode()]
        for method, *others in (["__len__"], ["__getitem__", "__getitems__"]):
            if not any(hasattr(self.dataset, one) for one in (method, *others)):
                raise Refused(f"{name} gives an object of type {type(self.dataset).__name__}, which has no {method}")
        answer["size"] = len(self.dataset)
        classes = getattr(self.dataset, "classes", None)
        answer["classes"] = [str(one) for one in classes] if isinstance(classes, (list, tuple)) else []
        for one in answer["classes"]:
            if any("\ud800" <= character <= "\udfff" for character in one):  # os.listdir's way of showing other bytes
                raise Refused(f"the class {ascii(one)} is no text: rename its folder, or give classes other names")
        for attribute in ("fingerprint", "version"):
            value = getattr(self.dataset, attribute, None)
            if value is not None:
                answer["fingerprint"] = str(value() if callable(value) else value)
                break
        self.fields, self.labelled = config["fields"], config["labelled"]
        if self.fields is None and is_own_samples(self.dataset):  # the program knows them
            self.fields, self.labelled = self.dataset.field_table(), False
        elif self.fields is None:
            self.fields, self.labelled = self.learn_fields(answer["size"])
        answer["fields"], answer["labelled"] = self.fields, self.labelled
        return [json.dumps(answer).encode()]

    def given(self, text):
        """The object of `dataset.pickle`, which a program of this job made (_pickled.py)."""
        try:
            return pickle.loads(self.pickled(text))
        except AttributeError as error:
            if "__mp_main__" not in str(error):
                raise
            raise Refused(f"{error}: workers run the program's file under this name, without what stands under its `if __name__ == "
                          "\"__main__\":`; define what the data set, its transforms and worker_init_fn are made of above that") from None

    def pickled(self, text):
        text = text[len(OWN):] if text.startswith(OWN) else text
        data = kept_by(self.program, text[len(IN_MEMORY):]) if text.startswith(IN_MEMORY) else base64.b64decode(text)
        # No pickle of protocol 2 or later, so a compressed one.
        return data if data.startswith(b"\x80") else zlib.decompress(data)

    def learn_fields(self, size):
        first = None
        for index in range(min(size, LEARN_FROM)):
            try:
                _, label, others = as_fields(self.item(index, 0, 0, 0))
                return [[name, dtype, shape] for name, (dtype, shape, _) in others.items()], label is not None
            except Exception as error:
                if about_the_machine(error, self.only_here):
                    raise
                first = first or Refused(f"none of the first {LEARN_FROM} samples can be made; sample {index}: {why(error)}")
        if first:
            raise first
        return [], True

    def item(self, index, seed, epoch, occurrence):
        self.making = index
        drawn = seed_of(KEY.pack(index, seed, epoch, occurrence))
        while True:
            generators = seed_generators(drawn)
            made = self.dataset.item(index, seed, epoch, occurrence) if is_own_samples(self.dataset) else \
                sample_of(self.dataset, index)
            # One that the dataset imported just now was not seeded: the sample is made once more, as any later worker will.
            if generators == imported_generators():
                return made

    def item_or_error(self, index, *key):
        """An item of _own_samples.py may be the error, which travels to the program in the sample's place."""
        try:
            return self.item(index, *key)
        except Exception as error:
            if not (is_own_samples(self.dataset) and self.dataset.sends_errors) or about_the_machine(error, self.only_here):
                raise
            return self.dataset.instead(index, as_reply(self.reason_of(error)).decode())

    def load(self, body):
        (kind, height, width, pixels), label, others = as_fields(self.item_or_error(*KEY.unpack(body)))
        seen = [[name, dtype, shape] for name, (dtype, shape, _) in others.items()]
        if seen != self.fields:
            def text(fields):
                return ", ".join(f"{name} {dtype}{shape}" for name, dtype, shape in fields) or "none"
            raise Refused(f"its fields besides image and label are {text(seen)}; those of the first sample: {text(self.fields)}")
        if (label is not None) != self.labelled:
            raise Refused(f"it has {'no' if label is None else 'a'} field 'label', and the first sample has {'one' if label is None else 'none'}")
        label = label or 0
        parts = [SAMPLE.pack(kind, height, width, label, len(pixels))]
        for dtype, _, data in others.values():
            parts += [LENGTH.pack(len(data)), data] if dtype in VARYING else [data]
        return [*parts, pixels]

    def transform(self, body):
        import numpy
        number, position, height, width = PICTURE.unpack_from(body)
        index, seed, epoch, occurrence = KEY.unpack_from(body, PICTURE.size)
        self.making = index
        image = numpy.frombuffer(body, numpy.uint8, offset=PICTURE.size + KEY.size).reshape(height, width, 3)
        counter = numpy.array([0, index | occurrence << 48, epoch, position], numpy.uint64)
        key = numpy.array([seed, PHILOX_KEY], numpy.uint64)
        rng = numpy.random.Generator(numpy.random.Philox(counter=counter, key=key))
        result = numpy.asarray(self.functions[number](image, rng))
        if result.dtype != numpy.uint8 or result.shape != (height, width, 3):
            raise Refused(f"returned {result.dtype} {list(result.shape)} for uint8 {[height, width, 3]}: "
                          "a Python transform keeps type and size")
        return [buffer_of(result)]

    def receive(self, size):
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            got = self.connection.recv_into(view[done:])
            if got == 0:
                return None
            done += got
        return data

    def answer(self, kind, body):
        """(status, buffers that follow each other)"""
        try:
            return GOOD, {HELLO: self.hello, LOAD: self.load, TRANSFORM: self.transform}[kind](body)
        except self.caught as error:
            return ENVIRONMENT if about_the_machine(error, self.only_here) else BAD, [as_reply(self.reason_of(error))]

    def reason_of(self, error):
        """The first line says what happened, in whatever list it is shown."""
        return why_with_traceback(error)

    def flush(self):
        sys.stdout.flush()
        sys.stderr.flush()

    def reply(self, status, body):
        self.flush()
        size = sum(map(len, body))
        if size >= SHARE_FROM and self.grow_memory(size):
            at = 0
            for part in body:
                self.memory[at:at + len(part)] = part
                at += len(part)
            self.send([REPLY.pack(size, status | IN_SHARED_MEMORY)])
        else:
            self.send([REPLY.pack(size, status), *body])

    def grow_memory(self, size):
        """False where the machine has no such memory."""
        if self.memory is not None and size <= len(self.memory):
            return True
        size = 1 << (size - 1).bit_length()
        try:
            descriptor = os.memfd_create("penstock-answers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError):
            return False
        try:
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK)
            self.memory = mmap.mmap(descriptor, size)
        except OSError:
            os.close(descriptor)
            return False
        self.descriptors.append(descriptor)
        return True

    def close(self):
        """Nobody will be sent what waits."""
        self.connection.close()
        while self.descriptors:
            os.close(self.descriptors.pop())

    def send(self, parts):
        """One after the other, and the descriptors that wait."""
        if len(parts) > MOST_PARTS:
            parts = [b"".join(parts)]
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", one)) for one in self.descriptors]
        sent = self.connection.sendmsg(parts, rights)
        while self.descriptors:
            os.close(self.descriptors.pop())
        if sent < sum(map(len, parts)):  # a signal came between
            self.connection.sendall(b"".join(parts)[sent:])

    def request(self):
        """(kind, body) of the next one; None: the loader has gone."""
        head = self.receive(REQUEST.size)
        if head is None:
            return None
        size, kind = REQUEST.unpack(head)
        body = self.receive(size)
        return None if body is None else (kind, body)

    def serve(self):
        while True:
            request = self.request()
            if request is None:
                return
            self.reply(*self.answer(*request))


def begin(connection, lifeline):
    die_with(lifeline)
    close_others((connection, lifeline))
    # Run as a file, Python looks for modules beside this one first: penstock's own parts are no top-level modules.
    beside = os.path.dirname(os.path.realpath(__file__))  # Python, too, follows links to this file
    sys.path[:] = [folder for folder in sys.path if folder and os.path.realpath(folder) != beside]
    sys.stdout.reconfigure(line_buffering=True)
    import faulthandler
    faulthandler.enable()  # a crash leaves a traceback among the last lines


def serve(connection, number, program=None):
    try:
        Worker(socket.socket(fileno=connection), number, program).serve()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the loader has gone


def main():
    number, connection, lifeline = map(int, sys.argv[1:4])
    sys.argv[1:] = []
    begin(connection, lifeline)
    serve(connection, number)


if __name__ == "__main__":
    main()
