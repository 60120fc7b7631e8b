"""``nsl fewshot``, ``nsl fewshot train`` and ``nsl fewshot eval``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ._options import DataDir, Force
from ._settings import list_settings, wanted_settings

__all__ = ["app"]

app = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Methods = Annotated[
    str | None,
    typer.Option("--method", help="A method, such as dynamic; several, with commas, are compared."),
]
Method = Annotated[str | None, typer.Option("--method", help="A method, such as proto.")]
Data = Annotated[str | None, typer.Option(help="A data set; see nsl data list.")]
Model = Annotated[str | None, typer.Option(help="A network, such as cnn4.")]
FeatureExtractor = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Begin with the network of this run.")
]
Base = Annotated[str | None, typer.Option(help="Base classes: train, or train+val.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the base images.")]
Steps = Annotated[int | None, typer.Option(help="Steps in all, instead of epochs.")]
Rate = Annotated[float | None, typer.Option(help="The peak learning rate.")]
Seed = Annotated[int | None, typer.Option(help="Of weights, order and training episodes.")]
Threads = Annotated[int | None, typer.Option(help="Threads of PyTorch.")]
Config = Annotated[Path | None, typer.Option(help="Settings from a TOML or JSON file.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any setting; see nsl fewshot train --settings."
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder of the run (default: in runs/).")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in --out.")]
Shots = Annotated[str, typer.Option(help="Labelled images of a class in tests, with commas.")]
Episodes = Annotated[int | None, typer.Option(help="Episodes of a test (usually 600).")]


@app.callback()
def fewshot(
    context: typer.Context,
    method: Methods = None,
    data: Data = None,
    data_dir: DataDir = None,
    model: Model = None,
    backbone: FeatureExtractor = None,
    base: Base = None,
    epochs: Epochs = None,
    steps: Steps = None,
    lr: Rate = None,
    seed: Seed = None,
    threads: Threads = None,
    shots: Shots = "1,5",
    episodes: Episodes = None,
    config: Config = None,
    set_: Sets = None,
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
) -> None:
    """Learn new classes from a few images each: train a method, test it, compare several.

    With no options seven methods, the paper's static, dynamic and meta-learned static among them,
    are trained on characters of many scripts (glyphs, made small: 20 pixels) and tested on
    characters none of them has seen: a table, a plot and a report. It takes about two minutes on
    two cores and fetches nothing. It shows how methods are compared and does not rank them: its
    settings were chosen to be quick. Ctrl-C loses nothing; it tells how to go on.

    \b
    nsl fewshot
    nsl fewshot --method dynamic --data cifar-fs --out runs/dynamic
    nsl fewshot --method proto,ridge,static,meta_static --data mini-imagenet --shots 1,5
    nsl fewshot --resume --out runs/dynamic
    """
    given = _given(
        method=method, data=data, data_dir=data_dir, model=model, backbone=backbone, base=base,
        epochs=epochs, steps=steps, lr=lr, seed=seed, threads=threads, episodes=episodes,
    )  # fmt: skip
    from ..errors import RunError

    if context.invoked_subcommand is not None:
        if given or config or set_ or out or resume or force:
            raise RunError(
                f"fewshot: expected options behind {context.invoked_subcommand!r}, got some before "
                f"it. Write: nsl fewshot {context.invoked_subcommand} [options]."
            )
        return
    from ._fewshot import compare

    _check_out(out, resume, force)
    wanted = wanted_settings(config, given, set_ or [])
    compare(wanted, out, _numbers(shots), resume=resume, force=force)


@app.command()
def train(
    method: Method = None,
    data: Data = None,
    data_dir: DataDir = None,
    model: Model = None,
    backbone: FeatureExtractor = None,
    base: Base = None,
    epochs: Epochs = None,
    steps: Steps = None,
    lr: Rate = None,
    seed: Seed = None,
    threads: Threads = None,
    config: Config = None,
    set_: Sets = None,
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
    settings: Annotated[
        bool, typer.Option("--settings", help="List every setting with its default, and end.")
    ] = False,
) -> None:
    """Train a method on base classes; test it later with nsl fewshot eval.

    Weights are chosen by episodes of the validation classes, if there are any left over.

    \b
    nsl fewshot train --method proto --data cifar-fs --set train_way=20 --out runs/proto
    nsl fewshot train --method meta_static --backbone runs/static --out runs/meta
    nsl fewshot train --resume --out runs/proto
    """
    if settings:
        from ..fewshot import FewShotConfig

        list_settings(FewShotConfig)
        return
    from ._fewshot import train_one

    given = _given(
        method=method, data=data, data_dir=data_dir, model=model, backbone=backbone, base=base,
        epochs=epochs, steps=steps, lr=lr, seed=seed, threads=threads,
    )  # fmt: skip
    _check_out(out, resume, force)
    wanted = wanted_settings(config, given, set_ or [])
    train_one(wanted, out, resume=resume, force=force)


@app.command("eval")
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run of nsl fewshot train.")],
    shots: Shots = "1,5",
    ways: Annotated[int | None, typer.Option(help="Classes of an episode.")] = None,
    queries: Annotated[int | None, typer.Option(help="Images of each to classify.")] = None,
    episodes: Episodes = None,
    seed: Annotated[int | None, typer.Option(help="Of the episodes.")] = None,
    which: Annotated[
        str | None, typer.Option(help="Weights: best in validation (if it has been), or last.")
    ] = None,
    batch_norm: Annotated[
        str | None, typer.Option(help="running (inductive) or batch (transductive).")
    ] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    force: Force = False,
) -> None:
    """Test a trained method on episodes of new classes.

    Results are kept in RUN/results. A test that has been made is shown, not repeated; one that was
    stopped goes on.

    \b
    nsl fewshot eval runs/proto
    nsl fewshot eval runs/proto --shots 1,5,10 --episodes 10000 --json
    """
    from ..fewshot import FewShotRun, Trial
    from ._fewshot import run_tests, show_results, stoppable

    opened = FewShotRun.open(run, data_dir)
    tests = [
        Trial(n_shot, ways, queries, episodes, seed, which, batch_norm)
        for n_shot in _numbers(shots)
    ]
    with stoppable(run, *sys.argv[1:]):
        results = run_tests(opened, tests, force=force)
    if as_json:
        told = [{k: v for k, v in result.items() if k != "accuracies"} for result in results]
        print(json.dumps({"run": str(run), "results": told}))
    else:
        show_results(results)


def _given(**options: Any) -> dict[str, Any]:
    paths = ("data_dir", "backbone")
    return {k: str(v) if k in paths else v for k, v in options.items() if v is not None}


def _check_out(out: Path | None, resume: bool, force: bool) -> None:
    from ..errors import RunError

    if resume and force:
        raise RunError("fewshot: expected --resume or --force, got both. They exclude each other.")
    if resume and out is None:
        raise RunError("fewshot: expected --out with --resume, got none. Name what to go on with.")


def _numbers(text: str) -> list[int]:
    """``1,5`` as numbers."""
    from ..errors import RunError

    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise RunError(
            f"fewshot: expected --shots to be whole numbers of at least 1, got {text!r}. For "
            f"example: --shots 1,5."
        )
    return sorted(set(numbers))
