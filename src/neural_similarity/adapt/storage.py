"""An adapted classifier on disk: a folder of plain files, no pickle.

::

    model.safetensors     the network, and how to build it again
    labels.json           the classes and the preprocessing again, for other programs
    examples.safetensors  training thumbnails and their features; read only when needed
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from .. import __version__
from .._io import settle
from .._json import Count, build, parse_json
from .._tensor_files import check_finite, read_tensors
from ..convert.merge import merged_copy
from ..errors import DataError, FileFormatError, NeuralSimilarityError
from ..train.checkpoint import read_weights
from .backbones.extractor import FeatureExtractor
from .backbones.files import network_source, read_description, write_described
from .backbones.load import rebuild
from .linear_heads import linear
from .methods import TUNING, AdaptedNetwork
from .output_folder import EXAMPLES, LABELS, MODEL, output_folder
from .preprocessing import Preprocessing
from .validation import CrossValidation, Rejection

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
    """``(N, D)``, from the adapted network."""
    names: list[str]
    """The names of their files; empty for images without a file."""


@dataclass(frozen=True, eq=False)
class Adapted:
    """A fitted classifier: everything that is saved."""

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
        if isinstance(self.stored, Examples):
            return self.stored
        return _read_examples(self.stored, len(self.classes))


def save_adapted(adapted: Adapted, folder: str | os.PathLike[str], force: bool) -> None:
    """Write the folder, completely or not at all."""
    with output_folder(folder, force) as new_folder:
        write_adapted(adapted, new_folder)


def write_adapted(adapted: Adapted, folder: Path) -> None:
    """Write the files into a folder."""
    backbone, network = adapted.backbone, adapted.network
    source = dict(backbone.source or {"kind": "module"})
    if source["kind"] == "create_model":  # similarities may have been attached since
        network = merged_copy(network)
        options = (source[name] for name in ("model", "options", "in_channels", "image_size"))
        source = network_source(network.backbone, *options)
    preprocessing = backbone.preprocessing.to_dict()
    described = {
        "source": source,
        "preprocessing": preprocessing,
        "name": backbone.name,
        "card": backbone.card,
        "classes": _plain(adapted.classes),
        "settings": {**adapted.settings, "backbone": None},
        "unit": network.unit,
        "features": network.classifier.in_features,
        "rejection": network.rejection is not None,
        "cross_validation": adapted.validation.to_dict(),
        "neural_similarity": __version__,
    }
    write_described(folder / MODEL, network, _KIND, described)
    labels_json = {
        "classes": adapted.classes,
        "preprocessing": preprocessing,
        "largest_distance": network.largest_distance,
    }
    (folder / LABELS).write_text(json.dumps(labels_json, indent=2) + "\n", encoding="utf-8")
    images, labels, features, names = adapted.examples
    tensors = {"images": images.contiguous(), "labels": labels, "features": features}
    # save_file would make the file readable only by its owner.
    (folder / EXAMPLES).write_bytes(save(tensors, metadata={"names": json.dumps(names)}))


def load_adapted(
    folder: str | os.PathLike[str],
    backbone: str | os.PathLike[str] | FeatureExtractor | None = None,
) -> Adapted:
    """Read what :func:`save_adapted` wrote; ``backbone`` is code that a file cannot contain."""
    path = Path(folder)
    with suppress(OSError):  # the folder may be read-only
        settle(path)
    if not (path / MODEL).is_file():
        raise DataError(
            f"{path}: expected a folder with {MODEL}, got none. `nsl adapt` and "
            f"FewShotClassifier.save create such a folder."
        )
    file = path / MODEL
    values = read_description(file, _KIND)
    description = build(_Described, values, file, FileFormatError, others=True)
    count = len(description.classes)
    validation = CrossValidation.from_dict(description.cross_validation, file)
    if validation.confusion.shape != (count, count):
        raise FileFormatError(
            f"{file}: expected 'cross_validation.confusion' of {count} x {count} numbers, got "
            f"{validation.confusion.shape}. The file is damaged. Adapt again."
        )
    try:
        classifier = linear(torch.zeros(count, description.features), torch.zeros(1))
        means = torch.zeros(count, description.features)
        rejection = Rejection(means, 0.0) if description.rejection else None
        module = rebuild(description.source, backbone)
        network = AdaptedNetwork(module, classifier, description.unit, rejection)
    except NeuralSimilarityError:
        raise
    except Exception as error:  # a network may fail in any way on unknown options
        raise FileFormatError(
            f"{file}: expected the description of a network, got one that cannot be built "
            f"({error!r}). The file is damaged. Adapt again."
        ) from error
    read_weights(file, network)
    extractor = FeatureExtractor(
        network.backbone,
        description.preprocessing,
        description.name,
        description.source,
        description.card,
        tuned=validation.method in TUNING,
    )
    network.eval().requires_grad_(False)
    settings = asdict(description.settings)
    return Adapted(network, extractor, description.classes, validation, settings, path.absolute())


@dataclass(frozen=True)
class _Settings:
    """The arguments of ``FewShotClassifier``; the backbone is described separately."""

    method: str
    folds: int
    seed: int
    backbone: None
    structure: str | None = None  # these are not in files of earlier versions
    scope: str | None = None
    layers: float | str | list[str] | None = None


@dataclass(frozen=True)
class _Described:
    """What the metadata of the model must contain."""

    source: dict[str, Any]
    preprocessing: Preprocessing
    name: str
    card: str
    classes: list[str | bool | int | float]
    settings: _Settings
    unit: bool
    features: Count
    cross_validation: dict[str, Any]
    rejection: bool = False  # not in files of earlier versions


def _read_examples(folder: Path, classes: int) -> Examples:
    file = folder / EXAMPLES
    if not file.is_file():
        raise DataError(
            f"{file}: expected the training images, got no file with this name. "
            f"Saving and drawing similar images (--why) need it, predicting does not. Restore the "
            f"file, or adapt again."
        )
    tensors, text = read_tensors(file, FileFormatError, "examples")
    advice = "The file is damaged. Restore it, or adapt again."
    names = parse_json(text.get("names", "null"), file, FileFormatError, advice)
    names = build(list[str], names, f"{file}, 'names'", FileFormatError, advice)
    kinds = {name: (t.dtype.is_floating_point, t.dim()) for name, t in tensors.items()}
    if kinds != {"images": (False, 4), "labels": (False, 1), "features": (True, 2)}:
        shapes = {name: (tuple(t.shape), t.dtype) for name, t in tensors.items()}
        raise FileFormatError(
            f"{file}: expected images (N, C, S, S), labels (N,) and features (N, D), got {shapes}. "
            f"{advice}"
        )
    images, labels, features = (tensors[name] for name in ("images", "labels", "features"))
    if (images.dtype, labels.dtype) != (torch.uint8, torch.int64):
        raise FileFormatError(
            f"{file}: expected images of uint8 and labels of int64, got {images.dtype} and "
            f"{labels.dtype}. {advice}"
        )
    lengths = {len(images), len(labels), len(features), len(names)}
    if len(lengths) > 1 or 0 in lengths:
        raise FileFormatError(
            f"{file}: expected as many labels, features and names as images, got {len(labels)}, "
            f"{len(features)} and {len(names)} for {len(images)}. {advice}"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise FileFormatError(
            f"{file}: expected labels from 0 to {classes - 1}, got {labels.min()} to "
            f"{labels.max()}. {advice}"
        )
    check_finite(file, tensors, FileFormatError)
    return Examples(images, labels, features, names)


def _plain(classes: list[Any]) -> list[Any]:
    if not all(isinstance(label, str | int | float) for label in classes):
        raise DataError(
            f"save: expected labels that JSON can hold (text or numbers), got {classes}. Use other "
            f"labels in fit."
        )
    return classes
