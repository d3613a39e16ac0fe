import base64
import json
import os

from . import ArrowInvalid


class _Type(str):
    @property
    def value_type(self):  # of "list<element: T>" and "dictionary<values=T, indices=…>"
        inside = self[self.index("<") + 1:]
        return _Type(inside.split("=")[1].split(",")[0] if self.startswith("dictionary") else inside.split(": ", 1)[1][:-1])


class _Field:
    def __init__(self, type_):
        self.type = _Type(type_)


class _Schema:
    def __init__(self, columns, metadata):
        self.names = list(columns)
        self.metadata = {key.encode(): value.encode() for key, value in metadata.items()}
        self._fields = {name: _Field(type_) for name, (type_, _) in columns.items()}

    def field(self, name):
        return self._fields[name]


class _Column:
    def __init__(self, values):
        self._values = values

    def to_pylist(self):
        return self._values


class _Batch:
    def __init__(self, columns):
        self._columns = columns

    def column(self, name):
        return _Column(self._columns[name])


def _decoded(type_, value):
    if isinstance(value, dict):
        return {name: _decoded("binary" if name == "bytes" else "string", one) for name, one in value.items()}
    if value == "damaged":
        raise OSError("Corrupt snappy compressed data.")
    return base64.b64decode(value) if type_ == "binary" and value is not None else value


class ParquetFile:
    def __init__(self, path, pre_buffer, buffer_size):
        with open(path) as file:
            text = file.read()
        if not text.startswith('{"PAR1"'):
            raise ArrowInvalid("Parquet magic bytes not found in footer")
        if os.environ.get("FAKE_PYARROW") == "crash":
            os.abort()
        content = json.loads(text)
        self._columns = content["columns"]
        self.schema_arrow = _Schema(self._columns, content["metadata"])

    def iter_batches(self, batch_size, columns, use_threads):
        count = len(next(iter(self._columns.values()))[1])
        for at in range(0, count, batch_size):
            yield _Batch({name: [_decoded(self._columns[name][0], value) for value in self._columns[name][1][at:at + batch_size]]
                          for name in columns})
