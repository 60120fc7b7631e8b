"""The paper's tables: rows, each a training configuration, at some budgets."""

from .base import BUDGETS, SEEDS, OneStep, Row, Table
from .registry import TABLES, find_table

__all__ = ["BUDGETS", "SEEDS", "TABLES", "OneStep", "Row", "Table", "find_table"]
