"""What dynamic layers have in common: a stock layer, and predictors by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import nn

from ... import structures
from ...errors import AttachError
from ...structures import Block, Structure
from ..layer_hooks import accept_missing_similarity
from ..layouts import stock_parameter
from ..names import DEFAULT_NAME, child_name
from ..own_forward import OwnPadding
from ..predictors import PatchConfig, PredictorConfig, SpherePredictor
from ..spans import Over, Span
from .predicted import PredictedSimilarity, predicted_numbers

if TYPE_CHECKING:
    from .similarity import DynamicSimilarity

__all__ = ["DynamicLayer", "Installed", "predictions_for"]

# For each predictor by name: the block of M, the input channels, the kernel size.
Sites = dict[str, tuple[Block, int, tuple[int, int] | None]]


@dataclass(frozen=True)
class Installed:
    """How a similarity of a layer was made."""

    structure: Structure
    block_size: int | None
    span: Span
    config: DynamicSimilarity | None = None
    sites: tuple[str, ...] = ()


class DynamicLayer(nn.Module):
    """Base class of dynamic layers; not used directly.

    ``weight`` and ``bias`` keep their stock keys, so pretrained weights load. A layer may hold the
    predictors of several named similarities. It uses those of the active one; without one, it is
    the stock layer.

    Attributes:
        installed: how each similarity was made, by its name.
        active: the name of the similarity in use, or None.
        own_padding: the zeros that the layer's class adds in its own ``forward``; None if it has
            none, and the settings of the layer apply.
    """

    stock_class: ClassVar[type[nn.Module]]
    installed: dict[str, Installed]
    active: str | None
    own_padding: OwnPadding | None = None

    def __init__(
        self,
        *args: Any,
        structure: str | Structure = "diagonal",
        predictor: PredictorConfig | nn.Module | None = None,
        block_size: int | None = None,
        over: Over = "taps",
        similarity_groups: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)  # the stock layer's constructor
        where = type(self).__name__
        installed = Installed(
            structures.resolve(structure, where), block_size, Span(over, similarity_groups)
        )
        self.install(installed, predictions_for(type(self), self, installed, predictor, where))

    def sites(self, block_size: int | None) -> Sites:
        """What the layer has to predict; reads only the attributes of the stock layer."""
        raise NotImplementedError

    def install(
        self,
        installed: Installed,
        predictions: dict[str, PredictedSimilarity],
        name: str = DEFAULT_NAME,
    ) -> None:
        """Add predictors, made by :func:`predictions_for`, and activate them."""
        if "installed" not in vars(self):
            self.installed = {}
            self.on_first_install()
        weight = stock_parameter(self)
        for site, prediction in predictions.items():
            prediction.to(weight.device, weight.dtype).train(self.training)
            self.add_module(child_name(site, name), prediction)
        self.installed[name] = replace(installed, sites=tuple(predictions))
        self.active = name

    def uninstall(self, name: str) -> None:
        """Remove the predictors of a similarity; if it is the active one, none is afterwards."""
        for site in self.installed[name].sites:
            delattr(self, child_name(site, name))
        del self.installed[name]
        self.active = None if self.active == name else self.active

    def on_first_install(self) -> None:
        """Register the hooks that the layer needs."""
        accept_missing_similarity(self)

    @property
    def config(self) -> DynamicSimilarity | None:
        """The configuration that made the active similarity, if :func:`attach` did."""
        return None if self.active is None else self.installed[self.active].config

    def by_name(self) -> dict[str, dict[str, PredictedSimilarity]]:
        """Every similarity, active or not: by its name, then by site."""
        return {
            name: {site: self._prediction(site, name) for site in installed.sites}
            for name, installed in self.installed.items()
        }

    def predictions(self) -> dict[str, PredictedSimilarity]:
        """The predictors in use, by site."""
        return {} if self.active is None else self.by_name()[self.active]

    def prediction(self, site: str) -> PredictedSimilarity:
        """The predictor in use at one site."""
        if self.active is None:
            raise AttachError(
                f"{type(self).__name__}: expected an active similarity, got none. Choose one with "
                f"set_similarity."
            )
        return self._prediction(site, self.active)

    def _prediction(self, site: str, name: str) -> PredictedSimilarity:
        return cast(PredictedSimilarity, self._modules[child_name(site, name)])

    def similarity_children(self) -> dict[str, nn.Module]:
        """What a checkpoint of the stock layer lacks, by name."""
        return {
            child_name(site, name): self._prediction(site, name)
            for name, installed in self.installed.items()
            for site in installed.sites
        }


NetworkMaker = Callable[[PredictorConfig, int, int, "tuple[int, int] | None"], nn.Module]


def predictions_for(
    cls: type[DynamicLayer],
    module: nn.Module,
    installed: Installed,
    predictor: PredictorConfig | nn.Module | None,
    where: str,
    make_network: NetworkMaker | None = None,
) -> dict[str, PredictedSimilarity]:
    """The predictors that would make ``module`` a layer of class ``cls``; changes nothing."""
    if predictor is None:
        predictor = SpherePredictor()
    check_predictor(predictor, installed, where)
    structure, predictions = installed.structure, {}
    sites = cls.sites(module, installed.block_size)  # type: ignore[arg-type]
    for site, (block, channels, kernel_size) in sites.items():
        structure.check(block, where)
        if kernel_size is None:
            span = _span_of_features(installed.span, predictor, where)
        else:
            assert isinstance(module, nn.Conv1d | nn.Conv2d)
            span = installed.span.for_convolution(
                channels, module.out_channels, module.groups, where
            )
        network, residual = predictor, True
        if isinstance(predictor, PredictorConfig):
            config = predictor.for_structure(structure, dense=kernel_size is None)
            outputs = predicted_numbers(structure, block, span)
            if not outputs:
                raise AttachError(
                    f"{where}: expected a structure with parameters to predict, got "
                    f"{structure.name!r}, which has none for {block.size} tap(s). Use another "
                    f"structure, or leave this layer out."
                )
            make = make_network or _own_network
            network, residual = make(config, channels, outputs, kernel_size), config.residual
        assert isinstance(network, nn.Module)
        predictions[site] = PredictedSimilarity(network, structure, block, residual, span)
    return predictions


def check_predictor(predictor: object, installed: Installed, where: str) -> None:
    """Raise if this predictor cannot predict an M of this structure and span."""
    if not isinstance(predictor, PredictorConfig | nn.Module):
        raise AttachError(
            f"{where}: expected predictor to be a PatchPredictor, ConvPredictor, PixelPredictor, "
            f"ImagePredictor, PairPredictor or an nn.Module, got {predictor!r}."
        )
    installed.span.check(installed.structure, where)
    if isinstance(predictor, PredictorConfig):
        predictor.check(installed.structure, installed.span, where)


def _own_network(
    config: PredictorConfig, channels: int, outputs: int, kernel_size: tuple[int, int] | None
) -> nn.Module:
    return config.network(channels, outputs, kernel_size)


def _span_of_features(span: Span, predictor: object, where: str) -> Span:
    """The span in a layer without positions, after checks."""
    span.refuse_features(where)
    if isinstance(predictor, PredictorConfig) and not isinstance(predictor, PatchConfig):
        raise AttachError(
            f"{where}: expected a PatchPredictor or ConvPredictor for a layer without positions, "
            f"got {type(predictor).__name__}. There is no {predictor.source} to predict from."
        )
    return Span(groups=1)
