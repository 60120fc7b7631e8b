"""Which copies of the data were used, by their fingerprints, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

__all__ = ["describe_copies"]

_ROUNDED = "pixel values rounded to multiples of 4"
KNOWN = {
    "82612602206e": _ROUNDED,
    "6bdfb2f44927": _ROUNDED,
    "7aef3ba3a6af": _ROUNDED,
    "8fac46b85e27": "images stored as WebP at quality 80, scaled to side 42",
}
"""What differs from the data as published, by the fingerprint of the training images."""


def describe_copies(records: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A line a data set."""
    seen: dict[str, dict[str, set[str]]] = {}
    for record in records:
        copies = list(record.get("data_copies", {}).items())
        copies += [("test", test["data_copy"]) for test in record.get("tests", ())]
        for part, copy in copies:
            seen.setdefault(record["config"]["data"], {}).setdefault(part, set()).add(copy)
    for data, parts in sorted(seen.items()):
        told = [f"{part} `{copy}`" for part, of in sorted(parts.items()) for copy in sorted(of)]
        known = sorted({KNOWN[copy] for of in parts.values() for copy in of if copy in KNOWN})
        yield f"Copies of `{data}`: {', '.join(told)}{''.join(f'; {what}' for what in known)}."
