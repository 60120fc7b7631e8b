"""Settings that train within a second, and a check that two runs are the same."""

import torch
from safetensors.torch import load_file

from neural_similarity.train import TrainConfig

from .killing import timeless

SMALL = TrainConfig(
    options={"width": 4, "hidden": 8}, hidden=4, batch_size=314, epochs=3.0, log_every=1,
    lr=0.02, threads=1,
)  # fmt: skip
"""Four batches per epoch, twelve steps."""


def assert_same_run(one, other):
    for name in ("last.safetensors", "best.safetensors", "last-12.optimizer.safetensors"):
        a, b = load_file(one.folder / name), load_file(other.folder / name)
        assert a.keys() == b.keys()
        for key in a:
            assert torch.equal(a[key], b[key]), (name, key)
    assert timeless(one.metrics()) == timeless(other.metrics())
