"""Settings from files and options, for commands that train."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..train.settings import Settings

__all__ = ["list_settings", "new_folder", "wanted_settings"]


def wanted_settings(file: Path | None, given: dict[str, Any], sets: list[str]) -> dict[str, Any]:
    """Settings from the file, then the options, then ``--set``."""
    from ..train.config import merge_settings, parse_setting, read_settings

    wanted = {} if file is None else read_settings(file)
    wanted = merge_settings(wanted, ((k, v) for k, v in given.items() if v is not None))
    return merge_settings(wanted, map(parse_setting, sets))


def new_folder(name: str) -> Path:
    """A folder in ``runs`` that is not there yet."""
    numbered = (Path("runs") / (name + (f"-{n}" if n > 1 else "")) for n in count(1))
    return next(folder for folder in numbered if not folder.exists())


def list_settings(kind: type[Settings]) -> None:
    """Print every setting with its default and what it means."""
    from dataclasses import fields

    default = kind()
    for setting in fields(kind):
        value = getattr(default, setting.name)
        shown = (
            "" if value in (None, {}) else str(value).lower() if value in (True, False) else value
        )
        print(f"{setting.name:<20} {shown!s:<10} {setting.metadata['help']}")
