"""``nsl predict``."""

from __future__ import annotations

from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .shared.options import Force
from .shared.printing import (
    others_print_to_stderr,
    print_error,
    print_json,
    print_line,
    printable,
)

if TYPE_CHECKING:
    from ..adapt import FewShotClassifier
    from ..adapt.prediction import Prediction
    from ..adapt.storage import Examples

__all__ = ["predict"]

_BATCH, _MOST_DRAWN, _EXAMPLES = 64, 30, 5


def predict(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder that nsl adapt --out DIR wrote.")
    ],
    images: Annotated[
        list[str],
        typer.Argument(metavar="IMAGE", help="Files, folders or patterns such as '*.jpg'."),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="How many classes to print for each image.")] = 3,
    why: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            help="Draw each image next to the most similar training images.",
            show_default=False,
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="If nsl adapt had --backbone module:function, give the same here.",
            show_default=False,
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Classify images with a classifier trained by nsl adapt.

    An image that is unlike every class is "none of these", followed by the nearest classes. Images
    that are missing or cannot be decoded are named and skipped. The exit code is then 1, or 2 if no
    image could be classified.

    \b
    nsl predict birds photo.jpg
    nsl predict birds holiday/ '*.png' --json
    nsl predict birds photo.jpg --why why.png
    """
    from ..adapt import FewShotClassifier
    from ..errors import RunError
    from .shared.one_module import named_module_here

    if why is not None:
        _check_picture(why, force)
    files = _files(images)
    with named_module_here(backbone), others_print_to_stderr():
        classifier = FewShotClassifier.load(folder, backbone)
    examples = classifier.adapted().examples if why is not None else None
    count, first = _predict_files(classifier, files, top, as_json)
    if not count:
        raise RunError(
            f"predict: expected an image that can be decoded, got none in {len(files)} file(s)."
        )
    if why is not None and examples is not None:
        _draw(classifier.classes_.tolist(), examples, first, why)
        if count > len(first):
            print_error(f"{why} shows the first {len(first)} of {count:,}")
    if count < len(files):
        raise typer.Exit(1)


def _check_picture(why: Path, force: bool) -> None:
    """Raise early unless the picture can be written there."""
    from ..errors import RunError

    if why.is_dir():
        raise RunError(f"--why: expected a file such as why.png, got the folder {why}.")
    if why.suffix.lower() != ".png":
        raise RunError(
            f"--why: expected a name that ends in .png, got {why}. The picture is saved as PNG."
        )
    if not why.absolute().parent.is_dir():
        raise RunError(f"--why: expected a folder that exists, got {why.parent}. Create it first.")
    if why.exists() and not force:
        raise RunError(
            f"{why}: expected a new file, got one that exists. Overwrite it with --force."
        )


def _files(arguments: Iterable[str]) -> list[Path]:
    """The files that arguments name: files, the images in folders, the matches of patterns.

    Broken links and missing files are among them; they are reported later.
    """
    from ..data.folders import files_below
    from ..data.formats import EXTENSIONS
    from ..errors import DataError

    files: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        if path.is_dir():
            some = [file for file in files_below(path) if file.suffix.lower() in EXTENSIONS]
        elif has_magic(argument) and not path.exists() and not path.is_symlink():
            some = _matching(argument)
        else:
            some = [path]
        if not some:
            raise DataError(f"{argument}: expected an image or a folder of images, got none.")
        files += some
    return list(dict.fromkeys(files))


def _matching(pattern: str) -> list[Path]:
    names = glob(pattern, recursive=True)  # noqa: PTH207 (Path.glob takes no absolute patterns)
    return [path for path in map(Path, sorted(names)) if not path.is_dir()]


def _predict_files(
    classifier: FewShotClassifier, files: list[Path], top: int, as_json: bool
) -> tuple[int, list[Prediction]]:
    """Classify and print, batch by batch; returns how many were classified, and the first ones."""
    from ..adapt.preprocessing import in_batches
    from .shared.progress import progress_bar

    count, first = 0, []
    with progress_bar() as bar:
        task = bar.add_task("images", total=len(files))
        for batch in in_batches(files, _BATCH):
            with others_print_to_stderr():  # the network may be the user's code
                results = classifier.predict_files(batch)
            for file, result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    _print_trouble(file, str(result), as_json)
                    continue
                _print(classifier, result, top, as_json)
                count += 1
                if count <= _MOST_DRAWN:
                    first.append(result)
            bar.advance(task, len(batch))
    return count, first


def _print(classifier: FewShotClassifier, prediction: Prediction, top: int, as_json: bool) -> None:
    classes = classifier.classes_.tolist()
    shares, places = prediction.probabilities.topk(min(top, len(classes)))
    likely = [
        (classes[place], round(share, 6))
        for share, place in zip(shares.tolist(), places.tolist(), strict=True)
    ]
    if as_json:
        best = [{"class": name, "probability": share} for name, share in likely]
        can_reject = classifier.model_.rejection is not None  # not without cross-validation
        is_known = prediction.is_known if can_reject else None
        print_json({"image": str(prediction.file), **best[0], "known": is_known, "top": best})
    else:
        words = ", ".join(f"{name} {share:.1%}" for name, share in likely)
        words = words if prediction.is_known else f"none of these (nearest: {words})"
        print_line(f"{prediction.file}: {words}")


def _print_trouble(file: Path, reason: str, as_json: bool) -> None:
    if as_json:
        print_json({"image": str(file), "error": reason})
    print_error(reason)


def _draw(
    classes: list[Any], examples: Examples, predictions: list[Prediction], path: Path
) -> None:
    """Draw each image next to the examples whose features have the most similar direction."""
    import torch.nn.functional as F

    from ..adapt.training_images import as_array
    from ..plot import Explained, draw_neighbours

    images, labels, features, _ = examples
    rows = []
    for one in predictions:
        cosine = F.cosine_similarity(one.features[None], features)
        nearest = cosine.topk(min(_EXAMPLES, len(images))).indices.tolist()
        share, place = one.probabilities.max(0)
        near = [(as_array(images[n]), str(classes[labels[n]]), cosine[n].item()) for n in nearest]
        name = str(classes[int(place)])
        rows.append(
            Explained(
                printable(Path(one.file).name),
                as_array(one.picture),
                name,
                share.item(),
                near,
                one.is_known,
            )
        )
    draw_neighbours(rows, path)
