"""The result of ``nsl adapt`` on the console."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...adapt import FewShotClassifier, missing_hint
from ...adapt.report import CLASS_COLUMNS, accuracy_text, class_rows, predict_command
from .printing import print_line
from .table import print_table

__all__ = ["print_result", "result_as_json"]


def result_as_json(classifier: FewShotClassifier, out: Path) -> dict[str, Any]:
    """The numbers that :func:`print_result` prints; ``accuracy`` is None if nothing was tested."""
    validation = classifier.cross_validation_
    confusion = validation.confusion
    return {
        "out": str(out),
        "classes": classifier.classes_.tolist(),
        "method": validation.method,
        "folds": validation.folds,
        "tested": validation.tested,
        "accuracy": validation.accuracy,
        "interval": validation.interval,
        "by_method": dict(validation.by_method),
        "right_by_class": confusion.diagonal().tolist(),
        "tested_by_class": confusion.sum(1).tolist(),
        "left_out": dict(validation.left_out),
        "likely_wrong_labels": len(validation.suspects),
        "copies_with_different_labels": len(validation.conflicts),
        "note": validation.note,
    }


def print_result(classifier: FewShotClassifier, out: Path) -> None:
    """Print the accuracy, by class and overall, and what to do next."""
    validation = classifier.cross_validation_
    if validation.tested:
        print_table(CLASS_COLUMNS, class_rows(classifier))
        print_line(
            f"method {validation.method}, by {validation.folds}-fold cross-validation of "
            f"{validation.tested} images:"
        )
        print_line(f"correct in tests: {validation.by_method[validation.method]:.1%}")
        estimate = accuracy_text(validation).removeprefix("accuracy ")
        print_line(f"estimated on new images: {estimate}, corrected as the report explains")
        if validation.folds < classifier.folds:
            print_line(
                f"folds: {validation.folds} instead of {classifier.folds}; no class has more "
                f"images that differ"
            )
    else:
        print_table(CLASS_COLUMNS[:2], [row[:2] for row in class_rows(classifier)])
        print_line(f"method {validation.method}")
        print_line(validation.note)
    if len(validation.by_method) > 1:
        print_line(
            "compared: " + ", ".join(f"{n} {a:.1%}" for n, a in validation.by_method.items())
        )
    for name, reason in validation.left_out.items():
        print_line(f"left out: {name}: {reason}")
    if validation.suspects:
        print_line(f"likely wrong labels: {len(validation.suspects)}, shown in the report")
    if validation.conflicts:
        count = len(validation.conflicts)
        groups = "1 group" if count == 1 else f"{count} groups"
        print_line(f"copies with different labels: {groups}, in the report")
    if classifier.backbone is None and (hint := missing_hint()):
        print_line(hint)
    print_line(f"{out}: see {out / 'report.html'}; {predict_command(classifier, out, 'IMAGE...')}")
