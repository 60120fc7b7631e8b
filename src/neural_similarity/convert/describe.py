"""The layers of a network, and what their similarities have learned."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from ..nn.dynamic import PredictedSimilarity
from ..nn.inventory import Similarity, layer_similarities, named_similarities
from ..nn.layouts import stock_type
from ..nn.positions import PositionSimilarity, StaticPositions
from .multiply_adds import multiply_adds
from .probe import evaluation

__all__ = [
    "LayerSummary",
    "describe_layers",
    "difference_from_identity",
    "distance_from_identity",
    "predicted_similarities",
]


@dataclass(frozen=True)
class LayerSummary:
    """A layer and its active similarity.

    Args:
        name: in the model.
        kind: the stock class, such as ``"Conv2d"``.
        kernel: such as ``"3×3"``; empty for a layer without a kernel.
        similarity: such as ``"static diagonal"``; empty without a similarity.
        similarity_numbers: how many parameters M has; for a dynamic layer, those of its predictor.
        parameters: how many parameters the layer has, those of M included.
        multiply_adds: for one sample.
        distance: how far M is from the identity, ``‖M − I‖ / ‖I‖``; None without a similarity.
    """

    name: str
    kind: str
    kernel: str
    similarity: str
    similarity_numbers: int
    parameters: int
    multiply_adds: int
    distance: float | None


def describe_layers(model: nn.Module, example: Tensor) -> list[LayerSummary]:
    """Every layer that multiplies or has an active similarity, in the order of the model.

    A parameter that several layers share is counted for the first of them. Dynamic similarities are
    predicted for the samples of ``example``; their distance is over all samples and positions.
    """
    two = torch.cat((example, example))[:2]  # of one alone, M could be merged into the kernel
    counts = {name: count // 2 for name, count in multiply_adds(model, two).items()}
    predicted = predicted_similarities(model, example)
    seen: set[nn.Parameter] = set()
    layers = []
    for name, module in model.named_modules():
        similarities = layer_similarities(module)
        is_global = isinstance(module, PositionSimilarity)
        if name not in counts and not similarities and not is_global:
            continue
        behind = [p for s in similarities.values() for p in s.parameters() if p not in seen]
        inner = [child for child, _ in module.named_children() if child != "parametrizations"]
        whole = bool(similarities) or is_global or not inner
        own_parameters = [p for p in module.parameters(recurse=whole) if p not in seen]
        seen.update(own_parameters)
        layers.append(
            LayerSummary(
                name=name,
                kind=stock_type(module).__name__,
                kernel="×".join(map(str, getattr(module, "kernel_size", ()))),
                similarity=_label(module, similarities),
                similarity_numbers=sum(
                    p.numel() for p in (own_parameters if is_global else behind)
                ),
                parameters=sum(p.numel() for p in own_parameters),
                multiply_adds=counts.get(name, 0),
                distance=_distance(name, similarities, predicted),
            )
        )
    return layers


def predicted_similarities(model: nn.Module, input: Tensor) -> dict[str, Tensor]:
    """What each dynamic layer predicts for ``input`` in evaluation mode, by predictor, taps last.

    ``(N, P, Q, K)`` for a diagonal and ``(N, P, Q, K, K)`` for a matrix, without P and Q in a
    layer without positions; ``(N, P, Q, S, K)`` for S groups of channels, and O·S in place of S
    over kernels. P and Q are 1 if there is one M per image. For a layer that runs more than once,
    this is the first prediction.
    """
    caught: dict[str, Tensor] = {}
    handles = []
    for name, module in named_similarities(model):
        if isinstance(module, PredictedSimilarity):

            def catch(module: PredictedSimilarity, _: object, M: Tensor, name: str = name) -> None:
                caught.setdefault(name, module.taps_last(M))

            handles.append(module.register_forward_hook(catch))
    try:
        with evaluation(model), torch.no_grad():
            model(input)
    finally:
        for handle in handles:
            handle.remove()
    return caught


def difference_from_identity(similarity: Tensor, diagonal: bool) -> Tensor:
    """M − I, for M given by its diagonal ``(*leading, n)`` or as a matrix ``(*leading, n, n)``."""
    if diagonal:
        return similarity - 1
    return similarity - torch.eye(
        similarity.shape[-1], dtype=similarity.dtype, device=similarity.device
    )


def distance_from_identity(similarity: Tensor, diagonal: bool) -> Tensor:
    """``‖M − I‖ / ‖I‖`` with Frobenius norms: ``(*leading)``.

    It does not grow with the number of taps, so diagonals and matrices of any size are comparable.
    """
    difference = difference_from_identity(similarity, diagonal)
    taps = (-1,) if diagonal else (-2, -1)
    return difference.square().sum(taps).sqrt() / sqrt(similarity.shape[-1])


def _distance(
    layer: str, similarities: dict[str, Similarity], predicted: dict[str, Tensor]
) -> float | None:
    squares = []
    for name, similarity in similarities.items():
        if isinstance(similarity, PredictedSimilarity):
            M = predicted.get(f"{layer}.{name}" if layer else name)
            D = similarity.kernel_shape()
            if M is not None and D is not None:  # it is part of M, and not predicted
                M = M * (D if similarity.is_diagonal else D.unsqueeze(-1)).detach()
        else:
            M = similarity.similarity().detach()
        if M is not None:  # a layer that does not run predicts nothing
            squares.append(distance_from_identity(M, similarity.is_diagonal).square().mean())
    return float(torch.stack(squares).mean().sqrt()) if squares else None


def _label(module: nn.Module, similarities: dict[str, Similarity]) -> str:
    for similarity in similarities.values():
        if isinstance(similarity, PredictedSimilarity):
            return similarity.label
        shared = "" if similarity.scope == "layer" else f", {similarity.scope}"
        return f"static {similarity.structure.label}{shared}"
    if isinstance(module, StaticPositions):
        return f"global {module.structure.label}"
    return "global" if isinstance(module, PositionSimilarity) else ""
