"""``python -m experiments.adapt``: measure what is not measured yet, and write the page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from neural_similarity.adapt import FeatureExtractor, TrainingImages, load_backbone

from ..code_version import commit
from ..records import RESULTS, read_record, write_record
from .compare import compare_finetuning, compare_heads, compare_static
from .page import write_page
from .pools import Pool, embed_pool, mini_imagenet, photographs

SHOTS, WAYS = (1, 5, 10, 20), (5, 10)
TUNED = ((5, 5), (10, 10))
"""Ways and shots at which static and finetuning are measured; they take minutes a task."""


def main() -> None:
    arguments = _parse()
    backbone = load_backbone(arguments.backbone, image_size=arguments.image_size)
    for pool, other in _pools(arguments):
        folder = arguments.out / f"{backbone.name}-{backbone.preprocessing.image_size}"
        _measure(pool, other, backbone, folder, arguments)
    for file in write_page(arguments.out):
        print(f"wrote {file}")


def _measure(
    pool: Pool, other: Pool, backbone: FeatureExtractor, folder: Path, arguments: argparse.Namespace
) -> None:
    data: dict[str, TrainingImages] = {}

    def embedded(one: Pool) -> TrainingImages:
        if one.name not in data:
            data[one.name] = embed_pool(backbone, one)
        return data[one.name]

    for n_way, n_shot in [(way, shot) for way in WAYS for shot in SHOTS]:
        if len(pool.classes) < n_way:
            continue
        name = f"{pool.name.replace(', ', '-').replace(' ', '-')}-{n_way}-{n_shot}"
        tuned = (n_way, n_shot) in TUNED
        skip = ("static", *arguments.skip.split(","))
        counts = {
            "heads": arguments.draws,
            "static": tuned * arguments.static_draws,
            "finetuning": tuned * arguments.finetuning_draws,
        }
        for kind, count in counts.items():
            file = folder / f"{kind}-{name}.json"
            if not count or read_record(file) is not None:
                continue
            if kind == "heads":
                result = compare_heads(embedded(pool), n_way, n_shot, count, skip)
            elif kind == "static":
                result = compare_static(embedded(pool), n_way, n_shot, count)
            else:
                result = compare_finetuning(embedded(pool), embedded(other), n_way, n_shot, count)
            _write(file, pool, backbone, n_way, n_shot, result)


def _write(
    file: Path, pool: Pool, backbone: FeatureExtractor, n_way: int, n_shot: int,
    result: dict[str, Any],
) -> None:  # fmt: skip
    about = {
        "pool": pool.name, "classes": pool.classes, "backbone": backbone.name,
        "image_size": backbone.preprocessing.image_size, "n_way": n_way, "n_shot": n_shot,
        "commit": commit(), "torch": torch.__version__, "threads": torch.get_num_threads(),
    }  # fmt: skip
    write_record(file, json.loads(json.dumps({**about, **result})))
    print(f"wrote {file}", flush=True)


def _pools(arguments: argparse.Namespace) -> Iterator[tuple[Pool, Pool]]:
    """Every pool whose results are reported, and the one that settings are chosen on."""
    if arguments.photos is not None:
        birds, cars = arguments.photos / "birds", arguments.photos / "cars"
        other = photographs(birds, "birds, for choices", slice(0, 10))
        yield photographs(birds, "birds", slice(10, 20)), other
        yield photographs(cars, "cars", slice(0, 10)), other
    if arguments.mini is not None:
        other = mini_imagenet(arguments.mini, "val")
        yield mini_imagenet(arguments.mini, "test"), other


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.adapt", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", type=Path, help="folder with birds/CLASS and cars/CLASS")
    parser.add_argument("--mini", type=Path, help="folder of mini-ImageNet, with images and tables")
    parser.add_argument("--backbone", default="efficientnet_lite0", help="as in nsl adapt")
    parser.add_argument("--image-size", type=int, help="side of the images it reads")
    parser.add_argument("--draws", type=int, default=100, help="tasks per number (default 100)")
    parser.add_argument(
        "--static-draws", type=int, default=10, help="of them for method static (default 10)"
    )
    parser.add_argument(
        "--finetuning-draws", type=int, default=10, help="of them for finetuning (default 10)"
    )
    parser.add_argument("--skip", default="", help="methods to leave out, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS / "adapt", help="folder for results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
