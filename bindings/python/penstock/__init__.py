"""penstock: data loading for training, one stream bit for bit, whoever makes it.

    import penstock

    train = penstock.DataLoader("job.yaml", split="train")
    for images, labels in train:
        ...

    train = penstock.DataLoader(
        penstock.ImageFolder("photos/train"), batch_size=64, shuffle=True,
        transform=penstock.transforms.Compose([penstock.transforms.RandomResizedCrop(224), ...]))
"""

from . import errors, transforms
from ._transform_notes import describe_transforms
from .batch import DictBatch, ListBatch, TupleBatch
from .data_loader import DataLoader
from .datasets import (CIFAR10, CIFAR100, CSVDataset, FileList, ImageFolder, MDS, MNIST, PackedDataset, PairedFolders, Parquet,
                       TFRecord, WebDataset)
from .errors import ConfigError, DatasetError, Error, PeerLostError, RunError, UnpicklableDataset, UsageError
from .planning import plan, simulate
from .preprocessor import Preprocessor
from .samplers import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, WeightedRandomSampler
from .show import show
from .state import load_state, save_state
from .wrapping import WrappedLoader, collate_bytes, wrap

__version__ = "0.1.0"

__all__ = [
    "BatchSampler", "CIFAR10", "CIFAR100", "CSVDataset", "ConfigError", "DataLoader", "DatasetError", "DictBatch",
    "DistributedSampler", "Error", "FileList", "ImageFolder", "ListBatch", "MDS", "MNIST", "PackedDataset", "PairedFolders", "Parquet",
    "PeerLostError", "Preprocessor", "RandomSampler", "RunError", "SequentialSampler", "TFRecord", "TupleBatch", "UnpicklableDataset",
    "UsageError", "WebDataset", "WeightedRandomSampler", "WrappedLoader", "collate_bytes", "describe_transforms", "errors",
    "load_state", "plan", "save_state", "show", "simulate", "transforms", "wrap",
]
