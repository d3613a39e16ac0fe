"""A training program that had its own Dataset and DataLoader, and keeps them: penstock decodes and augments.

    penstock demo-data photos && penstock init --data photos/train --val photos/val > job.yaml
    python wrap_existing_loader.py job.yaml photos --epochs=2

Against the program it was, the lines marked with +++ are new, and the decoding and the transforms are gone from the
Dataset. Sampler, workers, collate and the loop stay what they were.
"""

import argparse
import os

import torch
from torch.utils.data import DataLoader, Dataset

import penstock  # +++


class Photos(Dataset):
    def __init__(self, root):
        self.samples = [(os.path.join(root, name, file), label) for label, name in enumerate(sorted(os.listdir(root)))
                        for file in sorted(os.listdir(os.path.join(root, name)))]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, label = self.samples[index]
        with open(path, "rb") as file:
            return index, file.read(), label  # +++ was: self.transform(Image.open(path).convert("RGB")), label


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job", help="pipelines of the splits train and val")
    parser.add_argument("photos", help="folder with train/CLASS/ and val/CLASS/")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(0)

    train_photos, val_photos = (Photos(os.path.join(args.photos, split)) for split in ("train", "val"))
    train = DataLoader(train_photos, batch_size=16, shuffle=True, num_workers=args.workers)
    val = DataLoader(val_photos, batch_size=16)
    train = penstock.wrap(train, args.job, split="train")  # +++
    val = penstock.wrap(val, args.job, split="val")  # +++

    classes = 1 + max(label for _, label in train_photos.samples)
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(args.epochs):
        model.train()
        for images, labels in train:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        right = 0
        with torch.no_grad():
            for images, labels in val:
                right += int((model(images).argmax(1) == labels).sum())
        print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {right / len(val.dataset):.3f}")


if __name__ == "__main__":
    main()
