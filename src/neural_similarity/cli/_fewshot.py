"""What ``nsl fewshot`` does: plan runs that share backbones, train and test them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from ..errors import RunError
from ..fewshot import FewShotConfig, FewShotRun, Method, Trial, train_method
from ..fewshot.task import FewShotTask
from ..train.distributed import World, join_world, restarted
from ..train.runs import check_comparison, read_comparison, write_comparison
from ._fewshot_report import report_methods, show_results, training_line
from ._progress import TrainingBar, progress_bar
from ._settings import new_folder

__all__ = ["compare", "run_tests", "show_results", "stoppable", "train_one"]

USUAL_SHOTS = [1, 5]

_TUNED = {"batch_size": None, "epochs": 20, "lr": 0.1}
_EPISODES = {"train_way": 20, "steps": 100, "epoch_steps": 50}
FIRST_LOOK: dict[str, dict[str, Any]] = {
    "nearest": {},
    "finetune": {"method_options": _TUNED},
    "static": {"method_options": _TUNED, "episodes": 60},
    "dynamic": {"method_options": _TUNED, "hidden": 8},
    "meta_static": {"steps": 40, "epoch_steps": 40, "val_episodes": 30, "episodes": 60},
    "proto": _EPISODES,
    "ridge": _EPISODES,
}
"""What is compared when nothing is asked for. Tuning is shortened, as the static network's tuning
runs through all of its layers, and shortened alike for those that are compared with it."""
_FIRST_SETTINGS = {
    "data": "glyphs", "image_size": 20, "options": {"width": 16}, "epochs": 4.0, "lr": 0.01,
    "log_every": 10, "val_episodes": 100, "threads": 1,
}  # fmt: skip
"""Images are so small that a second thread waits more than it computes."""
_SHARED = "plain"


def compare(
    wanted: dict[str, Any], out: Path | None, shots: list[int], *, resume: bool, force: bool
) -> None:
    """Train and test one method into a folder, or several into folders within."""
    resume = resume or restarted()
    known = read_comparison(out, FewShotConfig) if resume and out is not None else None
    stored = _stored(wanted, out, known) if resume and out is not None else None
    configs = stored or _configurations(wanted)
    folder = out or new_folder(f"fewshot-{_first(configs).data}-{'-'.join(configs)}")
    tests = [Trial(n_shot) for n_shot in shots]
    if len(configs) == 1 and _first(configs).build_method().starts_from is None and not known:
        plan, places = {"": _first(configs)}, {"": folder}
    else:
        plan = stored or _plan(configs, folder)
        places = {name: folder / name for name in plan}
    if known is None and not (resume and places.get("") and FewShotRun(folder, plan[""]).exists()):
        _check(plan, places, tests)
        if "" not in plan and _first_process():
            write_comparison(folder, plan, force)
    elif known is not None:
        check_comparison(folder, known, plan)
    runs, results = {}, {}
    with stoppable(folder, "fewshot", "--resume", "--out", folder, *_shots(shots)):
        for name, config in plan.items():
            run = _trained(config, places[name], resume, force and name == "")
            if name != _SHARED:
                runs[name or config.method] = run
                results[name or config.method] = run_tests(run, tests)
        if _first_process():
            report_methods(runs, results, folder)


def train_one(wanted: dict[str, Any], out: Path | None, *, resume: bool, force: bool) -> None:
    """Train one method."""
    config = None
    if resume and out is not None and (stored := _stored(wanted, out, None)):
        config = stored[""]
    elif wanted or not resume:
        methods = list(_configurations({"method": "proto", **wanted}).items())
        if len(methods) > 1:
            raise RunError(
                f"fewshot train: expected one method, got {len(methods)}. `nsl fewshot` compares "
                f"several."
            )
        config = methods[0][1]
    folder = out or new_folder(f"fewshot-{config.data}-{config.method}" if config else "")
    with stoppable(folder, "fewshot", "train", "--resume", "--out", folder):
        run = _trained(config, folder, resume, force)
    if _first_process():
        training_line(run)
        print(f"run: {folder}\ntest it with: nsl fewshot eval {shlex.quote(str(folder))}")


def run_tests(run: FewShotRun, tests: list[Trial], *, force: bool = False) -> list[dict[str, Any]]:
    """Test a run with a progress bar."""
    with progress_bar() as bar, join_world(run.config.device) as world:
        rows: dict[str, Any] = {}

        def callback(name: str, done: int, total: int) -> None:
            if name not in rows:
                rows[name] = bar.add_task(f"{run.config.method} {name}", total=total)
            bar.update(rows[name], completed=done)

        return run.evaluate(tests, world, force=force, callback=callback)


@contextmanager
def stoppable(folder: Path, *again: object) -> Iterator[None]:
    """On Ctrl-C end in one line, which says by what command to go on if there is something."""
    try:
        yield
    except KeyboardInterrupt:
        begun = any((folder / name).is_file() for name in ("config.json", "comparison.json"))
        command = shlex.join(["nsl", *map(str, again)])
        if _first_process():
            go_on = f"Go on with: {command}" if begun else "Nothing was written."
            print(f"nsl: stopped. {go_on}", file=sys.stderr)
        raise typer.Exit(130) from None


def _configurations(wanted: dict[str, Any]) -> dict[str, FewShotConfig]:
    """What to train, by method."""
    if not wanted.keys() - {"data_dir", "threads", "seed", "episodes"}:
        return {
            name: FewShotConfig.from_dict({**_FIRST_SETTINGS, **special, **wanted, "method": name})
            for name, special in FIRST_LOOK.items()
        }
    names = [name.strip() for name in str(wanted.get("method", "proto")).split(",")]
    inherited = {}
    if wanted.get("backbone") is not None:
        theirs = FewShotRun.open(wanted["backbone"]).config.to_dict()
        inherited = {name: theirs[name] for name in _INHERITED}
    return {
        name: FewShotConfig.from_dict({**inherited, **wanted, "method": name}) for name in names
    }


_INHERITED = (
    "model", "options", "data", "data_dir", "image_size", "structure", "structure_options", "scope",
    "predictor", "predictor_options", "hidden", "shared",
)  # fmt: skip


def _stored(
    wanted: dict[str, Any], out: Path, known: dict[str, FewShotConfig] | None
) -> dict[str, FewShotConfig] | None:
    """The runs in a folder, to go on with: their settings hold, where others are not given.

    None where a method is named, as then everything is said again, or where there are none.
    """
    if "method" in wanted or not (wanted == {} or known or (out / "config.json").is_file()):
        return None
    runs = known or {"": FewShotRun.open(out).config}
    return {
        name: FewShotConfig.from_dict({**config.to_dict(), **wanted})
        for name, config in runs.items()
    }


def _plan(configs: Mapping[str, FewShotConfig], folder: Path) -> dict[str, FewShotConfig]:
    """Every run that is needed, in order; plain networks are trained once and shared."""
    plan: dict[str, FewShotConfig] = {}
    folder = folder.resolve()  # a run goes on from wherever it is called
    sharing = [name for name, config in configs.items() if _is_plain(config)]
    begun = [name for name, config in configs.items() if _starts_plain(config)]
    if begun or len(sharing) > 1:
        first = configs[(sharing + begun)[0]]
        plan[_SHARED] = replace(
            first, method="finetune", method_options={}, backbone=None, similarity="method",
            batch_norm="running", episodes=FewShotConfig().episodes,
        )  # fmt: skip
    for name, config in configs.items():
        needed = config.build_method().starts_from
        if config.backbone is None and _SHARED in plan and name in sharing:
            plan[name] = replace(config, backbone=str(folder / _SHARED), epochs=0.0, steps=None)
        elif config.backbone is None and name in begun:
            plan[name] = replace(config, backbone=str(folder / _SHARED))
        elif config.backbone is None and needed is not None:
            if needed not in plan:
                plan[needed] = configs.get(
                    needed, replace(config, method=needed, method_options={})
                )
            plan[name] = replace(config, backbone=str(folder / needed))
        elif name not in plan:
            plan[name] = config
    return plan


def _is_plain(config: FewShotConfig) -> bool:
    """Whether what is trained is a plain network with a linear classifier, whatever comes later."""
    method = type(config.build_method())
    usual = method.loss is Method.loss and method.head is Method.head
    plain = config.similarity_kind() != "dynamic" and config.backbone is None
    return method.trains_on == "images" and usual and plain


def _starts_plain(config: FewShotConfig) -> bool:
    needed = config.build_method().starts_from
    if needed is None or config.backbone is not None:
        return False
    return _is_plain(replace(config, method=needed, method_options={}))


def _check(plan: dict[str, FewShotConfig], places: dict[str, Path], tests: list[Trial]) -> None:
    """Before anything is written: does it all fit?"""
    for name, config in plan.items():
        if not (config.backbone and Path(config.backbone).parent == places[name].parent.resolve()):
            run = FewShotRun(places[name], config)
            task = FewShotTask(run, World())
            run.test_episodes(tests, task.trained)


def _trained(config: FewShotConfig | None, folder: Path, resume: bool, force: bool) -> FewShotRun:
    """Train with a progress bar."""
    with progress_bar(*TrainingBar.columns()) as bar:
        callback = TrainingBar(bar, folder.name)
        return train_method(config, folder, resume=resume, force=force, callback=callback)


def _shots(shots: list[int]) -> list[str]:
    """The option that asks for these tests again, unless they are the usual ones."""
    return [] if shots == USUAL_SHOTS else ["--shots", ",".join(map(str, shots))]


def _first_process() -> bool:
    return int(os.environ.get("RANK", "0")) == 0


def _first(configs: Mapping[str, FewShotConfig]) -> FewShotConfig:
    return next(iter(configs.values()))
