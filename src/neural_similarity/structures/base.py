"""What a structure is, and the list of those that exist."""

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

    ``channels`` is 1 but for the full matrix of Equation 1, which spans them all.
    """

    taps: tuple[int, ...]
    channels: int = 1

    @property
    def size(self) -> int:
        """The side of the matrix: n = channels · K."""
        return self.channels * prod(self.taps)


class Structure(ABC):
    """What M may be: a rule that turns free numbers into a similarity.

    A structure is a frozen dataclass whose fields are its options. It holds no tensors: one
    structure serves many layers, and layers own the numbers that :meth:`initial` asks for.

    To add one, write the two methods and decorate the class with :func:`register`, which lets
    files name it. A structure of this library is then in ``tests/cases.py`` and runs through
    every property test.
    """

    name: ClassVar[str]

    @abstractmethod
    def initial(self, block: Block) -> dict[str, Tensor]:
        """The free numbers at which M is the identity (or as near as the structure allows).

        One tensor of them, if a dynamic similarity is to predict them; a static one learns several.
        """

    @abstractmethod
    def similarity(self, numbers: Mapping[str, Tensor], block: Block) -> Tensor:
        """M itself: its diagonal ``(*leading, n)``, or the matrix ``(*leading, n, n)``.

        Each of ``numbers`` is ``(*leading, *shape)`` with the shape that :meth:`initial` gave.
        """

    def reset(self, numbers: Mapping[str, Tensor], block: Block) -> None:
        """Bring the free numbers, in place, to where they begin."""
        with torch.no_grad():
            for name, start in self.initial(block).items():
                numbers[name].copy_(start)

    def check(self, block: Block, where: str) -> None:  # noqa: B027 (most have nothing to check)
        """Raise if M cannot have this structure on ``block``."""

    def most_numbers(self, block: Block) -> int:
        """An upper bound of how many numbers :meth:`initial` asks for, without making them."""
        return block.size**2

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
    """Make a structure known by its name (a class decorator, above ``@dataclass``)."""
    _REGISTRY[cls.name] = cls
    return cls


def list_structures() -> list[str]:
    """The names of all structures, sorted.

    >>> list_structures()[:3]
    ['diagonal', 'dilated', 'kernel_shape']
    """
    return sorted(_REGISTRY)


def resolve(structure: str | Structure, where: str = "structure") -> Structure:
    """A structure by name, with its default options; a structure is returned as it is."""
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
