"""Makes the backbones that come with the package, and measures what half precision costs.

Writes the files of ``src/neural_similarity/adapt/backbones/pretrained`` and their card from two
runs that differ only in their similarity, such as two rows of Table 6::

    nsl reproduce table6 --rows dynamic,finetune --seeds 1
    python -m experiments.backbone runs/reproduce/table6/short/{dynamic-0,finetune-0}

Each network is measured as trained and as stored, on 5-way episodes of the test classes, none of
which it was trained on.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import torch

import neural_similarity
from neural_similarity import adapt, fewshot
from neural_similarity.data import Episodes, MemorySet, dataset_info, load_dataset
from neural_similarity.errors import RunError
from neural_similarity.fewshot import FewShotRun

from .commands import command_for

NAMES = ("cnn4-dynamic", "cnn4-plain")
METHODS = ("proto", "r2d2")
SHIPPED = Path(neural_similarity.__file__).parent / "adapt" / "backbones" / "pretrained"


@dataclass(frozen=True)
class Facts:
    """What the card says about one backbone."""

    name: str
    size: int
    parameters: int
    command: str
    as_trained: dict[str, str]
    as_stored: dict[str, str]


def main() -> None:
    arguments = parse()
    runs = [FewShotRun.open(arguments.dynamic), FewShotRun.open(arguments.plain)]
    if [run.config.similarity_kind() for run in runs] != ["dynamic", "none"]:
        raise RunError("backbone: expected a run with a dynamic similarity, then one with none.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    facts = [
        make(run, name, arguments.out, arguments.episodes)
        for run, name in zip(runs, NAMES, strict=True)
    ]
    text = card(runs[0], facts, arguments.episodes)
    (arguments.out / "README.md").write_text(text, encoding="utf-8")
    print(text)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the backbones that come with the package.")
    parser.add_argument("dynamic", type=Path, help="the run with a dynamic similarity")
    parser.add_argument("plain", type=Path, help="its plain twin")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--episodes", type=int, default=600)
    return parser.parse_args()


def make(run: FewShotRun, name: str, out: Path, episodes: int) -> Facts:
    """Store a run's backbone in half precision; measure it before and after."""
    trained_backbone = adapt.load_backbone(run.folder)
    command = command_for(run.config)
    file = out / f"{name}.safetensors"
    adapt.save_backbone(
        file,
        trained_backbone.module,
        trained_backbone.source or {},
        trained_backbone.preprocessing,
        card=f"{name}: {run.config.model}, similarity {run.config.similarity_kind()}, trained on "
        f"{run.config.data}'s training classes by: {command}. Limits: a small network for small "
        f"images of objects; see the card in the package's folder adapt/backbones/pretrained.",
        half=True,
    )
    stored_backbone = adapt.load_backbone(file)
    test = load_dataset(run.config.data, "test", image_size=run.config.image_size)
    assert isinstance(test, MemorySet)
    return Facts(
        name=name,
        size=file.stat().st_size,
        parameters=sum(p.numel() for p in stored_backbone.module.parameters()),
        command=command,
        as_trained=accuracies(trained_backbone, test, episodes),
        as_stored=accuracies(stored_backbone, test, episodes),
    )


@torch.no_grad()
def accuracies(backbone: adapt.FeatureExtractor, test: MemorySet, episodes: int) -> dict[str, str]:
    """Accuracy on episodes of classes that were not trained on, with a 95 % interval."""
    preprocessing, cells = backbone.preprocessing, {}
    for name in METHODS:
        for shots in (1, 5):
            method = fewshot.create_method(name)
            network = method.build(backbone.module, 5, backbone.image_shape).eval()
            drawn = Episodes(test.labels, 5, shots, 15, seed=0, count=episodes)
            mean, std = preprocessing.mean, preprocessing.std
            result = fewshot.evaluate_method(method, network, test, drawn, mean=mean, std=std)
            cells[f"{name}, {shots} shot"] = f"{result.mean:.1%} ± {result.interval:.1%}"
    return cells


def card(run: FewShotRun, facts: list[Facts], episodes: int) -> str:
    """The model card, from the measurements."""
    environment, config = run.environment(), run.config
    columns = ["name", "", "parameters", "bytes", *facts[0].as_stored]
    rows = [
        (f"`{one.name}`", how, f"{one.parameters:,}", f"{one.size:,}", *cells.values())
        for one in facts
        for how, cells in (("as trained", one.as_trained), ("as stored", one.as_stored))
    ]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))
    prints = ", ".join(f"{part} `{one}`" for part, one in environment["data_copies"].items())
    length = f"{config.epochs:g} epochs" if config.steps is None else f"{config.steps:,} steps"
    commands = "\n".join(f"$ {one.command}" for one in facts)
    paragraphs = (
        "Made by `python -m experiments.backbone`; every number here is from that command.",
        f"**Data.** The {len(environment['classes'])} training classes of `{config.data}`, colour "
        f"images of side {environment['image_size']}. {dataset_info(config.data).description} "
        f"Fingerprints: {prints}. The pixel values were rounded to multiples of four.",
        f"**Recipe.** {length}, batches of {config.batch_size}, {config.optimizer} at "
        f"{config.learning_rate:g}, schedule {config.schedule}, weight decay "
        f"{config.weight_decay:g}, seed {config.seed}, the weights that are best on the validation "
        f"classes, PyTorch {environment['torch']}. The two networks differ only in the similarity.",
        f"```console\n{commands}\n```",
        f"**Results.** Accuracy over {episodes} 5-way episodes of 15 queries per class, from the "
        f"test classes, none of which was trained on. Kernels are stored in half precision; all "
        f"computations use single precision.",
        lines,
        "**Limits.** Small networks, briefly trained on small images of everyday objects and "
        "animals. Photographs are scaled down to that size, so small details are lost. Fine "
        "differences, text, medical and aerial images are far from the training data: there a "
        "larger backbone (`--backbone timm:NAME`) does better. The networks reflect what their "
        "data set contains and what it lacks. Do not use them to judge people.",
    )
    filled = (text if "\n" in text else fill(text, 99) for text in paragraphs)
    return "\n\n".join(("# The backbones that come with the package", *filled)) + "\n"


if __name__ == "__main__":
    main()
