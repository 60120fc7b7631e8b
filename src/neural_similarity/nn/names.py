"""Names of similarities: a layer may have several, and at most one of them is active."""

from __future__ import annotations

from ..errors import AttachError

__all__ = ["DEFAULT_NAME", "check_name", "child_name"]

DEFAULT_NAME = "default"


def check_name(where: str, name: object) -> None:
    """Raise unless ``name`` can be part of the keys of a ``state_dict``."""
    if not isinstance(name, str) or not name or "." in name:
        raise AttachError(
            f"{where}: expected name to be text without dots, got {name!r}. It becomes part of "
            f"the keys of the state_dict. For example: name='birds'."
        )


def child_name(part: str, name: str) -> str:
    """What a layer calls the module that holds a part of the similarity of this name.

    The default similarity has the plain name, which is in every checkpoint.
    """
    return part if name == DEFAULT_NAME else f"{part}_{name}"
