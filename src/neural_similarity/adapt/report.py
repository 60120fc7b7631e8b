"""The report of an adapted classifier, for a browser."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import torch

from ..data import FolderSet
from .classifier import FewShotClassifier
from .cross_validation import CrossValidation

__all__ = ["CLASS_COLUMNS", "accuracy_text", "class_rows", "predict_command", "write_adapt_report"]

CLASS_COLUMNS = ("class", "images", "tested", "correct")
_MOST_NAMED = 4


def write_adapt_report(
    classifier: FewShotClassifier, dataset: FolderSet, folder: Path, name: Path, onnx: float | None
) -> None:
    from ..plot import Facts, Picture, Section, Table, Text, write_report

    validation = classifier.cross_validation_
    facts = {
        "accuracy on new images": accuracy_text(validation).removeprefix("accuracy "),
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
    per_class: list[Any] = [Table(CLASS_COLUMNS, class_rows(classifier))]
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
    use = [Text(predict_command(classifier, name), preformatted=True)]
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
    write_report(folder / "report.html", _title(classifier.classes_.tolist()), sections)


def predict_command(classifier: FewShotClassifier, folder: Path, images: str = "photo.jpg") -> str:
    """The command that classifies images with the classifier in a folder."""
    source = classifier.backbone_.source or {}
    # Code of the user is in no file, so it has to be named again.
    code = f" --backbone {shlex.quote(source['name'])}" if source.get("kind") == "factory" else ""
    return f"nsl predict {shlex.quote(str(folder))} {images}{code}"


def _title(classes: list[Any]) -> str:
    names = ", ".join(str(name) for name in classes[:_MOST_NAMED])
    return f"{len(classes)} classes: {names}{', …' if len(classes) > _MOST_NAMED else ''}"


def accuracy_text(validation: CrossValidation) -> str:
    """An accuracy with its interval."""
    if validation.accuracy is None or validation.interval is None:
        return "accuracy unknown"
    low, high = validation.interval
    return f"accuracy {validation.accuracy:.1%} (95% interval {low:.1%} – {high:.1%})"


def class_rows(classifier: FewShotClassifier) -> list[list[Any]]:
    confusion = classifier.cross_validation_.confusion
    counts = torch.bincount(classifier.adapted().examples.labels).tolist()
    return [
        [str(name), count, int(row.sum()), int(row[place])]
        for place, (name, count, row) in enumerate(
            zip(classifier.classes_.tolist(), counts, confusion, strict=True)
        )
    ]
