"""An adapted classifier on disk: a folder of plain files, no pickle.

::

    model.safetensors     the network, and how to build it again
    labels.json           the classes and the preprocessing again, for other programs
    examples.safetensors  the training images, small, and their features; read only when needed
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .. import __version__
from .._io import settle
from ..errors import DataError, FileFormatError
from ..train.checkpoint import read_weights
from .backbones.extractor import FeatureExtractor
from .backbones.files import read_description, write_described
from .backbones.load import rebuild
from .cross_validation import CrossValidation
from .linear_heads import linear
from .methods import AdaptedNetwork
from .output_folder import EXAMPLES, LABELS, MODEL, output_folder
from .preprocessing import Preprocessing

__all__ = [
    "Adapted",
    "Examples",
    "load_adapted",
    "save_adapted",
    "write_adapted",
]

_KIND = "adapted"


class Examples(NamedTuple):
    """The training images."""

    images: Tensor
    """uint8, ``(N, C, s, s)``, with sides of at most 96 pixels."""
    labels: Tensor
    """``(N,)``, indices into the list of classes."""
    features: Tensor
    """``(N, D)``, of the adapted network."""
    names: list[str]
    """The names of their files; empty for images that came from no file."""


@dataclass(frozen=True, eq=False)
class Adapted:
    """Everything that is saved."""

    network: AdaptedNetwork
    backbone: FeatureExtractor
    classes: list[Any]
    validation: CrossValidation
    settings: Mapping[str, Any]
    stored: Examples | Path
    """The examples, or the folder that contains them."""

    @property
    def examples(self) -> Examples:
        """The training images; predicting does not need them."""
        return self.stored if isinstance(self.stored, Examples) else _read_examples(self.stored)


def save_adapted(adapted: Adapted, folder: str | os.PathLike[str], force: bool) -> None:
    """Write the folder, whole or not at all."""
    with output_folder(folder, force) as made:
        write_adapted(adapted, made)


def write_adapted(adapted: Adapted, folder: Path) -> None:
    """Write the files into a folder."""
    backbone, source = adapted.backbone, dict(adapted.backbone.source or {"kind": "module"})
    if source["kind"] == "create_model" and adapted.validation.method == "static":
        source["similarity"] = None  # merged
    preprocessing = backbone.preprocessing.to_dict()
    described = {
        "source": source,
        "preprocessing": preprocessing,
        "name": backbone.name,
        "card": backbone.card,
        "classes": _plain(adapted.classes),
        "settings": {**adapted.settings, "backbone": None},
        "unit": adapted.network.unit,
        "features": adapted.network.classifier.in_features,
        "cross_validation": adapted.validation.to_dict(),
        "neural_similarity": __version__,
    }
    write_described(folder / MODEL, adapted.network, _KIND, described)
    labels_json = {"classes": adapted.classes, "preprocessing": preprocessing}
    (folder / LABELS).write_text(json.dumps(labels_json, indent=2) + "\n", encoding="utf-8")
    images, labels, features, names = adapted.examples
    tensors = {"images": images.contiguous(), "labels": labels, "features": features}
    # save_file would let nobody but its owner read the file.
    (folder / EXAMPLES).write_bytes(save(tensors, metadata={"names": json.dumps(names)}))


def load_adapted(
    folder: str | os.PathLike[str],
    backbone: str | os.PathLike[str] | FeatureExtractor | None = None,
) -> Adapted:
    """What :func:`save_adapted` wrote; ``backbone`` is code that a file cannot contain."""
    path = Path(folder)
    with suppress(OSError):  # of a folder that cannot be written
        settle(path)
    if not (path / MODEL).is_file():
        raise DataError(
            f"{path}: expected a folder with {MODEL}, got none. `nsl adapt` and "
            f"FewShotClassifier.save write one."
        )
    description = read_description(path / MODEL, _KIND)
    try:
        classes, settings = description["classes"], description["settings"]
        preprocessing = Preprocessing.from_dict(description["preprocessing"])
        classifier = linear(torch.zeros(len(classes), description["features"]), torch.zeros(1))
        validation = CrossValidation.from_dict(description["cross_validation"])
        source, unit = description["source"], description["unit"]
        network = AdaptedNetwork(rebuild(source, backbone), classifier, unit)
    except (LookupError, TypeError) as error:
        raise FileFormatError(
            f"{path}: expected a classifier of this version, got a damaged one ({error!r})."
        ) from error
    read_weights(path / MODEL, network)
    extractor = FeatureExtractor(
        network.backbone, preprocessing, description["name"], source, description["card"]
    )
    network.eval().requires_grad_(False)
    return Adapted(network, extractor, classes, validation, settings, path.absolute())


def _read_examples(folder: Path) -> Examples:
    if not (folder / EXAMPLES).is_file():
        raise DataError(
            f"{folder / EXAMPLES}: expected the training images, got no file of this name. "
            f"Saving and drawing similar images (--why) need it, predicting does not. Restore the "
            f"file, or adapt again."
        )
    try:
        with safe_open(folder / EXAMPLES, framework="pt") as file:
            return Examples(
                file.get_tensor("images"),
                file.get_tensor("labels"),
                file.get_tensor("features"),
                json.loads(file.metadata()["names"]),
            )
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{folder / EXAMPLES}: expected examples, got a file that cannot be read ({error})."
        ) from error


def _plain(classes: list[Any]) -> list[Any]:
    if not all(isinstance(label, str | int | float) for label in classes):
        raise DataError(
            f"save: expected labels that JSON can hold (text or numbers), got {classes}. Use other "
            f"labels in fit."
        )
    return classes
