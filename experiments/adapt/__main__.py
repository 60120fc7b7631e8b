"""``python -m experiments.adapt``: measure what is not measured yet, and write the page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from neural_similarity.adapt import FeatureExtractor, TrainingImages, load_backbone, make_adapter

from ..code_version import commit
from ..records import RESULTS, read_record, write_record
from .cells import part_name, stored_parts, task_count
from .compare import choose_rates, compare_finetuning, compare_heads, compare_static
from .finetuning import BelowLastBlocks
from .page import write_page
from .pools import Pool, embed_pool, mini_imagenet, photographs

SHOTS, WAYS = (1, 5, 10, 20), (5, 10)
TUNED = "5-5,10-10"
"""Ways and shots at which static and finetuning are measured; they take long."""
PART = 10
"""Tasks of static or finetuning in a file, so that an interrupt loses no more."""


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
    below: dict[str, BelowLastBlocks] = {}
    static: Any = None

    def embedded(one: Pool) -> TrainingImages:
        if one.name not in data:
            data[one.name] = embed_pool(backbone, one)
        return data[one.name]

    def maps(one: Pool) -> BelowLastBlocks:
        if one.name not in below:
            below[one.name] = BelowLastBlocks.of(embedded(one))
        return below[one.name]

    def write(file: Path, n_way: int, n_shot: int, result: dict[str, Any]) -> None:
        about = {
            "pool": pool.name, "classes": pool.classes, "backbone": backbone.name,
            "image_size": backbone.preprocessing.image_size, "n_way": n_way, "n_shot": n_shot,
            "commit": commit(), "torch": torch.__version__, "threads": torch.get_num_threads(),
        }  # fmt: skip
        write_record(file, json.loads(json.dumps({**about, **result})))
        print(f"wrote {file}", flush=True)

    for n_way, n_shot in [(way, shot) for way in WAYS for shot in SHOTS]:
        if len(pool.classes) < n_way:
            continue
        name = f"{pool.name.replace(', ', '-').replace(' ', '-')}-{n_way}-{n_shot}"
        file = folder / f"heads-{name}.json"
        if arguments.draws and read_record(file) is None:
            skip = ("static", *arguments.skip.split(","))
            tasks = range(arguments.draws)
            write(file, n_way, n_shot, compare_heads(embedded(pool), n_way, n_shot, tasks, skip))
        if f"{n_way}-{n_shot}" not in arguments.tuned.split(","):
            continue
        for file, tasks in _missing(folder, f"static-{name}", arguments.static_draws):
            if static is None:
                static = make_adapter("static", embedded(pool))
            write(file, n_way, n_shot, compare_static(static, n_way, n_shot, tasks))
        rates = _rates(folder, f"finetuning-{name}")
        for file, tasks in _missing(folder, f"finetuning-{name}", arguments.finetuning_draws):
            if rates is None:
                rates = choose_rates(maps(other), embedded(other), n_way, n_shot)
            result = compare_finetuning(maps(pool), embedded(pool), n_way, n_shot, tasks, rates)
            write(file, n_way, n_shot, result)


def _missing(folder: Path, name: str, count: int) -> Iterator[tuple[Path, range]]:
    """The files of tasks that are not there yet; each holds the next tasks of a list."""
    done = sum(map(task_count, stored_parts(folder, name)))
    while done < count:
        tasks = range(done, min(done + PART, count))
        yield folder / part_name(name, done), tasks
        done = tasks.stop


def _rates(folder: Path, name: str) -> dict[str, float] | None:
    """The learning rates that were chosen for the first tasks, if these are done."""
    parts = stored_parts(folder, name)
    return parts[0]["rates"] if parts else None


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
        "--static-draws", type=int, default=100, help="of them for method static (default 100)"
    )
    parser.add_argument(
        "--finetuning-draws", type=int, default=100, help="of them for finetuning (default 100)"
    )
    parser.add_argument(
        "--tuned", default=TUNED, help=f"ways and shots of these two (default {TUNED})"
    )
    parser.add_argument("--skip", default="", help="methods to leave out, separated by commas")
    parser.add_argument("--out", type=Path, default=RESULTS / "adapt", help="folder for results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
