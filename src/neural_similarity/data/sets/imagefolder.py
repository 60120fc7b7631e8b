"""Your own images, one folder per class; without a ``train`` folder, they are split here."""

from __future__ import annotations

from dataclasses import replace

from .._cache import key_of
from ..augment import Augment
from ..copies import groups_of_copies
from ..folders import class_folders, is_split, read_folder, read_split, report_beside
from ..image_sets import FolderSet, ImageSet
from ..loader import split_validation
from ..locate import missing
from ..registry import DatasetInfo, Request, register_dataset

__all__ = ["INFO"]

_DIVISION = 0.2, 0  # the share of test images, and the seed

INFO = DatasetInfo(
    name="imagefolder",
    kind="classification",
    splits=("train", "val", "test"),
    description="Your own images, one folder per class, resized to 84 × 84.",
    augment=Augment(crop=0, flip=True, resized_crop=True),
    layout="train/CLASS/* and test/CLASS/* or val/CLASS/*, or only CLASS/*, of which a fifth is "
    "used for test; in the data directory itself",
    home="you",
    by_hand="Put your images there, in one folder per class.",
)


def _load_imagefolder(request: Request) -> ImageSet:
    root, side = request.data_dir, request.image_size or 84
    if not root.is_dir():
        raise missing(INFO, f"expected a folder with one folder per class, got no folder {root}")
    if is_split(root):
        names = ("test", "val") if request.split == "test" else (request.split,)
        for name in names:
            if (root / name).is_dir():
                return _with_copies(read_split(request, root, name, side))
        places = " or ".join(str(root / name) for name in names)
        raise missing(INFO, f"expected {places} beside {root / 'train'}, got none")
    if request.split == "val":
        raise missing(
            INFO,
            f"expected {root / 'train'} and {root / 'val'}, got one folder per class, which is "
            f"split into 'train' and 'test' only",
        )
    if request.split == "train":
        report_beside(root)
    everything = read_folder(
        INFO, root, class_folders(INFO, root), side, strict=request.strict, fresh=request.fresh
    )
    training, test = split_validation(_with_copies(everything), *_DIVISION)
    return training if request.split == "train" else test


def _with_copies(dataset: FolderSet) -> FolderSet:
    """The set with its groups of copies, on which divisions depend; so does the fingerprint."""
    groups = groups_of_copies(dataset.root, dataset.files)
    if len(groups.unique()) == len(groups):
        return dataset
    content = key_of((dataset.fingerprint, groups.tolist()))[:12]
    return replace(dataset, groups=groups, fingerprint=content)


register_dataset(INFO, _load_imagefolder)
