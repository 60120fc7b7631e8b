"""Everything that adapting writes: the model, ONNX, instructions and a report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from ..data import FolderSet
from ..export import export_model
from .classifier import FewShotClassifier
from .methods import AdaptedNetwork
from .preprocessing import Preprocessing
from .report import accuracy_text, write_adapt_report
from .storage import write_adapted
from .validation import CrossValidation, Rejection

__all__ = ["write_all"]


def write_all(
    classifier: FewShotClassifier,
    dataset: FolderSet,
    folder: Path,
    name: Path,
    onnx: bool,
    callback: Callable[[str], None] = lambda stage: None,
) -> None:
    """Write all files into a folder.

    Args:
        classifier: what to write.
        dataset: the images that it was trained on.
        folder: where to write.
        name: the folder's final name.
        onnx: whether to write ``model.onnx``, the slowest step.
        callback: called with ``"writing"`` or ``"model.onnx"`` when that step begins.
    """
    from ..plot import draw_calibration, draw_confusion

    callback("writing")
    write_adapted(classifier.adapted(), folder)
    difference = None
    if onnx:
        callback("model.onnx")
        difference = _write_onnx(classifier, folder / "model.onnx")
        callback("writing")
    readme = _readme(classifier, classifier.preprocessing_, onnx)
    (folder / "README.txt").write_text(readme, encoding="utf-8")
    validation = classifier.cross_validation_
    if validation.tested:
        draw_confusion(
            validation.confusion,
            classifier.classes_.tolist(),
            folder / "confusion.png",
            _confusion_title(validation),
        )
    if validation.before is not None and validation.after is not None:
        draw_calibration(
            {
                "scores alone": validation.before.bins,
                "with temperature, as nsl predict prints": validation.after.bins,
            },
            folder / "calibration.png",
        )
    write_adapt_report(classifier, dataset, folder, name, difference)


def _confusion_title(validation: CrossValidation) -> str:
    """The share that the matrix shows, and the estimate, which is corrected and so differs."""
    share = validation.confusion.trace() / validation.tested
    estimate = accuracy_text(validation).removeprefix("accuracy ")
    return (
        f"{validation.tested} images, cross-validated: {share:.1%} correct\n"
        f"estimated on new images: {estimate}"
    )


class _WithDistance(nn.Module):
    """Scores of images, and their distance from the nearest class."""

    def __init__(self, network: AdaptedNetwork, rejection: Rejection) -> None:
        super().__init__()
        self.network, self.rejection = network, rejection

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.network.features(images)
        return self.network.classifier(features), self.rejection(features)


def _write_onnx(classifier: FewShotClassifier, path: Path) -> float:
    preprocessing, network = classifier.preprocessing_, classifier.model_
    side = preprocessing.image_size
    examples = classifier.adapted().examples.images[:8]
    examples = F.interpolate(examples.float(), (side, side)).byte()  # enough for a comparison
    metadata = {
        "classes": classifier.classes_.tolist(),
        "input_size": [preprocessing.channels, side, side],
        **{key: value for key, value in preprocessing.to_dict().items() if key != "image_size"},
        "method": classifier.method_,
        "largest_distance": network.largest_distance,
    }
    model: nn.Module = network
    outputs = ["scores"]
    if network.rejection is not None:
        model, outputs = _WithDistance(network, network.rejection), ["scores", "distance"]
    return export_model(
        model,
        preprocessing.normalise(examples),
        path,
        metadata={name: json.dumps(value) for name, value in metadata.items()},
        outputs=outputs,
        scales=(0, 1),  # the distance is one minus a cosine
    )


def _readme(classifier: FewShotClassifier, preprocessing: Preprocessing, onnx: bool) -> str:
    side, channels = preprocessing.image_size, preprocessing.channels
    colour = "red, green, blue" if channels == 3 else "grey"
    share = "" if preprocessing.crop == 1 else f"{preprocessing.crop:g} times "
    limit = classifier.model_.largest_distance
    distance = (
        "`distance`, (N,), measures how far an image is from the nearest class: above\n"
        f"{limit:.4f} (largest_distance in labels.json) it is none of these classes.\n"
        if limit is not None
        else ""
    )
    network = (
        f"model.onnx takes `image`, float32 (N, {channels}, {side}, {side}), and returns\n"
        f"`scores`, (N, {len(classifier.classes_)}). The largest score is the predicted class;\n"
        "softmax turns scores into probabilities. The classes, in order, are in labels.json and\n"
        f"in the metadata of model.onnx.\n{distance}\n"
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
