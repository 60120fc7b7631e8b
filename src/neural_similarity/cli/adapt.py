"""``nsl adapt``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .shared.options import BackboneSpec, Force

if TYPE_CHECKING:
    from ..adapt import FeatureExtractor

__all__ = ["adapt"]


def adapt(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="A folder with one folder of images per class."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write, outside FOLDER.")],
    method: Annotated[
        str,
        typer.Option(
            help="Leave it out: auto takes ensemble, unless another one is clearly better in "
            "cross-validation. Or ensemble, linear, laplace, ridge, proto, dynamic, static, blocks."
        ),
    ] = "auto",
    backbone: BackboneSpec = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Side of the network's input in pixels (default: the backbone's, such as 224). "
            "Smaller is faster.",
            show_default=False,
        ),
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            help="Mean of the network's inputs, per channel, such as 0.485,0.456,0.406 (default: "
            "the backbone's).",
            show_default=False,
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(
            help="Standard deviation of the network's inputs, per channel (default: the "
            "backbone's).",
            show_default=False,
        ),
    ] = None,
    crop: Annotated[
        float | None,
        typer.Option(
            help="Side of the centre square that is used, as a share of the shorter side (default: "
            "the backbone's, such as 0.875; 1 is all of it).",
            show_default=False,
        ),
    ] = None,
    classifier: Annotated[
        str | None,
        typer.Option(
            help="Name of the backbone's classification layer, if it is not found.",
            show_default=False,
        ),
    ] = None,
    structure: Annotated[
        str | None,
        typer.Option(
            help="With --method static: what M may be, such as unconstrained (default), orthogonal "
            "or diagonal.",
            show_default=False,
        ),
    ] = None,
    scope: Annotated[
        str | None,
        typer.Option(
            help="With --method static: what shares an M: layer (default), channel, kernel, full.",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            help="With --method static: the layers that get a similarity. 50% is the last half of "
            "them (default: the last third). conv1,conv2 are the layers whose names end in conv1 "
            "or conv2. all-conv is all convolutions. Anything else is a regular expression over "
            "whole names. Names are those of named_modules() in PyTorch.",
            show_default=False,
        ),
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds of cross-validation; 1 skips it.")] = 5,
    seed: Annotated[int, typer.Option(help="Seed for the folds.")] = 0,
    onnx: Annotated[bool, typer.Option(help="Also write model.onnx.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    force: Force = False,
) -> None:
    """Learn your own classes from a few images of each.

    FOLDER has a folder for each class, with at least one image in each; five to fifty work well.
    Sizes may differ. JPEG, PNG, TIFF, WebP, HEIC and other usual formats are read; camera RAW and
    microscope formats are not: convert them first.
    DIR gets the classifier (for nsl predict and FewShotClassifier.load), model.onnx for other
    programs, labels.json, README.txt and a report with cross-validated accuracy.

    \b
    nsl adapt my-images --out birds
    nsl adapt my-images --out birds --backbone efficientnet_lite2
    nsl adapt my-images --out birds --method static --backbone runs/mine
    nsl adapt my-images --out birds --method static --structure orthogonal --layers 50%
    nsl adapt my-images --out birds --backbone timm:resnet18
    nsl predict birds photo.jpg
    """
    from .. import _check
    from ..adapt import FewShotClassifier
    from ..adapt.deliver import write_all
    from ..adapt.image_folder import read_classes
    from ..adapt.methods import METHODS, static_options
    from ..adapt.output_folder import check_output_folder, output_folder
    from ..data.folders import check_outside
    from ..export.onnx import check_packages
    from .shared.adapt_result import print_result, result_as_json
    from .shared.printing import others_print_to_stderr, print_json
    from .shared.progress import StageBar, progress_bar
    from .shared.signals import ends_on_sigterm, says_on_interrupt

    _check.known_name("adapt", "--method", method, ("auto", *METHODS))
    tuned: dict[str, Any] = {"structure": structure, "scope": scope, "layers": _layers(layers)}
    static_options(method, **tuned)  # raises early, before images are read
    check_outside(out, folder)
    check_output_folder(out, force)
    if onnx:
        check_packages()
    with says_on_interrupt("stopped; nothing was written"):
        dataset = read_classes(folder)
        extractor = None
        changes = (image_size, mean, std, crop, classifier)
        if backbone is not None or any(change is not None for change in changes):
            with others_print_to_stderr():
                extractor = _backbone(backbone, image_size, mean, std, crop, classifier)
        fitted = FewShotClassifier(method, extractor, folds, seed, **tuned)
        labels = [dataset.classes[number] for number in dataset.labels.tolist()]
        with others_print_to_stderr(), progress_bar() as bar:
            stages = StageBar(bar)
            fitted.fit(dataset.paths, labels, stages)
            with ends_on_sigterm(), output_folder(out, force) as new:
                write_all(fitted, dataset, new, out, onnx, stages)
    if as_json:
        print_json(result_as_json(fitted, out))
    else:
        print_result(fitted, out)


def _backbone(
    spec: str | None,
    image_size: int | None = None,
    mean: str | None = None,
    std: str | None = None,
    crop: float | None = None,
    classifier: str | None = None,
) -> FeatureExtractor:
    """The backbone described by the options."""
    from ..adapt import load_backbone
    from .shared.one_module import named_module_here

    with named_module_here(spec):
        return load_backbone(
            spec,
            image_size=image_size,
            mean=_numbers("--mean", mean),
            std=_numbers("--std", std),
            crop=crop,
            classifier=classifier,
        )


def _layers(text: str | None) -> float | str | list[str] | None:
    r"""The layers that an option names: a share of the last ones, name suffixes, or a pattern.

    >>> _layers("50%"), _layers("all-conv"), _layers("conv1,2.conv"), _layers(r"stages\.\d+")
    (0.5, 'all-conv', ['conv1', '2.conv'], 'stages\\.\\d+')
    """
    if text is None or text == "all-conv":
        return text
    if re.fullmatch(r"\d+(\.\d+)?%", text):
        return float(text[:-1]) / 100
    return text.split(",") if re.fullmatch(r"[\w.-]+(,[\w.-]+)*", text) else text


def _numbers(option: str, text: str | None) -> list[float] | None:
    from ..errors import RunError

    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise RunError(f"{option}: expected numbers separated by commas, got {text!r}.") from error
