"""A network that makes blurry pictures sharp, from pairs; one process, DataParallel, or DistributedDataParallel.

    python examples/paired_restoration/train.py --data PAIRS
    python examples/paired_restoration/train.py --data PAIRS --parallel dp
    torchrun --nproc_per_node 2 examples/paired_restoration/train.py --data PAIRS --amp True
    penstock launch --run examples/paired_restoration/job.yaml -n 4 -- python examples/paired_restoration/train.py --data PAIRS

PAIRS holds train/blurry, train/sharp, test/blurry and test/sharp.
"""

import argparse
import math
import os
import sys

import torch
from torch import nn

import penstock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from common import checkpoint, flags, log  # noqa: E402
from common.flags import boolean, plainly, positive  # noqa: E402
from common.rates import cosine, set_rate  # noqa: E402
from common.place import in_parallel, joined, mean_over_ranks, sum_over_ranks  # noqa: E402

SIZES = ("splits.train.pipeline.0.RandomCrop.size", "splits.test.pipeline.0.CenterCrop.size")


class Restorer(nn.Module):
    """What is to be added to a picture: convolutions at full size, and some at half of it that see further."""

    def __init__(self, width=32):
        super().__init__()
        self.into = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Sequential(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.ReLU(),
                                  nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
                                  nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
                                  nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 3, 3, padding=1))
        nn.init.zeros_(self.out[-1].weight)  # it begins with pictures as they are
        nn.init.zeros_(self.out[-1].bias)

    def forward(self, pictures):
        features = torch.relu(self.into(pictures))
        return pictures + self.out(features + self.down(features))


def arguments_of(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_common(parser, epochs=50, output="restoration-run")
    parser.add_argument("--job", default=os.path.join(HERE, "job.yaml"))
    parser.add_argument("--data", help="folder with train/blurry and its companions, instead of the job's")
    parser.add_argument("--parallel", choices=("none", "dp"), default="none", help="dp: DataParallel over this process's GPUs")
    parser.add_argument("--batch-size", type=positive, default=4, help="of each process")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--amp", type=boolean, default=False, help="mixed precision: float16 on a GPU, bfloat16 on the CPU")
    return parser.parse_args(words)


def open_data(arguments, place):
    words = flags.overrides_of(arguments, SIZES)
    if arguments.data:
        for split in ("train", "test"):
            for key, folder in (("images", "blurry"), ("targets", "sharp")):
                words.append(f"splits.{split}.dataset.{key}={os.path.join(os.path.abspath(arguments.data), split, folder)}")
    return [penstock.DataLoader(arguments.job, split=split, batch_size=arguments.batch_size, device=place.gpu, overrides=words)
            for split in ("train", "test")]


def psnr(pictures, targets):
    """In dB, of each picture, in [-1, 1]: a range of 2, so 10 log10(2^2 / mean squared error)."""
    error = (pictures.clamp(-1, 1) - targets).float().pow(2).mean((1, 2, 3)).clamp(min=1e-12)
    return 10 * torch.log10(4 / error)


def evaluate(model, test, place, precision):
    """Mean PSNR of the blurry pictures, and of what the network makes of them; the first batch's pictures of rank 0."""
    model.eval()
    before = after = counted = 0
    shown = None
    with torch.no_grad():
        for batch in test:
            blurry, sharp = batch
            with precision():
                restored = model(blurry).float()
            valid = torch.as_tensor(batch.valid).to(blurry.device)  # padding counts nowhere
            before += float(psnr(blurry, sharp)[valid].sum())
            after += float(psnr(restored, sharp)[valid].sum())
            counted += int(valid.sum())
            if shown is None:
                shown = torch.cat([blurry, restored, sharp], 3)[valid].clamp(-1, 1).cpu()
    before, after, counted = sum_over_ranks([before, after, counted], place)
    return before / counted, after / counted, shown


def save_samples(folder, epoch, shown):
    """PNG files: blurry, restored and sharp, side by side."""
    from PIL import Image
    os.makedirs(folder, exist_ok=True)
    for number, picture in enumerate(shown[:4]):
        pixels = ((picture.permute(1, 2, 0) + 1) * 127.5).round().to(torch.uint8).numpy()
        Image.fromarray(pixels).save(os.path.join(folder, f"epoch-{epoch}-{number}.png"))


def main(arguments):
    with joined(arguments.device, arguments.dist_url) as place:
        train_at(place, arguments)


def train_at(place, arguments):
    torch.manual_seed(0)
    train, test = open_data(arguments, place)
    model = Restorer().to(place.device)
    model = nn.DataParallel(model) if arguments.parallel == "dp" and place.world_size == 1 else in_parallel(model, place)
    optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
    scaler = torch.cuda.amp.GradScaler(enabled=arguments.amp and place.gpu is not None)

    def precision():
        return torch.autocast(place.device.type, torch.float16 if place.gpu else torch.bfloat16, enabled=arguments.amp)

    state = checkpoint.read(arguments.resume, arguments.output, place, "paired_restoration")
    if state:
        checkpoint.restore(state, place, model=model, optimizer=optimizer, data=train, scaler=scaler)
    more = state["more"] if state else {"ended": False, "lost": [0.0, 0]}
    first = state["epoch"] + int(more["ended"]) if state else 0
    lost = list(more["lost"])  # this epoch's losses so far: their sum and how many

    def save(epoch, ended):
        checkpoint.save(arguments.output, epoch, place, "paired_restoration", model=model, optimizer=optimizer, data=train,
                        scaler=scaler, more={"ended": ended, "lost": [0.0, 0] if ended else lost})

    curves = log.Curves(os.path.join(arguments.output, "curves"), place)
    steps = 0
    for epoch in range(first, arguments.epochs):
        set_rate(optimizer, cosine(epoch, arguments.epochs, arguments.lr, 0))
        train.set_epoch(epoch)
        model.train()
        for blurry, sharp in train:
            with precision():
                loss = nn.functional.l1_loss(model(blurry).float(), sharp)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            step_loss = mean_over_ranks(loss, place)
            if not math.isfinite(step_loss):  # the mean is everybody's, so all stop
                raise SystemExit(f"the loss is {step_loss} at step {steps} of epoch {epoch}: training ends")
            steps, lost = steps + 1, [lost[0] + step_loss, lost[1] + 1]
            if arguments.max_steps and place.first:
                print(f"step {steps} loss {step_loss!r}", flush=True)
            if steps == arguments.max_steps:
                break
        if steps == arguments.max_steps:
            save(epoch, False)
            break
        mean_loss, lost = lost[0] / lost[1], [0.0, 0]
        before, after, shown = evaluate(model, test, place, precision)
        if place.first:
            print(f"epoch {epoch} : loss {mean_loss!r} PSNR {after:.3f} dB (of the blurry pictures {before:.3f})", flush=True)
            save_samples(os.path.join(arguments.output, "samples"), epoch, shown)
        curves.add("loss", mean_loss, epoch)
        curves.add("PSNR", after, epoch)
        save(epoch, True)
    curves.close()


if __name__ == "__main__":
    plainly(main, arguments_of())
