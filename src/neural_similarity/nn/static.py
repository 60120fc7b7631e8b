"""Static similarity (Section 3.2): its configuration, and a layer that has one built in."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from .. import _check, structures
from .._json import build
from .._shapes import pair
from ..errors import AttachError, FileFormatError
from ..ops.effective_weight import SCOPES, Scope, similarity_blocks
from ..structures import Structure
from .layouts import KernelLayout, kernel_layouts
from .names import DEFAULT_NAME
from .parametrization import SimilarityParametrization, put_on
from .targets import check_targets

__all__ = [
    "SimilarityParametrization",
    "StaticConv2d",
    "StaticSimilarity",
]

_MOST_PARAMETERS = 2**24  # 64 MB in float32: more in one layer is a mistake, not a similarity


@dataclass(frozen=True)
class StaticSimilarity:
    """Configuration of a static similarity (`Section 3.2 <https://arxiv.org/abs/1910.13003>`_).

    It defines what M may be, what shares one M, and which layers get a similarity.

    Args:
        structure: a name from :func:`~neural_similarity.structures.list_structures`, or a
            structure with options, such as ``structures.Sparse(keep=0.3)``.
        scope: one M per ``"layer"`` (the paper's choice), per input ``"channel"``, per
            ``"kernel"``, or the ``"full"`` matrix over all taps of all channels.
        block_size: for Linear and recurrent weights, how many input features form one patch;
            None means all.
        target_modules: ``"all-conv"``, a list of name suffixes, or a regular expression that
            matches whole names. None means the regular expression in the network's attribute
            ``similarity_layers``, or all convolutions but those with a 1×1 kernel if it has none.
        exclude_modules: suffixes or a regular expression; these layers get no similarity.

    Example:
        >>> StaticSimilarity("diagonal", exclude_modules=["stem"]).scope
        'layer'
    """

    structure: str | Structure = "diagonal"
    scope: Scope = "layer"
    block_size: int | None = None
    target_modules: str | tuple[str, ...] | list[str] | None = None
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
        self, chosen: dict[str, nn.Module], name: str = DEFAULT_NAME
    ) -> dict[str, dict[str, SimilarityParametrization]]:
        """The parametrizations for each layer, after all checks; changes nothing."""
        return {
            path: self._prepare(module, path or "model", name) for path, module in chosen.items()
        }

    def _prepare(
        self, module: nn.Module, where: str, name: str
    ) -> dict[str, SimilarityParametrization]:
        structure = structures.resolve(self.structure, where)
        similarities = {}
        for key, layout in kernel_layouts(module, self.block_size, where):
            weight = _plain_weight(module, key, layout, where)
            block = layout.block(self.scope == "full")
            leading, _ = similarity_blocks(layout.to_kernels(weight), self.scope, layout.groups)
            most = prod(leading) * structure.most_parameters(block)
            if most > _MOST_PARAMETERS:
                raise AttachError(
                    f"{where}: expected a similarity of at most {_MOST_PARAMETERS:,} parameters, "
                    f"got up to {most:,} for structure {structure.name!r} and scope "
                    f"{self.scope!r}. Use a smaller block_size or scope, or 'diagonal', or exclude "
                    f"this layer."
                )
            structure.check(block, where)
            similarities[key] = SimilarityParametrization(self, layout, weight, name)
            _try_once(similarities[key], weight, where)
        return similarities

    def apply(
        self,
        module: nn.Module,
        similarities: dict[str, SimilarityParametrization],
        name: str = DEFAULT_NAME,
    ) -> None:
        """Put prepared parametrizations on a layer, and activate them."""
        put_on(module, similarities)

    def to_config(self) -> dict[str, Any]:
        """Plain values, for a file; without the targets, because the file lists every layer."""
        return {
            "mode": "static",
            "structure": structures.resolve(self.structure).to_config(),
            "scope": self.scope,
            "block_size": self.block_size,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> StaticSimilarity:
        """The inverse of :meth:`to_config`."""
        saved = build(_Saved, config, "StaticSimilarity", FileFormatError, others=True)
        return cls(structures.from_config(saved.structure), saved.scope, saved.block_size)


@dataclass(frozen=True)
class _Saved:
    """A static similarity in a file."""

    structure: dict[str, Any]
    scope: Scope
    block_size: int | None


def _plain_weight(module: nn.Module, name: str, layout: KernelLayout, where: str) -> Tensor:
    """The parameter to attach to, even if it has other similarities already."""
    if parametrize.is_parametrized(module, name):
        parametrizations: Any = module.get_submodule(f"parametrizations.{name}")
        if all(isinstance(other, SimilarityParametrization) for other in parametrizations):
            original: Tensor = parametrizations.original
            return original
        raise AttachError(
            f"{where}: expected a plain {name}, got one with another parametrization. Remove that "
            f"first, or name the layer in exclude_modules."
        )
    weight = module._parameters.get(name)
    if weight is None or is_lazy(weight) or tuple(weight.shape) != layout.stored:
        got = "none" if weight is None else "one whose shape is not known yet"
        got = got if weight is None or is_lazy(weight) else f"one of shape {tuple(weight.shape)}"
        raise AttachError(
            f"{where}: expected {name} to be a parameter of shape {layout.stored}, got {got}. "
            f"Pruning and old-style weight norm replace it: make them permanent first. For a "
            f"lazy layer, call the model once first."
        )
    return weight


def _try_once(parametrization: SimilarityParametrization, weight: Tensor, where: str) -> None:
    """Raise if a structure cannot work, before the model is changed."""
    with torch.no_grad():
        result = parametrization(weight)
    if result.shape != weight.shape or result.dtype != weight.dtype:
        raise AttachError(
            f"{where}: expected structure {parametrization.structure.name!r} to keep the weight's "
            f"shape {tuple(weight.shape)} and {weight.dtype}, got {tuple(result.shape)} and "
            f"{result.dtype}."
        )
    structure = parametrization.structure
    if weight.is_meta or not structure.starts_at_identity(parametrization.block):
        return
    few_digits = 8 * torch.finfo(weight.dtype).eps  # of half precision
    if (result - weight).abs().max() > max(1e-3, few_digits) * weight.abs().max():
        raise AttachError(
            f"{where}: expected structure {structure.name!r} to start at the identity, got another "
            f"M, which changes the output. Correct its initial parameters, or let its "
            f"starts_at_identity return False."
        )


class StaticConv2d(nn.Conv2d):
    r"""``nn.Conv2d`` with a static similarity, for building new networks.

    The constructor is :class:`torch.nn.Conv2d`'s, with the keywords ``structure`` and ``scope`` of
    :class:`StaticSimilarity`. :func:`neural_similarity.merge` turns it into ``nn.Conv2d``.
    ``weight`` is the computed :math:`M^\top W`. To initialise W, write into
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
        """Draw new weights and biases, as ``nn.Conv2d`` does; the similarity does not change."""
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
