"""What a structure is, and the registry of all structures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import prod
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from .. import _check

__all__ = ["Block", "Structure", "from_config", "list_structures", "register", "resolve"]


@dataclass(frozen=True)
class Block:
    """The square matrix a structure fills: its side counts the taps of ``channels`` channels.

    ``channels`` is 1, except for the full matrix of Equation 1, which spans all channels.
    """

    taps: tuple[int, ...]
    channels: int = 1

    @property
    def size(self) -> int:
        """The side of the matrix: n = channels · K."""
        return self.channels * prod(self.taps)


class Structure(ABC):
    """What M may be: a rule that turns free parameters into a similarity.

    A structure is a frozen dataclass whose fields are its options. It holds no tensors: one
    structure serves many layers, and each layer owns the parameters that :meth:`initial` returns.

    To add one, write the two abstract methods and decorate the class with :func:`register`, so that
    files can name it. A structure of this library then runs through every property test
    (``tests/support/cases.py``). The defaults of the other methods and attributes fit most
    structures.

    Attributes:
        name: of the structure, in files and messages.
        has_free_entries: whether the parameters are the entries of M themselves. A predicted M
            then needs no further computation.
        mask_name: which parameter is a mask of kernel taps, see :meth:`mask`; None without one.
    """

    name: ClassVar[str]
    has_free_entries: ClassVar[bool] = False
    mask_name: ClassVar[str | None] = None

    @abstractmethod
    def initial(self, block: Block) -> dict[str, Tensor]:
        """The parameters at which M is the identity (or as near as the structure allows).

        A dynamic similarity can predict a structure with one tensor of parameters. A static one
        can learn several.
        """

    @abstractmethod
    def similarity(self, parameters: Mapping[str, Tensor], block: Block) -> Tensor:
        """M itself: its diagonal ``(*leading, n)``, or the matrix ``(*leading, n, n)``.

        ``parameters`` are the parameters by name, each ``(*leading, *shape)`` with the shape that
        :meth:`initial` returns for it.
        """

    def reset(self, parameters: Mapping[str, Tensor], block: Block) -> None:
        """Set the parameters, in place, to their initial values."""
        with torch.no_grad():
            for name, start in self.initial(block).items():
                parameters[name].copy_(start)

    def check(self, block: Block, where: str) -> None:  # noqa: B027 (most have nothing to check)
        """Raise if M cannot have this structure on ``block``."""

    def most_parameters(self, block: Block) -> int:
        """An upper bound on how many parameters :meth:`initial` returns, without creating them."""
        return block.size**2

    @property
    def label(self) -> str:
        """The name to display; a structure that contains another one names both."""
        return self.name

    def starts_at_identity(self, block: Block) -> bool:
        """Whether M starts exactly at the identity, so that attaching leaves outputs unchanged."""
        return True

    @property
    def is_straight_through(self) -> bool:
        """Whether gradients are those of a straight-through estimator, not derivatives of M."""
        return False

    @property
    def predicted(self) -> Structure:
        """The part of the structure that a dynamic similarity predicts; the rest stays static."""
        return self

    def mask(self, parameters: Mapping[str, Tensor]) -> Tensor | None:
        """A mask of kernel taps, as a factor of M, ``(*leading, n)``; None without one.

        It is computed from the parameter that :attr:`mask_name` names, and is part of the M that
        :meth:`similarity` returns. A dynamic similarity learns it instead of predicting it.
        """
        return None

    def decays(self, name: str) -> bool:
        """Whether weight decay may act on the parameter of this name."""
        return name != self.mask_name  # decay would eventually switch off every tap

    def to_config(self) -> dict[str, Any]:
        """Name and options as plain values, for a file; :func:`from_config` reads it back."""
        options = {
            field.name: getattr(self, field.name)
            for field in fields(self)  # type: ignore[arg-type]
        }
        return {
            "name": self.name,
            **{
                name: value.to_config()
                if isinstance(value, Structure)
                else _check.plain_number(value)
                for name, value in options.items()
            },
        }


_REGISTRY: dict[str, type[Structure]] = {}
_Class = TypeVar("_Class", bound=type[Structure])


def register(cls: _Class) -> _Class:
    """Register a structure under its name (a class decorator, above ``@dataclass``).

    Raises:
        DuplicateNameError: the name belongs to another structure.
    """
    _check.new_name("register", cls.name, cls, _REGISTRY)
    _REGISTRY[cls.name] = cls
    return cls


def list_structures() -> list[str]:
    """The names of all structures, sorted.

    >>> list_structures()[:3]
    ['diagonal', 'dilated', 'kernel_shape']
    """
    return sorted(_REGISTRY)


def resolve(structure: str | Structure, where: str = "structure") -> Structure:
    """A structure by name, with its default options; a structure object is returned unchanged."""
    if isinstance(structure, Structure):
        return structure
    _check.known_name(where, "structure", structure, _REGISTRY)
    return _REGISTRY[structure]()


def from_config(config: Mapping[str, Any]) -> Structure:
    """The structure that :meth:`Structure.to_config` described."""
    options = {
        key: from_config(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key != "name"
    }
    _check.known_name("structure", "structure", config["name"], _REGISTRY)
    return _REGISTRY[config["name"]](**options)
