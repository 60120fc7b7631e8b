"""The result of ``nsl adapt`` on the console."""

from __future__ import annotations

from pathlib import Path

from ...adapt import FewShotClassifier, missing_hint
from ...adapt.report import CLASS_COLUMNS, accuracy_text, class_rows, predict_command
from .printing import print_line
from .table import print_table

__all__ = ["print_result"]


def print_result(classifier: FewShotClassifier, out: Path) -> None:
    """Print the accuracy, by class and overall, and what to do next."""
    validation = classifier.cross_validation_
    if validation.tested:
        print_table(CLASS_COLUMNS, class_rows(classifier))
        print_line(
            f"method {validation.method}: {accuracy_text(validation)}, by {validation.folds}-fold "
            f"cross-validation of {validation.tested} images"
        )
    else:
        print_table(CLASS_COLUMNS[:2], [row[:2] for row in class_rows(classifier)])
        print_line(f"method {validation.method}: {validation.note}")
    if len(validation.by_method) > 1:
        print_line(
            "compared: " + ", ".join(f"{n} {a:.1%}" for n, a in validation.by_method.items())
        )
    for name, reason in validation.left_out.items():
        print_line(f"left out: {name} ({reason})")
    if validation.suspects:
        print_line(f"likely wrong labels: {len(validation.suspects)}, shown in the report")
    if validation.conflicts:
        print_line(
            f"copies with different labels: {len(validation.conflicts)} groups, in the report"
        )
    if classifier.backbone is None and (hint := missing_hint()):
        print_line(hint)
    print_line(f"{out}: see {out / 'report.html'}; {predict_command(classifier, out, 'IMAGE...')}")
