"""Plan runs of several methods, and carry the plan out.

A meta-learned method starts from the trained network of another method, so that one is trained
first. Methods that train the same plain network share one, which is trained once. On disk::

    comparison.json   the runs of the plan and their settings
    plain/            the plain network that several methods share, a run of method finetune
    static/ ...       a run for every method

A single method that needs no other is trained into the folder itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import RunError
from ..train.distributed import World, find_device, is_first_process, join_world, restarted
from ..train.runs.comparisons import check_comparison, read_comparison, write_comparison
from ..train.runs.folders import alone
from .config import FewShotConfig
from .from_settings import stored_config
from .runs import FewShotRun, Trial
from .shared_backbones import PLAIN, add_backbones
from .task import FewShotTask, train_method

__all__ = [
    "FinishedRun",
    "Plan",
    "PlannedRun",
    "plan_runs",
    "read_plan",
    "run_plan",
]


@dataclass(frozen=True)
class PlannedRun:
    """A run of a plan.

    Attributes:
        name: its name in the plan.
        config: how it is trained.
        folder: where it is trained.
        starts_from: the name of the run, earlier in the plan, whose backbone it starts from.
        tested: False for the plain network, which only serves as a start for the others.
    """

    name: str
    config: FewShotConfig
    folder: Path
    starts_from: str | None = None
    tested: bool = True


@dataclass(frozen=True)
class Plan:
    """Runs in the order in which they are trained.

    Attributes:
        folder: where everything goes.
        runs: the runs in order.
    """

    folder: Path
    runs: tuple[PlannedRun, ...]

    def __iter__(self) -> Iterator[PlannedRun]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def is_comparison(self) -> bool:
        """Whether each run has its own subfolder, instead of one run in the folder itself."""
        return self.runs[0].folder != self.folder


class FinishedRun(NamedTuple):
    """A run that was trained and, if planned, tested."""

    name: str
    run: FewShotRun
    results: list[dict[str, Any]]
    """One per test."""


Callback = Callable[[PlannedRun, dict[str, Any]], None]
"""Takes the run and a line of metrics from ``train_method``, or in tests
``{"kind": "test", "test": name, "done": episodes, "total": episodes}``."""


Methods = Mapping[str, FewShotConfig] | Iterable[FewShotConfig | str] | FewShotConfig | str
"""Configurations by name; or several configurations or names of methods; or one of them."""


def plan_runs(
    methods: Methods,
    folder: str | os.PathLike[str],
) -> Plan:
    """Every run that these methods need, in order.

    Args:
        methods: configurations by name; or a list of configurations or of methods with default
            settings, named after their methods; or a single one of these. A configuration with a
            ``backbone`` starts from that and needs no other run.
        folder: where the runs will go; nothing is written yet.

    Example:
        >>> for run in plan_runs(["finetune", "static", "meta_static"], "runs/all"):
        ...     print(run.name, run.starts_from)
        plain None
        finetune plain
        static plain
        meta_static plain
    """
    configs, path = _named(methods), Path(folder)
    if len(configs) == 1:
        ((name, config),) = configs.items()
        if config.build_method().starts_from is None:
            return Plan(path, (PlannedRun(name, config, path),))
    return _as_plan(add_backbones(configs, path.resolve()), path)


def read_plan(
    folder: str | os.PathLike[str], settings: Mapping[str, Any] | None = None
) -> Plan | None:
    """The plan that was started in a folder, to continue.

    Args:
        folder: where the runs are.
        settings: values that replace the stored ones, such as ``data_dir``. None is returned if
            they name a method, because that starts a new plan, or if the folder has no run yet.
    """
    path, changes = Path(folder), dict(settings or {})
    if "method" in changes:
        return None
    configs = read_comparison(path, FewShotConfig)
    if configs is not None:
        new_configs = {
            n: FewShotConfig.from_dict({**c.to_dict(), **changes}) for n, c in configs.items()
        }
        return _as_plan(new_configs, path)
    config = stored_config(path, changes)
    return None if config is None else Plan(path, (PlannedRun(config.method, config, path),))


def run_plan(
    plan: Plan,
    tests: Sequence[Trial] = (),
    *,
    resume: bool = False,
    force: bool = False,
    callback: Callback | None = None,
) -> list[FinishedRun]:
    """Train and test every run of a plan.

    Before anything is written, data, networks and tests are checked.

    Args:
        plan: what :func:`plan_runs` or :func:`read_plan` returned.
        tests: how each run is tested.
        resume: continue an interrupted plan. Finished runs and tests are not repeated.
        force: replace the runs in the folder.
        callback: called with the run and every line of metrics.
    """
    with join_world(plan.runs[0].config.device) as world:
        # A machine whose own processes are alive does not notice that others were started again.
        resume = bool(world.sum(torch.tensor(float(resume or restarted()))))
    is_new = _check(plan, list(tests), resume)
    with alone(plan.folder) if plan.is_comparison and is_first_process() else nullcontext():
        if plan.is_comparison and is_first_process() and is_new:
            write_comparison(plan.folder, {one.name: one.config for one in plan}, force)
        return [
            _run(planned, list(tests), resume, force and not plan.is_comparison, callback)
            for planned in plan
        ]


def _run(
    planned: PlannedRun, tests: list[Trial], resume: bool, force: bool, callback: Callback | None
) -> FinishedRun:
    def on_line(line: dict[str, Any]) -> None:
        if callback is not None:
            callback(planned, line)

    def on_test(name: str, done: int, total: int) -> None:
        on_line({"kind": "test", "test": name, "done": done, "total": total})

    run = train_method(planned.config, planned.folder, resume=resume, force=force, callback=on_line)
    results: list[dict[str, Any]] = []
    if planned.tested and tests:
        with join_world(run.config.device) as world:
            results = run.evaluate(tests, world, callback=on_test)
    return FinishedRun(planned.name, run, results)


def _check(plan: Plan, tests: list[Trial], resume: bool) -> bool:
    """Check the plan against the folder and the data; return whether it is new."""
    before = read_comparison(plan.folder, FewShotConfig) if resume else None
    if before is not None:
        check_comparison(plan.folder, before, {one.name: one.config for one in plan})
        return False
    if resume and not plan.is_comparison and FewShotRun(plan.folder, plan.runs[0].config).exists():
        return False
    for planned in plan:
        find_device(planned.config.device)
        if planned.starts_from is None:
            run = FewShotRun(planned.folder, planned.config)
            run.test_episodes(tests, FewShotTask(run, World()).trained)
    return True


def _named(methods: Methods) -> dict[str, FewShotConfig]:
    if isinstance(methods, str | FewShotConfig):
        methods = [methods]
    if isinstance(methods, Mapping):
        configs = dict(methods)
    else:
        configs = {}
        for method in methods:
            config = FewShotConfig(method=method) if isinstance(method, str) else method
            if config.method in configs:
                raise RunError(
                    f"plan_runs: expected every method once, got {config.method!r} twice. Pass the "
                    f"configurations by name: {{'first': config, 'second': other}}."
                )
            configs[config.method] = config
    if not configs:
        raise RunError("plan_runs: expected at least one method, got none.")
    for name in configs:
        if name == PLAIN or name in ("", ".", "..") or Path(name).name != name:
            raise RunError(
                f"plan_runs: expected folder names other than {PLAIN!r}, got {name!r}. Each run "
                f"has a folder with its name, and {PLAIN!r} is the folder of the shared network. "
                f"Choose another name."
            )
    return configs


def _as_plan(configs: Mapping[str, FewShotConfig], folder: Path) -> Plan:
    """The plan of these runs, whose backbones are already set."""
    place, runs = folder.resolve(), []
    for name, config in configs.items():
        backbone = Path(config.backbone) if config.backbone is not None else None
        inside = backbone is not None and backbone.parent == place and backbone.name in configs
        starts_from = backbone.name if backbone is not None and inside else None
        runs.append(PlannedRun(name, config, folder / name, starts_from, name != PLAIN))
    return Plan(folder, tuple(runs))
