"""All tables, in the order in which they are run."""

from __future__ import annotations

from neural_similarity.errors import UnknownNameError

from . import table1, table2, table3, table4, table5, table6, table7
from .base import Table
from .equal_cost import STUDIES

__all__ = ["TABLES", "find_table", "find_tables"]

_ALL_STUDIES = "equal-cost"

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        table4.ON_CIFAR10,
        table4.ON_CIFAR100,
        *table2.TABLES,
        *table3.TABLES,
        *table1.TABLES,
        *table7.TABLES,
        table6.ON_MINI_IMAGENET,
        table6.ON_CIFAR_FS,
        *table5.TABLES,
    )
}


def find_tables(name: str) -> list[Table]:
    """The table of that name; ``equal-cost`` names every study of equal cost."""
    return list(STUDIES.values()) if name == _ALL_STUDIES else [find_table(name)]


def find_table(name: str) -> Table:
    """The table or study of that name."""
    tables = TABLES | STUDIES
    if name not in tables:
        names = ", ".join([*TABLES, _ALL_STUDIES, *STUDIES])
        raise UnknownNameError(f"reproduce: expected a table among {names}, got {name!r}.")
    return tables[name]
