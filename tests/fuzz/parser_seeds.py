"""Seeds for the fuzz targets of parsers.cmake: small files of each kind, made by the tests' own writers."""

import glob
import os
import struct
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "tests", "support"))

import containers  # noqa: E402


def table_bytes():
    """An index file of two samples, by its definition (runtime/datasets/sample_table.h)."""
    names = b"cat/1dog/2"
    facts = (b'{"classes":[],"fields":[["txt","text","uint8",[]]],"files":[["shard-000.tar",70000,0,"none",70000]],"kind":"tar",'
             b'"labelled":true,"options":"{}","pixels":["encoded",0,0]}')
    rows = struct.pack("<QQQqIIII", 512, 900, 5, 1, 0, 0, 0, 0) + struct.pack("<QQQqIIII", 2048, 90, 10, 0, 0, 0, 0, 0)
    places = struct.pack("<QQII", 100, 50, 0, 0) + struct.pack("<QQII", 0, 5, 0xFFFFFFFF, 0)
    pad = lambda data: data + b"\0" * (-len(data) % 8)  # noqa: E731
    body = rows + places + pad(names) + pad(b"value") + pad(facts)
    head = struct.pack("<8sIIQQQQQII", b"penstock", 1, 0, 96 + len(body), 2, len(names), 5, len(facts), 1, 0)
    return head + b"\0" * 32 + body


# Whole jobs, each in a line or two: an execution takes as long as its text.
SMALL_JOBS = """\
{seed: 7, roles: {trainers: 2}, splits: {a: {mode: train, dataset: {folder: x}, pipeline: [CenterCrop: {size: 8}], batch_size: 2}}}
splits: {a: {mode: eval, dataset: {tar: 'x-{00..03}.tar', fields: "a, b:text", image: jpg}, pipeline: [CenterCrop: {size: [8, 9]}]}}
splits: {a: {dataset: {csv: x.csv, label: l}, pipeline: [RandomResizedCrop: {size: 8, scale: [0.1, 1]}, RandomHorizontalFlip]}}
splits: {a: {dataset: {images: x, masks: y}, pipeline: [Pad: {padding: 3, mask_fill: 255}, RandomCrop: {size: 8}]}}
{on_error: substitute, bad_samples: {max_count: 3, max_fraction: .1}, splits: {a: {dataset: {cifar10: x}, pipeline: [CenterCrop: {size: 8}]}}}
{loader: {threads: 2, memory_gb: .25, cache_gb: 1}, trainer: {timeout_s: 3}, splits: {a: {dataset: {mds: x}, tail: pad, pipeline: [Resize: {size: 8}]}}}
splits: {a: {dataset: {list: x}, sampler: {shuffle: true, drop_last: true}, drop_last: true, pipeline: [ToDtype: {dtype: float32, scale: true}]}}
splits: {a: {dataset: {tfrecord: x}, pipeline: [RandomApply: {transforms: [RandomInvert], p: .3}, ToDtype: {dtype: float16, scale: true}, Normalize: {mean: [0, 0, 0], std: [1, 1, 1]}]}}
{limits: {max_pixels: 9, max_scans: 2}, arithmetic: fast, splits: {a: {dataset: {parquet: x, index: y}, channels_last: true, pipeline: []}}}
{name: n, transport: mpi, balancer: {policy: random}, mpi: {max_message_bytes: 4096}, splits: {a: {dataset: {pack: x}, pipeline: [CenterCrop: {size: 8}, ToDtype: {dtype: float32}, MixUp: {alpha: 1, num_classes: 3}]}}}
"""


def job_texts():
    """Small jobs, one with a line for each key, and a split as it travels between ranks."""
    for text in SMALL_JOBS.splitlines():
        yield b"\0" + text.encode()
    yield b"\0" + b"seed: 7\nroles:\n  trainers: 2\nsplits:\n  a: &a\n    dataset:\n      folder: x  # here\n    pipeline:\n      - CenterCrop: {size: 8}\n  b: *a\n"
    for dataset in ('{"folder":"/j"}', '{"fields":"a, b:text","image":"jpg","tar":"/j/{00..07}.tar"}'):
        yield (b'\1{"arithmetic":"exact","bad_samples":{"max_count":9,"max_fraction":0.01},"limits":{"max_scans":9},"name":"a",'
               b'"on_error":"fail","seed":7,"split":{"batch_size":6,"dataset":' + dataset.encode() + b',"mode":"train",'
               b'"pipeline":[{"RandomResizedCrop":{"scale":[0.08,1.0],"size":[24]}},{"RandomHorizontalFlip":{"p":0.5}}],'
               b'"sampler":{"shuffle":true},"tail":"torch"},"version":1}')


def seeds(folder):
    """{target: inputs}"""
    photo = os.path.join(folder, "photos", "cat", "1.jpg")
    os.makedirs(os.path.dirname(photo))
    with open(photo, "wb") as file:
        file.write(b"\xff\xd8 not much of a photo \xff\xd9")
    samples = [("cat/1.jpg", photo, 0), ("cat/2.jpg", photo, 1)]
    read = containers.content
    tar = read(containers.write_tars(os.path.join(folder, "tar"), samples[:1], 1).replace("{000..000}", "000"))[:5120]
    packed = read(containers.write_tars(os.path.join(folder, "gz"), samples, 1, packed=True).replace("{000..000}", "000"))
    mds = containers.write_mds(os.path.join(folder, "mds"), samples, 1)
    index, shard = read(os.path.join(mds, "index.json")), read(os.path.join(mds, "shard.00000.mds"))
    record = read(glob.glob(containers.write_tfrecords(os.path.join(folder, "tf"), samples, 1))[0])
    csv = read(containers.write_csv(os.path.join(folder, "x.csv"), samples))
    npy = b"\x93NUMPY\x01\0v\0" + b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".ljust(117) + b"\n"
    labels = b"\0\0\x08\x01\0\0\0\x02\x01\x02"
    images = b"\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x03" + bytes(12)
    return {
        "fuzz_tar": [bytes([flags]) + tar for flags in (0, 1, 3, 7, 13)],
        "fuzz_pixel_files": [b"\0" + bytes([len(labels)]) + labels + images, b"\1\0" + packed[:4000],
                             b"\2\0\5\x63" + bytes(3072), b"\3\0\5" + bytes(3072),
                             b"\4\0" + containers.cifar_pickle([b"\5" + bytes(3072)]), b"\5\x18" + npy],
        "fuzz_csv": [b"\0" + csv, b"\2" + csv, b"\1a b.jpg 3\nc.jpg\t-1\n", b"\1a-{08..11}{x,y}.tar"],
        "fuzz_mds": [bytes([flags]) + struct.pack("<H", len(index)) + index + shard for flags in (0, 1, 3)],
        "fuzz_tfrecord": [bytes([flags]) + record for flags in (0, 1, 3)] + [b"\4" + record[12:-4]],
        "fuzz_index": [b"\0" + table_bytes(), b"\1" + table_bytes()],
        "fuzz_pack": [b"\4\0\0\0\0\0", b"\5\x70\0\1", b"\6\xff\4\1", b"\3" + struct.pack("<HH", 300, 0) + table_bytes()],
        "fuzz_job": list(job_texts()),
        "fuzz_protocol": [bytes([way, kind]) + bytes(64) for way in (0, 4) for kind in range(48)] + [
            b"\2PSC1" + bytes(140), b"\3PSC1" + bytes(144), b'\6{"train":{"epoch":1,"batch":2}}', b"\7penstock state 1\n00000000 2\n{}"],
    }
