"""``python -m benchmarks [NAME ...]``: run benchmarks, print ratios, and write them to files."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from .registry import BENCHMARKS
from .run import run_benchmark


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    for name in arguments.names or BENCHMARKS:
        run_benchmark(BENCHMARKS[name], arguments.rounds, arguments.out)


def parse() -> argparse.Namespace:
    width = max(map(len, BENCHMARKS))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Contestants take turns. A ratio is a contestant's time over the first one's: "
        "the median over rounds, with its quartiles.",
        epilog="benchmarks:\n"
        + "\n".join(f"  {one.name:{width}}  {one.question}" for one in BENCHMARKS.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="which benchmarks, listed below (default: all)"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="measured rounds (default 15, at least 3)"
    )
    parser.add_argument(
        "--threads", type=int, default=torch.get_num_threads(), help="default: PyTorch's choice"
    )
    parser.add_argument("--out", type=Path, help="folder for one JSON file (and plot) per run")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.names) - set(BENCHMARKS))
    if unknown:
        parser.error(
            f"expected NAME to be any of {', '.join(BENCHMARKS)}, got {', '.join(unknown)}"
        )
    if arguments.rounds < 3:
        parser.error(f"expected at least 3 rounds, got {arguments.rounds}")
    return arguments


if __name__ == "__main__":
    main()
