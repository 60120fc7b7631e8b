"""Settings whose values the library has renamed since results were written.

Result files are never edited, so old ones keep the old words. Before the settings of a result are
compared with those of its row, both are translated by this table: a new name is not a new setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["RENAMED", "current_names"]

RENAMED: Mapping[tuple[str, str], Mapping[Any, Any]] = {
    ("fewshot", "method"): {"ridge": "r2d2"},
}
"""By kind of configuration and setting: the old value and the current one."""


def current_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """A recorded configuration in the words of today.

    Example:
        >>> current_names({"kind": "fewshot", "method": "ridge"})
        {'kind': 'fewshot', 'method': 'r2d2'}
    """
    kind = config.get("kind")
    renamed = dict(config)
    for (of_kind, setting), values in RENAMED.items():
        if kind == of_kind and setting in renamed:
            renamed[setting] = values.get(renamed[setting], renamed[setting])
    return renamed
