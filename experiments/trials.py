"""Trials: runs that belong to no table, made to find the reason for what a table shows.

``python -m experiments.trials RUN NAME`` stores the result of a run of ``nsl fewshot`` or ``nsl
train`` in ``results/trials/NAME.json``, and the report shows it. ``--beside OTHER`` names the trial
it is compared with; few-shot runs are compared on the episodes that both were tested on.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from neural_similarity.errors import NeuralSimilarityError, RunError
from neural_similarity.fewshot import FewShotConfig, FewShotRun
from neural_similarity.train import Run, read_json

from .code_version import UNKNOWN, commit
from .commands import command_for
from .queue.run_record import record_of_test, run_record
from .records import RESULTS, Record, read_record, write_record

__all__ = ["read_trials", "store_trial"]

FOLDER = "trials"


def store_trial(run_folder: Path, name: str, beside: str | None, results: Path = RESULTS) -> Path:
    """Store the result of a run; an existing result is never overwritten."""
    run = _open(run_folder)
    config = run.config
    if isinstance(config, FewShotConfig) and config.backbone is not None:
        # The name of another trial instead of a path of this machine.
        config = replace(config, backbone=f"runs/{Path(config.backbone).name}")
    body, commits = run_record(run, config), _commits(run)
    record = {
        "trial": name,
        "beside": beside,
        "commit": commits[-1],
        "commits": commits,
        "kept_by": commit(),
        "command": command_for(config),
        **body,
        **(_tests(run) if isinstance(run, FewShotRun) else _last_error(run_folder, body)),
    }
    file = results / FOLDER / f"{name}.json"
    write_record(file, record)
    return file


def read_trials(results: Path) -> dict[str, Record]:
    """All trials, by name."""
    files = sorted((results / FOLDER).glob("*.json"), key=lambda file: file.stem)
    return {file.stem: record for file in files if (record := read_record(file))}


def _open(folder: Path) -> Run | FewShotRun:
    """A run of either kind; a folder without a run is reported by ``open``."""
    try:
        few_shot = read_json(folder / "config.json", dict, RunError).get("kind") == "fewshot"
    except RunError:
        few_shot = False
    return FewShotRun.open(folder) if few_shot else Run.open(folder)


def _commits(run: Run | FewShotRun) -> list[str]:
    """Every version of the code that has trained or tested a run, each once, the last one last."""
    tests = run.results() if isinstance(run, FewShotRun) else []
    test_commits = [test["environment"].get("commit", UNKNOWN) for test in tests]
    return list(dict.fromkeys(reversed([*run.commits(), *test_commits])))[::-1]


def _tests(run: FewShotRun) -> Record:
    """The tests of a few-shot run."""
    tests = sorted(run.results(), key=lambda test: int(test["n_shot"]))
    return {"tests": [record_of_test(test) for test in tests]}


def _last_error(folder: Path, body: Record) -> Record:
    """The last test error of a run for classification."""
    if "eval" not in body["metrics"]:
        raise RunError(f"{folder}: expected a run that was evaluated, got one that was not.")
    return {"error": body["metrics"]["eval"]["error"][-1]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.trials", description=__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of nsl fewshot or nsl train")
    parser.add_argument("name", metavar="NAME", help="the name of the trial")
    parser.add_argument("--beside", metavar="OTHER", help="the trial it is compared with")
    arguments = parser.parse_args()
    try:
        print(f"wrote {store_trial(arguments.run, arguments.name, arguments.beside)}")
    except (NeuralSimilarityError, FileExistsError) as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
