"""``python -m experiments.adapt``: measure what is not measured yet, and write the page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch

from neural_similarity.adapt import (
    TUNING,
    FeatureExtractor,
    StaticAdapter,
    TrainingImages,
    load_backbone,
)

from ..code_version import commit
from ..records import RESULTS, read_record, write_record
from .cells import part_name, stored_parts, task_count
from .compare import choose_rates, compare_finetuning, compare_heads, compare_static
from .finetuning import BelowLastBlocks
from .page import write_page
from .pools import Pool, add_pool_options, embed_pool, mini_imagenet, photographs

SHOTS, WAYS = (1, 5, 10, 20), (5, 10)
TUNED = "5-5,10-10"
"""Ways and shots at which static and finetuning are measured; they take long."""
PART = 10
"""Tasks of static or finetuning in a file, so that an interrupt loses no more."""


def main() -> None:
    arguments = _parse()
    backbone = load_backbone(arguments.backbone, image_size=arguments.image_size)
    for pool, other in _pools(arguments):
        _Comparison(pool, other, backbone, arguments).run()
    for file in write_page(arguments.out):
        print(f"wrote {file}")


class _Comparison:
    """All ways to adapt a backbone to a pool; what takes long is computed when it is needed.

    Args:
        pool: images of the classes that are reported.
        other: images of the classes that learning rates are chosen on.
        backbone: the network.
        arguments: those of the command line.
    """

    def __init__(
        self, pool: Pool, other: Pool, backbone: FeatureExtractor, arguments: argparse.Namespace
    ) -> None:
        self.pool, self.other, self.backbone, self.arguments = pool, other, backbone, arguments
        self.folder = arguments.out / f"{backbone.name}-{backbone.preprocessing.image_size}"

    @cached_property
    def images(self) -> TrainingImages:
        return embed_pool(self.backbone, self.pool)

    @cached_property
    def maps(self) -> BelowLastBlocks:
        return BelowLastBlocks.of(self.images)

    @cached_property
    def static(self) -> StaticAdapter:
        return StaticAdapter(self.images)

    def run(self) -> None:
        """Measure what has no file yet."""
        for n_way, n_shot in product(WAYS, SHOTS):
            if len(self.pool.classes) < n_way:
                continue
            self.heads(n_way, n_shot)
            if f"{n_way}-{n_shot}" in self.arguments.tuned.split(","):
                self.tune_static(n_way, n_shot)
                self.finetune(n_way, n_shot)

    def heads(self, n_way: int, n_shot: int) -> None:
        file = self.folder / f"heads-{self.name(n_way, n_shot)}.json"
        if self.arguments.draws and read_record(file) is None:
            skip = (*TUNING, *self.arguments.skip.split(","))
            tasks = range(self.arguments.draws)
            result = compare_heads(self.images, n_way, n_shot, tasks, skip)
            self.write(file, n_way, n_shot, result)

    def tune_static(self, n_way: int, n_shot: int) -> None:
        name = f"static-{self.name(n_way, n_shot)}"
        for file, tasks in _missing_parts(self.folder, name, self.arguments.static_draws):
            self.write(file, n_way, n_shot, compare_static(self.static, n_way, n_shot, tasks))

    def finetune(self, n_way: int, n_shot: int) -> None:
        name = f"finetuning-{self.name(n_way, n_shot)}"
        for file, tasks in _missing_parts(self.folder, name, self.arguments.finetuning_draws):
            rates = self.rates(name, n_way, n_shot)
            result = compare_finetuning(self.maps, self.images, n_way, n_shot, tasks, rates)
            self.write(file, n_way, n_shot, result)

    def rates(self, name: str, n_way: int, n_shot: int) -> dict[str, float]:
        """The learning rates of the first tasks, if these are done; otherwise chosen now."""
        if parts := stored_parts(self.folder, name):
            rates: dict[str, float] = parts[0]["rates"]
            return rates
        images = embed_pool(self.backbone, self.other)
        return choose_rates(BelowLastBlocks.of(images), images, n_way, n_shot)

    def name(self, n_way: int, n_shot: int) -> str:
        return f"{self.pool.name.replace(', ', '-').replace(' ', '-')}-{n_way}-{n_shot}"

    def write(self, file: Path, n_way: int, n_shot: int, result: dict[str, Any]) -> None:
        about = {
            "pool": self.pool.name, "classes": self.pool.classes, "backbone": self.backbone.name,
            "image_size": self.backbone.preprocessing.image_size, "n_way": n_way, "n_shot": n_shot,
            "commit": commit(), "torch": torch.__version__, "threads": torch.get_num_threads(),
        }  # fmt: skip
        write_record(file, json.loads(json.dumps({**about, **result})))
        print(f"wrote {file}", flush=True)


def _missing_parts(folder: Path, name: str, count: int) -> Iterator[tuple[Path, range]]:
    """The files of tasks that are not there yet; each holds the next tasks of a list."""
    start = sum(map(task_count, stored_parts(folder, name)))
    while start < count:
        tasks = range(start, min(start + PART, count))
        yield folder / part_name(name, start), tasks
        start = tasks.stop


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
    add_pool_options(parser)
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
