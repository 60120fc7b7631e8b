"""Prepare any image for a network, in steps that a few lines of NumPy can reproduce."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from .. import _check
from .._memory import check_side
from ..data.extras import needs
from ..data.images import decode_image, quietly, upright
from ..errors import DataError, ShapeError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Preprocessing", "in_batches", "in_threads", "read_all"]

_INTERPOLATIONS = ("bicubic", "bilinear")
_MODES = {1: "L", 3: "RGB"}
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Preprocessing:
    """How images are brought to one size and scale.

    The square in the middle, of side ``crop`` times the shorter side, is resized to
    ``image_size``; then ``(pixel / 255 − mean) / std`` in every channel.

    Args:
        image_size: side in pixels of the images that the network takes.
        mean, std: of every channel; one value means grey images, three mean colour.
        crop: fraction of the shorter side to use.
        interpolation: ``"bilinear"`` or ``"bicubic"``, of Pillow.

    Example:
        >>> preprocessing = Preprocessing(4, mean=(0.5,), std=(0.25,))
        >>> preprocessing.read(np.full((8, 6), 255, np.uint8)).shape
        torch.Size([1, 4, 4])
    """

    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float = 1.0
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        where = "Preprocessing"
        _check.whole_numbers(where, image_size=self.image_size)
        object.__setattr__(self, "image_size", _check.plain_number(self.image_size))
        check_side(where, self.image_size)
        _check.known_name(where, "interpolation", self.interpolation, _INTERPOLATIONS)
        for name in ("mean", "std"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        if len(self.mean) != len(self.std) or len(self.mean) not in _MODES:
            raise ShapeError(
                f"{where}: expected mean and std of one (grey) or three (colour) numbers each, got "
                f"{self.mean} and {self.std}."
            )
        if not all(map(isfinite, (*self.mean, *self.std))) or not min(self.std) > 0:
            raise ShapeError(
                f"{where}: expected finite mean and std, with std above 0, got {self.mean} and "
                f"{self.std}."
            )
        if not 0 < self.crop <= 1:
            raise ShapeError(f"{where}: expected crop above 0 and at most 1, got {self.crop}.")

    @property
    def channels(self) -> int:
        return len(self.mean)

    def read(self, image: Any) -> Tensor:
        """uint8 ``(C, S, S)`` from a path, a PIL image or an array."""
        picture = as_picture(image).convert(_MODES[self.channels])
        side = self.crop * min(picture.size)
        left, top = (picture.width - side) / 2, (picture.height - side) / 2
        resized = picture.resize(
            (self.image_size, self.image_size),
            resample=_resampling(self.interpolation),
            box=(left, top, left + side, top + side),
        )
        pixels = np.array(resized).reshape(self.image_size, self.image_size, self.channels)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def normalise(self, images: Tensor) -> Tensor:
        """The network's input, from uint8 images ``(N, C, S, S)``."""
        mean = torch.tensor(self.mean).view(-1, 1, 1)
        std = torch.tensor(self.std).view(-1, 1, 1)
        return (images.float() / 255 - mean) / std

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The inverse of :meth:`to_dict`."""
        return cls(**values)


def as_picture(image: Any) -> Image.Image:
    """A PIL image, upright and in colour, from a path, a PIL image, an array or a tensor."""
    from PIL import Image

    if isinstance(image, str | os.PathLike):
        if not Path(image).is_file():
            raise DataError(f"{image}: expected an image file, got no file with this name.")
        return decode_image(Path(image))
    if isinstance(image, Image.Image):
        try:
            return upright(image)
        except ValueError as error:
            raise DataError(
                f"images: expected an image that can be read, got {error}. Scale it first."
            ) from error
    if isinstance(image, Tensor):
        image = _channels_last(image)
    if isinstance(image, np.ndarray):
        return Image.fromarray(_checked_array(image)).convert("RGB")
    raise DataError(
        f"images: expected paths, PIL images, arrays or a tensor, got {type(image).__name__}."
    )


def read_all(images: Sequence[Any], preprocessing: Preprocessing) -> Tensor:
    """uint8 ``(N, C, S, S)``."""
    return torch.stack(in_threads(preprocessing.read, images))


def in_threads(function: Callable[[Any], _Item], images: Sequence[Any]) -> list[_Item]:
    """The function's result for every image, with as many threads as processors."""
    with needs("pillow", "images"):
        import PIL.Image  # noqa: F401
    with quietly(), ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, images))


def in_batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Lists of at most ``size`` items."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _channels_last(image: Tensor) -> np.ndarray[Any, Any]:
    """An image tensor, with channels first, as an array with channels last."""
    if image.dim() != 3 or image.shape[0] not in _MODES:
        raise ShapeError(
            f"images: expected tensors of shape (N, C, H, W) with 1 or 3 channels, got one image "
            f"of shape {tuple(image.shape)}."
        )
    if image.is_floating_point():
        low, high = image.min().item(), image.max().item()
        if not (low >= 0 and high <= 1):
            raise DataError(
                f"images: expected floating-point pixels from 0 to 1, got {low:.3g} to {high:.3g}. "
                f"Do not normalise them: the classifier does this."
            )
        image = (image.double() * 255).round().to(torch.uint8)
    array: np.ndarray[Any, Any] = image.detach().cpu().permute(1, 2, 0).numpy()
    return array


def _checked_array(image: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if image.dtype != np.uint8:
        raise DataError(
            f"images: expected arrays of uint8, got {image.dtype}. Scale the pixels to 0 to 255, "
            f"then convert the array with .astype('uint8')."
        )
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3) or not image.size:
        raise ShapeError(
            f"images: expected arrays of shape (H, W) or (H, W, 3), got {image.shape}."
        )
    return np.ascontiguousarray(image)


def _resampling(name: str) -> Image.Resampling:
    from PIL import Image

    return Image.Resampling[name.upper()]
