"""Layers of SphereNet (`Liu et al., 2017 <https://arxiv.org/abs/1711.03189>`_)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .. import _check
from .._shapes import pair
from ..errors import ShapeError
from ..ops.sphere import OPERATORS, Normalize, check_choice, sphere_conv2d, sphere_linear
from ._padding import explicit_padding

__all__ = ["SphereConv2d", "SphereLinear"]

_SHARPEST = 0.02  # a learnable sigmoid stays a sigmoid, and keeps its direction


class SphereConv2d(nn.Conv2d):
    """``nn.Conv2d`` that compares directions: see :func:`~neural_similarity.ops.sphere_conv2d`.

    Args:
        operator: ``"cosine"``, ``"linear"``, ``"sigmoid"``, or ``"learnable_sigmoid"``, whose
            sharpness k is a parameter of the layer.
        normalize: divide out the length of the ``"input"`` patch, the ``"weight"``, or ``"both"``.
        sharpness: k of the sigmoid, or where the learnable one starts.

    The other arguments are ``nn.Conv2d``'s, but ``bias`` is False by default, as in SphereNet.

    Example:
        >>> import torch
        >>> SphereConv2d(3, 8, 3, padding=1)(torch.randn(2, 3, 8, 8)).abs().max() <= 1
        tensor(True)
    """

    def __init__(
        self,
        *args: Any,
        operator: str = "cosine",
        normalize: Normalize = "both",
        sharpness: float = 0.3,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{"bias": False, **kwargs} if len(args) < 8 else kwargs)
        _set_operator(self, operator, normalize, sharpness)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        _reset_sharpness(self)

    def forward(self, input: Tensor) -> Tensor:
        if input.dim() == 3:
            return self.forward(input[None])[0]
        padded, padding = explicit_padding(self, input)
        return sphere_conv2d(
            padded,
            self.weight,
            self.bias,
            pair(self.stride),
            pair(padding),
            pair(self.dilation),
            self.groups,
            **_operator_options(self),
        )

    def extra_repr(self) -> str:
        return f"{nn.Conv2d.extra_repr(self)}, operator={self.operator}, normalize={self.normalize}"


class SphereLinear(nn.Linear):
    """``nn.Linear`` that compares directions; arguments as in :class:`SphereConv2d`.

    Example:
        >>> import torch
        >>> SphereLinear(6, 3, operator="sigmoid")(torch.randn(4, 6)).shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        operator: str = "cosine",
        normalize: Normalize = "both",
        sharpness: float = 0.3,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_features, out_features, bias, **kwargs)
        _set_operator(self, operator, normalize, sharpness)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        _reset_sharpness(self)

    def forward(self, input: Tensor) -> Tensor:
        return sphere_linear(input, self.weight, self.bias, **_operator_options(self))

    def extra_repr(self) -> str:
        return f"{nn.Linear.extra_repr(self)}, operator={self.operator}, normalize={self.normalize}"


def _set_operator(layer: Any, operator: str, normalize: Normalize, sharpness: float) -> None:
    where = type(layer).__name__
    _check.known_name(where, "operator", operator, (*OPERATORS, "learnable_sigmoid"))
    check_choice(where, operator.removeprefix("learnable_"), normalize, sharpness)
    layer.operator, layer.normalize = operator, normalize
    layer.initial_sharpness, layer.sharpness = float(sharpness), sharpness
    if operator == "learnable_sigmoid":
        if sharpness < _SHARPEST:
            raise ShapeError(
                f"{where}: expected a learnable sharpness of at least {_SHARPEST}, got "
                f"{sharpness}. It would not be a sigmoid. Use {_SHARPEST}, or operator 'sigmoid'."
            )
        layer.sharpness = nn.Parameter(layer.weight.new_empty(()))
        _reset_sharpness(layer)


def _reset_sharpness(layer: Any) -> None:
    sharpness = getattr(layer, "sharpness", None)  # not there yet in PyTorch's constructor
    if isinstance(sharpness, Tensor):
        nn.init.constant_(sharpness, layer.initial_sharpness)


def _operator_options(layer: Any) -> dict[str, Any]:
    sharpness = layer.sharpness
    if isinstance(sharpness, Tensor):
        # A clamp alone has no gradient: a layer that got too sharp would stay so.
        sharpness = sharpness + (sharpness.clamp(min=_SHARPEST) - sharpness).detach()
    operator = layer.operator.removeprefix("learnable_")
    return {"operator": operator, "normalize": layer.normalize, "sharpness": sharpness}
