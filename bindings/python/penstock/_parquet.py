"""Copies the samples of Parquet files into one tar archive, which loaders read in place. Needs pyarrow.

`penstock index` starts it as `python _parquet.py SOCKET LIFELINE` (launch/parquet_data.h) and nobody else does. It reads
one line of JSON, the request:
  files   paths, in order            image, label   columns; "": the usual one
  fields  [[column, ""|"text"|"bytes"], ...]         data   the archive
and writes lines of JSON: {"rows": n} now and then, at last {"fields": [kind, ...], "label": bool, "classes": [name, ...]}
or {"error": text, "help": text, "dataset": bool}; then it waits for the end of the connection. Sample ROW of file FILE is
the members FILE/ROW.img, .cls (the label as text), and for field N .fN.npy (numbers) or .fN (text, bytes). No picture
(null): an empty member, a bad sample later.

Rows are read in small batches, and their pages through small buffers: memory grows neither with files nor row groups.
"""

import fcntl
import json
import os
import select
import signal
import socket
import struct
import sys
import tarfile

BATCH_ROWS = 64
READ_BYTES = 1 << 20  # at once; without it a whole row group is in memory
BLOCK = 512
NUMBERS = {"bool": ("|u1", "B"), "uint8": ("|u1", "B"), "int8": ("<i4", "i"), "int16": ("<i4", "i"), "uint16": ("<i4", "i"),
           "int32": ("<i4", "i"), "uint32": ("<i8", "q"), "int64": ("<i8", "q"), "uint64": ("<i8", "q"),
           "halffloat": ("<f2", "e"), "float": ("<f4", "f"), "double": ("<f8", "d")}  # names as Arrow prints them
INTEGERS = tuple(name for name, (_, code) in NUMBERS.items() if code in "Biq")
TEXTS = ("string", "large_string")
BYTES = ("binary", "large_binary")


class Refused(Exception):
    def __init__(self, text, remedy="", dataset=True):
        super().__init__(text)
        self.remedy = remedy
        self.dataset = dataset


def plain(kind):
    """The type of the values of a dictionary-encoded column."""
    return kind.value_type if str(kind).startswith("dictionary<") else kind


def innermost(kind):
    while str(kind).startswith(("list<", "large_list<", "fixed_size_list<")):
        kind = plain(kind.value_type)
    return str(kind)


def is_picture(kind):
    """Encoded bytes, or Hugging Face's struct of them and a path."""
    text = str(kind)
    return text in BYTES or text.startswith(("struct<bytes: binary", "struct<bytes: large_binary", "fixed_size_binary["))


def choose(schema, wanted, path):
    """(image column, label column or "", {column: its type})"""
    kinds = {name: plain(schema.field(name).type) for name in schema.names}
    listed = ", ".join(f"{name} ({str(kind)[:60]})" for name, kind in list(kinds.items())[:40])

    def known(name):
        if name not in kinds:
            raise Refused(f"'{path}' has no column '{name}'", f"it has {listed}")
        return name

    pictures = [name for name, kind in kinds.items() if is_picture(kind)]
    image = wanted["image"]
    if image:
        if known(image) not in pictures:
            raise Refused(f"'{path}': column '{image}' is of type {kinds[image]}, and pictures are encoded files in a binary column",
                          "where the column holds paths, write them into a CSV file: dataset: {csv: FILE}")
    elif "image" in pictures:
        image = "image"
    elif len(pictures) == 1:
        image = pictures[0]
    else:
        raise Refused(f"'{path}' has {'several columns' if pictures else 'no column'} of encoded pictures"
                      + (f": {', '.join(pictures)}" if pictures else ""), f"say which one with dataset.image; it has {listed}")
    label = known(wanted["label"]) if wanted["label"] else "label" if "label" in kinds else ""
    near = next((name for name in kinds if name.strip().lower() in ("label", "labels")), None)
    if not label and near:
        raise Refused(f"'{path}' has no column 'label', but one called '{near}'",
                      "say that it is the label, with dataset.label, or give it a name that is less like one")
    if label and str(kinds[label]) not in INTEGERS + TEXTS:
        raise Refused(f"'{path}': label column '{label}' is of type {kinds[label]}", "labels are integers, or class names as text")
    for name, kind in wanted["fields"]:
        found = innermost(kinds[known(name)])
        text_or_bytes = str(kinds[name]) in TEXTS + BYTES
        if not text_or_bytes and (kind or found not in NUMBERS):
            raise Refused(f"'{path}': column '{name}' is of type {kinds[name]}" + (f", and ':{kind}' was asked for" if kind else ""),
                          "fields are numbers, lists of them (of one shape), text and bytes")
    return image, label, {name: kinds[name] for name in (image, label, *(name for name, _ in wanted["fields"])) if name}


def named_labels(schema, label):
    """Class names that Hugging Face's datasets notes in the schema."""
    try:
        feature = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"][label]
        return [str(name) for name in feature["names"]] if feature["_type"] == "ClassLabel" else []
    except (KeyError, TypeError, ValueError):
        return []


def extents(value):
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        value = value[0] if value else None
    return shape


def flat(value, shape):
    """The numbers in a nested list of that shape."""
    if not shape:
        if value is None:
            raise ValueError("holds nothing (null)")
        return [value]
    if not isinstance(value, list) or len(value) != shape[0]:
        raise ValueError("holds lists of different lengths")
    return [number for one in value for number in flat(one, shape[1:])]


def npy(value, kind):
    shape = extents(value)
    if 0 in shape:
        raise ValueError("holds an empty list")
    numbers = flat(value, shape)
    descr, code = NUMBERS[kind]
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({''.join(f'{one}, ' for one in shape)}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(f"<{len(numbers)}{code}", *numbers)


def as_member(value, kind):
    """Bytes of a field."""
    if value is None:
        raise ValueError("holds nothing (null)")
    if str(kind) in TEXTS:
        return value.encode()
    return bytes(value) if str(kind) in BYTES else npy(value, innermost(kind))


def picture_of(value):
    if isinstance(value, dict):
        if value["bytes"] is None and value.get("path"):
            raise ValueError(f"holds a path, {value['path'][:80]!r}, and no bytes: the pictures themselves are somewhere else")
        value = value["bytes"]
    return b"" if value is None else bytes(value)


class Archive:
    """tarfile.TarFile.addfile() without its list of all members, which would grow with the data set."""

    def __init__(self, file):
        self.file = file

    def add(self, name, data):
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self.file.write(info.tobuf(tarfile.GNU_FORMAT))
        self.file.write(data)
        self.file.write(bytes(-len(data) % BLOCK))

    def finish(self):
        self.file.write(bytes(2 * BLOCK))


def batches(file, columns):
    for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=columns, use_threads=False):
        yield [batch.column(name).to_pylist() for name in columns]


def convert(wanted, archive, tell):
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise Refused(f"{sys.executable} has no pyarrow, which reads Parquet files ({error})",
                      "pip install pyarrow for that interpreter, or name another with python.interpreter or PENSTOCK_PYTHON; "
                      "only `penstock index` needs it", dataset=False) from None

    def opened(path):
        try:
            return parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES)
        except (pyarrow.ArrowException, OSError) as error:
            raise Refused(f"cannot read '{path}' as Parquet: {error}") from None

    def rows(path, columns):
        try:
            yield from batches(opened(path), columns)
        except (pyarrow.ArrowException, OSError) as error:  # what the caller does with a row does not raise here
            raise Refused(f"cannot read '{path}' as Parquet: {error}", "the file is damaged, or its disk is") from None

    classes = []
    chosen = None
    names = set()
    for path in wanted["files"]:
        schema = opened(path).schema_arrow
        found = choose(schema, wanted, path)
        if chosen is None:
            chosen, classes = found, named_labels(schema, found[1])
        if [(name, str(kind)) for name, kind in found[2].items()] != [(name, str(kind)) for name, kind in chosen[2].items()]:
            raise Refused(f"the columns of '{path}' differ from those of '{wanted['files'][0]}' in name or type",
                          "all files of a dataset have the same columns")
        if found[1] and str(found[2][found[1]]) in TEXTS:
            for (values,) in rows(path, [found[1]]):
                names.update(values)
                tell({"rows": 0})
    image, label, kinds = chosen
    if names:
        if None in names:
            raise Refused(f"label column '{label}' holds nothing (null) in some rows", "each sample needs a class name")
        classes = sorted(names)
    number_of = {name: number for number, name in enumerate(classes)} if names else None

    done = 0
    columns = list(kinds)
    for number, path in enumerate(wanted["files"]):
        row = 0
        for values in rows(path, columns):
            values = dict(zip(columns, values))
            for at in range(len(values[image])):
                column = image
                try:
                    stem = f"{number}/{row}."
                    archive.add(stem + "img", picture_of(values[image][at]))
                    if label:
                        column, value = label, values[label][at]
                        if value is None:
                            raise ValueError("holds nothing (null)")
                        archive.add(stem + "cls", str(number_of[value] if number_of else int(value)).encode())
                    for field, (column, _) in enumerate(wanted["fields"]):
                        data = as_member(values[column][at], kinds[column])
                        archive.add(f"{stem}f{field}" + ("" if str(kinds[column]) in TEXTS + BYTES else ".npy"), data)
                except (ValueError, struct.error) as error:
                    raise Refused(f"'{path}', row {row}: column '{column}' {error}") from None
                row += 1
            done += len(values[image])
            tell({"rows": done})
    kinds_of_fields = [kind or ("text" if str(kinds[name]) in TEXTS else "bytes" if str(kinds[name]) in BYTES else "")
                       for name, kind in wanted["fields"]]
    return {"fields": kinds_of_fields, "label": bool(label), "classes": classes}


def run(wanted, tell):
    """Writes the archive; returns the answer and what keeps the lock on it."""
    # Not truncated before it is ours: another `penstock index` may be writing it.
    file = os.fdopen(os.open(wanted["data"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=1 << 20)
    lock = os.dup(file.fileno())
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), os.stat(wanted["data"])):  # renamed by the other one meanwhile
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError):
        raise Refused(f"'{wanted['data']}' is being written by another `penstock index`", "wait for it", dataset=False) from None
    except OSError:
        pass  # a disk without locks
    try:
        file.truncate(0)
        archive = Archive(file)
        answer = convert(wanted, archive, tell)
        archive.finish()
        file.close()  # network disks report a full quota only here
        return answer, lock
    except BaseException:
        os.unlink(wanted["data"])
        raise


def die_with(lifeline):
    """As in _worker.py: the kernel ends this process when its parent is gone."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    watch = select.poll()
    watch.register(lifeline, 0)
    if watch.poll(0):
        os._exit(1)


def main():
    connection, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    die_with(lifeline)
    # Run as a file, Python looks for modules beside this one first: penstock's own parts are no top-level modules.
    beside = os.path.dirname(os.path.realpath(__file__))  # Python, too, follows links to this file
    sys.path[:] = [folder for folder in sys.path if folder and os.path.realpath(folder) != beside]
    with connection.makefile("rw", encoding="utf-8", newline="\n") as stream:
        def tell(message):
            stream.write(json.dumps(message) + "\n")
            stream.flush()

        wanted = json.loads(stream.readline())
        try:
            answer, _lock = run(wanted, tell)
            tell(answer)
            stream.readline()  # until the parent has renamed the archive, and hangs up
        except Refused as error:
            tell({"error": str(error)[:4000], "help": error.remedy[:4000], "dataset": error.dataset})
        except OSError as error:
            tell({"error": f"cannot write '{wanted['data']}': {error.strerror or error}", "help": "", "dataset": False})


if __name__ == "__main__":
    main()
