"""The parameters of a structure, as a layer owns them."""

from __future__ import annotations

from torch import nn

from ..errors import AttachError
from ..structures import Block, Structure

__all__ = ["structure_parameters"]


def structure_parameters(
    structure: Structure, block: Block, leading: tuple[int, ...] = ()
) -> nn.ParameterDict:
    """What ``structure.initial(block)`` returns, repeated for every leading index."""
    start = structure.initial(block)
    empty = nn.ParameterDict()
    if bad_names := [name for name in start if hasattr(empty, name) or "." in name]:
        raise AttachError(
            f"structure {structure.name!r}: expected names of parameters without a dot that "
            f"nn.Module does not use itself, got {', '.join(map(repr, bad_names))}. Rename them in "
            f"initial."
        )
    return nn.ParameterDict(
        {
            name: nn.Parameter(value.expand(*leading, *value.shape).clone())
            for name, value in start.items()
        }
    )
