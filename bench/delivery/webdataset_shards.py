"""WebDataset: tar shards read from front to back, decoded by torchvision in worker processes.

`prepare` writes the photos' own bytes into shards with WebDataset's ShardWriter, four a worker. Each worker reads its
shards again and again, through a shuffle buffer of 1,000 encoded samples, as the documentation recommends; so the order
is WebDataset's, not the trace's. Photos and crops are the trace's: a photo's n-th turn gets the box of its n-th line.
"""

import glob
import os

import common
import numpy as np
import torch
import torch_ops
import webdataset

BUFFER = 1000


class Replayed:
    """Sample of a shard to (place in the trace, image, label)."""

    def __init__(self, trace):
        self.lines = {}
        for place, sample in enumerate(trace):
            self.lines.setdefault(sample.path, []).append((place, sample))
        self.turns = {}
        self.path_of = {f"{number:08}": path for number, (path, _) in enumerate(common.photos_of(trace))}

    def __call__(self, shown):
        path = self.path_of[shown["__key__"]]
        turn = self.turns.get(path, 0)
        self.turns[path] = turn + 1
        place, sample = self.lines[path][turn % len(self.lines[path])]
        encoded = torch.frombuffer(bytearray(shown["jpg"]), dtype=torch.uint8)
        return place, torch_ops.augmented(torch_ops.decoded(encoded), sample), int(shown["cls"])


class WebDataset(common.Competitor):
    def versions(self):
        return {"webdataset": webdataset.__version__, **torch_ops.versions()}

    def prepare(self, trace, folder):
        photos = common.photos_of(trace)
        shards = 4 * self.options.threads
        with common.Preparation(folder) as cost:
            pattern = os.path.join(folder, "photos-%06d.tar")
            with webdataset.ShardWriter(pattern, maxcount=-(-len(photos) // shards), verbose=0) as writer:
                for number, (path, label) in enumerate(photos):
                    with open(path, "rb") as file:
                        writer.write({"__key__": f"{number:08}", "jpg": file.read(), "cls": str(label).encode()})
        return cost.reply(len(photos), note="tar shards, the photos' own bytes")

    def batches(self, trace):
        shards = sorted(glob.glob(os.path.join(self.options.prepared, "*.tar")))
        dataset = (
            webdataset.WebDataset(shards, shardshuffle=len(shards), workersplitter=webdataset.split_by_worker)
            .repeat()
            .shuffle(BUFFER)
            .map(Replayed(trace))
            .batched(self.options.batch, partial=False)
        )
        return iter(webdataset.WebLoader(dataset, batch_size=None, num_workers=self.options.threads))

    def array(self, batch):
        return batch[1].numpy()

    def check(self, trace, count, out):
        """The order is the shards', so the images are put in place by their line of the trace."""
        array = np.zeros((count, 3, common.SIZE, common.SIZE), dtype=np.float32)
        missing = set(range(count))
        for places, images, _ in self.batches(trace):
            for place, image in zip(np.asarray(places), images.numpy()):
                if place in missing:
                    array[place] = image
                    missing.discard(place)
            if not missing:
                break
        np.save(out, array)
        return {"ok": True, "images": count, "versions": self.versions()}


if __name__ == "__main__":
    common.main(WebDataset)
