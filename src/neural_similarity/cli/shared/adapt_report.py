"""The files that ``nsl adapt`` reads and writes."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from ...adapt import CrossValidation, FewShotClassifier, Preprocessing
from ...adapt.storage import write_adapted
from ...data import FolderSet
from ...data.folders import read_folder
from ...data.sets.imagefolder import INFO as IMAGEFOLDER
from ...errors import DataError
from ...export import export_model

__all__ = ["print_result", "read_classes", "write_all"]

_CLASS_COLUMNS = ("class", "images", "tested", "correct")


def read_classes(folder: Path) -> FolderSet:
    """The images in a folder that has a folder per class; damaged ones are skipped."""
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder with a folder per class, got no folder.")
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(names) < 2:
        got = f"only {names[0]!r}" if names else "none"
        raise DataError(
            f"{folder}: expected a folder for each of at least two classes, got {got}. Sort the "
            f"images into folders with the names of the classes."
        )
    for name in names:
        if name.encode(errors="replace").decode() != name:
            raise DataError(
                f"{folder}: expected class names in UTF-8, got {name!r}. Rename the folder."
            )
    dataset = read_folder(IMAGEFOLDER, folder, names, 1)
    counts = Counter(dataset.labels.tolist())
    empty = [name for number, name in enumerate(names) if not counts[number]]
    if empty:
        raise DataError(
            f"{folder}: expected a readable image in every class, got none in "
            f"{', '.join(repr(name) for name in empty)}. Add images or remove the folder."
        )
    return dataset


def write_all(
    classifier: FewShotClassifier, dataset: FolderSet, folder: Path, name: Path, onnx: bool
) -> None:
    """Write all files into a folder; ``name`` is its later name."""
    from ...plot import draw_confusion

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
            f"{validation.tested} images, cross-validated\n{_accuracy(validation)}",
        )
    _write_report(classifier, dataset, folder, name, difference)


def print_result(classifier: FewShotClassifier, out: Path) -> None:
    """Print the accuracy, by class and overall, and how to go on."""
    from .table import print_table

    print_table(_CLASS_COLUMNS, _class_rows(classifier))
    validation = classifier.cross_validation_
    if validation.tested:
        print(f"method {validation.method}: {_accuracy(validation)}, by {validation.folds}-fold "
              f"cross-validation of {validation.tested} images")  # fmt: skip
    else:
        print(f"method {validation.method}: {validation.note}")
    if len(validation.by_method) > 1:
        print("compared: " + ", ".join(f"{n} {a:.1%}" for n, a in validation.by_method.items()))
    for name, reason in validation.left_out.items():
        print(f"left out: {name} ({reason})")
    print(f"{out}: see {out / 'report.html'}; nsl predict {shlex.quote(str(out))} IMAGE...")


def _accuracy(validation: CrossValidation) -> str:
    """An accuracy with its interval."""
    if validation.accuracy is None or validation.interval is None:
        return "accuracy unknown"
    low, high = validation.interval
    return f"accuracy {validation.accuracy:.1%} (95 % interval {low:.1%} – {high:.1%})"


def _class_rows(classifier: FewShotClassifier) -> list[list[Any]]:
    confusion = classifier.cross_validation_.confusion
    counts = torch.bincount(classifier.adapted().examples.labels).tolist()
    return [
        [str(name), count, int(row.sum()), int(row[place])]
        for place, (name, count, row) in enumerate(
            zip(classifier.classes_.tolist(), counts, confusion, strict=True)
        )
    ]


def _write_onnx(classifier: FewShotClassifier, path: Path) -> float:
    preprocessing = classifier.preprocessing_
    side = preprocessing.image_size
    examples = classifier.adapted().examples.images[:8]
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


def _write_report(
    classifier: FewShotClassifier, dataset: FolderSet, folder: Path, name: Path, onnx: float | None
) -> None:
    from ...plot import Facts, Picture, Section, Table, Text, write_report

    validation = classifier.cross_validation_
    facts = {
        "accuracy on new images": _accuracy(validation).removeprefix("accuracy "),
        "method": classifier.method_,
        "backbone": classifier.backbone_.name,
        "images": len(dataset),
        "classes": len(classifier.classes_),
    }
    parts: list[Any] = [Facts(facts), Text(validation.note)]
    if len(validation.by_method) > 1:
        rows = [[method, f"{share:.1%}"] for method, share in validation.by_method.items()]
        parts.append(Table(("method", "accuracy"), rows))
    if validation.left_out:
        out = [[method, reason] for method, reason in validation.left_out.items()]
        parts.append(Table(("left out", "reason"), out))
    sections = [Section("Result", parts)]
    per_class: list[Any] = [Table(_CLASS_COLUMNS, _class_rows(classifier))]
    if (folder / "confusion.png").is_file():
        caption = (
            "Predicted classes (columns) of the images of each true class (rows). Every image was "
            "classified by a classifier that was trained without it."
        )
        per_class.append(Picture(folder / "confusion.png", caption))
    sections.append(Section("Classes", per_class))
    if dataset.skipped:
        rows = [[str(bad.path.relative_to(dataset.root)), bad.reason] for bad in dataset.skipped]
        sections.append(Section("Skipped files", [Table(("file", "reason"), rows)]))
    use = [Text(f"nsl predict {shlex.quote(str(name))} photo.jpg", preformatted=True)]
    if onnx is not None:
        use.append(
            Text(
                "model.onnx gives the same scores without this library (up to "
                f"{onnx:.0e} of the largest score). How to prepare images for it:"
            )
        )
    use.append(Text((folder / "README.txt").read_text(encoding="utf-8"), preformatted=True))
    sections.append(Section("How to use it", use))
    if classifier.backbone_.card:
        sections.append(
            Section("The backbone", [Text(classifier.backbone_.card, preformatted=True)])
        )
    write_report(folder / "report.html", f"Adapted to {dataset.root.name}", sections)
