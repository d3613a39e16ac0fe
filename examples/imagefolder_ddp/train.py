"""ResNet-34 on a folder of class folders, a share of it held out; one process, or DistributedDataParallel over any number.

    python examples/imagefolder_ddp/train.py --data-path flower_photos --num_classes 5
    torchrun --nproc_per_node 2 examples/imagefolder_ddp/train.py --data-path flower_photos --num_classes 5 --syncBN True
    penstock launch --run examples/imagefolder_ddp/job.yaml -n 4 -- python examples/imagefolder_ddp/train.py --data-path flower_photos

Places come from RANK and WORLD_SIZE, else from Slurm's variables, else there is one process.
"""

import argparse
import math
import os
import sys

import torch
import torchvision
from torch import nn

import penstock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from common import checkpoint, flags, log  # noqa: E402
from common.flags import boolean, plainly, positive  # noqa: E402
from common.rates import cosine, set_rate  # noqa: E402
from common.place import in_parallel, joined, mean_over_ranks, sum_over_ranks  # noqa: E402

MIXED = ("splits.train.pipeline=[{{RandomResizedCrop: {{size: {size}}}}}, {{RandomHorizontalFlip: {{}}}}, {{ToDtype: {{dtype: float32, "
         "scale: true}}}}, {{Normalize: {{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}}}}, {{{mix}: {{num_classes: {classes}}}}}]")
SIZES = ("splits.train.pipeline.0.RandomResizedCrop.size", "splits.val.pipeline.1.CenterCrop.size")


def arguments_of(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_common(parser, epochs=30, output="imagefolder-run")
    parser.add_argument("--job", default=os.path.join(HERE, "job.yaml"))
    parser.add_argument("--num_classes", "--num-classes", type=int, help="checked against the folder's")
    parser.add_argument("--batch-size", type=positive, default=16, help="of each process")
    parser.add_argument("--lr", type=float, default=0.001, help="of one process; it is multiplied by their number")
    parser.add_argument("--lrf", type=float, default=0.1, help="the last learning rate, as a share of the first")
    parser.add_argument("--syncBN", type=boolean, default=False, help="batch norm over all GPUs' samples")
    parser.add_argument("--data-path", help="folder of class folders, instead of the job's")
    parser.add_argument("--weights", help="file of weights or a checkpoint: what fits is taken")
    parser.add_argument("--freeze-layers", type=boolean, default=False, help="train the last layer alone")
    parser.add_argument("--world-size", type=int, help="how many processes there are to be; checked, as their launcher says it")
    parser.add_argument("--mix", choices=("MixUp", "CutMix"), help="mix each batch's pictures, and labels; needs --num_classes")
    parser.add_argument("--amp", type=boolean, default=False, help="mixed precision: float16 on a GPU, bfloat16 on the CPU")
    arguments = parser.parse_args(words)
    if arguments.mix and not arguments.num_classes:
        parser.error("--mix makes probabilities of labels, so it needs --num_classes")
    if arguments.mix and any("pipeline" in one for one in arguments.set):
        parser.error("--mix replaces the training pipeline by ImageNet's with the mixing behind it; write it into the job instead")
    return arguments


def open_data(arguments, place):
    """(training, validation, keys of the job that the arguments change)"""
    words = flags.overrides_of(arguments, SIZES)
    if arguments.image_size:  # 256 for 224
        words.append(f"splits.val.pipeline.0.Resize.size={round(arguments.image_size * 8 / 7)}")
    if arguments.data_path:
        words += [f"splits.{split}.dataset.folder={os.path.abspath(arguments.data_path)}" for split in ("train", "val")]
    if arguments.mix:
        words.append(MIXED.format(size=arguments.image_size or 224, mix=arguments.mix, classes=arguments.num_classes))
    loaders = [penstock.DataLoader(arguments.job, split=split, batch_size=arguments.batch_size, device=place.gpu, overrides=words)
               for split in ("train", "val")]
    return *loaders, words


def build(arguments, place, classes):
    model = torchvision.models.resnet34(num_classes=classes)
    if arguments.weights:
        taken, of = checkpoint.load_pretrained(model, arguments.weights)
        if place.first:
            print(f"{taken} of {of} weights from {arguments.weights}", flush=True)
    if arguments.freeze_layers:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = name.startswith("fc.")
    model.to(place.device)
    if arguments.syncBN:
        if not place.gpu:
            raise SystemExit("--syncBN: torch's SyncBatchNorm needs GPUs; leave it out on CPUs")
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return in_parallel(model, place)


def evaluate(model, val, place, precision):
    """(accuracy, loss, number of samples) over all ranks, each sample counted once."""
    model.eval()
    right = counted = lost = 0
    with torch.no_grad():
        for images, labels in val:
            with precision():
                scores = model(images)
            lost += float(nn.functional.cross_entropy(scores.float(), labels, reduction="sum"))  # -100 is left out
            right += int((scores.argmax(1) == labels).sum())
            counted += int((labels >= 0).sum())
    right, counted, lost = sum_over_ranks([right, counted, lost], place)
    return right / counted, lost / counted, int(counted)


def progress(batches, place, epoch):
    """tqdm on rank 0, where it is installed and somebody watches."""
    if place.first and sys.stderr.isatty():
        try:
            from tqdm import tqdm
            return tqdm(batches, desc=f"epoch {epoch}", leave=False)
        except ImportError:
            pass
    return batches


def main(arguments):
    with joined(arguments.device, arguments.dist_url) as place:
        train_at(place, arguments)


def train_at(place, arguments):
    if arguments.world_size is not None and arguments.world_size != place.world_size:
        raise SystemExit(f"--world-size {arguments.world_size}, and {place.world_size} processes were started")
    torch.manual_seed(0)
    train, val, words = open_data(arguments, place)
    classes = len(train.classes)
    if arguments.num_classes not in (None, classes):
        raise SystemExit(f"--num_classes {arguments.num_classes}, and the data have {classes}: {', '.join(train.classes)}")
    model = build(arguments, place, classes)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=arguments.lr * place.world_size, momentum=0.9, weight_decay=0.005)

    def precision():
        return torch.autocast(place.device.type, torch.float16 if place.gpu else torch.bfloat16, enabled=arguments.amp)

    scaler = torch.cuda.amp.GradScaler(enabled=arguments.amp and place.gpu is not None)
    state = checkpoint.read(arguments.resume, arguments.output, place, "imagefolder_ddp")
    if state:
        checkpoint.restore(state, place, model=model, optimizer=optimizer, data=train, scaler=scaler)
    more = state["more"] if state else {"ended": False, "lost": [0.0, 0]}
    first = state["epoch"] + int(more["ended"]) if state else 0
    lost = list(more["lost"])  # this epoch's losses so far: their sum and how many

    # What predict.py needs besides the weights.
    about = {"classes": train.classes, "job": os.path.abspath(arguments.job), "overrides": words, "pipeline": val.state_dict()}

    def save(epoch, ended):
        checkpoint.save(arguments.output, epoch, place, "imagefolder_ddp", model=model, optimizer=optimizer, data=train,
                        scaler=scaler, more={"ended": ended, "lost": [0.0, 0] if ended else lost, **about})

    curves = log.Curves(os.path.join(arguments.output, "curves"), place)
    steps = 0
    for epoch in range(first, arguments.epochs):
        rate = cosine(epoch, arguments.epochs, arguments.lr * place.world_size, arguments.lr * place.world_size * arguments.lrf)
        set_rate(optimizer, rate)
        train.set_epoch(epoch)
        model.train()
        if arguments.freeze_layers:  # frozen batch norms keep their statistics, too
            checkpoint.plain(model).eval()
        for images, labels in progress(train, place, epoch):
            with precision():
                loss = nn.functional.cross_entropy(model(images), labels)  # labels are probabilities where batches are mixed
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            step_loss = mean_over_ranks(loss, place)
            if not math.isfinite(step_loss):  # the mean is everybody's, so all stop
                raise SystemExit(f"the loss is {step_loss} at step {steps} of epoch {epoch}: training ends")
            scaler.step(optimizer)
            scaler.update()
            steps, lost = steps + 1, [lost[0] + step_loss, lost[1] + 1]
            if arguments.max_steps and place.first:
                print(f"step {steps} loss {step_loss!r}", flush=True)
            if steps == arguments.max_steps:
                break
        if steps == arguments.max_steps:
            save(epoch, False)
            break
        accuracy, val_loss, counted = evaluate(model, val, place, precision)
        mean_loss, lost = lost[0] / lost[1], [0.0, 0]
        if place.first:
            print(f"epoch {epoch} : loss {mean_loss!r} validation accuracy {accuracy:.4f} loss {val_loss:.4f} of {counted} pictures",
                  flush=True)
        for name, value in (("loss", mean_loss), ("accuracy", accuracy), ("lr", rate)):
            curves.add(name, value, epoch)
        save(epoch, True)
    curves.close()


if __name__ == "__main__":
    plainly(main, arguments_of())
