"""mini-ImageNet: 100 classes of 600 photographs, split by Ravi and Larochelle."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

import torch

from ..._io import read_regular
from ...errors import DataError
from .._cache import cached_set, key_of
from ..augment import Augment
from ..image_sets import ImageSet, MemorySet
from ..images import read_images
from ..locate import find_folder, how_to_get
from ..registry import DatasetInfo, Request, register_dataset

__all__ = ["INFO"]

INFO = DatasetInfo(
    name="mini-imagenet",
    kind="few-shot",
    splits=("train", "val", "test"),
    description="Photographs for few-shot learning: 64 / 16 / 20 classes of 600, 84 × 84.",
    augment=Augment(crop=8, flip=True),
    layout="images/ and train.csv, val.csv, test.csv (filename,label), in mini-imagenet/ or the "
    "data directory itself",
    home="https://www.image-net.org; split: https://github.com/twitter/meta-learning-lstm",
    licence="ImageNet's terms: research without commercial use",
    citation="Vinyals, Blundell, Lillicrap, Kavukcuoglu and Wierstra, 2016; Ravi and Larochelle, "
    "2017",
    by_hand="Its images come from ImageNet, whose terms do not allow us to distribute them: get "
    "them at https://www.image-net.org, choose those that the csv files of "
    "https://github.com/twitter/meta-learning-lstm name, and put both there.",
)

_LARGEST = 2**28  # bytes of a table
_SIDE = 84
_VERSION = 1


def _load(request: Request) -> ImageSet:
    root, table = request.data_dir, f"{request.split}.csv"
    folder = find_folder(
        request,
        (root / INFO.name, root),
        lambda folder: (folder / table).is_file() and (folder / "images").is_dir(),
        f"{table} and the folder images",
    )
    rows = _rows(folder / table)
    paths = [folder / "images" / name for name, _ in rows]
    stats = [_size_and_time(path, folder / table) for path in paths]
    classes = tuple(sorted({label for _, label in rows}))
    side = request.image_size or _SIDE

    def decode() -> MemorySet:
        images = read_images(paths, side, f"decoding {INFO.name} {request.split}")
        numbers = {label: number for number, label in enumerate(classes)}
        labels = torch.tensor([numbers[label] for _, label in rows])
        return MemorySet.of(INFO.name, images, labels, classes)

    key = key_of((_VERSION, side, rows, stats))
    return cached_set(f"{INFO.name}-{request.split}-{side}", key, decode, request.fresh)


def _rows(path: Path) -> list[tuple[str, str]]:
    """File and class of every image."""
    try:
        reader = csv.reader(
            io.StringIO(read_regular(path, _LARGEST).decode("utf-8-sig"), newline="")
        )
        header, rows = next(reader, []), [row for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: expected a csv file in UTF-8, got {error}.") from error
    if header != ["filename", "label"]:
        raise DataError(
            f"{path}: expected the header filename,label, got {','.join(header) or 'nothing'}."
        )
    for row in rows:
        if len(row) != 2 or Path(row[0]).name != row[0] or "\0" in row[0]:
            raise DataError(f"{path}: expected lines FILENAME,LABEL, got {','.join(row)!r}.")
    if not rows:
        raise DataError(f"{path}: expected at least one image, got none.")
    twice = [name for name, count in Counter(name for name, _ in rows).items() if count > 1]
    if twice:
        raise DataError(
            f"{path}: expected every image once, got {twice[0]!r} twice. Remove a line: the same "
            f"image could be in a support set and among its queries."
        )
    return [(name, label) for name, label in rows]


def _size_and_time(path: Path, table: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(
            f"{INFO.name}: expected {path}, which {table} lists, got no such file. "
            f"{how_to_get(INFO)}"
        ) from error
    return stat.st_size, stat.st_mtime_ns


register_dataset(INFO, _load)
