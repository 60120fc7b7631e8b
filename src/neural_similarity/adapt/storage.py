"""An adapted classifier on disk: a folder of plain files, no pickle.

::

    model.safetensors     the network, and how to make it again
    labels.json           a copy of the classes, and of how to prepare images, for other programs
    examples.safetensors  the images it was learned from, small, and their features; read when
                          somebody asks for them
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .. import __version__
from ..errors import DataError, FileFormatError
from ..train.checkpoint import read_weights
from ._folders import whole_folder
from .backbones.extractor import FeatureExtractor
from .backbones.files import read_description, write_described
from .backbones.load import rebuild
from .cross_validation import CrossValidation
from .linear_heads import linear
from .methods import AdaptedNetwork
from .preprocessing import Preprocessing

__all__ = [
    "MARKS",
    "OTHERS",
    "Adapted",
    "Examples",
    "load_adapted",
    "save_adapted",
    "write_adapted",
]

MARKS = ("model.safetensors", "labels.json")
"""The files by which such a folder is known."""
_KIND = "adapted"
_THUMBNAIL = 96
_EXAMPLES = "examples.safetensors"
OTHERS = (_EXAMPLES, "README.txt", "confusion.png", "model.onnx", "model.onnx.data", "report.html")
"""What else ``nsl adapt`` writes there."""


class Examples(NamedTuple):
    """The images that were learned from."""

    images: Tensor
    """uint8, ``(N, C, S, S)``; of at most 96 pixels once they were in a file."""
    labels: Tensor
    """``(N,)``, places in the list of classes."""
    features: Tensor
    """``(N, D)``, what the network makes of them."""
    names: list[str]
    """Their files, where they came from files."""


@dataclass(frozen=True, eq=False)
class Adapted:
    """Everything that there is to keep."""

    network: AdaptedNetwork
    backbone: FeatureExtractor
    classes: list[Any]
    found: CrossValidation
    settings: Mapping[str, Any]
    kept: Examples | Path
    """The examples, or the folder in which they are."""

    @property
    def examples(self) -> Examples:
        """The images that were learned from; predicting does without."""
        return self.kept if isinstance(self.kept, Examples) else _read_examples(self.kept)


def save_adapted(adapted: Adapted, folder: str | os.PathLike[str], force: bool) -> None:
    """Write the folder, whole or not at all."""
    with whole_folder(folder, MARKS, OTHERS, force) as made:
        write_adapted(adapted, made)


def write_adapted(adapted: Adapted, folder: Path) -> None:
    """Write the files into a folder."""
    backbone, source = adapted.backbone, dict(adapted.backbone.source or {"kind": "module"})
    if source["kind"] == "create_model" and adapted.found.method == "static":
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
        "cross_validation": adapted.found.to_dict(),
        "neural_similarity": __version__,
    }
    write_described(folder / MARKS[0], adapted.network, _KIND, described)
    told = {"classes": adapted.classes, "preprocessing": preprocessing}
    (folder / MARKS[1]).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    images, labels, features, names = adapted.examples
    if images.shape[-1] > _THUMBNAIL:
        images = F.interpolate(images.float(), (_THUMBNAIL, _THUMBNAIL), mode="area").round().byte()
    tensors = {"images": images.contiguous(), "labels": labels, "features": features}
    # save_file would let nobody but its owner read the file.
    (folder / _EXAMPLES).write_bytes(save(tensors, metadata={"names": json.dumps(names)}))


def load_adapted(
    folder: str | os.PathLike[str], given: str | os.PathLike[str] | FeatureExtractor | None = None
) -> Adapted:
    """What :func:`save_adapted` wrote; ``given`` is a backbone that a file cannot hold."""
    path = Path(folder)
    if not (path / MARKS[0]).is_file():
        raise DataError(
            f"{path}: expected a folder with {MARKS[0]}, got none. `nsl adapt` and "
            f"FewShotClassifier.save make one."
        )
    known = read_description(path / MARKS[0], _KIND)
    try:
        preprocessing = Preprocessing.from_dict(known["preprocessing"])
        classifier = linear(torch.zeros(len(known["classes"]), known["features"]), torch.zeros(1))
        found = CrossValidation.from_dict(known["cross_validation"])
        source, unit, settings = known["source"], known["unit"], known["settings"]
        network = AdaptedNetwork(rebuild(source, given), classifier, unit)
    except (LookupError, TypeError) as error:
        raise FileFormatError(
            f"{path}: expected a classifier of this version, got a damaged one ({error!r})."
        ) from error
    read_weights(path / MARKS[0], network)
    backbone = FeatureExtractor(
        network.backbone, preprocessing, known["name"], source, known["card"]
    )
    network.eval().requires_grad_(False)
    return Adapted(network, backbone, known["classes"], found, settings, path.absolute())


def _read_examples(folder: Path) -> Examples:
    if not (folder / _EXAMPLES).is_file():
        raise DataError(
            f"{folder / _EXAMPLES}: expected the images that were learned from, got no file of "
            f"this name. Saving and showing neighbours (--why) need it, predicting does not. Get "
            f"the file again, or adapt anew."
        )
    try:
        with safe_open(folder / _EXAMPLES, framework="pt") as file:
            return Examples(
                file.get_tensor("images"),
                file.get_tensor("labels"),
                file.get_tensor("features"),
                json.loads(file.metadata()["names"]),
            )
    except (SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{folder / _EXAMPLES}: expected examples, got a file that cannot be read ({error})."
        ) from error


def _plain(classes: list[Any]) -> list[Any]:
    if not all(isinstance(label, str | int | float) for label in classes):
        raise DataError(
            f"save: expected labels that a file can hold (text or numbers), got {classes}. Give "
            f"classes other names before fit."
        )
    return classes
