"""The commands that the report prints train exactly what the rows say."""

import shlex

import pytest

from experiments.commands import command_for
from experiments.tables import TABLES
from neural_similarity.cli.shared.settings import wanted_settings
from neural_similarity.train import TrainConfig


@pytest.mark.parametrize(
    ("row", "budget"),
    [
        pytest.param(row, budget, id=f"{name}-{row.name}-{budget}")
        for name in ("table1", "table4", "table5", "table7")
        for budget in ("short", "paper")
        for row in TABLES[name].at(budget).rows
        if (name, budget) != ("table5", "short")  # a step, which no command takes
    ],
)
def test_a_command_has_the_rows_settings(row, budget):
    words = shlex.split(command_for(row.config(budget)))[2:]
    options, sets = {}, []
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option == "--set":
            sets.append(value)
        elif option != "--out":
            options[option.removeprefix("--")] = value
    kinds = {"steps": int, "epochs": float, "lr": float}
    options |= {name: of(options[name]) for name, of in kinds.items() if name in options}
    assert TrainConfig.from_dict(wanted_settings(None, options, sets)) == row.config(budget)
