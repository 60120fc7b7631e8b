"""Data sets by name, whole-batch augmentation, and loaders that can begin anywhere."""

from . import cifar, digits, fashion_mnist, folders, glyphs, mini_imagenet, omniglot
from .augment import Augment, augment_batch, no_augment
from .episodes import EpisodeBatch, Episodes
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
    "EpisodeBatch",
    "Episodes",
    "FolderSet",
    "ImageSet",
    "Loader",
    "MemorySet",
    "Request",
    "Skipped",
    "augment_batch",
    "cifar",
    "data_directory",
    "dataset_info",
    "digits",
    "eval_loader",
    "fashion_mnist",
    "folders",
    "glyphs",
    "list_datasets",
    "load_dataset",
    "mini_imagenet",
    "no_augment",
    "omniglot",
    "register_dataset",
    "split_validation",
    "train_loader",
]
