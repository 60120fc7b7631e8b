"""What a table of the paper is made of: rows, each a configuration, at three budgets.

A row is a function from the budget's configuration to its own, so that what it changes is all it
says. Rows that stand in several tables are trained once: a row knows where its results are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from neural_similarity.errors import UnknownNameError
from neural_similarity.fewshot import FewShotConfig
from neural_similarity.train import TrainConfig

__all__ = ["BUDGETS", "Config", "OneStep", "Row", "Table", "rows_of"]

BUDGETS = {
    "smoke": "seconds a row, on embedded data: does it still run?",
    "short": "what two processor cores can do: minutes a plain row, half an hour a dynamic one",
    "paper": "the paper's schedule, for people with GPUs",
}


@dataclass(frozen=True)
class OneStep:
    """Not a training but its beginning: parameters, and the time of a step on random images."""

    config: TrainConfig
    num_classes: int
    image_size: int
    steps: int = 3

    @property
    def seed(self) -> int:
        return self.config.seed


Config = TrainConfig | FewShotConfig | OneStep
Base = TypeVar("Base", bound=Config)
Change = Callable[[Base], Base]


SEEDS = 3  # that a table is asked for


@dataclass(frozen=True)
class Row:
    """A row of one or more tables.

    Args:
        name: for commands and files.
        title: as the paper calls it.
        change: from the budget's configuration to the row's.
        kept_in: the table under whose name results are kept.
        budgets: a configuration for each budget.
        begins_with: a row of the same table whose trained network this one takes over.
        departs: where it departs from the paper, at every budget.
    """

    name: str
    title: str
    change: Change[Any]
    kept_in: str
    budgets: Mapping[str, Config]
    begins_with: str | None = None
    departs: str = ""

    def config(self, budget: str, seed: int = 0) -> Config:
        """What is run: a frozen configuration."""
        changed: Config = self.change(self.budgets[budget])
        if isinstance(changed, OneStep):
            return replace(changed, config=replace(changed.config, seed=seed))
        return replace(changed, seed=seed)

    def training(self, budget: str, seed: int = 0) -> TrainConfig | FewShotConfig:
        """The same, where it is more than one step."""
        config = self.config(budget, seed)
        assert not isinstance(config, OneStep)
        return config

    def key(self, budget: str, seed: int) -> str:
        """Names a run, and the file of its result."""
        return f"{self.kept_in}/{budget}/{self.name}-{seed}"


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Args:
        name: for commands.
        title: its question.
        rows: in the paper's order.
        metric: what is compared, in percent: ``"error"``, or ``"accuracy"`` in episodes.
        baseline: the row that others are compared with, seed by seed.
        paper: the paper's numbers by row; few-shot ones by row and shots.
        published: numbers of other papers.
        budgets: what each budget means for this table, in words.
        notes: what a reader has to know of the numbers: whose they are, what is compared.
        sizes: the paper's parameters by row, in millions, where it tells them.
        pairs: rows that are compared with another than the baseline, and with which.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    metric: str
    baseline: str
    paper: Mapping[str, Any]
    published: Mapping[str, Any] = field(default_factory=dict)
    budgets: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sizes: Mapping[str, float] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()

    def row(self, name: str) -> Row:
        """The row of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        known = ", ".join(row.name for row in self.rows)
        raise UnknownNameError(f"{self.name}: expected a row among {known}, got {name!r}.")


class AddsRow(Protocol[Base]):
    """Makes the decorator, for functions on one kind of configuration."""

    def __call__(self, begins_with: str | None = None) -> Callable[[Change[Base]], Row]: ...


def rows_of(kept_in: str, budgets: Mapping[str, Base]) -> tuple[list[Row], AddsRow[Base]]:
    """A list of rows, and a decorator that adds a function to it as a row.

    The function's name is the row's, its docstring the row's title; what follows the first line
    says where it departs from the paper.
    """
    rows: list[Row] = []

    def row(begins_with: str | None = None) -> Callable[[Change[Base]], Row]:
        def add(change: Change[Base]) -> Row:
            title, _, rest = (change.__doc__ or "").strip().partition("\n")
            made = Row(
                name=change.__name__.replace("_", "-"),
                title=title.rstrip("."),
                change=change,
                kept_in=kept_in,
                budgets=budgets,
                begins_with=begins_with,
                departs=" ".join(rest.split()),
            )
            rows.append(made)
            return made

        return add

    return rows, row
