"""The public names of the library, read from its source without importing it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import griffe

__all__ = ["ROOT", "entries", "identifier", "load", "public_names", "rooms"]

ROOT = "neural_similarity"
_SOURCE = Path(__file__).parents[2] / "src"


@cache
def load() -> griffe.Module:
    """The package."""
    package = griffe.load(ROOT, search_paths=[_SOURCE], resolve_aliases=True)
    assert isinstance(package, griffe.Module)
    return package


def rooms(package: griffe.Module) -> dict[str, griffe.Module]:
    """The rooms by name, the package itself first."""
    own = {ROOT: package}
    for name in package.exports or ():
        member = package.members[str(name)]
        if isinstance(member, griffe.Module):
            own[f"{ROOT}.{name}"] = member
    return own


def public_names(module: griffe.Module) -> dict[str, griffe.Object | griffe.Alias]:
    """What ``__all__`` lists, by name."""
    names: dict[str, griffe.Object | griffe.Alias] = {}
    for name in map(str, module.exports or ()):
        member = module.members[name]
        names[name] = member.members[name] if _hides(member, name) else member
    return names


def identifier(module: griffe.Module, name: str) -> str:
    """The path by which the reference calls a public name."""
    path = f"{module.path}.{name}"
    return f"{path}.{name}" if _hides(module.members[name], name) else path


def entries(package: griffe.Module) -> dict[str, str]:
    """The one entry of each public name: by its name, with its room, and by where it is written.

    A name that a room lists is documented there, and the package's own page links to it.
    """
    targets: dict[str, str] = {}
    for room in reversed(rooms(package).values()):  # the package itself last
        for name, member in public_names(room).items():
            if isinstance(member, griffe.Module):
                continue
            target = targets.setdefault(member.canonical_path, identifier(room, name))
            targets.setdefault(name, target)
            targets[f"{room.path}.{name}"] = target
    return targets


def _hides(member: griffe.Object | griffe.Alias, name: str) -> bool:
    """Whether this is a file that holds a public name of the same name, as convert/attach.py."""
    if not isinstance(member, griffe.Module) or member.is_init_module:
        return False
    return name in map(str, member.exports or ())
