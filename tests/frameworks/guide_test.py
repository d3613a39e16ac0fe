"""The lines of docs/guides/frameworks.md for Lightning, Accelerate and Hugging Face: run as they stand there, alone under mpirun."""

import os
import re
import sys

from jobs import PENSTOCK, mpirun_words, run_tests, skip_without_mpirun, write_job
from leftovers import no_leftovers, run
from photos import PHOTOS, WORK

skip_without_mpirun()
JOB = write_job(WORK, PHOTOS, trainers=1)  # job.yaml, as in the guide
FIXED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

# What the guide takes for granted: a model, its optimizer, arguments.
BEFORE = {
    "lightning": """
import lightning, torch
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)
    def training_step(self, batch):
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.layer(images.mean((2, 3))), labels)
    validation_step = training_step
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
model = Model()
""",
    "accelerate": """
import torch
model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
    "transformers": """
from transformers import ResNetConfig, ResNetForImageClassification, TrainingArguments
model = ResNetForImageClassification(ResNetConfig(embedding_size=4, hidden_sizes=[4], depths=[1], layer_type="basic",
                                                  num_labels=4))
arguments = TrainingArguments("out", num_train_epochs=2, gradient_accumulation_steps=4, eval_strategy="epoch",
                              save_strategy="no", report_to=[], use_cpu=True)
""",
}
AFTER = {
    "lightning": "assert trainer.global_step == 10 and train.epoch == 2",
    "accelerate": "assert accelerator.step == 0 and accelerator.sync_gradients and len(train) == 5 and train.epoch == 1",
    "transformers": "assert trainer.state.global_step == 4 and 'eval_loss' in trainer.state.log_history[-2]",
}


def blocks():
    with open(os.path.join(os.environ["PENSTOCK_SOURCE"], "docs", "guides", "frameworks.md"), encoding="utf-8") as file:
        found = re.findall(r"```python\n(.*?)```", file.read(), re.DOTALL)
    assert len(found) == 3, found
    return {next(name for name in BEFORE if name in block): block for block in found}


def check(name):
    path = os.path.join(WORK, f"{name}_lines.py")
    with open(path, "w", encoding="utf-8") as file:
        file.write(BEFORE[name] + blocks()[name] + AFTER[name] + "\nprint('done')\n")
    with no_leftovers(wait_s=8) as env:
        done = run([*mpirun_words(2), PENSTOCK, "run", JOB, "--quiet", "--", sys.executable, path], 120,
                   env={**env, **FIXED}, cwd=WORK)
    assert done.returncode == 0 and "done" in done.stdout, done.stdout[-2000:] + done.stderr[-3000:]


def test_lightning():
    check("lightning")


def test_accelerate():
    check("accelerate")


def test_hugging_face():
    check("transformers")


if __name__ == "__main__":
    run_tests(globals())
