"""Features on disk, so that no image passes through the same backbone twice.

A file holds the features of a batch, keyed by the fingerprints of the images; the folder is named
by the fingerprint of the backbone. Files are only added. Everything here can be recomputed: a
damaged file is deleted, and a full disk only costs time.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors.torch import save
from torch import Tensor

from .._io import cache_directory, open_regular, write_file
from .._tensor_files import read_tensors
from ..errors import FileFormatError
from .backbones.extractor import FeatureExtractor
from .preprocessing import as_picture

__all__ = ["FeatureCache", "backbone_fingerprint", "image_fingerprint", "open_cache"]

_LARGEST = 2**31  # bytes on disk of all backbones together; above that nothing is added


class FeatureCache:
    """Features ``(2, D)`` of an image and its mirror image, by the image's fingerprint.

    Args:
        folder: where they are stored; None stores nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._pairs: dict[str, Tensor] = {}
        if folder is not None:
            for file in sorted(folder.glob("*.safetensors")):
                self._read(file)

    @property
    def keeps(self) -> bool:
        return self.folder is not None

    def __len__(self) -> int:
        return len(self._pairs)

    def get(self, fingerprint: str) -> Tensor | None:
        """The features of this image and its mirror image, or None."""
        return self._pairs.get(fingerprint)

    def add(self, fingerprints: list[str], pairs: Tensor) -> None:
        """Store the features ``(n, 2, D)`` of these images."""
        if self.folder is None:
            return
        new = {name: pair.contiguous() for name, pair in zip(fingerprints, pairs, strict=True)}
        self._pairs.update(new)
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            if _bytes_in(self.folder.parent) < _LARGEST:
                write_file(self.folder / f"{uuid4().hex}.safetensors", save(new))

    def _read(self, file: Path) -> None:
        try:
            pairs, _ = read_tensors(file, FileFormatError, "features")
        except FileFormatError as error:
            if isinstance(error.__cause__, OSError | MemoryError):
                return  # the file may be whole: too many others are open, or the disk is away
            pairs = {}
        width = {tuple(pair.shape) for pair in (*pairs.values(), *list(self._pairs.values())[:1])}
        if (
            pairs
            and len(width) == 1
            and all(bool(pair.isfinite().all()) for pair in pairs.values())
        ):
            self._pairs.update(pairs)
        else:
            with suppress(OSError):
                file.unlink()


def open_cache(backbone: FeatureExtractor) -> FeatureCache:
    """The features of a backbone that earlier calls computed."""
    return FeatureCache(cache_directory() / "features" / backbone_fingerprint(backbone))


@torch.no_grad()
def backbone_fingerprint(backbone: FeatureExtractor) -> str:
    """A digest of the weights, the preprocessing, and the network's output.

    A network's code is not in its weights, so length and direction of the features of a noise image
    count too. They are rounded, because sums depend on the number of threads.
    """
    digest = hashlib.sha256(repr(backbone.preprocessing).encode())
    for name, tensor in sorted(backbone.module.state_dict().items()):
        digest.update(name.encode())
        digest.update(_bytes_of(tensor))
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(1, *backbone.image_shape, generator=generator)
    features = backbone.module(noise).flatten()
    length = features.norm()
    directions = torch.randn(4, len(features), generator=generator).to(features)
    cosines = directions @ features / (length * directions.norm(dim=1)).clamp(min=1e-12)
    digest.update(f"{length.item():.2e}".encode())
    digest.update(" ".join(f"{cosine:.3f}" for cosine in cosines.tolist()).encode())
    return digest.hexdigest()[:32]


def image_fingerprint(image: Any) -> str:
    """A digest of an image file, or of its pixels if it has no file."""
    if isinstance(image, str | os.PathLike):
        with open_regular(image) as file:
            return hashlib.sha256(file.read()).hexdigest()
    picture = as_picture(image)
    digest = hashlib.sha256(f"{picture.mode} {picture.size}".encode())
    digest.update(picture.tobytes())
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*/*.safetensors"))
