"""Settings from files and options, for commands that train."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .printing import print_line

if TYPE_CHECKING:
    from ...train.settings import Settings

__all__ = ["list_settings", "new_folder", "wanted_settings"]

_OTHER_NAMES = {"from": "predictor"}  # M is predicted from the image, the pixel or the patch


def wanted_settings(file: Path | None, options: dict[str, Any], sets: list[str]) -> dict[str, Any]:
    """Settings of the file, the options and ``--set``; later ones take precedence."""
    from ...train.config import merge_settings, parse_setting, read_settings

    settings = {} if file is None else read_settings(file)
    settings = merge_settings(settings, ((k, v) for k, v in options.items() if v is not None))
    words = (parse_setting(text) for text in sets)
    return merge_settings(settings, ((_OTHER_NAMES.get(name, name), of) for name, of in words))


def new_folder(name: str) -> Path:
    """A folder in ``runs`` that does not exist yet."""
    folders = (Path("runs") / (name + (f"-{n}" if n > 1 else "")) for n in count(1))
    return next(folder for folder in folders if not folder.exists())


def list_settings(kind: type[Settings]) -> None:
    """Print every setting with its default and its meaning."""
    from dataclasses import fields

    default = kind()
    for setting in fields(kind):
        value = getattr(default, setting.name)
        text = (
            "" if value in (None, {}) else str(value).lower() if value in (True, False) else value
        )
        print_line(f"{setting.name:<20} {text!s:<10} {setting.metadata['help']}")
    print_line()
    for title, names in _names(kind).items():
        print_line(f"{title}: {', '.join(names)}")


def _names(kind: type[Settings]) -> dict[str, list[str]]:
    """The names that settings can have, from the registries."""
    from ...fewshot import FewShotConfig, list_methods
    from ...models import list_models
    from ...nn import list_predictors
    from ...structures import list_structures

    return {
        "networks": list_models(),
        "structures": list_structures(),
        "predictors": list_predictors(),
        **({"methods": list_methods()} if kind is FewShotConfig else {}),
    }
