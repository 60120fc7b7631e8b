"""Static similarity (Section 3.2): a parametrization of the weight, gone after merging."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .. import _check, structures
from .._autocast import without_autocast
from .._shapes import pair
from ..errors import AttachError
from ..ops.effective_weight import SCOPES, Scope, effective_weight, similarity_blocks
from ..structures import Structure
from ._hooks import accept_stock_keys, make_copyable
from ._targets import check_targets
from .layouts import KernelLayout, kernel_layouts

__all__ = [
    "SimilarityParametrization",
    "StaticConv2d",
    "StaticSimilarity",
]

_MOST_NUMBERS = 2**24  # 64 MB in float32: more in one layer is a mistake, not a similarity


@dataclass(frozen=True)
class StaticSimilarity:
    """Configuration of a static similarity: what M may be, what shares it, and where it goes.

    Args:
        structure: a name from :func:`~neural_similarity.structures.list_structures`, or a
            structure with options, such as ``structures.Sparse(keep=0.3)``.
        scope: one M per ``"layer"`` (the paper's choice), per input ``"channel"``, per
            ``"kernel"``, or the ``"full"`` matrix over all taps of all channels.
        block_size: for Linear and recurrent weights, how many input features form one patch;
            None takes them all.
        target_modules: ``"all-conv"``, a list of name suffixes, or a regular expression that
            matches whole names.
        exclude_modules: suffixes or a regular expression; these stay as they are.

    Example:
        >>> StaticSimilarity("diagonal", exclude_modules=["stem"]).scope
        'layer'
    """

    structure: str | Structure = "diagonal"
    scope: Scope = "layer"
    block_size: int | None = None
    target_modules: str | tuple[str, ...] | list[str] = "all-conv"
    exclude_modules: str | tuple[str, ...] | list[str] = ()

    def __post_init__(self) -> None:
        where = "StaticSimilarity"
        structures.resolve(self.structure, where)
        _check.known_name(where, "scope", self.scope, SCOPES)
        check_targets(where, self.target_modules, self.exclude_modules, self.block_size)
        object.__setattr__(self, "block_size", _check.plain_number(self.block_size))

    @property
    def skips_single_taps(self) -> bool:
        """Whether a kernel of one tap has nothing to learn but a gain."""
        return self.scope != "full"

    def prepare(
        self, chosen: dict[str, nn.Module]
    ) -> dict[str, dict[str, SimilarityParametrization]]:
        """The parametrizations for each layer, all checks made; changes nothing."""
        return {name: self._prepare(module, name or "model") for name, module in chosen.items()}

    def _prepare(self, module: nn.Module, where: str) -> dict[str, SimilarityParametrization]:
        structure = structures.resolve(self.structure, where)
        made = {}
        for name, layout in kernel_layouts(module, self.block_size, where):
            weight = _plain_weight(module, name, layout, where)
            block = layout.block(self.scope == "full")
            leading, _ = similarity_blocks(layout.to_kernels(weight), self.scope, layout.groups)
            numbers = prod(leading) * structure.most_numbers(block)
            if numbers > _MOST_NUMBERS:
                raise AttachError(
                    f"{where}: expected a similarity of at most {_MOST_NUMBERS:,} numbers, got up "
                    f"to {numbers:,} for structure {structure.name!r} and scope {self.scope!r}. "
                    f"Use a smaller block_size or scope, or 'diagonal', or exclude this layer."
                )
            structure.check(block, where)
            made[name] = SimilarityParametrization(self, layout, weight)
            _try_once(made[name], weight, where)
        return made

    def apply(self, module: nn.Module, made: dict[str, SimilarityParametrization]) -> None:
        """Put prepared parametrizations on a layer."""
        for name, parametrization in made.items():
            parametrize.register_parametrization(module, name, parametrization)
        next(iter(made.values())).handle = accept_stock_keys(module)
        make_copyable(module)

    def to_config(self) -> dict[str, Any]:
        """Plain values, for a file; without the targets, which the file lists layer by layer."""
        return {
            "mode": "static",
            "structure": structures.resolve(self.structure).to_config(),
            "scope": self.scope,
            "block_size": self.block_size,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> StaticSimilarity:
        """The inverse of :meth:`to_config`."""
        structure = structures.from_config(config["structure"])
        return cls(structure, config["scope"], config["block_size"])


def _plain_weight(module: nn.Module, name: str, layout: KernelLayout, where: str) -> Tensor:
    """The parameter to attach to, if that is what it is."""
    if parametrize.is_parametrized(module, name):
        raise AttachError(
            f"{where}: expected a plain {name}, got one that is parametrized already. Merge or "
            f"remove what is there first, or name the layer in exclude_modules."
        )
    weight = module._parameters.get(name)
    if weight is None or is_lazy(weight) or tuple(weight.shape) != layout.stored:
        got = "none" if weight is None else "one whose shape is not known yet"
        got = got if weight is None or is_lazy(weight) else f"shape {tuple(weight.shape)}"
        raise AttachError(
            f"{where}: expected {name} to be a parameter of shape {layout.stored}, got {got}. "
            f"Pruning and old-style weight norm replace it: make them permanent first. A lazy "
            f"layer needs a first input."
        )
    return weight


def _try_once(parametrization: SimilarityParametrization, weight: Tensor, where: str) -> None:
    """A structure that cannot work must say so before the model is changed."""
    with torch.no_grad():
        result = parametrization(weight)
    if result.shape != weight.shape or result.dtype != weight.dtype:
        raise AttachError(
            f"{where}: expected structure {parametrization.structure.name!r} to keep a weight of "
            f"shape {tuple(weight.shape)} and {weight.dtype}, got {tuple(result.shape)} and "
            f"{result.dtype}."
        )


class SimilarityParametrization(nn.Module):
    r"""The weight as :math:`M^\top W`, with the numbers behind M as its parameters.

    ``torch.nn.utils.parametrize`` calls it wherever the layer reads its weight, so every kind of
    layer, stride, padding and group works as before.
    """

    def __init__(self, config: StaticSimilarity, layout: KernelLayout, weight: Tensor) -> None:
        super().__init__()
        self.config = config
        self.structure = structures.resolve(config.structure)
        self.scope = config.scope
        self.layout = layout
        self.block = layout.block(config.scope == "full")
        self.handle: Any = None  # of the hook that accept_stock_keys puts on the layer
        kernels = layout.to_kernels(weight.detach())
        self.leading, _ = similarity_blocks(kernels, self.scope, layout.groups)
        self.numbers = nn.ParameterDict(
            {
                name: nn.Parameter(start.expand(*self.leading, *start.shape).clone())
                for name, start in self.structure.initial(self.block).items()
            }
        ).to(device=weight.device, dtype=weight.dtype)

    def reset_parameters(self) -> None:
        """Begin again where the structure begins; models made on the meta device need it."""
        self.structure.reset(dict(self.numbers.items()), self.block)

    def similarity(self) -> Tensor:
        """M as it stands: diagonal ``(*leading, n)`` or matrix ``(*leading, n, n)``."""
        return self.structure.similarity(dict(self.numbers.items()), self.block)

    def kernel_shape(self) -> Tensor | None:
        """The diagonal of D ``(*leading, n)``, if there is a kernel shape."""
        if not isinstance(self.structure, structures.KernelShape):
            return None
        return self.structure.shape(dict(self.numbers.items()))

    @property
    def is_diagonal(self) -> bool:
        """Whether M is given by its diagonal alone."""
        return self.similarity().dim() == len(self.leading) + 1

    def forward(self, weight: Tensor) -> Tensor:
        # Autocast would round the kernel before it is used; mixing taps is cheap, so it is exact.
        with without_autocast(weight.device):
            kernels = self.layout.to_kernels(weight)
            effective = effective_weight(
                kernels, self.similarity(), scope=self.scope, groups=self.layout.groups
            )
            return self.layout.to_stored(effective)

    def extra_repr(self) -> str:
        return f"structure={self.structure!r}, scope={self.scope!r}"


class StaticConv2d(nn.Conv2d):
    r"""``nn.Conv2d`` with a static similarity, for building new networks.

    The constructor is :class:`torch.nn.Conv2d`'s, and ``structure`` and ``scope`` by name as in
    :class:`StaticSimilarity`. :func:`neural_similarity.merge` turns it into ``nn.Conv2d``.
    ``weight`` is the computed :math:`M^\top W`: to initialise the numbers behind it, write into
    ``conv.parametrizations.weight.original``, or call ``reset_parameters``.

    Example:
        >>> conv = StaticConv2d(3, 8, 3, padding=1, structure="unconstrained")
        >>> conv(torch.randn(2, 3, 16, 16)).shape
        torch.Size([2, 8, 16, 16])
    """

    stock_class: ClassVar[type[nn.Module]] = nn.Conv2d

    def __init__(
        self,
        *args: Any,
        structure: str | Structure = "diagonal",
        scope: Scope = "layer",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        config = StaticSimilarity(structure, scope)
        config.apply(self, config.prepare({"StaticConv2d": self})["StaticConv2d"])

    def reset_parameters(self) -> None:
        """Draw weight and bias anew, as ``nn.Conv2d`` does; the similarity stays."""
        if not parametrize.is_parametrized(self, "weight"):
            return super().reset_parameters()  # nn.Conv2d's constructor calls it
        weight = self.get_parameter("parametrizations.weight.original")
        fresh = nn.Conv2d(
            self.in_channels, self.out_channels, pair(self.kernel_size), groups=self.groups,
            bias=self.bias is not None, device=weight.device, dtype=weight.dtype,
        )  # fmt: skip
        with torch.no_grad():
            weight.copy_(fresh.weight)
            if self.bias is not None and fresh.bias is not None:
                self.bias.copy_(fresh.bias)
        return None
