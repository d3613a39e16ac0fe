"""torch DataLoader: worker processes decode, crop, resize, normalise and collate; the trainer gets float32 NCHW.

Variants: `torchvision` decodes with torchvision.io.decode_jpeg, `pil` with Pillow. Each is written as its users write
it (torchvision v2 functions, one worker process per thread, shared memory on the way back), with the crops of the trace
in the place of the random ones.
"""

import common
import torch
import torch_ops


class Photos(torch.utils.data.Dataset):
    def __init__(self, trace, variant):
        self.trace = trace
        self.load = self.load_pil if variant == "pil" else torch_ops.decoded_file

    @staticmethod
    def load_pil(path):
        from PIL import Image

        with Image.open(path) as image:
            return image.convert("RGB")

    def __len__(self):
        return len(self.trace)

    def __getitem__(self, index):
        sample = self.trace[index]
        return torch_ops.augmented(self.load(sample.path), sample), sample.label


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
        return torch_ops.versions()

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
