"""What train.py left, ready for use: the network, its classes, and validation's pipeline.

    trained = read_trained("imagefolder-run/epoch-29.pt")
    images, statuses = trained.preprocess(encoded_pictures, errors="status")
    scores = trained.network(images)
"""

import dataclasses
import json

import torchvision

import penstock
from common import checkpoint


@dataclasses.dataclass
class Trained:
    network: object  # in eval mode, on the CPU
    classes: list
    preprocess: penstock.Preprocessor
    mean: list  # of Normalize, for pictures in 0 to 1
    std: list


def read_trained(path, dtype=None, job=None):
    """`job`: the job file, where it is not where it was. `dtype`: "uint8" for pixels that are neither scaled nor normalised. penstock.ConfigError names what differs, where the job is not
    the one that the network was validated with."""
    state = checkpoint.load(path)
    if not isinstance(state, dict) or "classes" not in state.get("more", {}):
        raise SystemExit(f"'{path}' is no checkpoint of imagefolder_ddp/train.py")
    more = state["more"]
    network = torchvision.models.resnet34(num_classes=len(more["classes"]))
    checkpoint.load_model(network, state["model"], path)
    preprocess = penstock.Preprocessor(job or more["job"], split="val", overrides=more["overrides"], dtype=dtype)
    preprocess.check(more["pipeline"])
    steps = json.loads(preprocess.state_dict()["spec"])["split"]["pipeline"]
    normalize = [step["Normalize"] for step in steps if "Normalize" in step] or [{"mean": [0, 0, 0], "std": [1, 1, 1]}]
    return Trained(network.eval(), more["classes"], preprocess, normalize[-1]["mean"], normalize[-1]["std"])
