"""What ``nsl adapt`` reads and writes."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from ..adapt import CrossValidation, FewShotClassifier, Preprocessing
from ..adapt.storage import write_adapted
from ..data import FolderSet
from ..data.folders import read_folder
from ..data.sets.imagefolder import INFO as IMAGEFOLDER
from ..errors import DataError
from ..export import export_model

__all__ = ["print_result", "read_classes", "write_all"]


def read_classes(folder: Path) -> FolderSet:
    """The images in a folder of folders, damaged ones left out; at least two classes."""
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder with a folder per class, got none.")
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if len(names) < 2:
        got = f"only {names[0]!r}" if names else "none"
        raise DataError(
            f"{folder}: expected a folder for each of at least two classes, got {got}. Sort the "
            f"images into folders named as the classes."
        )
    for name in names:
        if name.encode(errors="replace").decode() != name:
            raise DataError(
                f"{folder}: expected names of classes in UTF-8, got {name!r}. Rename the folder."
            )
    shown = read_folder(IMAGEFOLDER, folder, names, 1)
    counts = Counter(shown.labels.tolist())
    empty = [name for number, name in enumerate(names) if not counts[number]]
    if empty:
        raise DataError(
            f"{folder}: expected an image that can be decoded in every class, got none in "
            f"{', '.join(repr(name) for name in empty)}. Add images or remove the folder."
        )
    return shown


def write_all(
    learner: FewShotClassifier, shown: FolderSet, folder: Path, name: Path, onnx: bool
) -> None:
    """Write every file into a folder; ``name`` is what it will be called."""
    from ..plot import draw_confusion

    write_adapted(learner.adapted(), folder)
    seen: Preprocessing = learner.preprocessing_
    difference = _write_onnx(learner, folder / "model.onnx") if onnx else None
    (folder / "README.txt").write_text(_readme(learner, seen, onnx), encoding="utf-8")
    found = learner.cross_validation_
    if found.tested:
        draw_confusion(
            found.confusion,
            learner.classes_.tolist(),
            folder / "confusion.png",
            f"{found.tested} images, cross-validated\n{_accuracy(found)}",
        )
    _write_report(learner, shown, folder, name, difference)


def print_result(learner: FewShotClassifier, out: Path) -> None:
    """What people want to know first."""
    from ._table import print_table

    print_table(("class", "images", "tested", "right"), _class_rows(learner))
    found = learner.cross_validation_
    if found.tested:
        print(f"method {found.method}: {_accuracy(found)}, by {found.folds}-fold "
              f"cross-validation of {found.tested} images")  # fmt: skip
    else:
        print(f"method {found.method}: {found.note}")
    if len(found.by_method) > 1:
        print("compared: " + ", ".join(f"{n} {a:.1%}" for n, a in found.by_method.items()))
    for name, why in found.left_out.items():
        print(f"left out: {name} ({why})")
    print(f"{out}: see {out / 'report.html'}; nsl predict {shlex.quote(str(out))} IMAGE...")


def _accuracy(found: CrossValidation) -> str:
    """An accuracy with its interval."""
    if found.accuracy is None or found.interval is None:
        return "accuracy unknown"
    low, high = found.interval
    return f"accuracy {found.accuracy:.1%} (95 % interval {low:.1%} – {high:.1%})"


def _class_rows(learner: FewShotClassifier) -> list[list[Any]]:
    labels = learner.adapted().examples.labels
    found, counts = learner.cross_validation_, torch.bincount(labels).tolist()
    return [
        [str(name), count, int(row.sum()), int(row[place])]
        for place, (name, count, row) in enumerate(
            zip(learner.classes_.tolist(), counts, found.confusion, strict=True)
        )
    ]


def _write_onnx(learner: FewShotClassifier, path: Path) -> float:
    seen: Preprocessing = learner.preprocessing_
    examples = learner.adapted().examples.images[:8]
    metadata = {
        "classes": learner.classes_.tolist(),
        "input_size": [seen.channels, seen.image_size, seen.image_size],
        **{key: value for key, value in seen.to_dict().items() if key != "image_size"},
        "method": learner.method_,
    }
    return export_model(
        learner.model_,
        seen.normalise(examples),
        path,
        metadata={name: json.dumps(value) for name, value in metadata.items()},
    )


def _readme(learner: FewShotClassifier, seen: Preprocessing, onnx: bool) -> str:
    colour = "red, green, blue" if seen.channels == 3 else "grey"
    share = "" if seen.crop == 1 else f"{seen.crop:g} times "
    network = (
        "model.onnx takes `image`, float32 (N, {0}, {1}, {1}), and gives `scores`, (N, {2}).\n"
        "The largest score is the answer; softmax makes probabilities. Classes, in order, are in\n"
        "labels.json and in the file's metadata.\n\n"
        if onnx
        else ""
    ).format(seen.channels, seen.image_size, len(learner.classes_))
    return (
        "An image classifier made by `nsl adapt` of neural-similarity.\n\n"
        f"{network}"
        "How an image is prepared:\n"
        f"1. Decode it, turn it upright by its EXIF orientation, put it on white where it is\n"
        f"   transparent, make it {colour}.\n"
        f"2. Cut out the square in the middle whose side is {share}the shorter side.\n"
        f"3. Resize it to {seen.image_size} x {seen.image_size} with Pillow's {seen.interpolation} "
        "filter (antialiased).\n"
        f"4. (pixel / 255 - mean) / std in every channel,\n"
        f"   mean {list(seen.mean)},\n   std {list(seen.std)}.\n"
        "5. Channels first: (channels, height, width).\n"
    )


def _write_report(
    learner: FewShotClassifier, shown: FolderSet, folder: Path, name: Path, onnx: float | None
) -> None:
    from ..plot import Facts, Picture, Section, Table, Text, write_report

    found = learner.cross_validation_
    facts = {
        "accuracy on new images": _accuracy(found).removeprefix("accuracy "),
        "method": learner.method_,
        "backbone": learner.backbone_.name,
        "images": len(shown),
        "classes": len(learner.classes_),
    }
    parts: list[Any] = [Facts(facts), Text(found.note)]
    if len(found.by_method) > 1:
        rows = [[method, f"{share:.1%}"] for method, share in found.by_method.items()]
        parts.append(Table(("method", "accuracy"), rows))
    if found.left_out:
        out = [[method, why] for method, why in found.left_out.items()]
        parts.append(Table(("left out", "why"), out))
    sections = [Section("Result", parts)]
    per_class: list[Any] = [Table(("class", "images", "tested", "right"), _class_rows(learner))]
    if (folder / "confusion.png").is_file():
        caption = "What was told (columns) of each class (rows), by ones that had not seen it."
        per_class.append(Picture(folder / "confusion.png", caption))
    sections.append(Section("Classes", per_class))
    if shown.skipped:
        rows = [[str(bad.path.relative_to(shown.root)), bad.reason] for bad in shown.skipped]
        sections.append(Section("Files that were skipped", [Table(("file", "why"), rows)]))
    use = [Text(f"nsl predict {shlex.quote(str(name))} photo.jpg", preformatted=True)]
    if onnx is not None:
        use.append(Text("model.onnx gives the same scores without this library (they differ by "
                        f"{onnx:.0e} of the largest). How to prepare images for it:"))  # fmt: skip
    use.append(Text((folder / "README.txt").read_text(), preformatted=True))
    sections.append(Section("How to use it", use))
    if learner.backbone_.card:
        sections.append(Section("The backbone", [Text(learner.backbone_.card, preformatted=True)]))
    write_report(folder / "report.html", f"Adapted to {shown.root.name}", sections)
