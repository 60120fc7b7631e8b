"""What dynamic similarities cost at inference: CNN-9 in PyTorch and as an ONNX file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.export import export_model

from .networks import SIDE, channels_last
from .timing import Timing, race

__all__ = ["run"]

_BATCHES, _HIDDEN = (1, 32), (8, 16, 64)
_ENOUGH = 32  # images in a measurement: one image alone takes too little time to be measured


def run(rounds: int) -> dict[str, list[Timing]]:
    torch.manual_seed(0)
    networks = {"plain": _network(None)}
    for hidden in _HIDDEN:
        networks[f"dynamic diagonal, {hidden} hidden"] = _network(hidden)
    tables = {}
    with TemporaryDirectory() as folder, torch.inference_mode():
        for runtime, prepared in (("PyTorch", _in_pytorch), ("onnxruntime", _in_onnxruntime)):
            runs = {name: prepared(model, Path(folder)) for name, model in networks.items()}
            for batch in _BATCHES:
                images = torch.randn(batch, 3, SIDE, SIDE)
                contestants = {
                    name: _repeated(one, images, _ENOUGH // batch) for name, one in runs.items()
                }
                title = f"{runtime}, CNN-9, {SIDE}×{SIDE}, batch {batch}, {_ENOUGH} images"
                tables[title] = race(contestants, rounds)
    return tables


def _network(hidden: int | None) -> nn.Module:
    """A network in evaluation mode whose similarities are not the identity."""
    similarity = None
    if hidden is not None:
        predictor = ns.SpherePredictor(hidden=hidden, start="authors")
        similarity = ns.DynamicSimilarity("diagonal", predictor)
    return channels_last(ns.create_model("cnn9", image_size=SIDE, similarity=similarity)).eval()


def _in_pytorch(model: nn.Module, folder: Path) -> Callable[[Tensor], object]:
    return lambda images: model(images.contiguous(memory_format=torch.channels_last))


def _in_onnxruntime(model: nn.Module, folder: Path) -> Callable[[Tensor], object]:
    import onnxruntime

    path = folder / "model.onnx"
    with torch.inference_mode(False):
        export_model(model, torch.randn(2, 3, SIDE, SIDE), path, force=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {"image": images.numpy()})


def _repeated(run: Callable[[Tensor], object], images: Tensor, times: int) -> Callable[[], None]:
    def several() -> None:
        for _ in range(times):
            run(images)

    return several
