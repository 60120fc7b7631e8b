"""What the theory experiments share: their command, their files, their intervals.

An experiment is a module with a docstring and four functions (:class:`Experiment`): ``measure``
computes all numbers, and ``table``, ``conclude`` and ``draw`` read these numbers and nothing else,
so the text and the picture can be made again from the JSON file. ``OPTIONS`` explains the arguments
of ``measure``, which become options of the command.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..code_version import commit
from ..intervals import student

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Experiment",
    "Numbers",
    "interval",
    "relative_error",
    "run",
    "run_all",
    "show",
]

Numbers = dict[str, Any]  # by name, as in a JSON file


class Experiment(Protocol):
    """The contents of an experiment's module."""

    __name__: str
    __file__: str | None
    OPTIONS: dict[str, str]

    def measure(self, *args: Any, **settings: Any) -> Numbers: ...
    def table(self, numbers: Numbers) -> str: ...
    def conclude(self, numbers: Numbers) -> str: ...
    def draw(self, numbers: Numbers) -> Figure: ...


def run(experiment: Experiment) -> None:
    """The command of one experiment."""
    name = Path(experiment.__file__ or "").stem
    head, _, rest = (experiment.__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.theory.{name}", description=head, epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    _add_out(parser)
    defaults = inspect.signature(experiment.measure).parameters
    for option, meaning in experiment.OPTIONS.items():
        default = defaults[option].default
        parser.add_argument(
            f"--{option}", type=_positive, default=default, help=f"{meaning} (default {default})"
        )
    settings = vars(parser.parse_args())
    _report(experiment, name, settings.pop("out"), settings)


def run_all(experiments: Sequence[Experiment], description: str) -> None:
    """The command that runs all of them, with their defaults."""
    parser = argparse.ArgumentParser(prog="python -m experiments.theory", description=description)
    _add_out(parser)
    out = parser.parse_args().out
    for experiment in experiments:
        _report(experiment, experiment.__name__.rpartition(".")[2], out, {})


def show(experiment: Experiment, numbers: Numbers) -> str:
    """Table and conclusion, as printed and as quoted in README.md."""
    return experiment.table(numbers) + "\n\n" + textwrap.fill(experiment.conclude(numbers), 99)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval (Student's t)."""
    sample = torch.tensor(values, dtype=torch.float64)
    if len(values) < 2:
        return sample.mean().item(), float("nan")
    return sample.mean().item(), student(len(values) - 1) * sample.std().item() / len(values) ** 0.5


def relative_error(approximation: Tensor, true: Tensor) -> float:
    """‖approximation − true‖ / ‖true‖."""
    return float((approximation - true).norm() / true.norm())


def _report(experiment: Experiment, name: str, out: Path | None, settings: dict[str, int]) -> None:
    question = (experiment.__doc__ or "").partition("\n")[0]
    print(f"{question}\n", flush=True)
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    commit()  # remembered now: it names the code that computes
    begin = time.perf_counter()
    numbers = experiment.measure(**settings)
    seconds = time.perf_counter() - begin
    print(show(experiment, numbers))
    print(f"\n({seconds:.0f} s)\n", flush=True)
    if out is not None:
        _write(experiment, name, out, numbers)


def _write(experiment: Experiment, name: str, out: Path, numbers: Numbers) -> None:
    import matplotlib

    matplotlib.use("Agg")
    out.mkdir(parents=True, exist_ok=True)
    facts = {"experiment": name, "commit": commit(), "torch": torch.__version__}
    (out / f"{name}.json").write_text(json.dumps({**facts, **numbers}) + "\n")
    figure = experiment.draw(numbers)
    figure.savefig(out / f"{name}.png", dpi=100, metadata={"Software": None})
    print(f"wrote {out / name}.json and .png\n", file=sys.stderr)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, help="folder for NAME.json, the numbers, and NAME.png, the picture"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
