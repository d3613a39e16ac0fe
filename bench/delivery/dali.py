"""DALI on the CPU: decoding only the crop, resizing and normalising in its own threads.

DALI has no processes of its own: its threads run inside the trainer's process, and the batch is handed over by
pointer. That is its normal use and is timed as such; nothing is copied between processes here.

Variants: `plain` leaves jpeg_fancy_upsampling at DALI's default, off, and `fancy` turns it on. (In 2.4 the CPU decoder
does fancy upsampling either way: both give the same pixels, and decoded crops equal Pillow's; what differs from Pillow
is the resize.) `own_draws` lets DALI draw crops and flips itself (decoders.image_random_crop), to show that
replaying the trace costs it nothing; it has no pixels to compare.
"""

import itertools

import common
import numpy as np
import nvidia.dali as dali
from nvidia.dali import fn, types

# `adjust_orientation` off: no other competitor turns photos by their EXIF tag.
DECODER = {"device": "cpu", "output_type": types.RGB, "adjust_orientation": False}


def boxes(trace, batch):
    """Crop and flip of one batch after the other, as external_source wants them: (anchors, shapes, flips)."""
    anchors = np.array([[sample.y, sample.x] for sample in trace], dtype=np.int32)
    shapes = np.array([[sample.height, sample.width] for sample in trace], dtype=np.int32)
    flips = np.array([sample.flip for sample in trace], dtype=np.int32)
    for start in itertools.count(0, batch):
        indices = np.arange(start, start + batch) % len(trace)
        yield anchors[indices], shapes[indices], flips[indices]


class Dali(common.Competitor):
    variants = ("plain", "fancy", "own_draws")

    def versions(self):
        return {"nvidia-dali": dali.__version__}

    def pipeline(self, trace):
        pipe = dali.Pipeline(
            batch_size=self.options.batch, num_threads=self.options.threads, device_id=None, prefetch_queue_depth=2
        )
        with pipe:
            encoded, _ = fn.readers.file(files=[sample.path for sample in trace], random_shuffle=False)
            if self.options.variant == "own_draws":
                images = fn.decoders.image_random_crop(
                    encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3], **DECODER
                )
                flips = fn.random.coin_flip()
            else:
                starts, shapes, flips = fn.external_source(
                    source=boxes(trace, self.options.batch), num_outputs=3, batch=True
                )
                images = fn.decoders.image_slice(
                    encoded,
                    start=starts,
                    shape=shapes,
                    axes=[0, 1],
                    jpeg_fancy_upsampling=self.options.variant == "fancy",
                    **DECODER,
                )
            images = fn.resize(
                images, size=[common.SIZE, common.SIZE], interp_type=types.INTERP_LINEAR, antialias=True
            )
            images = fn.crop_mirror_normalize(
                images,
                dtype=types.FLOAT,
                output_layout="CHW",
                mirror=flips,
                mean=[255 * value for value in common.MEAN],
                std=[255 * value for value in common.STD],
            )
            pipe.set_outputs(images)
        pipe.build()
        return pipe

    def batches(self, trace):
        pipe = self.pipeline(trace)
        while True:
            (images,) = pipe.run()
            yield images

    def array(self, batch):
        return np.asarray(batch.as_tensor())


if __name__ == "__main__":
    common.main(Dali)
