"""``nsl train``."""

from __future__ import annotations

import os
import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .shared.options import RESUME, DataDir, Force
from .shared.printing import print_error, print_line
from .shared.settings import list_settings, new_folder, wanted_settings

if TYPE_CHECKING:
    from ..train import Run, TrainConfig

__all__ = ["train"]

FIRST_LOOK = {
    "data": "digits", "model": "cnn9", "similarity": "none,static,dynamic", "epochs": 12.0,
    "log_every": 3,
}  # fmt: skip
"""The settings of ``nsl train`` without options."""
_INCIDENTAL = {"data_dir", "threads", "seed"}  # with only these, it is still FIRST_LOOK


def train(
    model: Annotated[
        str | None, typer.Option(help="Network (default: cnn9); --settings lists all names.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Data set (default: digits); nsl data list shows all.")
    ] = None,
    data_dir: DataDir = None,
    similarity: Annotated[
        str | None,
        typer.Option(
            help="none (default), static or dynamic. To compare several: none,static,dynamic."
        ),
    ] = None,
    structure: Annotated[
        str | None,
        typer.Option(help="Structure of M (default: diagonal); --settings lists all names."),
    ] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Passes over the training images (default: 30).")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of training steps, instead of epochs.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Images per step, over all processes (default: 128).")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd (default) or adam.")] = None,
    lr: Annotated[
        float | None,
        typer.Option(help="Peak learning rate (default: 0.1 for sgd, 0.001 for adam)."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed for weights, order and augmentation (default: 0).")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Number of PyTorch threads (default: PyTorch's).")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at a damaged image instead of skipping it.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="Read settings from a TOML or JSON file.")
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Start with the weights of this run (as --backbone in nsl fewshot). Its network "
            "and data are the defaults.",
        ),
    ] = None,
    similarity_epochs: Annotated[
        float | None,
        typer.Option(help="With --from: initial epochs that train only the similarity."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Start with the settings of the authors' code: authors (CIFAR), or "
            "authors-attention (Table 7). Other options and --set override it."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change any setting; nsl train --settings lists them.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run (default: a new one in runs/).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help=RESUME)] = False,
    force: Force = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write events for TensorBoard.")
    ] = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="List every setting with its default, and exit.")
    ] = False,
) -> None:
    """Train a network, or several to compare them.

    Without options, this trains three small networks on handwritten digits: a plain one, one with
    a static and one with a dynamic similarity. It takes about a minute and downloads nothing. With
    options it trains one network, with the defaults below, unless --similarity names several.

    Ctrl-C stops a run after the current step; --resume continues it.

    \b
    Examples:
      nsl train
      nsl train --model cnn9 --data cifar10 --similarity dynamic --epochs 30 --out runs/dynamic
      nsl train --resume --out runs/dynamic
      nsl train --data cifar10 --similarity dynamic --recipe authors --set hidden=32
      nsl train --from runs/plain --similarity dynamic --similarity-epochs 5 --epochs 10
      torchrun --nproc-per-node 2 -m neural_similarity train --data cifar10 --out runs/two
    """
    if settings:
        from ..train import TrainConfig

        list_settings(TrainConfig)
        return
    options = {
        "model": model, "data": data, "data_dir": None if data_dir is None else str(data_dir),
        "similarity": similarity, "structure": structure, "epochs": epochs, "steps": steps,
        "batch_size": batch_size, "optimizer": optimizer, "lr": lr, "seed": seed,
        "threads": threads, "strict": True if strict else None,
        "from_run": None if from_run is None else str(from_run.absolute()),
        "similarity_epochs": similarity_epochs,
    }  # fmt: skip
    from ..errors import RunError
    from ..train.distributed import restarted

    if resume and force:
        raise RunError("train: expected --resume or --force, got both. Use one of them.")
    if resume and out is None:
        raise RunError("train: expected --out with --resume, got none. Name the run to continue.")
    if out is None and "WORLD_SIZE" in os.environ:
        raise RunError(
            "train: expected --out with torchrun, got none. All processes share one folder. Name "
            "that folder."
        )
    resume = resume or restarted()
    chosen = wanted_settings(config, options, set_ or [])
    configs = _configurations(chosen, recipe, out if resume else None)
    _train(configs, _folder(out, configs), resume, force, tensorboard)


def _configurations(
    settings: dict[str, Any], recipe: str | None, resumed: Path | None
) -> dict[str, TrainConfig]:
    """What to train, by kind of similarity; a resumed run keeps settings not given again."""
    from ..train import Run, TrainConfig
    from ..train.runs.comparisons import read_comparison
    from ..train.start import source_settings

    is_run = resumed is not None and (resumed / "config.json").is_file()
    if recipe is not None:
        settings = _with_recipe(recipe, settings, resumed if is_run else settings.get("from_run"))
    if resumed is not None:
        comparison = read_comparison(resumed, TrainConfig)
        if comparison is not None and set(_kinds(settings) or comparison) == set(comparison):
            more = {name: value for name, value in settings.items() if name != "similarity"}
            return {
                name: TrainConfig.from_dict(_over(config.to_dict(), more))
                for name, config in comparison.items()
            }
        if is_run or not settings.keys() - _INCIDENTAL:
            settings = _over(Run.open(resumed).config.to_dict(), settings)
            return {"": TrainConfig.from_dict(settings)}
    if not settings.keys() - _INCIDENTAL:
        settings = {**FIRST_LOOK, **settings}
    if settings.get("from_run") is not None:
        settings = _over(source_settings(Run.open(settings["from_run"])), settings)
    kinds = _kinds(settings) or ["none"]
    configs = {kind: TrainConfig.from_dict({**settings, "similarity": kind}) for kind in kinds}
    _check_structure(configs)
    return configs


def _with_recipe(recipe: str, settings: dict[str, Any], start: str | Path | None) -> dict[str, Any]:
    """The settings, completed by the recipe.

    A recipe depends on the network of the run that continues or that training starts from, and does
    not change it.
    """
    from ..train import Run
    from ..train.ingredients.recipes import with_recipe
    from ..train.start import source_settings

    source = {} if start is None else source_settings(Run.open(start))
    completed = with_recipe(recipe, _over(source, settings))
    return {name: value for name, value in completed.items() if name not in source} | {
        name: value for name, value in settings.items() if name in source
    }


def _over(source: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of another run with other values; of options, those that are given."""
    merged = {
        name: {**source[name], **value}
        for name, value in settings.items()
        if isinstance(value, dict) and isinstance(source.get(name), dict)
    }
    return {**source, **settings, **merged}


def _kinds(settings: dict[str, Any]) -> list[str]:
    """The kinds of similarity in the settings, separated by commas there."""
    return [kind.strip() for kind in str(settings.get("similarity", "")).split(",") if kind.strip()]


def _check_structure(configs: dict[str, TrainConfig]) -> None:
    """Raise if a structure was chosen, but no network to train has a similarity.

    Only here: a plain network that is compared with others stores their structure.
    """
    from ..errors import RunError
    from ..train import TrainConfig

    structure = next(iter(configs.values())).structure
    if set(configs) == {"none"} and structure != TrainConfig.structure:
        raise RunError(
            f"train: expected a similarity with structure {structure!r}, got none. A plain network "
            f"has no M. Add --similarity static or --similarity dynamic, or leave the structure "
            f"out."
        )


def _folder(out: Path | None, configs: dict[str, TrainConfig]) -> Path:
    """The folder to write to; without ``--out``, a new one in ``runs``."""
    if out is not None:
        return out
    first = next(iter(configs.values()))
    name = f"{first.model}-{first.data}-{'-'.join(configs)}-{first.seed}"
    return new_folder(name)


def _train(
    configs: dict[str, TrainConfig], out: Path, resume: bool, force: bool, tensorboard: bool
) -> None:
    """Train one network into a folder, or several into subfolders of it."""
    from ..train import TrainConfig
    from ..train.distributed import World, find_device, is_first_process, world_size
    from ..train.runs.comparisons import check_comparison, read_comparison, write_comparison
    from ..train.runs.folders import alone, check_outside_images
    from ..train.task import Classification
    from .shared.train_report import report_comparison, report_run

    first = is_first_process()
    comparison = read_comparison(out, TrainConfig) if resume else None
    if comparison is None and len(configs) == 1:
        run = _train_one(next(iter(configs.values())), out, out, resume, force, tensorboard)
        if first:
            report_run(run)
        return
    if comparison is None:
        world = World(size=world_size())
        for config in configs.values():
            check_outside_images(out, config)
            find_device(config.device)
            Classification(config, world)  # raises before anything is written
    else:
        check_comparison(out, comparison, configs)
    with alone(out) if first else nullcontext():
        if first and comparison is None:
            write_comparison(out, configs, force)
        runs = {
            name: _train_one(config, out / name, out, comparison is not None, False, tensorboard)
            for name, config in configs.items()
        }
    if first:
        report_comparison(runs, out)


def _train_one(
    config: TrainConfig, folder: Path, out: Path, resume: bool, force: bool, events: bool
) -> Run:
    """Train with a progress bar; on Ctrl-C print how to continue."""
    from ..train import train as run_training
    from ..train.distributed import is_first_process
    from .shared.progress import TrainingBar, progress_bar

    with progress_bar(*TrainingBar.columns()) as bar:
        callback = TrainingBar(bar, folder.name)
        try:
            run = run_training(
                config, folder, resume=resume, force=force, callback=callback, tensorboard=events
            )
        except KeyboardInterrupt:
            bar.stop()
            can_resume = (folder / "config.json").is_file()
            command = shlex.join(["nsl", "train", "--resume", "--out", str(out)])
            hint = f" Continue with: {command}" if can_resume else ""
            if is_first_process():
                print_error(f"stopped.{hint}")
            raise typer.Exit(130) from None
    if resume and not callback.has_trained and is_first_process():
        print_line(f"{folder} had finished training; nothing was trained")
    return run
