"""The two hashes of a stream, from dumped batches: runtime/base/hash.h written a second time, by its text.

    from stream_hash import read_dump, total

    batches = read_dump("dump/train_e0")      # {(trainer, step): Batch}, of a `--raw` dump
    order, pixel = total(batches.values())    # as in the report
"""

import json
import os
import struct

import numpy
import xxhash

MODULUS = 1 << 128


def sample_record(line):
    name = line["split"].encode()
    record = struct.pack("<BH", 3, len(name)) + name
    record += struct.pack("<IQQHBq", line["epoch"], line["position"], line["index"], line["occurrence"],
                          1 if line["valid"] else 0, line["label"])
    record += struct.pack("<H", len(line["hash_draws"]))
    for position, values in line["hash_draws"]:
        record += struct.pack("<HH", position, len(values)) + struct.pack(f"<{len(values)}q", *values)
    return record


def hashed_value(value):
    if isinstance(value, bytes):
        return struct.pack("<I", len(value)) + value
    return numpy.ascontiguousarray(value).tobytes()


def batch_record(line):
    """Of a batch that was mixed."""
    name = line["split"].encode()
    record = struct.pack("<BH", 4, len(name)) + name + struct.pack("<IQI", line["epoch"], line["step"], line["replica"])
    record += struct.pack("<H", len(line["batch_draws"]))
    for position, values in line["batch_draws"]:
        record += struct.pack("<HH", position, len(values)) + struct.pack(f"<{len(values)}q", *values)
    return record


class Batch:
    """One batch of a dump: its lines of the manifest by row, and its arrays."""

    def __init__(self, folder, trainer, step, lines):
        self.lines = sorted(lines, key=lambda line: line["row_index"])
        assert [line["row_index"] for line in self.lines] == list(range(len(lines))), (trainer, step)
        for name in ("images", "labels", "indices", "valid"):
            setattr(self, name, numpy.load(os.path.join(folder, f"t{trainer}_s{step}_{name}.npy")))
            assert len(getattr(self, name)) == len(lines), (trainer, step, name)
        # Fields besides image and label, in the order of the table. Of varying length: a list of bytes.
        self.fields = {}
        for name in self.lines[0].get("fields", []):
            values = numpy.load(os.path.join(folder, f"t{trainer}_s{step}_field_{name}.npy"))
            ends = os.path.join(folder, f"t{trainer}_s{step}_ends_{name}.npy")
            if os.path.exists(ends):
                ends = numpy.load(ends)
                assert ends[-1] == len(values), (trainer, step, name)
                values = [values[begin:end].tobytes() for begin, end in zip([0, *ends[:-1]], ends)]
            self.fields[name] = values
            assert len(values) == len(lines), (trainer, step, name)
        start = f"t{trainer}_s{step}_field_"
        assert {name[len(start):-4] for name in os.listdir(folder) if name.startswith(start)} == set(self.fields)

    def hashes(self):
        assert self.images.dtype == numpy.uint8 and self.images.ndim == 4 and self.images.shape[1] == 3
        order = pixel = 0
        if "batch_draws" in self.lines[0]:
            order = pixel = xxhash.xxh3_128_intdigest(batch_record(self.lines[0]))
        for row_index, line in enumerate(self.lines):
            # The record comes from the arrays where they have it, so that a wrong array is seen too.
            line = dict(line, label=int(self.labels[row_index]), index=int(self.indices[row_index]), valid=bool(self.valid[row_index]))
            record = sample_record(line)
            order += xxhash.xxh3_128_intdigest(record)
            content = [self.images, *self.fields.values()]
            pixel += xxhash.xxh3_128_intdigest(record + b"".join(hashed_value(values[row_index]) for values in content))
        return order % MODULUS, pixel % MODULUS


def read_dump(folder):
    by_batch = {}
    with open(os.path.join(folder, "manifest.jsonl")) as file:
        for text in file:
            line = json.loads(text)
            by_batch.setdefault((line["trainer"], line["step"]), []).append(line)
    assert by_batch, f"nothing in {folder}"
    return {key: Batch(folder, *key, lines) for key, lines in by_batch.items()}


def total(batches):
    """The sums over batches, or over (order, pixel) pairs of numbers, as 32 digits each."""
    order = pixel = 0
    for batch in batches:
        o, p = batch.hashes() if isinstance(batch, Batch) else batch
        order += o
        pixel += p
    return f"{order % MODULUS:032x}", f"{pixel % MODULUS:032x}"
