"""Data sets by name, whole-batch augmentation, and loaders that can begin anywhere."""

from . import digits
from .augment import Augment, augment_batch, no_augment
from .loader import Loader, eval_loader, split_validation, train_loader
from .registry import (
    DatasetInfo,
    Request,
    data_directory,
    dataset_info,
    list_datasets,
    load_dataset,
    register_dataset,
)
from .sets import FolderSet, ImageSet, MemorySet, Skipped

__all__ = [
    "Augment",
    "DatasetInfo",
    "FolderSet",
    "ImageSet",
    "Loader",
    "MemorySet",
    "Request",
    "Skipped",
    "augment_batch",
    "data_directory",
    "dataset_info",
    "digits",
    "eval_loader",
    "list_datasets",
    "load_dataset",
    "no_augment",
    "register_dataset",
    "split_validation",
    "train_loader",
]
