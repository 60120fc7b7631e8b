"""All tables, in the order in which they are run."""

from __future__ import annotations

from neural_similarity.errors import UnknownNameError

from . import table1, table2, table3, table4, table5, table6, table7
from .base import Table

__all__ = ["TABLES", "find_table"]

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        table6.ON_CIFAR_FS,
        table4.ON_CIFAR10,
        *table2.TABLES,
        *table3.TABLES,
        *table1.TABLES,
        table6.ON_MINI_IMAGENET,
        table4.ON_CIFAR100,
        *table7.TABLES,
        *table5.TABLES,
    )
}


def find_table(name: str) -> Table:
    """The table of that name."""
    if name not in TABLES:
        raise UnknownNameError(
            f"reproduce: expected a table among {', '.join(TABLES)}, got {name!r}."
        )
    return TABLES[name]
