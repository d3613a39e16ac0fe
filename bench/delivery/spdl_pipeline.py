"""SPDL: a pipeline of threads in the trainer's process, without worker processes.

Variants: `ffmpeg` is SPDL's own media path (spdl.io): FFmpeg decodes, crops and scales in one filter graph, and a batch
of frames is copied into one array, which torch normalises; `torchvision` runs torchvision's functions in SPDL's
threads. A sample is one task; batches are put together in the order of the trace.
"""

import itertools

import common
import spdl.io
import spdl.pipeline
import torch
import torch_ops

SCALE = 1 / (255 * torch.tensor(common.STD)).reshape(3, 1, 1)
SHIFT = -(torch.tensor(common.MEAN) / torch.tensor(common.STD)).reshape(3, 1, 1)


def by_ffmpeg(sample):
    """One photo to FFmpeg frames of 224 x 224 RGB."""
    filters = [
        f"crop={sample.width}:{sample.height}:{sample.x}:{sample.y}:exact=1",
        f"scale={common.SIZE}:{common.SIZE}:flags=bilinear",
        *(["hflip"] if sample.flip else []),
        "format=pix_fmts=rgb24",
    ]
    packets = spdl.io.demux_image(sample.path)
    return spdl.io.decode_packets(packets, filter_desc=",".join(filters)), sample.label


def batch_of_frames(frames):
    buffer = spdl.io.convert_frames([frame for frame, _ in frames])
    pixels = spdl.io.to_torch(buffer).permute(0, 3, 1, 2)
    images = torch.empty(pixels.shape)  # channels first
    images.copy_(pixels)
    return images.mul_(SCALE).add_(SHIFT), [label for _, label in frames]


def by_torchvision(sample):
    return torch_ops.augmented(torch_ops.decoded_file(sample.path), sample), sample.label


def batch_of_tensors(samples):
    return torch.stack([image for image, _ in samples]), [label for _, label in samples]


class Spdl(common.Competitor):
    variants = ("ffmpeg", "torchvision")
    pipeline = None

    def versions(self):
        import importlib.metadata

        return {"spdl": importlib.metadata.version("spdl"), **torch_ops.versions()}

    def batches(self, trace):
        torch.set_num_threads(1)  # the threads are SPDL's
        own = self.options.variant == "ffmpeg"
        self.pipeline = (
            spdl.pipeline.PipelineBuilder()
            .add_source(itertools.cycle(trace))
            .pipe(by_ffmpeg if own else by_torchvision, concurrency=self.options.threads, output_order="input")
            .aggregate(self.options.batch)
            .pipe(batch_of_frames if own else batch_of_tensors)
            .add_sink(2)
            .build(num_threads=self.options.threads)
        )
        self.pipeline.start()
        return self.pipeline.get_iterator()

    def array(self, batch):
        return batch[0].numpy()

    def close(self):
        if self.pipeline is not None:
            self.pipeline.stop()


if __name__ == "__main__":
    common.main(Spdl)
