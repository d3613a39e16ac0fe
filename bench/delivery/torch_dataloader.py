"""torch DataLoader: worker processes decode, crop, resize, normalise and collate; the trainer gets float32 NCHW.

Variants: `torchvision` decodes with torchvision.io.decode_jpeg, `pil` with Pillow. Each is written as its users write
it (torchvision v2 functions, one worker process per thread, shared memory on the way back), with the crops of the trace
in the place of the random ones.
"""

import common
import torch
import torchvision
from torchvision.transforms.v2 import functional


class Photos(torch.utils.data.Dataset):
    def __init__(self, trace, variant):
        self.trace = trace
        self.load = self.load_pil if variant == "pil" else self.load_torchvision

    @staticmethod
    def load_torchvision(path):
        return torchvision.io.decode_jpeg(torchvision.io.read_file(path), mode=torchvision.io.ImageReadMode.RGB)

    @staticmethod
    def load_pil(path):
        from PIL import Image

        with Image.open(path) as image:
            return image.convert("RGB")

    def __len__(self):
        return len(self.trace)

    def __getitem__(self, index):
        sample = self.trace[index]
        image = self.load(sample.path)
        image = functional.resized_crop(
            image, sample.y, sample.x, sample.height, sample.width, [common.SIZE, common.SIZE], antialias=True
        )
        if sample.flip:
            image = functional.horizontal_flip(image)
        image = functional.to_image(image)
        image = functional.to_dtype(image, torch.float32, scale=True)
        return functional.normalize(image, common.MEAN, common.STD, inplace=True), index


class Replay(torch.utils.data.Sampler):
    """Batches of indices in the order of the trace, for ever: no competitor pays for a turn of the epoch."""

    def __init__(self, length, batch):
        self.length, self.batch = length, batch

    def __iter__(self):
        at = 0
        while True:
            yield [(at + offset) % self.length for offset in range(self.batch)]
            at = (at + self.batch) % self.length


class Torch(common.Competitor):
    variants = ("torchvision", "pil")

    def versions(self):
        return {"torch": torch.__version__, "torchvision": torchvision.__version__}

    def batches(self, trace):
        loader = torch.utils.data.DataLoader(
            Photos(trace, self.options.variant),
            batch_sampler=Replay(len(trace), self.options.batch),
            num_workers=self.options.threads,
            pin_memory=False,
        )
        return iter(loader)

    def array(self, batch):
        return batch[0].numpy()


if __name__ == "__main__":
    common.main(Torch)
