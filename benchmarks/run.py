"""Run one benchmark: print its ratios, and write them to a file with facts about the machine."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from math import isnan
from pathlib import Path

import torch

import neural_similarity
from neural_similarity.train import code_version

from .registry import Benchmark, Tables
from .timing import Timing

__all__ = ["run_benchmark", "write"]


def run_benchmark(benchmark: Benchmark, rounds: int, out: Path | None = None) -> None:
    """Run, print, and write a file (and a picture) into a folder if there is one."""
    commit()  # remembered now: it names the code that is measured
    print(f"{benchmark.name} ({rounds} rounds, {torch.get_num_threads()} threads)")
    tables = benchmark.run(rounds)
    for title, timings in tables.items():
        show(title, timings)
    if out is not None:
        path = write(out, benchmark.name, rounds, tables)
        print(f"\n  wrote {path}")
        if benchmark.plot is not None:
            benchmark.plot(tables, path.with_suffix(".png"))


def show(title: str, timings: list[Timing]) -> None:
    print(f"\n  {title}")
    print(f"  {'':<28}{'ms':>9}{'ratio':>8}  quartiles")
    for t in timings:
        if isnan(t.milliseconds):
            print(f"  {t.name:<28}{'':>9}{t.ratio:>8.2f}")
            continue
        quartiles = f"{t.ratio_low:.2f} - {t.ratio_high:.2f}"
        print(f"  {t.name:<28}{t.milliseconds:>9.2f}{t.ratio:>8.2f}  {quartiles}", flush=True)


def write(folder: Path, name: str, rounds: int, tables: Tables) -> Path:
    """Write a result file; its path."""
    now = datetime.now(UTC)
    record = {
        "benchmark": name,
        "time": now.isoformat(timespec="seconds"),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "tables": {title: [as_json(t) for t in timings] for title, timings in tables.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


def as_json(timing: Timing) -> dict[str, object]:
    """A timing as JSON; values that were not measured are left out."""
    return {k: v for k, v in asdict(timing).items() if not (isinstance(v, float) and isnan(v))}


def commit() -> str:
    """The commit of the code, marked if files were changed; unknown outside of its clone."""
    root = Path(__file__).parents[1]
    if not Path(neural_similarity.__file__).is_relative_to(root):
        return "unknown"
    return code_version()


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"
