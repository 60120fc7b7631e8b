"""Weights that several layers share: a static similarity in one of them would change the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from ..errors import NeuralSimilarityError

__all__ = ["refuse_shared_weights", "stock_weights"]


def refuse_shared_weights(
    where: str, model: nn.Module, weights: Iterable[Tensor], error: type[NeuralSimilarityError]
) -> None:
    """Raise if one of these weights belongs to two layers of the model."""
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            owners.setdefault(id(parameter), []).append(f"{path}.{name}" if path else name)
    for weight in weights:
        names = owners.get(id(weight), [])
        if len(names) > 1:
            raise error(
                f"{where}: expected layers with separate weights, got {' and '.join(names)}, "
                f"which are the same tensor. A similarity of one would change the other. Give each "
                f"layer its own weight, or attach no static similarity to them."
            )


def stock_weights(modules: Iterable[nn.Module]) -> Iterator[Tensor]:
    """The weights of layers, without their biases."""
    for module in modules:
        for name, parameter in module.named_parameters(recurse=False):
            if name.startswith("weight"):
                yield parameter
