"""Data sets: images with labels, in memory or in files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from ..errors import DataError

__all__ = ["IMAGENET_STATISTICS", "FolderSet", "ImageSet", "MemorySet", "Skipped", "fingerprint_of"]

Statistics = tuple[tuple[float, ...], tuple[float, ...]]

#: Mean and standard deviation of ImageNet's colours, which the pretrained networks of torchvision
#: and timm expect.
IMAGENET_STATISTICS: Statistics = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

#: Principal axes of ImageNet's colours as columns, and the standard deviations along them, for
#: pixels from 0 to 1.
_IMAGENET_AXES = (
    (-0.5675, 0.7192, 0.4009),
    (-0.5808, -0.0045, -0.8140),
    (-0.5836, -0.6948, 0.4203),
)
_IMAGENET_DEVIATIONS = (0.2175, 0.0188, 0.0045)


@dataclass(frozen=True)
class Skipped:
    """A file that was skipped, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, eq=False)
class MemorySet:
    """A small data set: every image in memory.

    Args:
        name: the name in the registry.
        images: uint8, ``(N, C, H, W)``.
        labels: int64, ``(N,)``.
        classes: the names of the classes; a label is an index into it.
        fingerprint: a digest of pixels and labels, to store with results; see
            :func:`fingerprint_of`. A subset keeps the fingerprint of the whole set.

    Example:
        >>> images, labels = torch.zeros(4, 1, 8, 6, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
        >>> dataset = MemorySet.of("mine", images, labels, ("cat", "dog"))
        >>> len(dataset), dataset.in_channels, dataset.image_size, dataset.num_classes
        (4, 1, (8, 6), 2)
    """

    name: str
    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    classes: tuple[str, ...]
    fingerprint: str

    def __post_init__(self) -> None:
        where = f"MemorySet {self.name!r}"
        if self.images.dim() != 4 or self.images.dtype != torch.uint8:
            raise DataError(
                f"{where}: expected uint8 images of shape (N, C, H, W), got {self.images.dtype} "
                f"{tuple(self.images.shape)}."
            )
        _check_labels(where, self.labels, len(self.images), len(self.classes))

    @classmethod
    def of(cls, name: str, images: Tensor, labels: Tensor, classes: Sequence[str]) -> MemorySet:
        """A data set whose fingerprint is computed from its pixels and labels."""
        return cls(name, images, labels, tuple(classes), fingerprint_of(images, labels))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def in_channels(self) -> int:
        return self.images.shape[1]

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width."""
        return self.images.shape[2], self.images.shape[3]

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def subset(self, indices: Tensor | Sequence[int]) -> MemorySet:
        """The images at ``indices``, in that order, or those of a mask, with the same classes."""
        rows = _rows(indices, len(self))
        return replace(self, images=self.images[rows], labels=self.labels[rows])

    def statistics(self) -> Statistics:
        """Mean and standard deviation of every channel of ``images / 255``.

        Computed from counts of the 256 values: exact, and with little memory.
        """
        values = torch.arange(256, dtype=torch.float64) / 255
        means, deviations = [], []
        for channel in range(self.in_channels):
            counts = torch.zeros(256, dtype=torch.float64)
            for images in self.images[:, channel].split(4096):
                counts += torch.bincount(images.flatten(), minlength=256)
            share = counts / counts.sum()
            mean = float((share * values).sum())
            means.append(mean)
            deviations.append(float((share * (values - mean) ** 2).sum().sqrt()))
        return tuple(means), tuple(deviations)

    def color_axes(self) -> Tensor:
        """Principal axes of the colours of all pixels, scaled by the standard deviations.

        The columns of a ``(C, A)`` matrix, A at most 3, the longest first, for ``images / 255``.
        """
        C, count = self.in_channels, self.images[:, 0].numel()
        total, products = torch.zeros(C, dtype=torch.float64), torch.zeros(C, C).double()
        for images in self.images.split(4096):
            pixels = images.permute(1, 0, 2, 3).flatten(1).double() / 255
            total += pixels.sum(1)
            products += pixels @ pixels.T
        mean = total / count
        variances, axes = torch.linalg.eigh(products / count - torch.outer(mean, mean))
        # The sign of an axis is arbitrary: fix it, so that every machine adds the same noise.
        axes = axes * torch.where(axes.sum(0) < 0, -1.0, 1.0)
        scaled: Tensor = axes * variances.clamp(min=0).sqrt()
        return scaled.flip(1)[:, :3]


@dataclass(frozen=True, eq=False)
class FolderSet:
    """Images in files, decoded when they are used; always three channels.

    Args:
        name: the name in the registry.
        root: the folder of the files.
        files: the file of every image, relative to ``root``. (Strings: a million Path objects take
            half a gigabyte.)
        labels: int64, ``(N,)``.
        classes: the names of the classes; a label is an index into it.
        image_size: height and width that images are resized to.
        fingerprint: a digest of the files' names and sizes (reading every pixel of a large set
            would take longer than an epoch), and of which files are skipped: the division into
            training and test images depends on it.
        skipped: files that were skipped because they cannot be decoded.
        groups: ``(N,)``, the same number for files with the same content, which
            :func:`split_validation` keeps on one side; None if there are none, or none were sought.
    """

    name: str
    root: Path
    files: tuple[str, ...] = field(repr=False)
    labels: Tensor = field(repr=False)
    classes: tuple[str, ...]
    image_size: tuple[int, int]
    fingerprint: str
    skipped: tuple[Skipped, ...] = ()
    groups: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_labels(f"FolderSet {self.name!r}", self.labels, len(self.files), len(self.classes))

    def __len__(self) -> int:
        return len(self.files)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The file of every image."""
        return tuple(self.root / name for name in self.files)

    @property
    def in_channels(self) -> int:
        return 3

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    def subset(self, indices: Tensor | Sequence[int]) -> FolderSet:
        """The images at ``indices``, in that order, or those of a mask, with the same classes."""
        rows = _rows(indices, len(self))
        files = tuple(self.files[i] for i in rows.tolist())
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, files=files, labels=self.labels[rows], groups=groups)

    def statistics(self) -> Statistics:
        """ImageNet's constants, for all images.

        To compute the set's own values, all images would have to be decoded, which takes about as
        long as an epoch. Photographs hardly differ, and pretrained networks use these constants.
        """
        return IMAGENET_STATISTICS

    def color_axes(self) -> Tensor:
        """Principal axes of ImageNet's colours, for the same reason; see ``MemorySet``."""
        deviations = torch.tensor(_IMAGENET_DEVIATIONS, dtype=torch.float64)
        return torch.tensor(_IMAGENET_AXES, dtype=torch.float64) * deviations


ImageSet = MemorySet | FolderSet


def fingerprint_of(images: Tensor, labels: Tensor) -> str:
    """A short hash of pixels, labels and sizes, the same on every machine."""
    digest = hashlib.sha256(repr(tuple(images.shape)).encode())
    digest.update(images.contiguous().numpy().data)
    digest.update(labels.to(torch.int64).contiguous().numpy().astype("<i8").data)
    return digest.hexdigest()[:12]


def _rows(indices: Tensor | Sequence[int], count: int) -> Tensor:
    """Row numbers from row numbers or a mask; anything else would be taken for other rows."""
    rows = torch.as_tensor(indices)
    if rows.dtype == torch.bool and rows.shape == (count,):
        return rows.nonzero()[:, 0]
    if rows.numel() and (rows.dtype == torch.bool or rows.is_floating_point()):
        kind = "a mask" if rows.dtype == torch.bool else str(rows.dtype).removeprefix("torch.")
        raise DataError(
            f"subset: expected row numbers, or a mask of shape ({count},), got {kind} of shape "
            f"{tuple(rows.shape)}."
        )
    return rows.to(torch.int64)


def _check_labels(where: str, labels: Tensor, images: int, classes: int) -> None:
    if labels.shape != (images,) or labels.dtype != torch.int64:
        raise DataError(
            f"{where}: expected int64 labels of shape ({images},), one per image, got "
            f"{labels.dtype} {tuple(labels.shape)}."
        )
    if images and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        raise DataError(
            f"{where}: expected labels from 0 to {classes - 1}, got {int(labels.min())} to "
            f"{int(labels.max())}. A label is an index into the list of {classes} classes."
        )
