"""The report of an adapted classifier, for a browser."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..data import FolderSet
from .backbones.load import missing_hint
from .classifier import FewShotClassifier
from .training_images import as_array
from .validation import CrossValidation

if TYPE_CHECKING:  # plotting takes a second to import
    from ..plot import Part, Section

__all__ = ["CLASS_COLUMNS", "accuracy_text", "class_rows", "predict_command", "write_adapt_report"]

CLASS_COLUMNS = ("class", "images", "tested", "correct")
_MOST_NAMED, _MOST_SHOWN = 4, 24


def write_adapt_report(
    classifier: FewShotClassifier, dataset: FolderSet, folder: Path, name: Path, onnx: float | None
) -> None:
    """Write ``report.html``; ``folder`` holds the other files, and ``name`` is its final name."""
    from ..plot import Section, Text, write_report

    sections = [
        Section("Result", list(_result(classifier, dataset))),
        Section("Classes", list(_classes(classifier, folder))),
        *_images(classifier, dataset),
        *_skipped(dataset),
        Section("How to use it", list(_use(classifier, folder, name, onnx))),
    ]
    if card := classifier.backbone_.card:
        sections.append(Section("The backbone", [Text(card)]))
    write_report(folder / "report.html", _title(classifier.classes_.tolist()), sections)


def _result(classifier: FewShotClassifier, dataset: FolderSet) -> Iterator[Part]:
    from ..plot import Facts, Table, Text

    validation = classifier.cross_validation_
    facts = {
        "estimated accuracy on new images": accuracy_text(validation).removeprefix("accuracy "),
        "method": classifier.method_,
        "backbone": classifier.backbone_.name,
        "images": len(dataset),
        "classes": len(classifier.classes_),
    }
    if (limit := classifier.model_.largest_distance) is not None:
        facts["none of these"] = (
            f"images at a distance above {limit:.3f} from every class; about 5% of new images of "
            f"your classes are rejected by mistake"
        )
    yield Facts(facts)
    yield Text(validation.note)
    if classifier.backbone is None and (hint := missing_hint()):
        yield Text(hint)
    if len(validation.by_method) > 1:
        rows = [[method, f"{share:.1%}"] for method, share in validation.by_method.items()]
        yield Table(("method", "correct in tests"), rows)
    if validation.left_out:
        yield Table(("left out", "reason"), list(map(list, validation.left_out.items())))


def _classes(classifier: FewShotClassifier, folder: Path) -> Iterator[Part]:
    from ..plot import Picture, Table

    if not classifier.cross_validation_.is_tested:
        yield Table(CLASS_COLUMNS[:2], [row[:2] for row in class_rows(classifier)])
        return
    yield Table(CLASS_COLUMNS, class_rows(classifier))
    yield Picture(
        folder / "confusion.png",
        "Predicted classes (columns) of the images of each true class (rows). Every image was "
        "classified by a classifier that was trained without it.",
    )
    yield Picture(
        folder / "calibration.png",
        "Share of correct predictions (vertical) by predicted probability (horizontal), in groups "
        "of equally many images. On the dashed line, the two agree: of predictions made with 80% "
        "probability, 80% are correct.",
    )


def _images(classifier: FewShotClassifier, dataset: FolderSet) -> Iterator[Section]:
    """Images to look at: likely wrong labels, copies with different labels, wrong predictions."""
    from ..plot import Gallery, Section, Text

    validation, classes = classifier.cross_validation_, classifier.classes_.tolist()
    examples = classifier.adapted().examples
    labels = [str(classes[number]) for number in examples.labels.tolist()]
    guesses = [str(classes[n]) if n >= 0 else "" for n in validation.predicted.tolist()]

    def make_gallery(rows: Sequence[int], words: Callable[[int], str]) -> Gallery:
        pictures = [as_array(examples.images[row]) for row in rows]
        names = [Path(dataset.files[row]) for row in rows]
        return Gallery(pictures, [f"{words(r)}: {n}" for r, n in zip(rows, names, strict=True)])

    def mistake(row: int) -> str:
        return f"{labels[row]}, classified as {guesses[row]} ({validation.confidence[row]:.0%})"

    suspects = [suspect.row for suspect in validation.suspects]
    if suspects:
        text = "In cross-validation, these clearly looked like another class. Are the labels right?"
        gallery = make_gallery(suspects[:_MOST_SHOWN], mistake)
        yield Section("Likely wrong labels", [Text(_cut(text, suspects)), gallery])
    conflicts = [row for group in validation.conflicts for row in group]
    if conflicts:
        text = "These are nearly the same picture, in different classes."
        gallery = make_gallery(conflicts[:_MOST_SHOWN], lambda row: labels[row])
        yield Section("Copies with different labels", [Text(_cut(text, conflicts)), gallery])
    wrong = [r for r in validation.misclassified(examples.labels).tolist() if r not in suspects]
    if wrong:
        text = (
            "In cross-validation, these were classified as another class, most confident mistakes "
            "first."
        )
        gallery = make_gallery(wrong[:_MOST_SHOWN], mistake)
        yield Section("Wrongly classified images", [Text(_cut(text, wrong)), gallery])


def _cut(text: str, rows: Sequence[int]) -> str:
    more = len(rows) > _MOST_SHOWN
    return f"{text} The first {_MOST_SHOWN} of {len(rows)}:" if more else text


def _skipped(dataset: FolderSet) -> Iterator[Section]:
    from ..plot import Section, Table

    if dataset.skipped:
        rows = [[str(bad.path.relative_to(dataset.root)), bad.reason] for bad in dataset.skipped]
        yield Section("Skipped files", [Table(("file", "reason"), rows)])


def _use(
    classifier: FewShotClassifier, folder: Path, name: Path, onnx: float | None
) -> Iterator[Part]:
    from ..plot import Text

    yield Text(predict_command(classifier, name), preformatted=True)
    if onnx is not None:
        yield Text(
            f"model.onnx gives the same scores without this library (up to {onnx:.0e} of the "
            f"largest score). How to prepare images for it:"
        )
    yield Text((folder / "README.txt").read_text(encoding="utf-8"), preformatted=True)


def predict_command(classifier: FewShotClassifier, folder: Path, images: str = "photo.jpg") -> str:
    """The command that classifies images with the classifier in a folder."""
    source = classifier.backbone_.source or {}
    # The user's code is not stored, so it has to be named again.
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
