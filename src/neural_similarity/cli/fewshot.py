"""``nsl fewshot``, ``nsl fewshot train`` and ``nsl fewshot eval``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .shared.fewshot_methods import methods_epilog
from .shared.options import RESUME, DataDir, Force
from .shared.printing import print_json
from .shared.settings import list_settings, wanted_settings

__all__ = ["app"]

app = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, epilog=methods_epilog(),
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Methods = Annotated[
    str | None,
    typer.Option(
        "--method", help="A method (default: proto), or several, such as proto,ridge; listed below."
    ),
]
Method = Annotated[
    str | None,
    typer.Option("--method", help="A method (default: proto); nsl fewshot --help lists them."),
]
Data = Annotated[
    str | None, typer.Option(help="Data set (default: glyphs); nsl data list shows all.")
]
Model = Annotated[
    str | None,
    typer.Option(help="Network (default: cnn4); nsl fewshot train --settings lists all names."),
]
Backbone = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN",
        help="Start with the network of this run of nsl fewshot (as --from in nsl train).",
    ),
]
Base = Annotated[
    str | None,
    typer.Option(
        help="Classes to train on: train (default), or train+val, which leaves none to validate on."
    ),
]
Epochs = Annotated[
    float | None,
    typer.Option(
        help="Passes over the base images, or rounds of epoch_steps on episodes (default: 30)."
    ),
]
Steps = Annotated[int | None, typer.Option(help="Number of steps, instead of epochs.")]
Rate = Annotated[
    float | None, typer.Option(help="Peak learning rate (default: 0.001 for adam, 0.1 for sgd).")
]
Seed = Annotated[
    int | None, typer.Option(help="Seed for weights, order and training episodes (default: 0).")
]
Threads = Annotated[
    int | None, typer.Option(help="Number of PyTorch threads (default: PyTorch's).")
]
Config = Annotated[Path | None, typer.Option(help="Read settings from a TOML or JSON file.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Set any setting; see nsl fewshot train --settings."
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder of the run (default: a new one in runs/).")]
Resume = Annotated[bool, typer.Option("--resume", help=RESUME)]
Shots = Annotated[str, typer.Option(help="Labelled images per class in tests, such as 1,5.")]
Episodes = Annotated[int | None, typer.Option(help="Episodes per test (default: 600).")]


@app.callback()
def fewshot(
    context: typer.Context,
    method: Methods = None,
    data: Data = None,
    data_dir: DataDir = None,
    model: Model = None,
    backbone: Backbone = None,
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
    """Train and test few-shot methods, and compare them.

    Without options, seven methods are trained on characters of many scripts (glyphs, scaled to 20
    pixels) and tested on characters that none of them has seen. Among them are the paper's static,
    dynamic and meta-learned static networks. The result is a table, a plot and a report. It takes
    about two minutes on two cores and downloads nothing. It shows how methods are compared and does
    not rank them: its settings are chosen for speed. Ctrl-C loses nothing; it prints how to
    continue.

    \b
    nsl fewshot
    nsl fewshot --method dynamic --data cifar-fs --out runs/dynamic
    nsl fewshot --method proto,ridge,static,meta_static --data mini-imagenet --shots 1,5
    nsl fewshot --resume --out runs/dynamic
    """
    options = _options(
        method=method, data=data, data_dir=data_dir, model=model, backbone=backbone, base=base,
        epochs=epochs, steps=steps, lr=lr, seed=seed, threads=threads, episodes=episodes,
    )  # fmt: skip
    from ..errors import RunError

    if context.invoked_subcommand is not None:
        if options or config or set_ or out or resume or force:
            raise RunError(
                f"fewshot: expected options after {context.invoked_subcommand!r}, got some before "
                f"it. Write: nsl fewshot {context.invoked_subcommand} [options]."
            )
        return
    from .shared.fewshot_runs import compare

    _check_out(out, resume, force)
    settings = wanted_settings(config, options, set_ or [])
    compare(settings, out, _numbers(shots), resume=resume, force=force)


@app.command()
def train(
    method: Method = None,
    data: Data = None,
    data_dir: DataDir = None,
    model: Model = None,
    backbone: Backbone = None,
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
    list_all: Annotated[
        bool, typer.Option("--settings", help="List all settings with their defaults, and exit.")
    ] = False,
) -> None:
    """Train a method on base classes.

    If the data set has validation classes, their episodes select the best weights. Test the run
    with nsl fewshot eval.

    \b
    nsl fewshot train --method proto --data cifar-fs --set train_way=20 --out runs/proto
    nsl fewshot train --method meta_static --backbone runs/static --out runs/meta
    nsl fewshot train --resume --out runs/proto
    """
    if list_all:
        from ..fewshot import FewShotConfig

        list_settings(FewShotConfig)
        return
    from .shared.fewshot_runs import train_one

    options = _options(
        method=method, data=data, data_dir=data_dir, model=model, backbone=backbone, base=base,
        epochs=epochs, steps=steps, lr=lr, seed=seed, threads=threads,
    )  # fmt: skip
    _check_out(out, resume, force)
    settings = wanted_settings(config, options, set_ or [])
    train_one(settings, out, resume=resume, force=force)


@app.command("eval")
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run of nsl fewshot train.")],
    shots: Shots = "1,5",
    ways: Annotated[
        int | None,
        typer.Option(
            help="Classes per episode (default: the run's n_way, usually 5).",
        ),
    ] = None,
    queries: Annotated[
        int | None,
        typer.Option(
            help="Images per class to classify (default: the run's n_query, usually 15).",
        ),
    ] = None,
    episodes: Episodes = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed for the episodes (default: the run's episode_seed, usually 0).",
        ),
    ] = None,
    which: Annotated[
        str | None,
        typer.Option(help="Weights: best in validation (default, if there was any), or last."),
    ] = None,
    batch_norm: Annotated[
        str | None,
        typer.Option(
            help="BatchNorm statistics: running (inductive; usually the default) or batch "
            "(transductive)."
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    force: Force = False,
) -> None:
    """Test a trained method on episodes of new classes.

    Results are stored in RUN/results. A finished test is shown, not repeated; a stopped test is
    continued.

    \b
    nsl fewshot eval runs/proto
    nsl fewshot eval runs/proto --shots 1,5,10 --episodes 10000 --json
    """
    from ..fewshot import FewShotRun, Trial
    from .shared.fewshot_runs import run_tests, show_results, stoppable

    opened_run = FewShotRun.open(run, data_dir)
    tests = [
        Trial(n_shot, ways, queries, episodes, seed, which, batch_norm)
        for n_shot in _numbers(shots)
    ]
    with stoppable(run, *sys.argv[1:]):
        results = run_tests(opened_run, tests, force=force)
    if as_json:
        short = [{k: v for k, v in result.items() if k != "accuracies"} for result in results]
        print_json({"run": str(run), "results": short})
    else:
        show_results(results)


def _options(**options: Any) -> dict[str, Any]:
    """The options that the user gave; paths as text."""
    paths = ("data_dir", "backbone")
    return {k: str(v) if k in paths else v for k, v in options.items() if v is not None}


def _check_out(out: Path | None, resume: bool, force: bool) -> None:
    from ..errors import RunError

    if resume and force:
        raise RunError("fewshot: expected --resume or --force, got both. Use only one of them.")
    if resume and out is None:
        raise RunError("fewshot: expected --out with --resume, got none. Name the run to continue.")


def _numbers(text: str) -> list[int]:
    """The numbers in a text such as ``1,5``."""
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
