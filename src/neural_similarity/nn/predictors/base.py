"""What every predictor is: a frozen configuration, and the network that it makes."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from ...structures import Structure
from ..spans import Span

__all__ = ["Gate", "PredictorConfig", "PredictorNetwork", "gated"]

Gate = Literal["none", "tanh", "sigmoid"]


class PredictorConfig:
    """What all predictors have in common: the base class of your own.

    A predictor is a frozen dataclass. It holds no tensors: one serves many layers, and
    :meth:`network` makes a network for each. ``register_predictor`` makes its kind known to files
    and to the command line.

    Attributes:
        kind: of the predictor, in files.
        source: what M is predicted from: ``"patch"``, ``"pixel"``, ``"image"`` or ``"pairs"``. The
            network of an ``"image"`` gets the input without padding.
        residual: whether the identity is added to what the network returns.
    """

    kind: ClassVar[str]
    source: ClassVar[str]
    residual: bool = True

    def for_structure(self, structure: Structure, dense: bool = False) -> Self:
        """Replace None by the default for a structure; ``dense`` means fully connected."""
        return self

    def check(self, structure: Structure, span: Span, where: str) -> None:
        """Raise if M cannot be predicted in this way."""

    def network(
        self, channels: int, outputs: int, kernel_size: tuple[int, int] | None
    ) -> PredictorNetwork:
        """A network that predicts ``outputs`` parameters from ``channels`` input channels.

        ``kernel_size`` is that of the layer; None means a layer without positions.
        """
        raise NotImplementedError

    def to_config(self) -> dict[str, Any]:
        """Plain values, for a file."""
        return {"kind": self.kind, **vars(self)}


class PredictorNetwork(nn.Module):
    """The network that a :class:`PredictorConfig` makes: ``(input, window)`` to parameters of M.

    It returns ``(N, outputs, P, Q)`` for the output positions of the window, of which N and both
    sides may be 1. If it returns zeros at first, M starts at the identity.

    Attributes:
        config: what made it.
        takes_guide: whether the network is called with a guide, as ``(input, window, guide)``.
    """

    config: PredictorConfig
    takes_guide: bool = False

    def early_layers(self, gains: bool) -> list[nn.Module]:
        """All layers but the last; with ``gains``, all but the factors after the last one."""
        raise NotImplementedError


def gated(z: Tensor, gate: Gate) -> Tensor:
    """What is added to the identity: z, tanh(z), or 2·sigmoid(z) − 1, which is tanh(z/2).

    >>> gated(torch.zeros(2), "sigmoid")
    tensor([0., 0.])
    """
    if gate == "none":
        return z
    if gate == "tanh":
        return torch.tanh(z)
    return torch.sigmoid(z) * 2 - 1  # tanh(z / 2) takes longer on a CPU
