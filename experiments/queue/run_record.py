"""What a result file says about a run: its settings, machine, data, metrics and tests."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open

from neural_similarity.fewshot import FewShotConfig, FewShotRun
from neural_similarity.nn import PredictedSimilarity, SimilarityParametrization
from neural_similarity.train import (
    Run,
    TrainConfig,
    World,
    build_model,
    build_optimizer,
    here_and_now,
)

from ..records import Record, as_columns
from ..tables.base import OneStep

__all__ = [
    "diverged_record",
    "one_step_record",
    "record_of_test",
    "run_record",
    "summary",
    "tested_parameters",
    "weights_fingerprint",
]

MACHINE = ("neural_similarity", "torch", "python", "machine", "processor", "device", "threads")


def run_record(run: Run | FewShotRun, config: TrainConfig | FewShotConfig) -> Record:
    """Everything about a run except its test results; ``config`` has no paths of this machine."""
    environment, metrics = run.environment(), run.metrics()
    times = sorted(line["step_seconds"] for line in metrics if line["kind"] == "train")
    return {
        "config": {**config.to_dict(), "data_dir": None},
        "environment": {name: environment[name] for name in MACHINE},
        "data_copies": environment["data_copies"],
        **_sizes(run, config, environment),
        "seconds": max((line["seconds"] for line in metrics), default=0.0),
        "step_seconds": times[len(times) // 2] if times else None,
        "metrics": as_columns(metrics),
        **_taps_off(run),
    }


def diverged_record(before: Record, config: TrainConfig | FewShotConfig) -> Record:
    """The result of a row that starts from a network whose training diverged."""
    inherited = ("environment", "data_copies", "parameters", "trained_parameters", "diverged")
    return {
        "config": {**config.to_dict(), "data_dir": None},
        **{name: before[name] for name in inherited if name in before},
        "seconds": 0.0,
        "step_seconds": None,
        "metrics": {},
        "tests": [],
    }


def one_step_record(one: OneStep) -> Record:
    """Parameters, and the time of a training step on random images."""
    config = one.config
    model = build_model(config, one.num_classes, 3, one.image_size)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in its stubs
    optimiser = build_optimizer(config, model)
    shape = (config.batch_size, 3, one.image_size, one.image_size)
    images = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(one.num_classes, (config.batch_size,))
    environment, times, losses = here_and_now(World()), [], []
    for _ in range(one.steps):
        start = time.perf_counter()
        optimiser.zero_grad()
        loss = F.cross_entropy(model(images), labels, label_smoothing=config.label_smoothing)
        loss.backward()
        optimiser.step()
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
    return {
        "config": {**config.to_dict(), "data_dir": None},
        "environment": {name: value for name, value in environment.items() if name in MACHINE},
        "parameters": sum(p.numel() for p in model.parameters()),
        "image_size": one.image_size,
        "step_seconds": sorted(times)[len(times) // 2],
        "losses": losses,
    }


def record_of_test(test: dict[str, Any]) -> Record:
    """A test's result, without what the record says about the run."""
    names = (
        "method", "method_options", "n_way", "n_shot", "n_query", "mean", "interval", "adapted",
        "batch_norm", "episode_seed", "fingerprint", "data", "data_copy", "seconds", "weights",
        "weights_step", "accuracies",
    )  # fmt: skip
    return {name: test[name] for name in names}


def weights_fingerprint(weights: Path) -> str:
    """The fingerprint of the tensors in a file, whatever its metadata say."""
    digest = hashlib.sha256()
    with safe_open(weights, framework="pt") as file:
        for name in sorted(file.keys()):
            digest.update(name.encode() + file.get_tensor(name).numpy().tobytes())
    return digest.hexdigest()[:12]


def summary(record: Record) -> str:
    """A result in a few words, for the screen."""
    if "diverged" in record:
        return f"diverged at step {record['diverged']}"
    if "tests" in record:
        tests = record["tests"]
        return ", ".join(f"{t['n_shot']} shot {t['mean']:.2%} ± {t['interval']:.2%}" for t in tests)
    if "error" in record:
        return f"error {record['error']:.2%}"
    return f"{record['parameters']:,} parameters"


def _sizes(
    run: Run | FewShotRun, config: TrainConfig | FewShotConfig, environment: dict[str, Any]
) -> Record:
    """Parameters of the network that is tested, and of a few-shot network also those trained."""
    classes, *image = (
        len(environment["classes"]), environment["in_channels"], environment["image_size"],
    )  # fmt: skip
    if isinstance(run, Run):
        network = build_model(config, classes, *image)
        return {"parameters": sum(p.numel() for p in network.parameters())}
    return {
        "parameters": tested_parameters(run.config, classes, *image),
        "trained_parameters": sum(
            p.numel() for p in run.build_network(classes, *image).parameters()
        ),
    }


def tested_parameters(
    config: FewShotConfig, classes: int, in_channels: int, image_size: int
) -> int:
    """How many parameters the tests of a few-shot network use.

    Tests of new classes do not use the classifier of the training classes, unless their method
    needs it: the parameters whose number depends on that of the training classes.
    """
    run = FewShotRun(Path(), config)
    these, others = (
        dict(run.build_network(count, in_channels, image_size).named_parameters())
        for count in (classes, classes + 1)
    )
    whole = config.build_method().needs_base_classifier
    return sum(p.numel() for name, p in these.items() if whole or p.shape == others[name].shape)


def _taps_off(run: Run | FewShotRun) -> Record:
    """How many taps the kernel shapes have switched off, and of how many, if there are any."""
    if run.config.structure != "kernel_shape" or not run.has_checkpoint():
        return {}
    network = run.load_model() if isinstance(run, Run) else run.load_network()
    kinds = (SimilarityParametrization, PredictedSimilarity)
    layers = (module for module in network.modules() if isinstance(module, kinds))
    shapes = [D for layer in layers if (D := layer.kernel_shape()) is not None]
    off = sum(int((D == 0).sum()) for D in shapes)
    return {"taps_off": [off, sum(D.numel() for D in shapes)]}
