"""The report's section on trials: a table of each kind, and the commands that made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .. import markdown
from ..intervals import over_episodes, over_images, paired_over_episodes, paired_over_seeds
from ..records import Record
from .cells import NONE, in_shots, number, signed
from .comparison import on_same_episodes
from .origins import changed_code, names_its_code

__all__ = ["trials_text"]

_INTRODUCTION = """
Single runs with seeds that no table uses, made to look for explanations. Each interval is over the
episodes or images that one network was tested on. `--backbone` is the network of another trial;
with `validation` the error is on images held out from training.
"""


def trials_text(trials: Mapping[str, Record]) -> Iterator[str]:
    """Paragraphs about all trials, by name; nothing if there are none."""
    if not trials:
        return
    yield "## Trials"
    yield markdown.paragraph(" ".join([_INTRODUCTION, *_about_code(trials)]))
    few_shot = {name: record for name, record in trials.items() if "tests" in record}
    yield from _section(
        few_shot,
        {
            "error on validation classes, %": _validation,
            "tests, %": _tests,
            "difference": lambda record: _episode_differences(record, trials),
        },
    )
    yield from _section(
        {name: record for name, record in trials.items() if name not in few_shot},
        {
            "error, %": _error,
            "by epoch": _by_epoch,
            "difference": lambda record: _error_difference(record, trials),
        },
    )


def _about_code(trials: Mapping[str, Record]) -> Iterator[str]:
    """Trials whose files do not name the code that ran them, and those whose code changed."""
    unnamed = [f"`{name}`" for name, record in trials.items() if not names_its_code(record)]
    if unnamed:
        files = "The files" if len(unnamed) == len(trials) else f"The files of {', '.join(unnamed)}"
        yield (
            f"{files} name the commit that stored the result; the run may have used an earlier one."
        )
    for name, record in trials.items():
        yield from changed_code(f"`{name}`", record)


def _section(
    trials: Mapping[str, Record], columns: Mapping[str, Callable[[Record], str]]
) -> Iterator[str]:
    """Trials of one kind, a row each, and their commands."""
    if trials:
        rows = [
            [f"`{name}`", *(cell(record) for cell in columns.values())]
            for name, record in trials.items()
        ]
        yield markdown.table(["trial", *columns], rows)
        commands = [line for name, record in trials.items() for line in _commands(name, record)]
        yield "```console\n" + "\n".join(f"$ {line}" for line in commands) + "\n```"


def _commands(name: str, record: Record) -> Iterator[str]:
    """The command that trained a trial, and those that tested it."""
    yield f"{record['command']} --out runs/{name}"
    by_episodes: dict[int, list[str]] = {}
    for test in record.get("tests", ()):
        by_episodes.setdefault(len(test["accuracies"]), []).append(str(test["n_shot"]))
    for episodes, shots in by_episodes.items():
        yield f"nsl fewshot eval runs/{name} --shots {','.join(shots)} --episodes {episodes}"


def _error(record: Record) -> str:
    images = record["metrics"]["eval"]["images"][-1]
    return number(over_images(record["error"], images).times(100), brief=True)


def _by_epoch(record: Record) -> str:
    return ", ".join(f"{100 * error:.1f}" for error in record["metrics"]["eval"]["error"])


def _error_difference(record: Record, trials: Mapping[str, Record]) -> str:
    """The difference to another trial; one pair of runs has no interval."""
    other = trials.get(record["beside"])
    if other is None:
        return NONE
    change = paired_over_seeds([record["error"]], [other["error"]]).times(100)
    return f"{signed(change)} vs. `{record['beside']}`"


def _validation(record: Record) -> str:
    """The last validation error, and its step if training was stopped early."""
    curve = record["metrics"].get("eval")
    if curve is None:
        return NONE
    last, total = curve["step"][-1], record["config"]["steps"]
    steps = f"{last:,}" if total in (last, None) else f"{last:,} of {total:,}"
    return f"{100 * curve['error'][-1]:.1f} after {steps} steps"


def _tests(record: Record) -> str:
    accuracies = {test["n_shot"]: over_episodes(test["accuracies"]) for test in record["tests"]}
    cells = (f"{in_shots(n)} {number(of.times(100), brief=True)}" for n, of in accuracies.items())
    return "; ".join(cells) or NONE


def _episode_differences(record: Record, trials: Mapping[str, Record]) -> str:
    """The difference to another trial, episode by episode, for every number of shots."""
    other = trials.get(record["beside"])
    if other is None:
        return NONE
    theirs = {test["n_shot"]: test for test in other["tests"]}
    cells = [
        f"{in_shots(test['n_shot'])} {_episode_difference(test, theirs[test['n_shot']])}"
        for test in record["tests"]
        if test["n_shot"] in theirs
    ]
    return f"{'; '.join(cells)} vs. `{record['beside']}`" if cells else NONE


def _episode_difference(test: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    same = on_same_episodes([test, other])
    if same is None:
        return NONE
    return signed(paired_over_episodes(same[:1], same[1:]).times(100), brief=True)
