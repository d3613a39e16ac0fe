"""Public training programs with their DataLoader's lines changed, and nothing else: the same batches as before the change.

The programs are not ours and do not lie here: $PENSTOCK_PROGRAMS names a folder with NAME/FILE of each (docs/guides/from_torch.md
says which versions were tried), and changes/NAME.diff has the lines that change; what pip installed into NAME/site-packages (with --target) comes
before the frameworks' own environment. Each program runs on the CPU on generated photos,
as it is and changed, alone or with two processes of torchrun, under watch.py, which writes down what its loaders give.

Compared of each iteration of each loader: len(), the number of batches, shapes and dtypes, labels, and the order where the program
decides it (DistributedSampler, no shuffling, a sampler of its own); where torch's RandomSampler decides it, that every sample comes
once. Pictures of validation loaders may differ by two steps of 255 at most, and the losses at the end of training by half.
"""

import json
import math
import os
import re
import shutil
import sys
import tempfile
from typing import NamedTuple

from jobs import demo_photos, run_tests
from leftovers import no_leftovers, run


class Program(NamedTuple):
    name: str
    file: str
    losses: str             # a pattern of what it says of an epoch's mean loss
    validation: tuple = ()  # numbers of the loaders whose pictures have no draws
    dtypes: bool = True     # False: ours gives finished floats where bytes were finished behind torch's


IMAGENET = Program("imagenet", "main.py", r"Epoch: \[\d+\]\[5/5\].*Loss \S+ \((\S+)\)", (1,))
TORCHVISION = Program("torchvision", "train.py", r"Epoch: \[\d+\] .* loss: \S+ \((\S+)\)", (1,))
DINO = Program("dino", "main_dino.py", r"Averaged stats: loss: \S+ \((\S+)\)")
TIMM = Program("timm", "train.py", r"Train: \d+ \[.*Loss: \S+ \((\S+)\)", dtypes=False)
LIGHTNING = Program("lightning", "imagenet.py", "", (0,))
TRANSFORMERS = Program("transformers", "run_image_classification_no_trainer.py", "", (1,))
ALL = (IMAGENET, TORCHVISION, DINO, TIMM, LIGHTNING, TRANSFORMERS)

PROGRAMS = os.environ.get("PENSTOCK_PROGRAMS", "")
if not any(os.path.exists(os.path.join(PROGRAMS, one.name, one.file)) for one in ALL):
    print("SKIP: PENSTOCK_PROGRAMS names no folder with programs to try")
    sys.exit(77)

import torch  # noqa: E402
from photos import WORK  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
FIXED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
TORCHRUN = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
TWO_STEPS = 2.1 / 255 / 0.22  # of a normalised picture
TINY = "shufflenet_v2_x0_5"


def changed_lines(name):
    """{file: [(line, lines that go, lines that come)]} of changes/NAME.diff, which has no context."""
    files = {}
    with open(os.path.join(HERE, "changes", f"{name}.diff")) as diff:
        for line in diff.read().splitlines():
            if line.startswith("+++ "):
                hunks = files.setdefault(line[4:], [])
            elif found := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
                hunks.append((int(found[1]) - (found[2] != "0"), [], []))
            elif not line.startswith("--- "):
                hunks[-1][1 if line[0] == "-" else 2].append(line[1:])
    return files


def change(folder, name):
    """Says how many lines it changed or added."""
    count = 0
    for file, hunks in changed_lines(name).items():
        with open(os.path.join(folder, file)) as read:
            lines = read.read().split("\n")
        for place, gone, come in reversed(hunks):
            found = lines[place:place + len(gone)]
            assert found == gone, f"changes/{name}.diff was made for another {file}: line {place + 1} is {found}"
            lines[place:place + len(gone)] = come
            count += len(come)
        with open(os.path.join(folder, file), "w") as write:
            write.write("\n".join(lines))
    return count


def gave(program, folder, words, ranks, prepare):
    """(of each rank what watch.py wrote down, {loader: pictures}; the losses)"""
    out = os.path.join(folder, "out")
    os.mkdir(out)
    # Packages that a program wants in other versions than the frameworks' tests do.
    path = os.pathsep.join([os.path.join(PROGRAMS, program.name, "site-packages"), os.environ.get("PYTHONPATH", "")])
    prepare(out, {**os.environ, "PYTHONPATH": path})
    command = [sys.executable, *([*TORCHRUN, f"--log-dir={out}"] if ranks == 2 else []), os.path.join(HERE, "watch.py"), out,
               os.path.join(folder, program.file), *words]
    with no_leftovers(wait_s=8) as env:
        done = run(command, 500, env={**env, **FIXED, "PYTHONPATH": path, "HF_HOME": out, "TORCHINDUCTOR_CACHE_DIR": out}, cwd=out)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    losses = [float(one) for one in re.findall(program.losses, done.stdout + done.stderr)] if program.losses else []
    assert bool(losses) == bool(program.losses) and all(map(math.isfinite, losses)), (losses, done.stdout[-3000:])
    seen = []
    for rank in range(ranks):
        with open(os.path.join(out, f"{rank}.json")) as file:
            seen.append((json.load(file), torch.load(os.path.join(out, f"{rank}.pt"))))
    return seen, losses


def compare(program, before, after):
    """How many (batches, of them in the same order, pictures of validation)."""
    batches = ordered = pictures = 0
    for (torchs_said, torchs_pictures), (our_said, our_pictures) in zip(before, after):
        torchs, ours = torchs_said["seen"], our_said["seen"]
        assert [one["loader"] for one in ours] == [one["loader"] for one in torchs] and torchs
        assert {one["kind"] for one in torchs} == {"torch"} and {one["kind"] for one in ours} == {"penstock"}
        for one, other in zip(torchs, ours):
            where = f"{program.name}, loader {one['loader']}"
            assert (one["len"], len(one["labels"])) == (other["len"], len(other["labels"])), where
            assert _shapes(one, program.dtypes) == _shapes(other, program.dtypes), where
            assert other["indices"], where
            mixed = any(isinstance(label, float) for batch in one["labels"] for label in batch)
            if one["sampler"].endswith("RandomSampler"):  # torch's, or Accelerate's SeedableRandomSampler: torch's order comes of its generator, ours of seed and epoch
                assert _flat(one["indices"]) == _flat(other["indices"]), where
                assert mixed or _flat(one["labels"]) == _flat(other["labels"]), where
            else:
                assert one["indices"] == other["indices"], where
                assert mixed or one["labels"] == other["labels"], where
                ordered += len(one["labels"])
            batches += len(one["labels"])
        for number in program.validation:
            assert len(torchs_pictures[number]) == len(our_pictures[number])
            for one, other in zip(torchs_pictures[number], our_pictures[number]):
                difference = (one.float() - other.float()).abs()
                assert difference.max() <= TWO_STEPS, (program.name, number, difference.max())
                pictures += len(one)
    return batches, ordered, pictures


def _shapes(one, dtypes):
    return [[part if dtypes else part[0] for part in batch] for batch in one["shapes"]]


def _flat(batches):
    return sorted(one for batch in batches for one in batch)


def check(program, *words, ranks=1, prepare=lambda out, env: None):
    source = os.path.join(PROGRAMS, program.name)
    if not os.path.exists(os.path.join(source, program.file)):
        print(f"  {program.name} is not in PENSTOCK_PROGRAMS, and was not tried")
        return
    found = []
    with tempfile.TemporaryDirectory(dir=WORK) as top:
        for how in ("before", "after"):
            folder = os.path.join(top, how)
            shutil.copytree(source, folder, ignore=shutil.ignore_patterns("site-packages"))
            lines = change(folder, program.name) if how == "after" else 0
            found.append(gave(program, folder, words, ranks, prepare))
    assert 1 <= lines <= 3, lines
    (before, losses), (after, our_losses) = found
    batches, ordered, pictures = compare(program, before, after)
    assert len(losses) == len(our_losses), (losses, our_losses)
    assert not losses or 0.5 < our_losses[-1] / losses[-1] < 1.5, (losses, our_losses)
    print(f"  {program.name}, {ranks} process(es): {lines} lines changed; {batches} batches compared, {ordered} of them in order, "
          f"and {pictures} pictures; loss {losses[-1:]} before, {our_losses[-1:]} after")


def test_imagenet():
    words = ["--no-accel", "-a", TINY, "--epochs", "2", "-j", "2", "-p", "1", "--lr", "0.01"]
    check(IMAGENET, *words, "-b", "16", demo_photos(80, 26, 8))
    check(IMAGENET, *words, "-b", "8", "--dist-url", "env://", "--dist-backend", "gloo", demo_photos(80, 26, 8), ranks=2)


def _torchvision(photos, *words):
    return ["--data-path", photos, "--device", "cpu", "--model", TINY, "--epochs", "2", "-b", "16", "-j", "2", "--lr", "0.01",
            "--print-freq", "1", "--train-crop-size", "64", "--val-crop-size", "64", "--val-resize-size", "72", *words]


def test_torchvision():
    """With mixup and cutmix in a collate_fn that is a closure; with erasing, which is the worker processes' work."""
    mixed = "--mixup-alpha", "0.2", "--cutmix-alpha", "1.0", "--auto-augment", "ta_wide"
    check(TORCHVISION, *_torchvision(demo_photos(80, 26, 8), *mixed, "--random-erase", "0.1"))
    check(TORCHVISION, *_torchvision(demo_photos(80, 26, 8), "--use-v2", "--auto-augment", "ra"), ranks=2)
    check(TORCHVISION, *_torchvision(demo_photos(256, 26, 8), *mixed, "--ra-sampler"), ranks=2)


def test_dino():
    """A transform that is the program's own class and gives a list of crops: two sizes in one batch."""
    check(DINO, "--data_path", os.path.join(demo_photos(32, 8, 8), "train"), "--arch", "vit_tiny", "--patch_size", "56", "--out_dim", "256",
          "--local_crops_number", "2", "--batch_size_per_gpu", "8", "--epochs", "2", "--warmup_epochs", "1", "--num_workers", "1",
          "--warmup_teacher_temp_epochs", "0", "--use_fp16", "false", ranks=2)


def test_timm():
    """penstock.timm.create_loader in the place of timm's, with timm's mixup and erasing."""
    check(TIMM, "--data-dir", demo_photos(80, 26, 8), "--model", "test_resnet", "--device", "cpu", "--num-classes", "8", "--img-size", "64",
          "-b", "16", "--epochs", "2", "--warmup-epochs", "0", "--cooldown-epochs", "0", "-j", "2", "--lr", "0.01", "--mixup", "0.2",
          "--aa", "rand-m9-mstd0.5", "--reprob", "0.2", "--output", ".", "--log-interval", "1")


def test_lightning():
    check(LIGHTNING, "fit", "--model.data_path", demo_photos(32, 8, 8), "--model.arch", TINY, "--model.batch_size", "8",
          "--model.workers", "2", "--trainer.max_epochs", "2", "--trainer.accelerator", "cpu", "--model.lr", "0.01")


# What the program would fetch: a model (tiny, and the same each time), and how accuracy is computed.
MODEL = """
import torch, transformers
torch.manual_seed(3)
config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=64,
                                patch_size=16, num_labels=8)
transformers.ViTForImageClassification(config).save_pretrained("model")
transformers.ViTImageProcessor(size={"height": 64, "width": 64}).save_pretrained("model")
"""
ACCURACY = """
import datasets
import evaluate

class Accuracy(evaluate.Metric):
    def _info(self):
        return evaluate.MetricInfo(description="", citation="", features=datasets.Features(
            {"predictions": datasets.Value("int32"), "references": datasets.Value("int32")}))

    def _compute(self, predictions, references):
        return {"accuracy": sum(a == b for a, b in zip(predictions, references)) / len(references)}
"""


def test_transformers():
    """Hugging Face's own data sets, whose transform is a function of a batch, and Accelerate's prepare()."""
    def prepare(out, env):
        os.mkdir(os.path.join(out, "accuracy"))
        with open(os.path.join(out, "accuracy", "accuracy.py"), "w") as file:
            file.write(ACCURACY)
        done = run([sys.executable, "-c", MODEL], 100, env=env, cwd=out)
        assert done.returncode == 0, done.stderr

    check(TRANSFORMERS, "--dataset_name", demo_photos(80, 26, 8), "--model_name_or_path", "model", "--num_train_epochs", "2",
          "--per_device_train_batch_size", "16", "--seed", "1", "--learning_rate", "1e-3", prepare=prepare)


if __name__ == "__main__":
    run_tests(globals())
