"""Your own images, one folder per class; without a ``train`` folder, they are split here."""

from __future__ import annotations

from ..augment import Augment
from ..folders import class_folders, is_split, read_folder, read_split, report_beside
from ..image_sets import ImageSet
from ..loader import split_validation
from ..locate import missing
from ..registry import DatasetInfo, Request, register_dataset

__all__ = ["INFO"]

_TEST_SHARE, _SPLIT_SEED = 0.2, 0

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
                return read_split(request, root, name, side)
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
    everything = read_folder(INFO, root, class_folders(INFO, root), side, strict=request.strict)
    training, test = split_validation(everything, _TEST_SHARE, _SPLIT_SEED)
    return training if request.split == "train" else test


register_dataset(INFO, _load_imagefolder)
