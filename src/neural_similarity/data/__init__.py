"""Data sets by name, augmentation of whole batches, and loaders that can start at any batch."""

from . import fetching, sets
from .augment import Augment, augment_batch, no_augment
from .episodes import EpisodeBatch, Episodes
from .image_sets import FolderSet, ImageSet, MemorySet, Skipped
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

__all__ = [
    "Augment",
    "DatasetInfo",
    "EpisodeBatch",
    "Episodes",
    "FolderSet",
    "ImageSet",
    "Loader",
    "MemorySet",
    "Request",
    "Skipped",
    "augment_batch",
    "data_directory",
    "dataset_info",
    "eval_loader",
    "fetching",
    "list_datasets",
    "load_dataset",
    "no_augment",
    "register_dataset",
    "sets",
    "split_validation",
    "train_loader",
]
