"""A folder of images, with a folder per class."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from ..data import FolderSet
from ..data.folders import folder_names, images_beside, is_split, read_folder, report_beside
from ..data.sets.imagefolder import INFO as IMAGEFOLDER
from ..errors import DataError
from .output_folder import is_adapted

__all__ = ["check_not_split", "read_classes"]


def read_classes(folder: Path) -> FolderSet:
    """The images in a folder with a folder per class; damaged ones are skipped."""
    if not folder.is_dir():
        raise DataError(
            f"{folder}: expected a folder with one folder per class, got no folder with this name."
        )
    names = folder_names(folder)
    if len(names) < 2:
        loose = len(images_beside(folder))
        got = f"only {names[0]!r}" if names else "none"
        if loose:
            got += f" and {loose} image(s) directly in {folder.name}"
        raise DataError(
            f"{folder}: expected folders for at least two classes, got {got}. Sort the images "
            f"into one folder per class, and give each folder the name of its class."
        )
    check_not_split(folder)
    for name in names:
        if is_adapted(folder / name):
            raise DataError(
                f"{folder}: expected folders of images, got a classifier from nsl adapt in "
                f"{name!r}. It would count as a class. Move it out of {folder}."
            )
        if name.encode(errors="replace").decode() != name:
            raise DataError(
                f"{folder}: expected class names in UTF-8, got {name!r}. Rename the folder."
            )
    report_beside(folder)
    dataset = read_folder(replace(IMAGEFOLDER, name=str(folder)), folder, names, 1)
    counts = Counter(dataset.labels.tolist())
    empty = [name for number, name in enumerate(names) if not counts[number]]
    if empty:
        raise DataError(
            f"{folder}: expected a readable image in every class, got none in "
            f"{', '.join(repr(name) for name in empty)}. Add images or remove the folder."
        )
    return dataset


def check_not_split(folder: Path) -> None:
    """Raise if the folders are not classes, but the splits of a data set."""
    if is_split(folder):
        splits = ", ".join(folder_names(folder))
        raise DataError(
            f"{folder}: expected folders of classes, got a data set that is already split into "
            f"{splits}. Give {folder / 'train'}, and test with nsl predict."
        )
