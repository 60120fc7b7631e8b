"""``python -m benchmarks [NAME ...]``: run benchmarks, print ratios, and write them down."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from math import isnan
from pathlib import Path

import torch

from experiments.records import commit

from .timing import Timing

NAMES = (
    "static_step", "dynamic_op", "network_step", "growth", "input_pipeline", "throughput",
    "fewshot_episodes", "static_episodes", "maml_step", "wide_step",
)  # fmt: skip


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    for name in arguments.names or NAMES:
        print(f"{name} ({arguments.rounds} rounds, {arguments.threads} threads)")
        module = importlib.import_module(f"benchmarks.{name}")
        tables = module.run(arguments.rounds)
        for title, timings in tables.items():
            show(title, timings)
        if arguments.out is not None:
            path = write(arguments.out, name, arguments.rounds, tables)
            if hasattr(module, "plot"):
                module.plot(tables, path.with_suffix(".png"))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Contestants take turns in one process; a ratio is the median over rounds of "
        "a contestant's time over the first one's, with its quartiles.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}; default: all"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="measured rounds (default 15, at least 3)"
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="default: PyTorch's choice"
    )
    parser.add_argument("--out", type=Path, help="folder for one JSON file (and plot) a run")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(NAMES)
    if unknown:
        parser.error(
            f"expected NAME to be any of {', '.join(NAMES)}, got {', '.join(sorted(unknown))}"
        )
    if arguments.rounds < 3:
        parser.error(f"expected at least 3 rounds, got {arguments.rounds}")
    return arguments


def show(title: str, timings: list[Timing]) -> None:
    print(f"\n  {title}")
    print(f"  {'':<28}{'ms':>9}{'ratio':>8}  quartiles")
    for t in timings:
        if isnan(t.milliseconds):
            print(f"  {t.name:<28}{'':>9}{t.ratio:>8.2f}")
            continue
        quartiles = f"{t.ratio_low:.2f} - {t.ratio_high:.2f}"
        print(f"  {t.name:<28}{t.milliseconds:>9.2f}{t.ratio:>8.2f}  {quartiles}", flush=True)


def write(folder: Path, name: str, rounds: int, tables: dict[str, list[Timing]]) -> Path:
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
        "tables": {title: [record_of(t) for t in timings] for title, timings in tables.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{now:%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"\n  written to {path}")
    return path


def record_of(timing: Timing) -> dict[str, object]:
    """A timing as JSON: what was not measured is left out."""
    return {k: v for k, v in asdict(timing).items() if not (isinstance(v, float) and isnan(v))}


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.processor()}, {torch.backends.cpu.get_cpu_capability()}"
    )


if __name__ == "__main__":
    main()
