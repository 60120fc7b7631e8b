"""How fast an adapted ``efficientnet_lite0`` is, in PyTorch and as an ONNX file.

It learns ten classes of noise: what it knows does not change its speed. The file is checked against
the network before it is measured.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import neural_similarity as ns
from neural_similarity.export import export_model

from .timing import Timing, race

__all__ = ["run"]

_WAYS, _BATCHES = 10, (1, 32)


def run(rounds: int) -> dict[str, list[Timing]]:
    import onnxruntime

    noise = np.random.default_rng(0).integers(0, 256, (2 * _WAYS, 96, 96, 3), np.uint8)
    labels = [number % _WAYS for number in range(len(noise))]
    classifier = ns.FewShotClassifier("linear", "efficientnet_lite0", folds=1)
    network = classifier.fit(list(noise), labels).model_
    side = classifier.preprocessing_.image_size
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    tables = {}
    with TemporaryDirectory() as folder, torch.inference_mode():
        path = Path(folder) / "model.onnx"
        export_model(network, torch.randn(2, 3, side, side), path)
        session = onnxruntime.InferenceSession(path, options)
        name = session.get_inputs()[0].name
        for batch in _BATCHES:
            images = torch.randn(batch, 3, side, side)
            fast = images.contiguous(memory_format=torch.channels_last)
            contestants = {
                "PyTorch": lambda fast=fast: network(fast),
                "onnxruntime": lambda images=images: session.run(None, {name: images.numpy()}),
            }
            tables[f"adapted efficientnet_lite0, {side} pixels, batch {batch}"] = race(
                contestants, rounds
            )
    return tables
