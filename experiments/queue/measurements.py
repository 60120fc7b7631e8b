"""What is found out about a run, for its result."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open

from neural_similarity.fewshot import FewShotConfig, FewShotRun
from neural_similarity.nn.predicted import PredictedSimilarity
from neural_similarity.nn.static import SimilarityParametrization
from neural_similarity.train import Run, TrainConfig
from neural_similarity.train.build import build_model, build_optimizer
from neural_similarity.train.distributed import World
from neural_similarity.train.runs import here_and_now

from ..layout import channels_last
from ..records import as_columns
from ..tables.row import OneStep

__all__ = ["about_run", "fingerprint", "in_short", "kept", "one_step"]

MACHINE = ("neural_similarity", "torch", "python", "machine", "processor", "device", "threads")


def about_run(run: Run | FewShotRun, config: TrainConfig | FewShotConfig) -> dict[str, Any]:
    """Everything about a run but what was found."""
    known, metrics = run.environment(), run.metrics()
    shape = (len(known["classes"]), known["in_channels"], known["image_size"])
    network = build_model(config, *shape) if isinstance(run, Run) else run.build_network(*shape)
    times = sorted(line["step_seconds"] for line in metrics if line["kind"] == "train")
    return {
        "config": {**config.to_dict(), "data_dir": None},
        "environment": {name: known[name] for name in MACHINE},
        "data_copies": known["data_copies"],
        "parameters": sum(p.numel() for p in network.parameters()),
        "seconds": max((line["seconds"] for line in metrics), default=0.0),
        "step_seconds": times[len(times) // 2] if times else None,
        "metrics": as_columns(metrics),
        **_taps_off(run),
    }


def _taps_off(run: Run | FewShotRun) -> dict[str, Any]:
    """How many taps kernel shapes have switched off, and of how many, if there are any."""
    if run.config.structure != "kernel_shape" or not run.has_checkpoint():
        return {}
    network = run.load_model() if isinstance(run, Run) else run.load_network()
    kinds = (SimilarityParametrization, PredictedSimilarity)
    layers = (module for module in network.modules() if isinstance(module, kinds))
    shapes = [D for layer in layers if (D := layer.kernel_shape()) is not None]
    off = sum(int((D == 0).sum()) for D in shapes)
    return {"taps_off": [off, sum(D.numel() for D in shapes)]}


def fingerprint(weights: Path) -> str:
    """Of what is in a file of weights, whatever is said about them there."""
    digest = hashlib.sha256()
    with safe_open(weights, framework="pt") as file:
        for name in sorted(file.keys()):
            digest.update(name.encode() + file.get_tensor(name).numpy().tobytes())
    return digest.hexdigest()[:12]


def kept(test: dict[str, Any]) -> dict[str, Any]:
    """A test's result; what is said of the run is not said again."""
    names = (
        "method", "method_options", "n_way", "n_shot", "n_query", "mean", "interval", "adapted",
        "batch_norm", "episode_seed", "fingerprint", "data", "data_copy", "seconds", "weights",
        "weights_step", "accuracies",
    )  # fmt: skip
    return {name: test[name] for name in names}


def one_step(one: OneStep) -> dict[str, Any]:
    """Parameters, and the time of a training step on random images."""
    config = one.config
    model = channels_last(build_model(config, one.num_classes, 3, one.image_size))
    optimiser = build_optimizer(config, model)
    shape = (config.batch_size, 3, one.image_size, one.image_size)
    images = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(one.num_classes, (config.batch_size,))
    here, times, losses = here_and_now(World()), [], []
    for _ in range(one.steps):
        began = time.perf_counter()
        optimiser.zero_grad()
        loss = F.cross_entropy(model(images), labels, label_smoothing=config.label_smoothing)
        loss.backward()
        optimiser.step()
        times.append(time.perf_counter() - began)
        losses.append(loss.item())
    return {
        "config": {**config.to_dict(), "data_dir": None},
        "environment": {name: value for name, value in here.items() if name in MACHINE},
        "parameters": sum(p.numel() for p in model.parameters()),
        "image_size": one.image_size,
        "step_seconds": sorted(times)[len(times) // 2],
        "losses": losses,
    }


def in_short(record: dict[str, Any]) -> str:
    if "diverged" in record:
        return f"diverged at step {record['diverged']}"
    if "tests" in record:
        found = (
            f"{t['n_shot']} shot {t['mean']:.2%} ± {t['interval']:.2%}" for t in record["tests"]
        )
        return ", ".join(found)
    if "error" in record:
        return f"error {record['error']:.2%}"
    return f"{record['parameters']:,} parameters"
