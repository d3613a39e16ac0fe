"""Hugging Face's Trainer on penstock's batches: a small ResNet, trained and evaluated.

    python examples/train_huggingface.py job.yaml                                        # alone
    torchrun --nproc_per_node 2 examples/train_huggingface.py job.yaml                   # two trainers
    mpirun -n 4 penstock run job.yaml -- python examples/train_huggingface.py job.yaml   # the same, fed by two loader ranks

The Trainer takes any loader of dicts whose keys are the arguments of the model's forward(), and does not wrap it. It
collects `gradient_accumulation_steps` batches before it works on the first one: `copy=True` lets it keep them. In an
epoch that is resumed in its middle the Trainer counts `epoch` from that place, and does not end a last step of fewer
batches: let the batches of an epoch be a multiple of --accumulate there.
"""

import argparse
import os

import torch
from transformers import (ResNetConfig, ResNetForImageClassification, Trainer, TrainerCallback, TrainingArguments,
                          set_seed)

import penstock

KEYS = {"image": "pixel_values", "label": "labels"}


class PenstockTrainer(Trainer):
    """A Trainer whose "datasets" are loaders, ready to be iterated over."""

    def get_train_dataloader(self):
        return self.train_dataset

    def get_eval_dataloader(self, eval_dataset=None):
        return self.eval_dataset if eval_dataset is None else eval_dataset


class KeepPlace(TrainerCallback):
    """Saves the loader's place beside each checkpoint of the Trainer."""

    def __init__(self, train):
        self.train = train

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:  # the others would write the same
            folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            torch.save(self.train.state_dict(), os.path.join(folder, "penstock.pt"))


def accuracy(prediction):
    real = prediction.label_ids != -100  # padding, which makes the ranks' shares equal
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids)[real].mean())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", help="a job with the splits train and val")
    parser.add_argument("--output", default="runs/huggingface", help="folder of the checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step")
    parser.add_argument("--save-steps", type=int, help="a checkpoint after so many steps (default: after each epoch)")
    parser.add_argument("--resume", help="go on from this checkpoint")
    arguments = parser.parse_args()

    options = {"batch": "dict", "keys": KEYS, "copy": True}
    train = penstock.DataLoader(arguments.job, split="train", **options)
    val = penstock.DataLoader(arguments.job, split="val", **options)
    args = TrainingArguments(
        output_dir=arguments.output, num_train_epochs=arguments.epochs, learning_rate=1e-3, logging_steps=1, seed=0,
        per_device_train_batch_size=train.batch_size, gradient_accumulation_steps=arguments.accumulate,
        eval_strategy="epoch", save_strategy="steps" if arguments.save_steps else "epoch",
        save_steps=arguments.save_steps or 500, report_to=[],
        average_tokens_across_devices=False,  # pictures have no tokens: the loss would be multiplied by the ranks
        use_cpu=not torch.cuda.is_available(),  # without it, and without a GPU, each rank would train a model of its own
        ignore_data_skip=True)  # the Trainer would skip what the loader, with its own state, does not give again
    if arguments.resume:
        train.load_state_dict(torch.load(os.path.join(arguments.resume, "penstock.pt")))

    set_seed(0)
    config = ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic",
                          num_labels=len(train.classes))
    trainer = PenstockTrainer(ResNetForImageClassification(config), args, train_dataset=train, eval_dataset=val,
                              compute_metrics=accuracy, callbacks=[KeepPlace(train)])
    trainer.train(resume_from_checkpoint=arguments.resume)
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
