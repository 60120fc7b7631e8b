"""ImageNet (ILSVRC 2012): 1.28 million photographs of 1,000 classes, one folder per class."""

from __future__ import annotations

from ...errors import DataError
from ..augment import Augment
from ..folders import read_split
from ..image_sets import ImageSet
from ..locate import missing
from ..registry import DatasetInfo, Request, register_dataset

__all__ = ["INFO"]

INFO = DatasetInfo(
    name="imagenet",
    kind="classification",
    splits=("train", "val"),
    description="Photographs in 1,000 classes, 1.28 million + 50,000, resized to 224 × 224.",
    augment=Augment(crop=0, flip=True, resized_crop=True),
    layout="train/WNID/*.JPEG and val/WNID/*.JPEG, in imagenet/ or the data directory itself",
    home="https://www.image-net.org",
    licence="ImageNet's terms: research without commercial use",
    citation="Russakovsky, Deng and others, 2015",
    by_hand="Its terms do not allow us to distribute it: get it at https://www.image-net.org "
    "(with a free account), unpack it, and sort the validation images into one folder per class.",
)


def _load_imagenet(request: Request) -> ImageSet:
    roots = (request.data_dir / "imagenet", request.data_dir)
    with_split = [root for root in roots if (root / request.split).is_dir()]
    with_train = [root for root in roots if (root / "train").is_dir()]
    root = next(iter([root for root in with_split if root in with_train] or with_split), None)
    if root is not None and with_train and root not in with_train:
        raise DataError(
            f"{INFO.name}: expected {request.split!r} and 'train' in one folder, got "
            f"{root / request.split} and {with_train[0] / 'train'}. Labels would not fit. Move one "
            f"of them beside the other."
        )
    if root is None:
        places = " or ".join(str(root / request.split) for root in roots)
        raise missing(INFO, f"expected class folders (WNID) in {places}, got no such folder")
    return read_split(request, root, request.split, request.image_size or 224)


register_dataset(INFO, _load_imagenet)
