"""Everything that adapting writes: the model, ONNX, instructions and a report."""

from __future__ import annotations

import json
from pathlib import Path

import torch.nn.functional as F

from ..data import FolderSet
from ..export import export_model
from .classifier import FewShotClassifier
from .preprocessing import Preprocessing
from .report import accuracy_text, write_adapt_report
from .storage import write_adapted

__all__ = ["write_all"]


def write_all(
    classifier: FewShotClassifier, dataset: FolderSet, folder: Path, name: Path, onnx: bool
) -> None:
    """Write all files into a folder; ``name`` is its later name."""
    from ..plot import draw_confusion

    write_adapted(classifier.adapted(), folder)
    difference = _write_onnx(classifier, folder / "model.onnx") if onnx else None
    readme = _readme(classifier, classifier.preprocessing_, onnx)
    (folder / "README.txt").write_text(readme, encoding="utf-8")
    validation = classifier.cross_validation_
    if validation.tested:
        draw_confusion(
            validation.confusion,
            classifier.classes_.tolist(),
            folder / "confusion.png",
            f"{validation.tested} images, cross-validated\n{accuracy_text(validation)}",
        )
    write_adapt_report(classifier, dataset, folder, name, difference)


def _write_onnx(classifier: FewShotClassifier, path: Path) -> float:
    preprocessing = classifier.preprocessing_
    side = preprocessing.image_size
    examples = classifier.adapted().examples.images[:8]
    examples = F.interpolate(examples.float(), (side, side)).byte()  # enough for a comparison
    metadata = {
        "classes": classifier.classes_.tolist(),
        "input_size": [preprocessing.channels, side, side],
        **{key: value for key, value in preprocessing.to_dict().items() if key != "image_size"},
        "method": classifier.method_,
    }
    return export_model(
        classifier.model_,
        preprocessing.normalise(examples),
        path,
        metadata={name: json.dumps(value) for name, value in metadata.items()},
    )


def _readme(classifier: FewShotClassifier, preprocessing: Preprocessing, onnx: bool) -> str:
    side, channels = preprocessing.image_size, preprocessing.channels
    colour = "red, green, blue" if channels == 3 else "grey"
    share = "" if preprocessing.crop == 1 else f"{preprocessing.crop:g} times "
    network = (
        f"model.onnx reads `image`, float32 (N, {channels}, {side}, {side}), and returns\n"
        f"`scores`, (N, {len(classifier.classes_)}). The largest score is the predicted class;\n"
        "softmax turns scores into probabilities. The classes, in order, are in labels.json and\n"
        "in the metadata of model.onnx.\n\n"
        if onnx
        else ""
    )
    return (
        "An image classifier made by `nsl adapt` of neural-similarity.\n\n"
        f"{network}"
        "How an image is prepared:\n"
        f"1. Decode it, rotate it by its EXIF orientation, put it on white where it is\n"
        f"   transparent, convert it to {colour}.\n"
        f"2. Cut out the square in the middle whose side is {share}the shorter side.\n"
        f"3. Resize it to {side} x {side} with Pillow's {preprocessing.interpolation} filter "
        "(antialiased).\n"
        f"4. (pixel / 255 - mean) / std in every channel,\n"
        f"   mean {list(preprocessing.mean)},\n   std {list(preprocessing.std)}.\n"
        "5. Channels first: (channels, height, width).\n"
    )
