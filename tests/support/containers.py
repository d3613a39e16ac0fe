"""The same samples in other containers: tar shards, MDS, TFRecord and CSV, written without the libraries that own them.

    from containers import samples_of, write_csv, write_mds, write_tars, write_tfrecords

    samples = samples_of(folder)              # [(key, path, label)], in the order of penstock's and torchvision's ImageFolder
    pattern = write_tars(target, samples, shards=3)
"""

import base64
import gzip
import io
import json
import os
import struct
import tarfile


def samples_of(folder):
    out = []
    for label, name in enumerate(sorted(os.listdir(folder))):
        for file in sorted(os.listdir(os.path.join(folder, name))):
            out.append((f"{name}/{file}", os.path.join(folder, name, file), label))
    return out


def content(path):
    with open(path, "rb") as file:
        return file.read()


def _parts(samples, count):
    size = (len(samples) + count - 1) // count
    return [samples[at:at + size] for at in range(0, len(samples), size)]


def write_tars(target, samples, shards=3, packed=False, format=tarfile.PAX_FORMAT):
    """Returns the pattern. packed: .tar.gz."""
    os.makedirs(target, exist_ok=True)
    end = ".tar.gz" if packed else ".tar"
    parts = _parts(samples, shards)
    for number, part in enumerate(parts):
        bytes_ = io.BytesIO()
        with tarfile.open(fileobj=bytes_, mode="w", format=format) as tar:
            for key, path, label in part:
                stem = key.rsplit(".", 1)[0]
                for suffix, data in (("jpg", content(path)), ("cls", str(label).encode()), ("txt", key.encode())):
                    info = tarfile.TarInfo(f"{stem}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        with open(os.path.join(target, f"shard-{number:03}{end}"), "wb") as file:
            file.write(gzip.compress(bytes_.getvalue(), 1) if packed else bytes_.getvalue())
    return os.path.join(target, f"shard-{{000..{len(parts) - 1:03}}}{end}")


def write_mds(target, samples, shards=2):
    """As streaming.MDSWriter(columns={"image": "jpeg", "label": "int", "name": "str"}) does it."""
    os.makedirs(target, exist_ok=True)
    listed = []
    for number, part in enumerate(_parts(samples, shards)):
        rows = []
        for key, path, label in part:
            image, name = content(path), key.encode()
            rows.append(struct.pack("<II", len(image), len(name)) + image + struct.pack("<q", label) + name)
        column = {"column_encodings": ["jpeg", "int", "str"], "column_names": ["image", "label", "name"],
                  "column_sizes": [None, 8, None]}
        described = json.dumps({**column, "format": "mds", "version": 2}).encode()
        at = 4 + 4 * (len(rows) + 1) + len(described)
        offsets = []
        for row in rows:
            offsets.append(at)
            at += len(row)
        shard = struct.pack(f"<{len(rows) + 2}I", len(rows), *offsets, at) + described + b"".join(rows)
        name = f"shard.{number:05}.mds"
        with open(os.path.join(target, name), "wb") as file:
            file.write(shard)
        listed.append({**column, "compression": None, "format": "mds", "hashes": [], "samples": len(rows),
                       "raw_data": {"basename": name, "bytes": len(shard), "hashes": {}}, "size_limit": 1 << 26,
                       "version": 2, "zip_data": None})
    with open(os.path.join(target, "index.json"), "w") as file:
        json.dump({"shards": listed, "version": 2}, file)
    return target


def _crc_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def _field(number, payload):
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _feature(name, kind, values):
    return _field(1, _field(1, name.encode()) + _field(2, _field(kind, values)))


def write_tfrecords(target, samples, shards=2):
    """As TensorFlow's ImageNet scripts name the features."""
    os.makedirs(target, exist_ok=True)
    parts = _parts(samples, shards)
    for number, part in enumerate(parts):
        with open(os.path.join(target, f"train-{number:05}-of-{len(parts):05}"), "wb") as file:
            for key, path, label in part:
                data = _field(1, _feature("image/class/label", 3, _field(1, _varint(label)))
                              + _feature("image/encoded", 1, _field(1, content(path)))
                              + _feature("image/filename", 1, _field(1, key.encode())))
                length = struct.pack("<Q", len(data))
                file.write(length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data)))
    return os.path.join(target, "train-*")


def parquet_columns(samples, first=0, nested=False):
    """{name: (Arrow type, values)}; nested: the picture as Hugging Face's datasets keeps it."""
    pictures = [content(path) for _, path, _ in samples]
    return {
        "image": ("struct<bytes: binary, path: string>", [{"bytes": one, "path": None} for one in pictures]) if nested
        else ("binary", pictures),
        "label": ("int64", [label for _, _, label in samples]),
        "name": ("string", [key for key, _, _ in samples]),
        "class": ("dictionary<values=string, indices=int32, ordered=0>", [key.split("/")[0] for key, _, _ in samples]),
        "number": ("int64", [first + at for at in range(len(samples))]),
        "box": ("list<element: float>", [[at, 0.5, -at] for at in range(len(samples))]),
    }


def write_parquet(target, samples, shards=2, nested=False, change=lambda columns: columns, metadata=None):
    """What fake_pyarrow reads as Parquet. Returns the pattern."""
    os.makedirs(target, exist_ok=True)

    def shown(value):
        if isinstance(value, dict):
            return {name: shown(one) for name, one in value.items()}
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    first = 0
    for number, part in enumerate(_parts(samples, shards)):
        columns = change(parquet_columns(part, first, nested))
        with open(os.path.join(target, f"train-{number}.parquet"), "w") as file:
            json.dump({"PAR1": 1, "metadata": metadata or {},
                       "columns": {name: (type_, [shown(one) for one in values]) for name, (type_, values) in columns.items()}}, file)
        first += len(part)
    return os.path.join(target, "train-*.parquet")


def write_csv(target, samples):
    """Paths relative to the file, class names as labels."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "w") as file:
        file.write("image,label,number,name\n")
        for number, (key, path, _) in enumerate(samples):
            file.write(f'"{os.path.relpath(path, os.path.dirname(target))}",{key.split("/")[0]},{number},"{key}"\n')
    return target


def write_list(target, samples):
    with open(target, "w") as file:
        for _, path, label in samples:
            file.write(f"{path} {label}\n")
    return target


def cifar_pickle(records):
    """CIFAR-10's "python version" of binary records, with the instructions that Python 2 and NumPy wrote (pickle protocol 2)."""
    def text(one):
        return b"U" + bytes([len(one)]) + one
    rows = b"".join(record[1:] for record in records)
    array = (b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text(b"b") + b"\x87R(K\1" + b"J" +
             struct.pack("<i", len(records)) + b"M\0\x0c\x86cnumpy\ndtype\n" + text(b"u1") + b"K\0K\1\x87R(K\3" + text(b"|") +
             b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89T" + struct.pack("<I", len(rows)) + rows + b"tb")
    labels = b"](" + b"".join(b"K" + record[:1] for record in records) + b"e"
    return b"\x80\2}(" + text(b"data") + array + text(b"labels") + labels + b"u."
