"""A static similarity as a parametrization of a weight, in the sense of ``torch.nn.utils``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .. import _check, structures
from .._autocast import without_autocast
from ..errors import ShapeError
from ..ops.effective_weight import effective_weight, similarity_blocks
from .layer_hooks import accept_stock_keys, make_copyable, own_class
from .layouts import KernelLayout
from .names import DEFAULT_NAME, child_name
from .structure_parameters import structure_parameters

if TYPE_CHECKING:
    from .static import StaticSimilarity

__all__ = ["SimilarityParametrization", "activate_static", "put_on", "static_by_name"]


class SimilarityParametrization(nn.Module):
    r"""The weight as :math:`M^\top W`, with the parameters of M as its own.

    ``torch.nn.utils.parametrize`` calls it wherever the layer reads its weight, so every kind of
    layer, stride, padding and group works as before. One weight may have several, each with a
    name. Those that are not active return the weight unchanged.

    Attributes:
        name: of the similarity.
        active: whether the layer uses it.
        numbers: the parameters of M, by name.
    """

    def __init__(
        self,
        config: StaticSimilarity,
        layout: KernelLayout,
        weight: Tensor,
        name: str = DEFAULT_NAME,
    ) -> None:
        super().__init__()
        self.name = name
        self.active = True
        self.attached = False
        self.config = config
        self.structure = structures.resolve(config.structure)
        self.scope = config.scope
        self.layout = layout
        self.block = layout.block(config.scope == "full")
        self.handle: Any = None  # of the hook that accept_stock_keys registers on the layer
        self.stock_order: tuple[str, ...] = ()  # of the layer's parameters before it was attached
        kernels = layout.to_kernels(weight.detach())
        self.leading, _ = similarity_blocks(kernels, self.scope, layout.groups)
        # The name is in the keys, so a checkpoint cannot load into another similarity.
        self._modules[child_name("numbers", name)] = structure_parameters(
            self.structure, self.block, self.leading
        ).to(device=weight.device, dtype=weight.dtype)

    @property
    def numbers(self) -> nn.ParameterDict:
        return cast(nn.ParameterDict, self._modules[child_name("numbers", self.name)])

    def reset_parameters(self) -> None:
        """Return to the structure's initial values; models created on the meta device need it."""
        self.structure.reset(dict(self.numbers.items()), self.block)

    def similarity(self) -> Tensor:
        """The current M: diagonal ``(*leading, n)`` or matrix ``(*leading, n, n)``."""
        return self.structure.similarity(dict(self.numbers.items()), self.block)

    def kernel_shape(self) -> Tensor | None:
        """The diagonal of D ``(*leading, n)``, if there is a kernel shape."""
        return self.structure.mask(dict(self.numbers.items()))

    @property
    def is_diagonal(self) -> bool:
        """Whether M is given by its diagonal alone."""
        return self.similarity().dim() == len(self.leading) + 1

    def forward(self, weight: Tensor) -> Tensor:
        if not self.active:
            return weight
        # Autocast would round the kernel before it is used; mixing taps is cheap, so it is exact.
        with without_autocast(weight.device):
            return self._mixed(weight, self.similarity())

    def right_inverse(self, weight: Tensor) -> Tensor:
        r"""The W whose :math:`M^\top W` is ``weight``: PyTorch calls it for ``conv.weight = ...``.

        Raises:
            ShapeError: there is no such W, or rounding would cost it more than half of its digits.
        """
        if not self.attached:
            raise NotImplementedError  # PyTorch then registers the parameter unchanged
        if weight.shape != self.layout.stored:
            raise ShapeError(
                f"weight: expected a tensor of shape {self.layout.stored}, got "
                f"{_check.shape(weight)}."
            )
        if not self.active or weight.is_meta:
            return weight.detach().clone()
        with without_autocast(weight.device):
            M = self.similarity().detach().double()
            if self.is_diagonal:
                inverse = torch.where(M == 0, 0.0, 1 / M)
            else:
                inverse = torch.linalg.inv_ex(M).inverse
            solution = self._mixed(weight.detach().double(), inverse).to(weight.dtype)
            error = (self._mixed(solution, self.similarity()) - weight).abs().max()
        if not error <= torch.finfo(weight.dtype).eps ** 0.5 * weight.abs().max():  # catches NaN
            raise ShapeError(
                f"weight: expected a similarity that can be inverted, got structure "
                f"{self.structure.name!r} with a singular or badly conditioned M. The layer "
                f"computes MᵀW, and no W gives this weight. Assign before attaching or after "
                f"merging, or copy W itself into parametrizations.weight.original."
            )
        return torch.empty_like(weight).copy_(solution)

    def _mixed(self, weight: Tensor, similarity: Tensor) -> Tensor:
        effective = effective_weight(
            self.layout.to_kernels(weight),
            similarity,
            scope=self.scope,
            groups=self.layout.groups,
        )
        return self.layout.to_stored(effective)

    def extra_repr(self) -> str:
        prefix = "" if self.name == DEFAULT_NAME else f"name={self.name!r}, "
        return f"{prefix}structure={self.structure!r}, scope={self.scope!r}"


def static_by_name(module: nn.Module) -> dict[str, dict[str, SimilarityParametrization]]:
    """Every static similarity of one layer, active or not: by its name, then by weight name."""
    similarities: dict[str, dict[str, SimilarityParametrization]] = {}
    lists = getattr(module, "parametrizations", {})
    for weight in lists:
        for similarity in lists[weight]:
            if isinstance(similarity, SimilarityParametrization):
                similarities.setdefault(similarity.name, {})[weight] = similarity
    return similarities


def activate_static(module: nn.Module, name: str | None) -> None:
    """Make a layer use only its static similarity of this name, if it has one."""
    for similarities in static_by_name(module).values():
        for weight, similarity in similarities.items():
            similarity.active = similarity.name == name
            # Within parametrize.cached() the weight of the previous one would stay in use.
            parametrize._cache.pop((id(module), weight), None)


def put_on(module: nn.Module, similarities: dict[str, SimilarityParametrization]) -> None:
    """Put the similarities of one name on the weights of a layer, and activate them."""
    if parametrize.is_parametrized(module):
        own_class(module)  # a copy of the layer may share its class
    is_first, order = not static_by_name(module), tuple(module._parameters)
    for weight, similarity in similarities.items():
        similarity.attached = False
        parametrize.register_parametrization(module, weight, similarity)
        similarity.attached = True
        _sort_by_name(module.get_submodule(f"parametrizations.{weight}"))
    some = next(iter(similarities.values()))
    if is_first:
        some.stock_order, some.handle = order, accept_stock_keys(module)
        make_copyable(module)
    activate_static(module, some.name)


def _sort_by_name(similarities: Any) -> None:
    """Sort, so that keys in the ``state_dict`` depend only on the names, not on their order.

    At most one similarity changes the weight, so their order does not matter to the result.
    """
    ordered = sorted(similarities, key=lambda s: (s.name != DEFAULT_NAME, s.name))
    for place, similarity in enumerate(ordered):
        similarities[place] = similarity
