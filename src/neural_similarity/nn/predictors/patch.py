"""M from the patch (Section 3.3, Appendix A): the paper's predictor, and a plain one.

:class:`SpherePredictor` and :class:`ConvPredictor` are configurations. :class:`TwoLayers` is the
network. A predictor has two layers. The first has the kernel size, stride, padding and dilation of
the layer it serves, so there is one prediction at each output position. The second is 3×3 and
keeps the size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any, ClassVar, Literal, Self, get_args

from torch import Tensor, nn

from ... import _check
from ...errors import ShapeError
from ...ops.folded_predictor import FoldedLayer
from ...ops.sphere import EPS
from ...structures import Structure
from ..plain_calls import called_plainly
from .base import PredictorConfig, PredictorNetwork
from .folding import folded_layers, kept_layers
from .fused import in_one_operation
from .patch_layers import PatchConv2d, PatchLinear, size_preserving
from .windows import Window

__all__ = ["ConvPredictor", "PatchConfig", "SpherePredictor", "TwoLayers"]

Start = Literal["identity", "authors"]
Output = Literal["none", "normalized", "sigmoid"]


@dataclass(frozen=True)
class PatchConfig(PredictorConfig):
    """What both predictors have in common; use one of the two classes below.

    Args:
        hidden: hidden units; None means the paper's 64 for a diagonal and 128 otherwise.
        batch_norm: BatchNorm after both layers; None means the authors' choice (for a diagonal),
            and no BatchNorm in fully connected predictors.
        residual: learn the difference from the identity, as the paper advises.
        start: ``"identity"``: the layer starts exactly as the plain one, because the last layer (or
            its BatchNorm's gain) starts at zero. ``"authors"``: as in the authors' code, with
            BatchNorm gains one and eps 1e-3, which is the identity plus small noise.
        first_scale, last_scale: of the two layers' initial weights, relative to `He initialisation
            <https://arxiv.org/abs/1502.01852>`_; the defaults are the authors'.
    """

    hidden: int | None = None
    batch_norm: bool | None = None
    residual: bool = True
    start: Start = "identity"
    first_scale: float = 0.1
    last_scale: float = 0.001

    source: ClassVar[str] = "patch"

    def __post_init__(self) -> None:
        where = type(self).__name__
        _check.known_name(where, "start", self.start, get_args(Start))
        if self.hidden is not None:
            _check.whole_numbers(where, hidden=self.hidden)
        _check.true_or_false(where, residual=self.residual)
        if self.batch_norm is not None:
            _check.true_or_false(where, batch_norm=self.batch_norm)
        for name in ("first_scale", "last_scale"):
            value = getattr(self, name)
            _check.real_numbers(where, **{name: value})
            if not 0 <= value < inf:
                raise ShapeError(
                    f"{where}: expected {name} to be a finite number of at least 0, got {value!r}."
                )
        object.__setattr__(self, "hidden", _check.plain_number(self.hidden))
        if self.start == "identity" and not self.residual:
            raise ShapeError(
                f"{where}: expected residual=True with start='identity', got residual=False. M "
                f"would start at zero and stay there. Use start='authors'."
            )

    def for_structure(self, structure: Structure, dense: bool = False) -> Self:
        """Replace None by the paper's choice; ``dense`` means fully connected."""
        diagonal = structure.predicted.name == "diagonal"
        hidden = (64 if diagonal else 128) if self.hidden is None else self.hidden
        batch_norm = self.batch_norm
        if batch_norm is None:
            batch_norm = self._default_batch_norm(diagonal) and not dense
        return replace(self, hidden=hidden, batch_norm=batch_norm)

    def _default_batch_norm(self, diagonal: bool) -> bool:
        return diagonal

    def network(
        self, channels: int, outputs: int, kernel_size: tuple[int, int] | None
    ) -> TwoLayers:
        return TwoLayers(self, channels, outputs, kernel_size)


@dataclass(frozen=True)
class SpherePredictor(PatchConfig):
    """The paper's predictor: SphereConv, ReLU, convolution, plus the identity.

    SphereConv is from `Liu et al., 2017 <https://arxiv.org/abs/1711.03189>`_.

    Args:
        normalize: ``"input"``: the first layer divides by the length of the patch, the second is
            a plain convolution (the paper's default). ``"both"``: both layers compare only
            directions, with the length of their weights divided out too ("full SphereNet").
    """

    normalize: Literal["input", "both"] = "input"
    kind: ClassVar[str] = "sphere"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.known_name("SpherePredictor", "normalize", self.normalize, ("input", "both"))


@dataclass(frozen=True)
class ConvPredictor(PatchConfig):
    """A plain two-layer CNN, for comparison (Table 1).

    With an unbounded output and He's initial scale it does not learn.

    Args:
        output: what is done to the prediction z before the identity is added: ``"none"``;
            ``"normalized"``, z over its length at each position; ``"sigmoid"``, sigmoid(z) − 1/2.
    """

    output: Output = "normalized"
    kind: ClassVar[str] = "conv"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.known_name("ConvPredictor", "output", self.output, get_args(Output))

    def _default_batch_norm(self, diagonal: bool) -> bool:
        return False


class TwoLayers(PredictorNetwork):
    """The network that predicts: convolutional with a kernel size, fully connected without."""

    config: PatchConfig

    def __init__(
        self,
        config: PatchConfig,
        channels: int,
        outputs: int,
        kernel_size: tuple[int, int] | None,
    ) -> None:
        super().__init__()
        assert config.hidden is not None
        self.config = config
        below = config.normalize if isinstance(config, SpherePredictor) else None
        above = below if below == "both" else None
        self.first: PatchConv2d | PatchLinear
        self.last: PatchConv2d | PatchLinear
        if kernel_size is None:
            self.first = PatchLinear(channels, config.hidden, below)
            self.last = PatchLinear(config.hidden, outputs, above)
        else:
            self.first = PatchConv2d(channels, config.hidden, kernel_size, normalize=below)
            self.last = size_preserving(config.hidden, outputs, kernel_size, above)
        norm = nn.BatchNorm1d if kernel_size is None else nn.BatchNorm2d
        eps = 1e-3 if config.start == "authors" else 1e-5
        self.first_norm = norm(config.hidden, eps) if config.batch_norm else nn.Identity()
        self.last_norm = norm(outputs, eps) if config.batch_norm else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights; with ``start="identity"`` the last factor starts at zero."""
        scales = (self.config.first_scale, self.config.last_scale)
        for layer, scale in zip((self.first, self.last), scales, strict=True):
            nn.init.normal_(layer.weight, std=scale * sqrt(2 / layer.weight[0].numel()))
        for norm in (self.first_norm, self.last_norm):
            if not isinstance(norm, nn.Identity):
                norm.reset_parameters()
        if self.config.start == "identity":
            zero = self.last if isinstance(self.last_norm, nn.Identity) else self.last_norm
            nn.init.zeros_(zero.weight)

    def forward(self, input: Tensor, window: Window) -> Tensor:
        """``(N, C, H, W)`` to ``(N, outputs, P, Q)``, or ``(B, I)`` to ``(B, outputs)``."""
        if (fused := self.fused(input, window)) is not None:
            return fused
        output = self._folded(input, window)
        if output is None:
            hidden = self.first_norm(self.first(input, window)).relu()
            output = self.last_norm(self.last(hidden))
        kind = self.config.output if isinstance(self.config, ConvPredictor) else "none"
        if kind == "normalized":
            return output / (output.square().sum(1, keepdim=True) + EPS).sqrt()
        return output.sigmoid() - 0.5 if kind == "sigmoid" else output

    def fused(self, input: Tensor, window: Window, start: Tensor | None = None) -> Tensor | None:
        """The output, plus a start, in one operation; None where that is not possible.

        Also None if there is a start and hooks expect a call, whose output has no start.
        """
        if not isinstance(self.config, SpherePredictor) or self.config.normalize != "input":
            return None
        if start is not None and not (
            called_plainly(self) and start.shape == self.last.weight.shape[:1]
        ):
            return None
        layers = (self.first, self.first_norm), (self.last, self.last_norm)
        return in_one_operation(input, window, *layers, start)

    def _folded(self, input: Tensor, window: Window) -> Tensor | None:
        """The output before it is bounded, if BatchNorm can be folded into the convolutions now."""
        config = self.config
        sphere = isinstance(config, SpherePredictor)
        if not config.batch_norm or getattr(config, "normalize", None) == "both":
            return None
        return folded_layers(self, self._layers(), input, window, sphere)

    def folded(self, *operands: Tensor) -> tuple[FoldedLayer, FoldedLayer] | None:
        """Both layers of the paper's predictor as convolutions, if only their values matter now.

        ``operands`` are what they will be used with, the input first.
        """
        config = self.config
        papers = isinstance(config, SpherePredictor) and config.normalize == "input"
        if not papers or not config.batch_norm:
            return None
        return kept_layers(self, self._layers(), *operands)

    def _layers(self) -> tuple[nn.Module, nn.Module, nn.Module, nn.Module]:
        modules: Any = self._modules  # faster access, which matters for small maps
        return modules["first"], modules["first_norm"], modules["last"], modules["last_norm"]

    def early_layers(self, gains: bool) -> list[nn.Module]:
        has_gains = not isinstance(self.last_norm, nn.Identity)
        return [self.first, self.first_norm, *([self.last] if gains and has_gains else [])]
