"""A small network learns the classes of the demo data from 32x32 pixels, in seconds and well above chance."""

import glob
import os
import subprocess
import sys
import tempfile

from jobs import FULL

try:
    import numpy as np
    import torch
    from PIL import Image
except ImportError as error:
    print(f"SKIP: {error}")
    sys.exit(77)

# As few as tell something from chance, for making and reading them takes longer than learning does.
CLASSES, COUNT, VAL_COUNT, BATCH = (10, 500, 150, 50) if FULL else (5, 100, 50, 10)
torch.manual_seed(0)
torch.set_num_threads(1)  # small tensors: more threads only wait for each other


def load(folder):
    pixels, labels = [], []
    for label, name in enumerate(sorted(os.listdir(folder))):
        for path in sorted(glob.glob(os.path.join(folder, name, "*.jpg"))):
            image = Image.open(path)
            image.draft("RGB", (64, 64))
            pixels.append(np.asarray(image.convert("RGB").resize((32, 32), Image.BILINEAR)))
            labels.append(label)
    x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 128 - 1
    return x, torch.tensor(labels)


with tempfile.TemporaryDirectory() as folder:
    tool = os.path.join(os.environ["PENSTOCK_BUILD"], "tests/datasets/make_demo_data")
    made = subprocess.run([tool, folder, str(COUNT), str(VAL_COUNT), str(CLASSES), "1", "2"], check=True, capture_output=True, text=True)
    assert made.stdout.startswith(f"{COUNT + VAL_COUNT} made"), made.stdout
    x, y = load(os.path.join(folder, "train"))
    x_val, y_val = load(os.path.join(folder, "val"))
assert len(y) == COUNT and len(y_val) == VAL_COUNT

centroids = torch.stack([x[y == label].mean(dim=0) for label in range(CLASSES)]).flatten(1)
nearest = (torch.cdist(x_val.flatten(1), centroids).argmin(dim=1) == y_val).float().mean().item()

layers = []
for before, after in [(3, 24), (24, 48), (48, 64)]:
    layers += [torch.nn.Conv2d(before, after, 3, padding=1), torch.nn.BatchNorm2d(after), torch.nn.ReLU(),
               torch.nn.MaxPool2d(2)]
model = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, CLASSES))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(8):
    for batch in torch.randperm(len(y)).split(BATCH):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimizer.step()
model.eval()
with torch.no_grad():
    network = (model(x_val).argmax(dim=1) == y_val).float().mean().item()

print(f"chance {1 / CLASSES:.2f}, nearest centroid {nearest:.2f}, small network {network:.2f}")
assert nearest > 2 / CLASSES, nearest
assert network > 0.7, network
