"""Trials: runs that no table has, made to find the reason for what a table shows.

``python -m experiments.trials RUN NAME`` keeps what a run of ``nsl fewshot`` or ``nsl train`` found
in ``results/trials/NAME.json``; the report shows it. ``--beside OTHER`` names the trial that it is
compared with, of few-shot runs on the episodes that both were tested on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from neural_similarity.errors import NeuralSimilarityError, RunError
from neural_similarity.fewshot import FewShotConfig, FewShotRun
from neural_similarity.train import Run
from neural_similarity.train.folders import read_json

from .queue.commands import command_of
from .queue.measurements import about_run, kept
from .records import RESULTS, Record, commit, read_record, write_record
from .report.comparison import on_same_episodes
from .report.intervals import over_episodes, over_images, paired_over_episodes, paired_over_seeds
from .report.markdown import NONE, in_shots, number, signed
from .theory.report import markdown

__all__ = ["keep", "render_trials"]

FOLDER = "trials"


def keep(run_folder: Path, name: str, beside: str | None, results: Path = RESULTS) -> Path:
    """Write down what a run found; one that is there already is never replaced."""
    run = _opened(run_folder)
    config = run.config
    if isinstance(config, FewShotConfig) and config.backbone is not None:
        # Another trial, and no path of the machine it was run on.
        config = replace(config, backbone=f"runs/{Path(config.backbone).name}")
    about = about_run(run, config)
    record = {
        "trial": name,
        "beside": beside,
        "kept_by": commit(),
        "command": command_of(config),
        **about,
        **(_all_tests(run) if isinstance(run, FewShotRun) else _last_error(run_folder, about)),
    }
    file = results / FOLDER / f"{name}.json"
    write_record(file, record)
    return file


def _opened(folder: Path) -> Run | FewShotRun:
    """A run of either kind."""
    file = folder / "config.json"
    kind = read_json(file, dict).get("kind") if file.is_file() else None
    return FewShotRun.open(folder) if kind == "fewshot" else Run.open(folder)


def _all_tests(run: FewShotRun) -> Record:
    """What a few-shot run was tested to do."""
    tests = sorted(run.results(), key=lambda test: int(test["n_shot"]))
    return {"tests": [kept(test) for test in tests]}


def _last_error(folder: Path, about: Record) -> Record:
    """What a network that was trained for classification ended with."""
    if "eval" not in about["metrics"]:
        raise RunError(f"{folder}: expected a run that was evaluated, got one that was not.")
    return {"error": about["metrics"]["eval"]["error"][-1]}


def render_trials(results: Path) -> Iterator[str]:
    """A table of all that were kept, and how each was run."""
    files = sorted((results / FOLDER).glob("*.json"), key=lambda file: file.stem)
    records = {file.stem: record for file in files if (record := read_record(file))}
    if not records:
        return
    yield "## Trials"
    yield (
        "Runs from seeds that no table has, made to find reasons. Intervals are over the episodes\n"
        "or images that one network each was tested on. `--backbone` is another trial's network;\n"
        "with `validation` the error is that on images held back from training. Their files name\n"
        "the commit that kept them, not that which ran them."
    )
    few_shot = {name: record for name, record in records.items() if "tests" in record}
    yield from _section(
        few_shot,
        {
            "error on validation classes, %": _validation,
            "tests, %": _tests,
            "difference": lambda record: _beside(record, records),
        },
    )
    yield from _section(
        {name: record for name, record in records.items() if name not in few_shot},
        {
            "error, %": _error,
            "by epoch": _by_epoch,
            "difference": lambda record: _change(record, records),
        },
    )


def _section(
    records: Mapping[str, Record], columns: Mapping[str, Callable[[Record], str]]
) -> Iterator[str]:
    """Trials of one kind, a row each, and their commands."""
    if records:
        rows = [
            [f"`{name}`", *(cell(record) for cell in columns.values())]
            for name, record in records.items()
        ]
        yield markdown(["trial", *columns], rows)
        commands = [line for name, record in records.items() for line in _commands(name, record)]
        yield "```console\n" + "\n".join(f"$ {line}" for line in commands) + "\n```"


def _commands(name: str, record: Record) -> Iterator[str]:
    """How a trial was trained, and tested if a command of its own does that."""
    yield f"{record['command']} --out runs/{name}"
    by_episodes: dict[int, list[str]] = {}
    for test in record.get("tests", ()):
        by_episodes.setdefault(len(test["accuracies"]), []).append(str(test["n_shot"]))
    for episodes, shots in by_episodes.items():
        yield f"nsl fewshot eval runs/{name} --shots {','.join(shots)} --episodes {episodes}"


def _error(record: Record) -> str:
    images = record["metrics"]["eval"]["images"][-1]
    return number(over_images(record["error"], images).times(100), briefly=True)


def _by_epoch(record: Record) -> str:
    return ", ".join(f"{100 * error:.1f}" for error in record["metrics"]["eval"]["error"])


def _change(record: Record, records: Mapping[str, Record]) -> str:
    """The difference to another trial: of one pair, so without an interval."""
    other = records.get(record["beside"])
    if other is None:
        return NONE
    change = paired_over_seeds([record["error"]], [other["error"]]).times(100)
    return f"{signed(change)} to `{record['beside']}`"


def _validation(record: Record) -> str:
    """When it was last measured, and where training was stopped before its end."""
    over_time = record["metrics"].get("eval")
    if over_time is None:
        return NONE
    done, wanted = over_time["step"][-1], record["config"]["steps"]
    steps = f"{done:,}" if wanted in (done, None) else f"{done:,} of {wanted:,}"
    return f"{100 * over_time['error'][-1]:.1f} after {steps} steps"


def _tests(record: Record) -> str:
    found = {test["n_shot"]: over_episodes(test["accuracies"]) for test in record["tests"]}
    said = (f"{in_shots(n)} {number(of.times(100), briefly=True)}" for n, of in found.items())
    return "; ".join(said) or NONE


def _beside(record: Record, records: Mapping[str, Record]) -> str:
    """The difference to another trial, episode by episode, for every number of shots."""
    other = records.get(record["beside"])
    if other is None:
        return NONE
    theirs = {test["n_shot"]: test for test in other["tests"]}
    said = [
        f"{in_shots(test['n_shot'])} {_difference(test, theirs[test['n_shot']])}"
        for test in record["tests"]
        if test["n_shot"] in theirs
    ]
    return f"{'; '.join(said)} to `{record['beside']}`" if said else NONE


def _difference(test: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    same = on_same_episodes([test, other])
    if same is None:
        return NONE
    return signed(paired_over_episodes(same[:1], same[1:]).times(100), briefly=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.trials", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of nsl fewshot or nsl train")
    parser.add_argument("name", metavar="NAME", help="what to call it")
    parser.add_argument("--beside", metavar="OTHER", help="the trial it is compared with")
    arguments = parser.parse_args()
    try:
        print(f"wrote {keep(arguments.run, arguments.name, arguments.beside)}")
    except (NeuralSimilarityError, FileExistsError) as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
