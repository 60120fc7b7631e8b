"""A tiny few-shot data set, and settings that train on it within a second."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch

from neural_similarity.data import DatasetInfo, MemorySet, register_dataset
from neural_similarity.fewshot import FewShotConfig

CLASSES = {"train": 6, "val": 4, "test": 4}
IMAGES = 12


def load(request):
    """Each class is a pattern, each image its pattern with noise; 8 × 8, grey."""
    generator = torch.Generator().manual_seed(sorted(CLASSES).index(request.split))
    count = CLASSES[request.split]
    patterns = 200 * torch.rand(count, 1, 1, 8, 8, generator=generator)
    noise = 90 * torch.rand(count, IMAGES, 1, 8, 8, generator=generator)
    images = (patterns + noise).clamp(0, 255).to(torch.uint8).flatten(0, 1)
    names = [f"{request.split} {n}" for n in range(count)]
    return MemorySet.of("tiny", images, torch.arange(count).repeat_interleave(IMAGES), names)


def overlapping(request):
    whole = load(replace(request, split="train"))
    return replace(whole, name="overlapping")


def swapped(request):
    other = {"train": "test", "test": "train"}.get(request.split, request.split)
    return replace(load(replace(request, split=other)), name="swapped")


register_dataset(DatasetInfo("swapped", "few-shot", ("train", "val", "test"), "for tests"), swapped)
register_dataset(DatasetInfo("tiny", "few-shot", ("train", "val", "test"), "for tests"), load)
register_dataset(DatasetInfo("overlapping", "few-shot", ("train", "test"), "bad"), overlapping)

SMALL = FewShotConfig(
    method="proto", data="tiny", model="cnn9",
    options={"width": 3, "growth": [1, 2], "depths": [1, 1], "hidden": None},
    n_way=3, n_shot=2, n_query=4, tasks=2, epoch_steps=4, epochs=3.0, batch_size=18, hidden=2,
    val_episodes=20, episodes=30, log_every=1, threads=1,
)  # fmt: skip
"""Four steps per epoch, twelve in all, for images and for episodes."""


def torchrun(script, *arguments):
    """A script under torchrun, with two processes, which may import from here."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return subprocess.run(
        [sys.executable, *launcher, *map(str, (script, *arguments))], capture_output=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}, text=True, timeout=240,
    )  # fmt: skip
