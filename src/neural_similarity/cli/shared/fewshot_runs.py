"""What ``nsl fewshot`` shows while methods are trained and tested."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.progress import Progress

from ...errors import RunError
from ...fewshot import (
    FewShotConfig,
    FewShotRun,
    Plan,
    PlannedRun,
    Trial,
    plan_runs,
    read_plan,
    run_plan,
    train_method,
)
from ...fewshot.from_settings import configs_from_settings, stored_config
from ...train.distributed import is_first_process, join_world, restarted
from .fewshot_report import report_methods, show_results, training_line
from .printing import print_error, print_line, printable
from .progress import TrainingBar, progress_bar
from .settings import new_folder

__all__ = ["compare", "run_tests", "show_results", "stoppable", "train_one"]

USUAL_SHOTS = [1, 5]


def compare(
    settings: dict[str, Any], out: Path | None, shots: list[int], *, resume: bool, force: bool
) -> None:
    """Train and test one method into a folder, or several into folders within it."""
    plan = _plan(settings, out, resume or restarted())
    tests = [Trial(n_shot) for n_shot in shots]
    with stoppable(plan.folder, "fewshot", "--resume", "--out", plan.folder, *_shots(shots)):
        with PlanBars() as bars:
            finished_runs = run_plan(plan, tests, resume=resume, force=force, callback=bars)
        tested_runs = [one for one in finished_runs if one.results]
        if is_first_process():
            runs = {one.name: one.run for one in tested_runs}
            report_methods(runs, {one.name: one.results for one in tested_runs}, plan.folder)


def train_one(settings: dict[str, Any], out: Path | None, *, resume: bool, force: bool) -> None:
    """Train one method."""
    config = stored_config(out, settings) if resume and out is not None else None
    config = config or _single_config(settings)
    folder = out or new_folder(f"fewshot-{config.data}-{config.method}")
    with (
        stoppable(folder, "fewshot", "train", "--resume", "--out", folder),
        progress_bar(*TrainingBar.columns()) as bar,
    ):
        callback = TrainingBar(bar, folder.name)
        run = train_method(config, folder, resume=resume, force=force, callback=callback)
    if is_first_process():
        training_line(run)
        print_line(f"run: {folder}")
        print_line(f"test it with: nsl fewshot eval {shlex.quote(str(folder))}")


def run_tests(run: FewShotRun, tests: list[Trial], *, force: bool = False) -> list[dict[str, Any]]:
    """Test a run with a progress bar."""
    planned = PlannedRun(run.config.method, run.config, run.folder)
    with PlanBars() as bars, join_world(run.config.device) as world:

        def callback(name: str, done: int, total: int) -> None:
            bars(planned, {"kind": "test", "test": name, "done": done, "total": total})

        return run.evaluate(tests, world, force=force, callback=callback)


@contextmanager
def stoppable(folder: Path, *again: object) -> Iterator[None]:
    """On Ctrl-C, print one line on how to continue, and exit."""
    try:
        yield
    except KeyboardInterrupt:
        has_begun = any((folder / name).is_file() for name in ("config.json", "comparison.json"))
        command = shlex.join(["nsl", *map(str, again)])
        if is_first_process():
            hint = f"Continue with: {command}" if has_begun else "Nothing was written."
            print_error(f"stopped. {hint}")
        raise typer.Exit(130) from None


class PlanBars:
    """Progress bars of a plan: one at a time, for the current training or test."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._bar_key: tuple[str, str | None] | None = None
        self._bar: TrainingBar | _TestBar

    def __enter__(self) -> PlanBars:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def __call__(self, planned: PlannedRun, line: dict[str, Any]) -> None:
        """Show a line of metrics; a new run or test gets a new bar."""
        key = (planned.name, line.get("test"))
        if key != self._bar_key:
            self._stack.close()
            self._bar_key = key
            columns = TrainingBar.columns() if key[1] is None else []
            bar = self._stack.enter_context(progress_bar(*columns))
            self._bar = _TestBar(bar, *key) if key[1] else TrainingBar(bar, planned.name)
        self._bar(line)


class _TestBar:
    """How many episodes of a test are done."""

    def __init__(self, bar: Progress, name: str, test: str | None) -> None:
        self.bar, self.task = bar, bar.add_task(printable(f"{name} {test}"), total=None)

    def __call__(self, line: dict[str, Any]) -> None:
        self.bar.update(self.task, completed=line["done"], total=line["total"])


def _plan(settings: dict[str, Any], out: Path | None, resume: bool) -> Plan:
    plan = read_plan(out, settings) if resume and out is not None else None
    if plan is not None:
        return plan
    configs = configs_from_settings(settings)
    data = next(iter(configs.values())).data
    return plan_runs(configs, out or new_folder(f"fewshot-{data}-{'-'.join(configs)}"))


def _single_config(settings: dict[str, Any]) -> FewShotConfig:
    configs = list(configs_from_settings({"method": "proto", **settings}).values())
    if len(configs) > 1:
        raise RunError(
            f"fewshot train: expected one method, got {len(configs)}. `nsl fewshot` compares "
            f"several."
        )
    return configs[0]


def _shots(shots: list[int]) -> list[str]:
    """The option that repeats these tests, unless they are the default."""
    return [] if shots == USUAL_SHOTS else ["--shots", ",".join(map(str, shots))]
