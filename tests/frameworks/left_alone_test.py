"""Accelerate's prepare, Hugging Face's Trainer and Lightning's Trainer iterate over a penstock.DataLoader itself. Of a torch DataLoader
each of them takes the data set and makes another loader around it; of penstock's they must not, because what loads then is torch.

Each is given a loader of a torchvision ImageFolder, as a program has it that was written for torch. The loader's own stats say that
all batches came from it, and torch's DataLoader may not be iterated over meanwhile.
"""

import contextlib
import os
import shutil
import tempfile

import torch
import torch.utils.data.dataloader as torch_loader
from jobs import run_tests
from photos import TRAIN, VAL, WORK
from torchvision import datasets, transforms

import penstock

STEPS = transforms.Compose([transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor()])
EPOCHS, TRAIN_BATCHES, VAL_BATCHES = 2, 5, 2  # of 80 and 26 pictures, 16 a batch


def loaders(**more):
    return (penstock.DataLoader(datasets.ImageFolder(TRAIN, STEPS), batch_size=16, shuffle=True, num_workers=1, **more),
            penstock.DataLoader(datasets.ImageFolder(VAL, STEPS), batch_size=16, num_workers=1, **more))


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(4))


@contextlib.contextmanager
def torchs_untouched():
    """Nobody iterates over a torch DataLoader inside."""
    def refused(self):
        raise AssertionError(f"a torch DataLoader over {type(self.dataset).__name__} is iterated over")

    iterate = torch_loader.DataLoader.__iter__
    torch_loader.DataLoader.__iter__ = refused
    try:
        yield
    finally:
        torch_loader.DataLoader.__iter__ = iterate


def check(loader, batches):
    stats = loader.stats()
    assert type(loader) is penstock.DataLoader and stats["batches"] == batches, (stats["batches"], batches)
    print(f"  {batches} batches, {stats['images']} pictures counted")


def test_accelerate():
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    train, val = loaders()
    with train, val, torchs_untouched():
        model = network()
        model(torch.zeros(1, 3, 32, 32))
        prepared, optimizer, one, other = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), train, val)
        assert one is train and other is val
        for _ in range(EPOCHS):
            for images, labels in one:
                accelerator.backward(torch.nn.functional.cross_entropy(prepared(images), labels))
                optimizer.step()
                optimizer.zero_grad()
            count = sum(len(accelerator.gather_for_metrics(labels)) for _, labels in other)
            assert count == 26, count
        check(train, EPOCHS * TRAIN_BATCHES)
        check(val, EPOCHS * VAL_BATCHES)


def test_huggingface_trainer():
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = network()

        def forward(self, pixel_values, labels):
            logits = self.inside(pixel_values)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    train, val = loaders(batch="dict", keys={"image": "pixel_values", "label": "labels"})

    class OursTrainer(Trainer):
        def get_train_dataloader(self):
            return train

        def get_eval_dataloader(self, eval_dataset=None):
            return val

    folder = tempfile.mkdtemp(dir=WORK)
    with train, val, torchs_untouched():
        model = Model()
        model(torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.int64))
        trainer = OursTrainer(model=model, args=TrainingArguments(
            output_dir=folder, num_train_epochs=EPOCHS, per_device_train_batch_size=16, use_cpu=True, report_to=[], save_strategy="no",
            disable_tqdm=True))
        assert trainer.train().global_step == EPOCHS * TRAIN_BATCHES
        assert trainer.evaluate()["eval_loss"] > 0
        check(train, EPOCHS * TRAIN_BATCHES)
        check(val, VAL_BATCHES)
    shutil.rmtree(folder)


def test_lightning():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inside = network()
            self.inside(torch.zeros(1, 3, 32, 32))
            self.given = []

        def training_step(self, batch, _):
            self.given.append(type(self.trainer.train_dataloader))
            return torch.nn.functional.cross_entropy(self.inside(batch[0]), batch[1])

        def validation_step(self, batch, _):
            self.given.append(type(self.trainer.val_dataloaders))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    train, val = loaders()
    folder = tempfile.mkdtemp(dir=WORK)
    with train, val, torchs_untouched():
        module = Module()
        lightning.Trainer(max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                          enable_model_summary=False, default_root_dir=folder, num_sanity_val_steps=0).fit(module, train, val)
        assert set(module.given) == {penstock.DataLoader}, set(module.given)
        assert len(module.given) == EPOCHS * (TRAIN_BATCHES + VAL_BATCHES), len(module.given)
        check(train, EPOCHS * TRAIN_BATCHES)
        check(val, EPOCHS * VAL_BATCHES)
    shutil.rmtree(folder)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    run_tests(globals())
