"""The list of benchmarks. A new one is a module with ``run`` and an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import (
    adapted,
    dynamic_op,
    family,
    fewshot_episodes,
    growth,
    inference,
    input_pipeline,
    maml_step,
    network_step,
    static_episodes,
    static_step,
    throughput,
    versions,
    wide_step,
)
from .timing import Timing

__all__ = ["BENCHMARKS", "Benchmark", "Tables"]

Tables = dict[str, list[Timing]]
"""Timings by the title of their table."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark.

    Args:
        name: for the command, the result files and the README's section.
        question: what it answers, in a line.
        run: measures for this number of rounds.
        plot: draws the timings into a file; None for no picture.
    """

    name: str
    question: str
    run: Callable[[int], Tables]
    plot: Callable[[Tables, Path], None] | None = None


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("static_step", "what does an attached static similarity cost?", static_step.run),
        Benchmark("dynamic_op", "how fast is the dynamic operation?", dynamic_op.run),
        Benchmark("image_op", "and per image, or in groups of channels?", dynamic_op.run_newer),
        Benchmark("factored_op", "and with a factor per channel?", dynamic_op.run_factored),
        Benchmark("family", "how fast are the published layers compared with unfold?", family.run),
        Benchmark("network_step", "what does a similarity cost a network?", network_step.run),
        Benchmark("inference", "and at inference, in PyTorch and as ONNX?", inference.run),
        Benchmark("growth", "how does its time grow with sizes?", growth.run, growth.plot),
        Benchmark("input_pipeline", "what does input cost?", input_pipeline.run),
        Benchmark("throughput", "how many images per second in training?", throughput.run),
        Benchmark("fewshot_episodes", "how fast is a test on episodes?", fewshot_episodes.run),
        Benchmark("static_episodes", "how fast is tuning on a support set?", static_episodes.run),
        Benchmark("maml_step", "is second-order MAML as fast as with higher?", maml_step.run),
        Benchmark("adapted", "how fast is an adapted network?", adapted.run),
        Benchmark("wide_step", "how wide is a plain network of the same time?", wide_step.run),
        Benchmark("versions", "is the operation faster than it was?", versions.run),
    )
}
