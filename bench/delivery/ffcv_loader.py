"""FFCV: photos encoded anew into its own file, decoded whole, cropped and resized by numba threads.

`prepare` writes the file as FFCV's users do: RGBImageField in mode `jpg`, sizes as they are. That encodes every photo
again, with OpenCV: quality 90 and 4:2:0, whatever it had. Variants: `default` is that; `matched` takes the quality
whose files come nearest to the bytes that the photos had, so that as many bits are decoded as by the others.

Crops are replayed by subclasses of FFCV's own operations that look boxes and flips up by the sample's number where the
originals draw: code is otherwise theirs. FFCV knows samples by their number in the file alone, so the loader is shown
one line of metadata per line of the trace, each leading to its photo; data and reading stay as they are.
The pixels that FFCV decodes are compared with Pillow's decode of the photos as FFCV has them (`check` takes them out of
the file); how far these are from the photos is reported beside it.
"""

import json
import multiprocessing
import os
from dataclasses import replace

# With Debian's TBB, which numba prefers, one thread does all the work; of the other two this takes less CPU time.
os.environ.setdefault("NUMBA_THREADING_LAYER", "workqueue")

import common
import numpy as np
from ffcv.fields import IntField, RGBImageField
from ffcv.fields.basics import IntDecoder
from ffcv.fields.rgb_image import IMAGE_MODES, RandomResizedCropRGBImageDecoder, encode_jpeg
from ffcv.libffcv import imdecode, resize_crop
from ffcv.loader import Loader, OrderOption
from ffcv.pipeline.allocation_query import AllocationQuery
from ffcv.pipeline.compiler import Compiler
from ffcv.reader import Reader
from ffcv.transforms import NormalizeImage, RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

QUALITY = 90  # FFCV's default
ENDLESS = 400_000  # samples in the order given to the loader: more than a window takes


def pixels_of(path):
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


class Photos:
    def __init__(self, photos):
        self.photos = photos

    def __len__(self):
        return len(self.photos)

    def __getitem__(self, number):
        path, label = self.photos[number]
        return pixels_of(path), label


def matched_quality(photos):
    """The quality at which a spread of the photos has about as many bytes as before."""
    chosen = [path for path, _ in photos[:: max(1, len(photos) // 100)]]
    images = [pixels_of(path) for path in chosen]
    wanted = sum(os.path.getsize(path) for path in chosen)
    low, high = 1, 100
    while low < high:
        middle = (low + high + 1) // 2
        fits = sum(encode_jpeg(image, middle).nbytes for image in images) <= wanted
        low, high = (middle, high) if fits else (low, middle - 1)
    above = min(100, low + 1)
    sizes = {quality: sum(encode_jpeg(image, quality).nbytes for image in images) for quality in (low, above)}
    return min(sizes, key=lambda quality: abs(sizes[quality] - wanted))


class ReplayedCrop(RandomResizedCropRGBImageDecoder):
    """boxes[sample] is (row, column, height, width)."""

    def __init__(self, boxes):
        super().__init__((common.SIZE, common.SIZE))
        self.boxes = boxes

    def generate_code(self):
        # FFCV's code of this class, but for the line with `boxes` and its branch for uncompressed images.
        boxes = self.boxes
        mem_read = self.memory_read
        my_range = Compiler.get_iterator()
        imdecode_c = Compiler.compile(imdecode)
        resize_crop_c = Compiler.compile(resize_crop)

        def decode(batch_indices, my_storage, metadata, storage_state):
            destination, temp_storage = my_storage
            for dst_ix in my_range(len(batch_indices)):
                source_ix = batch_indices[dst_ix]
                field = metadata[source_ix]
                image_data = mem_read(field["data_ptr"], storage_state)
                height = np.uint32(field["height"])
                width = np.uint32(field["width"])
                temp_buffer = temp_storage[dst_ix]
                imdecode_c(image_data, temp_buffer, height, width, height, width, 0, 0, 1, 1, False, False)
                selected_size = 3 * height * width
                temp_buffer = temp_buffer.reshape(-1)[:selected_size]
                temp_buffer = temp_buffer.reshape(height, width, 3)
                i, j, h, w = boxes[source_ix]
                resize_crop_c(temp_buffer, i, i + h, j, j + w, destination[dst_ix])
            return destination[: len(batch_indices)]

        decode.is_parallel = True
        return decode


class ReplayedFlip(RandomHorizontalFlip):
    def __init__(self, flips):
        super().__init__()
        self.flips = flips

    def generate_code(self):
        flips = self.flips
        my_range = Compiler.get_iterator()

        def flip(images, dst, indices):
            for i in my_range(images.shape[0]):
                if flips[indices[i]]:
                    dst[i] = images[i, :, ::-1]
                else:
                    dst[i] = images[i]
            return dst

        flip.is_parallel = True
        flip.with_indices = True
        return flip

    def declare_state_and_memory(self, previous_state):
        return (
            replace(previous_state, jit_mode=True),
            AllocationQuery(previous_state.shape, previous_state.dtype),
        )


class Ffcv(common.Competitor):
    variants = ("default", "matched")

    def versions(self):
        import importlib.metadata

        names = ("ffcv", "numba", "opencv-python-headless", "torch")
        return {name: importlib.metadata.version(name) for name in names}

    @property
    def file(self):
        return os.path.join(self.options.prepared, f"photos-{self.options.variant}.beton")

    def prepare(self, trace, folder):
        photos = common.photos_of(trace)
        self.options.prepared = folder
        matched = self.options.variant == "matched"
        quality = matched_quality(photos) if matched else QUALITY  # choosing it is not part of the preparation
        with common.Preparation(folder) as cost:
            fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=quality), "label": IntField()}
            writer = DatasetWriter(self.file, fields, num_workers=self.options.threads)
            writer.from_indexed_dataset(Photos(photos), chunksize=10)
            for process in multiprocessing.active_children():
                process.join()  # so that its CPU time is counted
        encoded = int(Reader(self.file).alloc_table["size"].sum())
        note = f"every photo encoded anew: quality {quality}, 4:2:0"
        return cost.reply(len(photos), encoded_bytes=encoded, quality=quality, note=note)

    def loader(self, trace):
        photos = {path: number for number, (path, _) in enumerate(common.photos_of(trace))}
        boxes = np.array([[s.y, s.x, s.height, s.width] for s in trace], dtype=np.uint32)
        flips = np.array([sample.flip for sample in trace], dtype=np.bool_)
        mean, std = 255 * np.array(common.MEAN), 255 * np.array(common.STD)
        turns = -(-ENDLESS // len(trace))
        loader = Loader(
            self.file,
            batch_size=self.options.batch,
            num_workers=self.options.threads,
            os_cache=True,
            order=OrderOption.SEQUENTIAL,
            indices=np.tile(np.arange(len(trace), dtype=np.uint64), turns),
            drop_last=True,
            pipelines={
                "image": [
                    ReplayedCrop(boxes),
                    ReplayedFlip(flips),
                    NormalizeImage(mean, std, np.float32),
                    ToTensor(),
                    ToTorchImage(),
                ],
                "label": [IntDecoder(), ToTensor(), Squeeze()],
            },
        )
        metadata = loader.reader.metadata
        if (metadata["f0"]["mode"] != IMAGE_MODES["jpg"]).any():
            raise RuntimeError("the file holds images that are not JPEG")
        loader.reader.metadata = metadata[[photos[sample.path] for sample in trace]]
        return loader

    def batches(self, trace):
        return iter(self.loader(trace))

    def array(self, batch):
        return batch[0].permute(0, 2, 3, 1).numpy()  # channels last, as FFCV gives them

    def as_nchw(self, batch):
        return np.array(batch[0].numpy(), order="C")

    def check(self, trace, count, out):
        """With a trace that leads to the photos as they are in FFCV's file."""
        reply = super().check(trace, count, out)
        reader = Reader(self.file)
        sizes = dict(zip(reader.alloc_table["ptr"].tolist(), reader.alloc_table["size"].tolist()))
        places = reader.metadata["f0"]["data_ptr"].tolist()
        numbers = {path: number for number, (path, _) in enumerate(common.photos_of(trace))}
        folder = out + ".photos"
        os.makedirs(folder, exist_ok=True)
        with open(self.file, "rb") as beton, open(out + ".trace.jsonl", "w", encoding="utf-8") as lines:
            for at in range(count):
                sample = trace[at % len(trace)]
                number = numbers[sample.path]
                beton.seek(places[number])
                path = os.path.join(folder, f"{number:08}.jpg")
                with open(path, "wb") as file:
                    file.write(beton.read(sizes[places[number]]))
                crop = [sample.x, sample.y, sample.width, sample.height]
                lines.write(json.dumps({"path": path, "crop": crop, "flip": [sample.flip, False]}) + "\n")
        return {**reply, "trace": out + ".trace.jsonl", "encoded_anew": True}


if __name__ == "__main__":
    common.main(Ffcv)
