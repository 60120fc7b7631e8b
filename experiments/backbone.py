"""How good are the backbones that come with the package, and what does half precision cost?

Makes the files of ``src/neural_similarity/fewshot/pretrained`` and their card from two runs that
were trained alike but for the similarity::

    nsl train --model cnn4 --data cifar-fs --similarity dynamic --out runs/dynamic
    nsl train --model cnn4 --data cifar-fs --similarity none --out runs/plain
    python -m experiments.backbone runs/dynamic runs/plain

Each network is measured as trained and as stored: on images of its own classes that it was not
trained on, and, where the data set has other classes for tests, on 5-way episodes of those.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch

import neural_similarity
from neural_similarity import fewshot
from neural_similarity.data import Episodes, dataset_info, eval_loader, load_dataset
from neural_similarity.errors import RunError
from neural_similarity.train import Run, evaluate

NAMES = ("cnn4-dynamic", "cnn4-plain")
METHODS = ("proto", "ridge")
SHIPPED = Path(neural_similarity.__file__).parent / "fewshot" / "pretrained"


@dataclass(frozen=True)
class Facts:
    """What is written of one backbone."""

    name: str
    size: int
    parameters: int
    command: str
    error: float
    stored_error: float
    images: int
    few_shot: dict[str, str]
    episodes: int


def main() -> None:
    arguments = parse()
    runs = [Run.open(arguments.dynamic), Run.open(arguments.plain)]
    if runs[0].config.similarity != "dynamic" or runs[1].config.similarity != "none":
        raise RunError("backbone: expected a run with a dynamic similarity, then one with none.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    facts = [
        make(run, name, arguments.out, arguments.episodes)
        for run, name in zip(runs, NAMES, strict=True)
    ]
    (arguments.out / "README.md").write_text(card(runs[0], facts), encoding="utf-8")
    print((arguments.out / "README.md").read_text())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the backbones that come with the package.")
    parser.add_argument("dynamic", type=Path, help="the run with a dynamic similarity")
    parser.add_argument("plain", type=Path, help="its plain twin")
    parser.add_argument("--out", type=Path, default=SHIPPED)
    parser.add_argument("--episodes", type=int, default=600)
    return parser.parse_args()


def make(run: Run, name: str, out: Path, episodes: int) -> Facts:
    """Write a run's backbone in half precision; measure it before and after."""
    trained = fewshot.load_backbone(run.folder)
    command = command_of(run)
    file = out / f"{name}.safetensors"
    fewshot.save_backbone(
        file,
        trained.module,
        trained.source or {},
        trained.preprocessing,
        card=f"{name}: {run.config.model}, similarity {run.config.similarity}, trained on "
        f"{run.config.data}'s training classes by: {command}. Limits: a small network for small "
        f"images of objects; see the card in the package's folder fewshot/pretrained.",
        half=True,
    )
    stored = fewshot.load_backbone(file)
    few_shot = few_shot_accuracies(run, stored, episodes)
    network = run.load_model()
    error = measured(run, network)
    features = dict(stored.module.state_dict())
    network.load_state_dict({**network.state_dict(), **features})
    return Facts(
        name=name,
        size=file.stat().st_size,
        parameters=sum(p.numel() for p in stored.module.parameters()),
        command=command,
        error=error,
        stored_error=measured(run, network),
        images=len(run.test_set()),
        few_shot=few_shot,
        episodes=episodes,
    )


def command_of(run: Run) -> str:
    """How the run was trained, without where its files are."""
    words = iter(run.environment()["command"][1:])
    kept = ["nsl"]
    for word in words:
        if word in ("--out", "--data-dir"):
            next(words)
        elif word not in ("--force", "--resume"):
            kept.append(word)
    return " ".join(kept)


def measured(run: Run, network: torch.nn.Module) -> float:
    """The error on images of the run's own classes."""
    mean, std = run.normalisation()
    return evaluate(network, eval_loader(run.test_set(), 256, mean=mean, std=std)).error


def few_shot_accuracies(run: Run, backbone: fewshot.Backbone, episodes: int) -> dict[str, str]:
    """Accuracy on 5-way episodes of classes that were not trained on, if there are any."""
    if dataset_info(run.config.data).kind != "few-shot":
        return {}
    test = load_dataset(run.config.data, "test", run.config.data_dir)
    mean, std = run.normalisation()
    accuracies = {}
    for name in METHODS:
        for shots in (1, 5):
            method = fewshot.create_method(name)
            learner = method.build(backbone.module, 5, backbone.image_shape).eval()
            drawn = Episodes(test.labels, 5, shots, 15, seed=0, count=episodes)
            result = fewshot.evaluate_method(method, learner, test, drawn, mean=mean, std=std)
            accuracies[f"{name}, {shots} shot"] = f"{result.mean:.1%} ± {result.interval:.1%}"
    return accuracies


def card(run: Run, facts: list[Facts]) -> str:
    """The model card, from what was measured."""
    known, config = run.environment(), run.config
    rows = [
        f"| `{one.name}` | {one.parameters:,} | {one.size:,} | {one.error:.2%} | "
        f"{one.stored_error:.2%} | "
        + " | ".join(one.few_shot.values())
        + (" |" if one.few_shot else "")
        for one in facts
    ]
    columns = ["name", "parameters", "bytes", "error", "error as stored", *facts[0].few_shot]
    head = f"| {' | '.join(columns)} |\n| {' | '.join('---' for _ in columns)} |"
    copies = ", ".join(f"{part} `{copy}`" for part, copy in known["data_copies"].items())
    length = f"{config.epochs:g} epochs" if config.steps is None else f"{config.steps:,} steps"
    commands = "\n".join(f"$ {one.command}" for one in facts)
    few = (
        f"The other columns: accuracy over {facts[0].episodes} 5-way episodes of 15 queries, of "
        f"classes that were not trained on, by the network as stored."
        if facts[0].few_shot
        else "This data set has no classes apart, so few-shot accuracy was not measured."
    )
    return f"""# The backbones that come with the package

Made by `python -m experiments.backbone`; every number here is from that command.

**Data.** `{config.data}`, {len(known["classes"])} classes, side {known["image_size"]}.
{dataset_info(config.data).description} Copies: {copies}.

**Recipe.** {length}, batches of {config.batch_size}, {config.optimizer} at
{config.learning_rate:g}, schedule {config.schedule}, weight decay {config.weight_decay:g}, seed
{config.seed}, PyTorch {known["torch"]}. The two networks differ in the similarity alone.

```console
{commands}
```

**Results.** Kernels are stored in half precision and computed with in single. Error: on
{facts[0].images:,} images of the training classes that were not trained on.

{head}
{chr(10).join(rows)}

{few}

**Limits.** Small networks that have seen small images of everyday objects and animals. Fine
differences, text, medical and aerial images are far from what they know: there a larger backbone
(`--backbone timm:NAME`) does better. They reflect what their data set holds and leaves out. Do not
use them to judge people.
"""


if __name__ == "__main__":
    main()
