"""Handwritten digits that come with scikit-learn: 1,797 grey images of 8 × 8."""

from __future__ import annotations

import torch

from ..augment import Augment
from ..extras import needs
from ..image_sets import ImageSet, MemorySet
from ..loader import split_validation
from ..registry import DatasetInfo, Request, register_dataset

__all__ = ["INFO"]

INFO = DatasetInfo(
    name="digits",
    kind="classification",
    splits=("train", "test"),
    description="1,797 handwritten digits, grey, 8 × 8; 70% of each class for training.",
    augment=Augment(crop=1, flip=False),
    layout="it needs no files: the images come with scikit-learn",
    home="scikit-learn, load_digits; UCI Machine Learning Repository, "
    "Optical Recognition of Handwritten Digits (its test part)",
    licence="CC BY 4.0",
    citation="Alpaydin and Kaynak, 1998",
)

_TEST_SHARE, _SPLIT_SEED = 0.3, 0


def _load(request: Request) -> ImageSet:
    with needs("scikit-learn", "the data set 'digits'"):
        from sklearn.datasets import load_digits
    pixels, labels = load_digits(return_X_y=True)
    # Pixel values are from 0 to 16.
    images = torch.from_numpy(pixels).mul(255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    whole = MemorySet.of("digits", images, torch.from_numpy(labels).long(), tuple("0123456789"))
    training, test = split_validation(whole, _TEST_SHARE, _SPLIT_SEED)
    return training if request.split == "train" else test


register_dataset(INFO, _load)
