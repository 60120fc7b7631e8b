"""Which versions of the data were used, by fingerprint, and how they differ from the published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["describe_data"]

_ROUNDED = "pixel values rounded to multiples of 4"
DIFFERENCES = {
    "82612602206e": _ROUNDED,
    "6bdfb2f44927": _ROUNDED,
    "7aef3ba3a6af": _ROUNDED,
    "8fac46b85e27": "images stored as WebP at quality 80, scaled to 42×42",
}
"""How data differ from the published ones, by the fingerprint of the training images."""


def describe_data(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A line per data set."""
    by_data: dict[str, dict[str, set[str]]] = {}
    for record in records:
        prints = list(record.get("data_copies", {}).items())
        prints += [("test", test["data_copy"]) for test in record.get("tests", ())]
        for part, fingerprint in prints:
            parts = by_data.setdefault(record["config"]["data"], {})
            parts.setdefault(part, set()).add(fingerprint)
    for data, parts in sorted(by_data.items()):
        pairs = [(part, one) for part, prints in sorted(parts.items()) for one in sorted(prints)]
        names = ", ".join(f"{part} `{one}`" for part, one in pairs)
        differences = sorted({DIFFERENCES[one] for _, one in pairs if one in DIFFERENCES})
        yield f"Fingerprints of `{data}`: {'; '.join([names, *differences])}."
