"""What a table of the paper consists of: rows, each a training configuration, at some budgets.

A row is a function from the budget's configuration to its own, so its code shows only what it
changes. A row that appears in several tables is trained once: it knows which table stores its
results.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from neural_similarity.errors import UnknownNameError
from neural_similarity.fewshot import FewShotConfig, order_runs
from neural_similarity.train import TrainConfig, recipe_settings

__all__ = [
    "BUDGETS",
    "SEEDS",
    "Config",
    "Note",
    "OneStep",
    "Row",
    "Table",
    "check_budget",
    "rows_of",
    "with_recipe",
]

BUDGETS = {
    "smoke": "seconds per row, on embedded data: does it still run?",
    "short": "for two CPU cores: minutes for a plain row, half an hour for a dynamic one",
    "long": "up to 3 hours of one core per row; some rows of Tables 4 and 6",
    "paper": "the paper's schedule, for people with GPUs",
}
SEEDS = 3  # how many a table should have


@dataclass(frozen=True)
class OneStep:
    """No training, only its cost: parameters, and the time of a step on random images."""

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


@dataclass(frozen=True)
class Row:
    """A row of one or more tables.

    Args:
        name: for commands and files.
        title: as the paper calls it.
        change: from the budget's configuration to the row's.
        kept_in: the table that stores its results.
        budgets: a configuration for each budget.
        starts_from: a row of the same table whose trained network this row starts from by choice.
            What its method starts from is not repeated here, see :meth:`Table.starts`.
        deviation: how it deviates from the paper, at every budget.
        own: whole configurations, for budgets that only some rows of a table have.
    """

    name: str
    title: str
    change: Change[Any]
    kept_in: str
    budgets: Mapping[str, Config]
    starts_from: str | None = None
    deviation: str = ""
    own: Mapping[str, Config] = field(default_factory=dict)

    def has(self, budget: str) -> bool:
        """Whether the row is run at this budget."""
        return budget in self.budgets or budget in self.own

    def config(self, budget: str, seed: int = 0) -> Config:
        """The configuration of a run."""
        own = self.own.get(budget)
        changed: Config = self.change(self.budgets[budget]) if own is None else own
        if isinstance(changed, OneStep):
            return replace(changed, config=replace(changed.config, seed=seed))
        return replace(changed, seed=seed)

    def training(self, budget: str, seed: int = 0) -> TrainConfig | FewShotConfig:
        """The same, for a row that trains at this budget."""
        config = self.config(budget, seed)
        assert not isinstance(config, OneStep)
        return config

    def key(self, budget: str, seed: int) -> str:
        """The name of a run and of its result file."""
        return f"{self.kept_in}/{budget}/{self.name}-{seed}"


@dataclass(frozen=True)
class Note:
    """What a reader must know about some rows; a page without any of them does not need it."""

    text: str
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    Args:
        name: for commands.
        title: what it is about.
        rows: in the paper's order.
        metric: what is compared, in percent: ``"error"``, or ``"accuracy"`` in episodes.
        baseline: the row that others are compared with, seed by seed.
        paper: the paper's numbers by row; few-shot ones by row and shots.
        published: numbers of other papers.
        budgets: what each budget means for this table, in words.
        notes: what a reader must know about the numbers.
        budget_notes: the same, about those of one budget.
        sizes: the paper's parameters by row, in millions, where it gives them.
        pairs: a row and another row, not the baseline, that it is compared with.
        top5: the paper's top-5 errors by row, where it gives them.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    metric: str
    baseline: str
    paper: Mapping[str, Any]
    published: Mapping[str, Any] = field(default_factory=dict)
    budgets: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str | Note, ...] = ()
    budget_notes: Mapping[str, tuple[str | Note, ...]] = field(default_factory=dict)
    sizes: Mapping[str, float] = field(default_factory=dict)
    pairs: tuple[tuple[str, str], ...] = ()
    top5: Mapping[str, float] = field(default_factory=dict)

    @property
    def number(self) -> str:
        """Its number in the paper: ``"4"`` for ``table4-cifar100``."""
        return self.name.removeprefix("table").partition("-")[0]

    def notes_at(self, budget: str, rows: Container[str] | None = None) -> list[str]:
        """What a reader must know about the numbers of a budget, if only ``rows`` are shown."""
        notes = (*self.notes, *self.budget_notes.get(budget, ()))
        return [
            note if isinstance(note, str) else note.text
            for note in notes
            if isinstance(note, str) or rows is None or any(name in rows for name in note.rows)
        ]

    def at(self, budget: str) -> Table:
        """The table with the rows that are run at this budget; most have all or none of them."""
        rows = self.rows if budget in self.budgets else ()
        return replace(self, rows=tuple(row for row in rows if row.has(budget)))

    def row(self, name: str) -> Row:
        """The row of that name."""
        for row in self.rows:
            if row.name == name:
                return row
        names = ", ".join(row.name for row in self.rows)
        raise UnknownNameError(f"{self.name}: expected a row among {names}, got {name!r}.")

    def starts(self, budget: str, only: Sequence[str] = ()) -> dict[str, str | None]:
        """The row that each row starts from, or None; every row comes after that one.

        Args:
            budget: which configurations.
            only: these rows and those that they start from; all if empty.
        """
        rows = self.at(budget).rows
        names = [self.at(budget).row(name).name for name in only] or [row.name for row in rows]
        configs = {row.name: row.config(budget) for row in rows}
        few_shot = {n: c for n, c in configs.items() if isinstance(c, FewShotConfig)}
        chosen = {row.name: row.starts_from for row in rows if row.starts_from is not None}
        ordered = order_runs(few_shot, chosen, [name for name in names if name in few_shot])
        return ordered | {name: None for name in names if name not in few_shot}


def with_recipe(config: TrainConfig, name: str, paper: TrainConfig) -> TrainConfig:
    """A configuration with the settings of a recipe of ``nsl train``, at the length of its budget.

    Only the budget of the ``paper`` has the recipe's own number of steps. Options of network and
    predictor are added to those of the configuration.
    """
    settings = recipe_settings(name, config.to_dict())
    if config.steps != paper.steps or config.epochs != paper.epochs:
        del settings["steps"]
        settings["batch_size"] = config.batch_size
    for group in ("options", "predictor_options"):
        settings[group] = {**settings.get(group, {}), **getattr(config, group)}
    return replace(config, **settings)


def check_budget(budget: str) -> None:
    """Raise if there is no such budget."""
    if budget not in BUDGETS:
        raise UnknownNameError(
            f"reproduce: expected a budget among {', '.join(BUDGETS)}, got {budget!r}."
        )


class AddsRow(Protocol[Base]):
    """Makes the decorator, for functions on one kind of configuration."""

    def __call__(self, starts_from: str | None = None) -> Callable[[Change[Base]], Row]: ...


def rows_of(kept_in: str, budgets: Mapping[str, Base]) -> tuple[list[Row], AddsRow[Base]]:
    """A list of rows, and a decorator that adds a function to it as a row.

    The row gets its name from the function's, and its title from the first line of the docstring.
    The rest of the docstring says how it deviates from the paper.
    """
    rows: list[Row] = []

    def row(starts_from: str | None = None) -> Callable[[Change[Base]], Row]:
        def add(change: Change[Base]) -> Row:
            title, _, rest = (change.__doc__ or "").strip().partition("\n")
            new = Row(
                name=change.__name__.replace("_", "-"),
                title=title.rstrip("."),
                change=change,
                kept_in=kept_in,
                budgets=budgets,
                starts_from=starts_from,
                deviation=" ".join(rest.split()),
            )
            rows.append(new)
            return new

        return add

    return rows, row
