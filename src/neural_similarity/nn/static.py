"""Static similarity (Section 3.2): a parametrization of the weight, gone after merging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .. import _check, structures
from ..errors import AttachError
from ..ops.effective_weight import SCOPES, Scope, effective_weight, similarity_blocks
from ..structures import Structure
from ._hooks import accept_stock_keys, make_copyable
from .layouts import KernelLayout, kernel_layouts

__all__ = [
    "SimilarityParametrization",
    "StaticConv2d",
    "StaticSimilarity",
]

_LARGEST_FULL_SIDE = 4096


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
        structures.resolve(self.structure, "StaticSimilarity")
        _check.known_name("StaticSimilarity", "scope", self.scope, SCOPES)

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
            if parametrize.is_parametrized(module, name):
                raise AttachError(
                    f"{where}: expected a plain {name}, got one that is parametrized already. "
                    f"Merge or remove what is there first, or name the layer in exclude_modules."
                )
            block = layout.block(self.scope == "full")
            if self.scope == "full" and block.size > _LARGEST_FULL_SIDE:
                raise AttachError(
                    f"{where}: expected at most {_LARGEST_FULL_SIDE} taps over all channels for "
                    f"scope 'full', got {block.size}. The matrix would hold {block.size**2:,} "
                    f"numbers. Use scope 'layer', 'channel' or 'kernel', or exclude this layer."
                )
            structure.check(block, where)
            weight = getattr(module, name)
            made[name] = SimilarityParametrization(self, layout, weight)
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

    def similarity(self) -> Tensor:
        """M as it stands: diagonal ``(*leading, n)`` or matrix ``(*leading, n, n)``."""
        return self.structure.similarity(dict(self.numbers.items()), self.block)

    def forward(self, weight: Tensor) -> Tensor:
        # Autocast would round the kernel before it is used; mixing taps is cheap, so it is exact.
        with torch.autocast(weight.device.type, enabled=False):
            kernels = self.layout.to_kernels(weight)
            effective = effective_weight(
                kernels, self.similarity(), scope=self.scope, groups=self.layout.groups
            )
            return self.layout.to_stored(effective)

    def extra_repr(self) -> str:
        return f"structure={self.structure!r}, scope={self.scope!r}"


class StaticConv2d(nn.Conv2d):
    """``nn.Conv2d`` with a static similarity, for building new networks.

    The constructor is :class:`torch.nn.Conv2d`'s, and ``structure`` and ``scope`` by name as in
    :class:`StaticSimilarity`. :func:`neural_similarity.merge` turns it into ``nn.Conv2d``.

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
