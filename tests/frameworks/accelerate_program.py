"""An Accelerate program that writes down which batches it was given, for accelerate_test.py.

    accelerate_program.py JOB FOLDER [--raw] [--accumulate=N] [--save-after=N] [--load]
"""

import argparse
import json
import os
import sys

import torch
from accelerate import Accelerator
from photos import digest

import penstock
import penstock.accelerate


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("folder")
    parser.add_argument("--raw", action="store_true", help="accelerator.prepare, and not penstock.accelerate.prepare")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--save-after", type=int, default=-1)
    parser.add_argument("--load", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=arguments.accumulate)
    train = penstock.DataLoader(arguments.job, split="train")
    val = penstock.DataLoader(arguments.job, split="val")
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(2),
                                  torch.nn.Flatten(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    model, optimizer = accelerator.prepare(network, optimizer)
    if arguments.raw:
        given = train, val
        train, val = accelerator.prepare(train, val)
        assert (train, val) == given  # nothing around them that would deal their batches out
    else:
        train = penstock.accelerate.prepare(accelerator, train)
        val = penstock.accelerate.prepare(accelerator, val)
        assert accelerator.prepare(train) is train and penstock.accelerate.prepare(accelerator, train) is train
    state = os.path.join(arguments.folder, "state")
    if arguments.load:
        accelerator.load_state(state)

    seen, labels_seen = [], []
    first = train.epoch
    for epoch in range(first, 2):
        for images, labels in train:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            seen.append([epoch, digest(images), accelerator.sync_gradients, loss.item()])
            if len(seen) == arguments.save_after:
                accelerator.save_state(state)
            if len(seen) == 2:  # validation in mid-epoch does not tell the accumulation of an end
                for batch in val:
                    labels_seen.append(accelerator.gather_for_metrics(batch[1]).tolist())
    with open(os.path.join(arguments.folder, f"seen{accelerator.process_index}.json"), "w") as file:
        json.dump({"seen": seen, "labels": labels_seen, "processes": accelerator.num_processes,
                   "embedded": train.embedded}, file)
    accelerator.end_training()


if __name__ == "__main__":
    sys.exit(main())
