"""``nsl train``."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ._options import DataDir, Force
from ._settings import list_settings, new_folder, wanted_settings

if TYPE_CHECKING:
    from ..train import Run, TrainConfig

__all__ = ["train"]

FIRST_LOOK = {
    "data": "digits", "model": "cnn9", "similarity": "none,static,dynamic", "epochs": 12.0,
    "log_every": 3,
}  # fmt: skip
"""What is trained when nothing is asked for."""
_INCIDENTAL = {"data_dir", "threads", "seed"}  # these alone ask for nothing


def train(
    model: Annotated[str | None, typer.Option(help="A network, such as cnn9.")] = None,
    data: Annotated[str | None, typer.Option(help="A data set; see nsl data list.")] = None,
    data_dir: DataDir = None,
    similarity: Annotated[
        str | None,
        typer.Option(help="none, static or dynamic; several, with commas, are trained in turn."),
    ] = None,
    structure: Annotated[str | None, typer.Option(help="What M may be: diagonal, ...")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the training images.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps in all, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adam.")] = None,
    lr: Annotated[float | None, typer.Option(help="The peak learning rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of weights, order and augmentation.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of PyTorch.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Corrupt images are an error, not skipped.")
    ] = False,
    config: Annotated[Path | None, typer.Option(help="Settings from a TOML or JSON file.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting; see nsl train --settings."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: in runs/).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    force: Force = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write events for TensorBoard as well.")
    ] = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="List every setting with its default, and end.")
    ] = False,
) -> None:
    """Train a network; callback it, stop it, resume it.

    With no options: a plain network, one with static and one with dynamic similarity are trained
    side by side on handwritten digits, which takes about a minute and fetches nothing.

    \b
    nsl train
    nsl train --model cnn9 --data cifar10 --similarity dynamic --epochs 30 --out runs/dynamic
    nsl train --resume --out runs/dynamic
    torchrun --nproc-per-node 2 -m neural_similarity train --data cifar10 --out runs/two
    """
    if settings:
        from ..train import TrainConfig

        list_settings(TrainConfig)
        return
    given = {
        "model": model, "data": data, "data_dir": None if data_dir is None else str(data_dir),
        "similarity": similarity, "structure": structure, "epochs": epochs, "steps": steps,
        "batch_size": batch_size, "optimizer": optimizer, "lr": lr, "seed": seed,
        "threads": threads, "strict": True if strict else None,
    }  # fmt: skip
    from ..errors import RunError
    from ..train.distributed import restarted

    if resume and force:
        raise RunError("train: expected --resume or --force, got both. They exclude each other.")
    if resume and out is None:
        raise RunError("train: expected --out with --resume, got none. Name the run to go on with.")
    if out is None and "WORLD_SIZE" in os.environ:
        raise RunError("train: expected --out under torchrun, got none. All must know the folder.")
    resume = resume or restarted()
    configs = _configurations(wanted_settings(config, given, set_ or []), out if resume else None)
    _train(configs, _folder(out, configs), resume, force, tensorboard)


def _configurations(wanted: dict[str, Any], resumed: Path | None) -> dict[str, TrainConfig]:
    """What to train, by kind of similarity; settings of a run that goes on hold unless given."""
    from ..train import Run, TrainConfig
    from ..train.runs import read_comparison

    if resumed is not None:
        known = read_comparison(resumed, TrainConfig)
        if known is not None and set(_kinds(wanted) or known) == set(known):
            more = {name: value for name, value in wanted.items() if name != "similarity"}
            return {
                name: TrainConfig.from_dict({**config.to_dict(), **more})
                for name, config in known.items()
            }
        here = (resumed / "config.json").is_file()
        if here or not wanted.keys() - _INCIDENTAL:
            settings = {**Run.open(resumed).config.to_dict(), **wanted}
            return {"": TrainConfig.from_dict(settings)}
    if not wanted.keys() - _INCIDENTAL:
        wanted = {**FIRST_LOOK, **wanted}
    kinds = _kinds(wanted) or ["none"]
    return {kind: TrainConfig.from_dict({**wanted, "similarity": kind}) for kind in kinds}


def _kinds(wanted: dict[str, Any]) -> list[str]:
    """Kinds of similarity that were asked for."""
    return [kind.strip() for kind in str(wanted.get("similarity", "")).split(",") if kind.strip()]


def _folder(out: Path | None, configs: dict[str, TrainConfig]) -> Path:
    """Where to; if nothing was said, a new folder in ``runs``."""
    if out is not None:
        return out
    first = next(iter(configs.values()))
    name = f"{first.model}-{first.data}-{'-'.join(configs)}-{first.seed}"
    return new_folder(name)


def _train(
    configs: dict[str, TrainConfig], out: Path, resume: bool, force: bool, tensorboard: bool
) -> None:
    """Train one network into a folder, or several, each into a folder of its own within."""
    from ..train import TrainConfig
    from ..train.distributed import World
    from ..train.runs import check_comparison, read_comparison, write_comparison
    from ..train.task import Classification
    from ._summary import report_comparison, report_run

    first = int(os.environ.get("RANK", "0")) == 0
    known = read_comparison(out, TrainConfig) if resume else None
    if known is None and len(configs) == 1:
        run = _watched(next(iter(configs.values())), out, out, resume, force, tensorboard)
        if first:
            report_run(run)
        return
    if known is None:
        for config in configs.values():
            Classification(config, World())  # before anything is written: does it all fit?
        if first:
            write_comparison(out, configs, force)
    else:
        check_comparison(out, known, configs)
    runs = {
        name: _watched(config, out / name, out, known is not None, False, tensorboard)
        for name, config in configs.items()
    }
    if first:
        report_comparison(runs, out)


def _watched(
    config: TrainConfig, folder: Path, out: Path, resume: bool, force: bool, events: bool
) -> Run:
    """Train with a progress bar; on Ctrl-C say how to go on."""
    from ..train import train as run_training
    from ._progress import TrainingBar, progress_bar

    with progress_bar(*TrainingBar.columns()) as bar:
        callback = TrainingBar(bar, folder.name)
        try:
            return run_training(
                config, folder, resume=resume, force=force, callback=callback, tensorboard=events
            )
        except KeyboardInterrupt:
            bar.stop()
            begun = (folder / "config.json").is_file()
            command = shlex.join(["nsl", "train", "--resume", "--out", str(out)])
            go_on = f" Go on with: {command}" if begun else ""
            if int(os.environ.get("RANK", "0")) == 0:
                print(f"nsl: stopped.{go_on}", file=sys.stderr)
            raise typer.Exit(130) from None
