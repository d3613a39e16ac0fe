"""A Lightning program that writes down which batches it was given, for lightning_test.py.

    lightning_program.py JOB FOLDER [--epochs=N] [--checkpoints] [--resume=FILE]
"""

import argparse
import json
import logging
import os
import sys
import warnings

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from photos import digest

import penstock
import penstock.lightning


class Small(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU(),
                                           torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten(), torch.nn.Linear(32, 4))
        self.seen = []

    def note(self, what, batch, loss):
        self.seen.append([what, self.current_epoch, self.global_step, digest(batch[0]), loss.item()])

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.network(images), labels)
        self.note("train", batch, loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.network(images), labels)  # ignores -100: padding does not count
        self.note("sanity" if self.trainer.sanity_checking else "val", batch, loss)
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--resume")
    arguments = parser.parse_args()
    warnings.filterwarnings("error", module="penstock")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)

    options = {}
    if penstock.lightning.Environment.detect():  # under penstock run
        options = {"plugins": [penstock.lightning.Environment()], "strategy": "ddp",
                   "devices": int(os.environ["LOCAL_WORLD_SIZE"])}
    elif int(os.environ.get("WORLD_SIZE", 1)) > 1:  # as torchrun starts it
        options = {"strategy": "ddp", "devices": int(os.environ["LOCAL_WORLD_SIZE"])}
    else:
        options = {"devices": 1}
    callbacks = []
    if arguments.checkpoints:
        callbacks = [ModelCheckpoint(dirpath=arguments.folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)]
    train = penstock.DataLoader(arguments.job, split="train")
    val = penstock.DataLoader(arguments.job, split="val")
    trainer = Trainer(accelerator="cpu", max_epochs=arguments.epochs, num_sanity_val_steps=1, val_check_interval=2,
                      accumulate_grad_batches=arguments.accumulate, logger=False, enable_progress_bar=False,
                      enable_model_summary=False, enable_checkpointing=arguments.checkpoints, callbacks=callbacks,
                      default_root_dir=arguments.folder, **options)
    model = Small()
    trainer.fit(model, train, val, ckpt_path=arguments.resume, weights_only=False if arguments.resume else None)
    with open(os.path.join(arguments.folder, f"seen{trainer.global_rank}.json"), "w") as file:
        json.dump({"seen": model.seen, "place": [train.num_replicas, train.rank, train.embedded],
                   "state": train.state_dict()}, file)


if __name__ == "__main__":
    sys.exit(main())
