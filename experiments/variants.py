"""Variants of one M per image, compared on classes that are not reported.

Which gate, which initial values, which layers, how many positions per M? Every network is
trained on CIFAR-FS as in the study of equal cost, with other seeds, and measured on 1,000 episodes
of the validation classes (5 ways, 5 shots).

Run: ``python -m experiments.variants --work DIR`` trains what has no result yet, and writes
``experiments/results/variants/<variant>-<seed>.json``. A stopped run continues. ``nsl reproduce
report`` writes the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from neural_similarity.errors import NeuralSimilarityError
from neural_similarity.fewshot import FewShotConfig, train_method
from neural_similarity.train import keep_freed_memory

from .code_version import commit
from .queue.run_record import run_record
from .records import RESULTS, read_record, write_record
from .tables.equal_cost import STUDIES, member_settings

__all__ = ["PLAIN", "SEEDS", "VARIANTS", "WINNER", "config_of", "result_file"]

FOLDER = "variants"
SEEDS = (100, 101, 102)
PLAIN, WINNER = "plain", "image"
_IMAGE, _PIXEL = member_settings("image-both-8"), member_settings("pixel-taps-8")
_PATCH = member_settings("patch-taps-8")

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    PLAIN: ("Plain", {}),
    WINNER: ("One M per image, over taps and channels: 2·sigmoid, identity start", _IMAGE),
    "none": ("… without a gate", member_settings("image-both-8-none")),
    "tanh": ("… 1 + tanh", member_settings("image-both-8-tanh")),
    "random": ("… random start", {**_IMAGE, "predictor_options": {"start": "random"}}),
    "norm": ("… BatchNorm in the predictor", {**_IMAGE, "predictor_options": {"batch_norm": True}}),
    "early": ("… in the first two layers", {**_IMAGE, "layers": r"stages\.[01]\.0"}),
    "late": ("… in the last two layers", {**_IMAGE, "layers": r"stages\.[23]\.0"}),
    "inner": ("… in all layers but the first", {**_IMAGE, "layers": r"stages\.[123]\.0"}),
    "hidden-32": ("… 32 hidden units", {**_IMAGE, "hidden": 32}),
    "image-taps": ("One M per image, over taps", member_settings("image-taps-8")),
    "square-taps": (
        "One M per square of 4 × 4 positions, over taps",
        {**_PIXEL, "predictor_options": {"pool": 4}},
    ),
    "pixel-taps": ("One M per position, from its pixel, over taps", _PIXEL),
    "shared": (
        "One M per position, from its patch, over taps, one predictor for all layers",
        {**_PATCH, "shared": True},
    ),
    "patch-taps": ("One M per position, from its patch, over taps", _PATCH),
}
"""Title and changed settings, by name."""


def config_of(name: str, seed: int) -> FewShotConfig:
    """The training of a variant; its only validation is the measurement."""
    study = STUDIES["equal-cost-cifar-fs"]
    plain = next(row for row in study.rows if row.name == study.baseline).training("short", seed)
    assert isinstance(plain, FewShotConfig)
    once = replace(plain, eval_every=int(plain.epochs), val_episodes=plain.episodes, threads=1)
    return replace(once, **VARIANTS[name][1])


def result_file(results: Path, name: str, seed: int) -> Path:
    """The file of a result."""
    return results / FOLDER / f"{name}-{seed}.json"


def run(name: str, seed: int, work: Path, results: Path) -> None:
    """Train a variant, and store what it reaches."""
    finished_run = train_method(config_of(name, seed), work / f"{name}-{seed}", resume=True)
    last = [line for line in finished_run.metrics() if line["kind"] == "eval"][-1]
    record = {
        "variant": name,
        "seed": seed,
        "commit": commit(),
        "commits": finished_run.commits(),
        **run_record(finished_run, finished_run.config),
        "accuracy": 100 * (1 - last["error"]),
        "interval": 100 * last["interval"],
        "episodes": last["episodes"],
    }
    write_record(result_file(results, name, seed), record)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.variants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="VARIANT", help=", ".join(VARIANTS))
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many (default 3)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(words)
    unknown = [name for name in arguments.names if name not in VARIANTS]
    if unknown:
        parser.error(f"expected some of {', '.join(VARIANTS)}, got {', '.join(unknown)}")
    keep_freed_memory()
    try:
        for seed in SEEDS[: arguments.seeds]:
            for name in arguments.names or VARIANTS:
                if read_record(result_file(arguments.results, name, seed)) is None:
                    print(f"{name}-{seed}", flush=True)
                    run(name, seed, arguments.work, arguments.results)
    except NeuralSimilarityError as error:
        parser.exit(2, f"{error}\n")
    except KeyboardInterrupt:
        parser.exit(130, "Stopped. Run the same command to continue.\n")


if __name__ == "__main__":
    main()
