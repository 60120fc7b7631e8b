"""Dynamic similarity for the layers of a whole model: one predictor per layer, or one for many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from ... import _check, structures
from ..._json import Side, build
from ...errors import AttachError, FileFormatError
from ...structures import Structure
from ..names import DEFAULT_NAME
from ..predictors import (
    PatchConfig,
    PredictorConfig,
    SpherePredictor,
    Window,
    predictor_from_config,
    size_preserving,
)
from ..spans import Over, Span
from ..targets import check_targets
from .base import Installed, NetworkMaker, check_predictor, predictions_for
from .layer_class import dynamic_class, make_dynamic
from .predicted import PredictedSimilarity

__all__ = ["DynamicSimilarity"]


@dataclass(frozen=True)
class DynamicSimilarity:
    """Configuration of a dynamic similarity (`Section 3.3 <https://arxiv.org/abs/1910.13003>`_).

    It defines what M may be, what predicts it, and which layers get a similarity.

    Args:
        structure: a name or a structure; ``KernelShape(R)`` keeps D static and predicts R.
        predictor: what predicts M, and from what: ``PatchPredictor`` (the paper's, which is
            :class:`SpherePredictor`), :class:`ConvPredictor`, :class:`PixelPredictor`,
            :class:`ImagePredictor` or :class:`PairPredictor`.
        shared: False gives each layer its own predictor (disjoint). True makes one predictor for
            all layers with the same kernel size, after a 3×3 adaptation to ``shared_width``
            channels for each input width (Section 3.3.2). Only for predictors that read patches.
        shared_width: how many channels the adaptations return.
        block_size: for Linear and LSTMCell, how many input features one M spans; None means all.
        target_modules, exclude_modules: as in :class:`StaticSimilarity`.
        over: what M spans in a convolution. ``"taps"``: a factor for each kernel tap, or a matrix
            of taps (the paper). ``"channels"``: a factor for each group of channels, the same at
            all taps. ``"both"``: the product of a factor for the tap and one for the group.
            ``"kernels"``: a factor for each tap of each kernel and group, for small layers. The
            last three need a diagonal.
        similarity_groups: how many groups of channels have their own factors; None means one group
            over taps, and every channel otherwise. Over kernels, they are groups of the channels
            that one kernel sees. More than one needs a diagonal.

    Example:
        >>> import torch
        >>> import neural_similarity as ns
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
        >>> model = ns.attach(model, DynamicSimilarity(predictor=SpherePredictor(hidden=4)))
        >>> type(model[2]).__name__
        'DynamicConv2d'

        One factor for each channel and tap, from the average of the image:

        >>> both = DynamicSimilarity(predictor=ns.ImagePredictor(hidden=4), over="both")
        >>> model = ns.attach(nn.Sequential(nn.Conv2d(3, 8, 3)), both)

        A factor for every weight, a dynamic filter network:

        >>> kernels = DynamicSimilarity(predictor=ns.ImagePredictor(hidden=4), over="kernels")
        >>> model = ns.attach(nn.Sequential(nn.Conv2d(3, 8, 3)), kernels)
        >>> model[0].similarity(torch.randn(2, 3, 9, 9)).shape  # 8 · 3 · 9
        torch.Size([2, 216, 1, 1])
    """

    structure: str | Structure = "diagonal"
    predictor: PredictorConfig = field(default_factory=SpherePredictor)
    shared: bool = False
    shared_width: int = 64
    block_size: int | None = None
    target_modules: str | tuple[str, ...] | list[str] | None = None
    exclude_modules: str | tuple[str, ...] | list[str] = ()
    over: Over = "taps"
    similarity_groups: int | None = None

    def __post_init__(self) -> None:
        structures.resolve(self.structure, "DynamicSimilarity")
        check_targets(
            "DynamicSimilarity", self.target_modules, self.exclude_modules, self.block_size
        )
        for name in ("block_size", "shared_width", "similarity_groups"):
            object.__setattr__(self, name, _check.plain_number(getattr(self, name)))
        if not _check.is_whole(self.shared_width) or self.shared_width < 1:
            raise AttachError(
                f"DynamicSimilarity: expected shared_width of at least 1, got "
                f"{self.shared_width!r}."
            )
        if isinstance(self.predictor, nn.Module):
            raise AttachError(
                f"DynamicSimilarity: expected predictor to be a configuration such as "
                f"PatchPredictor(), got {type(self.predictor).__name__}. Each layer needs a "
                f"predictor of its size. Pass a module to one layer instead, as "
                f"DynamicConv2d(predictor=...)."
            )
        check_predictor(self.predictor, self._installed(), "DynamicSimilarity")
        _check.true_or_false("DynamicSimilarity", shared=self.shared)
        if self.shared and not isinstance(self.predictor, PatchConfig):
            raise AttachError(
                f"DynamicSimilarity: expected a PatchPredictor or ConvPredictor with shared=True, "
                f"got {type(self.predictor).__name__}. Only predictors that read patches can be "
                f"shared: the others are small. Leave shared out."
            )

    @property
    def skips_single_taps(self) -> bool:
        """Whether a 1×1 kernel has nothing to predict but a gain."""
        return self._installed().span.is_papers

    def _installed(self) -> Installed:
        structure = structures.resolve(self.structure, "DynamicSimilarity")
        return Installed(structure, self.block_size, Span(self.over, self.similarity_groups), self)

    def prepare(
        self, chosen: dict[str, nn.Module], name: str = DEFAULT_NAME
    ) -> dict[str, dict[str, PredictedSimilarity]]:
        """The predictors for each layer, after all checks; changes nothing."""
        make: NetworkMaker | None = _SharedNetworks(self.shared_width) if self.shared else None
        installed = self._installed()
        return {
            path: predictions_for(
                dynamic_class(module, path or "model", name),
                module,
                installed,
                self.predictor,
                path or "model",
                make,
            )
            for path, module in chosen.items()
        }

    def apply(
        self,
        module: nn.Module,
        similarities: dict[str, PredictedSimilarity],
        name: str = DEFAULT_NAME,
    ) -> None:
        """Make a layer dynamic, in place, or add to a dynamic one; its parameters do not change."""
        make_dynamic(module).install(self._installed(), similarities, name)

    def to_config(self) -> dict[str, Any]:
        """Plain values, for a file; without the targets, because the file lists every layer."""
        return {
            "mode": "dynamic",
            "structure": structures.resolve(self.structure).to_config(),
            "predictor": self.predictor.to_config(),
            "shared": self.shared,
            "shared_width": self.shared_width,
            "block_size": self.block_size,
            "over": self.over,
            "similarity_groups": self.similarity_groups,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> DynamicSimilarity:
        """The inverse of :meth:`to_config`."""
        saved = build(_Saved, config, "DynamicSimilarity", FileFormatError, others=True)
        return cls(
            structures.from_config(saved.structure),
            predictor_from_config(saved.predictor),
            saved.shared,
            saved.shared_width,
            saved.block_size,
            over=saved.over,
            similarity_groups=saved.similarity_groups,
        )


@dataclass(frozen=True)
class _Saved:
    """A dynamic similarity in a file."""

    structure: dict[str, Any]
    predictor: dict[str, Any]
    shared: bool
    shared_width: Side
    block_size: int | None
    over: Over = "taps"  # missing in files of earlier versions
    similarity_groups: int | None = None


class _SharedNetworks:
    """Makes predictors that share an adaptation per input width and a core per kernel size."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.adaptations: dict[tuple[int, tuple[int, int] | None], nn.Module] = {}
        self.cores: dict[tuple[int, tuple[int, int] | None], nn.Module] = {}

    def __call__(
        self,
        config: PredictorConfig,
        channels: int,
        outputs: int,
        kernel_size: tuple[int, int] | None,
    ) -> nn.Module:
        core, adaptation = (outputs, kernel_size), (channels, kernel_size)
        if core not in self.cores:
            self.cores[core] = config.network(self.width, outputs, kernel_size)
        if adaptation not in self.adaptations:
            self.adaptations[adaptation] = self._adaptation(channels, kernel_size)
        return _SharedNetwork(self.adaptations[adaptation], self.cores[core])

    def _adaptation(self, channels: int, kernel_size: tuple[int, int] | None) -> nn.Module:
        if kernel_size is None:
            return nn.Linear(channels, self.width, bias=False)
        return size_preserving(channels, self.width, kernel_size)


class _SharedNetwork(nn.Module):
    """An adaptation, then the core that many layers share."""

    takes_guide = False

    def __init__(self, adaptation: nn.Module, core: nn.Module) -> None:
        super().__init__()
        self.adaptation = adaptation
        self.core = core

    def forward(self, input: Tensor, window: Window) -> Tensor:
        predicted: Tensor = self.core(self.adaptation(input), window)
        return predicted
