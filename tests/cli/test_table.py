"""Tables in the terminal: nothing is truncated, nothing is interpreted as markup."""

import sys

import pytest

from neural_similarity.cli import main
from neural_similarity.cli.shared.table import print_table


@pytest.mark.parametrize("columns", ["20", "80", "400"])
def test_narrow_terminals_lose_nothing(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", "1")
    head = ("layer", "a long name of numbers", "another long name")
    print_table(head, [["stages.0.0." + 60 * "x", 1234567, "0.1234"], ["[bold]", 1, "[red]x"]])
    said = capsys.readouterr().out
    for word in (*head, 60 * "x", "1,234,567", "0.1234", "[bold]", "[red]x"):
        assert word in said
    assert "…" not in said


def test_signs_that_a_terminal_does_not_know(monkeypatch, tmp_path):
    with (tmp_path / "said").open("w", encoding="latin-1") as narrow:
        monkeypatch.setattr(sys, "stdout", narrow)
        monkeypatch.setattr(sys, "argv", ["nsl", "train", "--help"])
        with pytest.raises(SystemExit):
            main()
        print("accuracy 50 % – 60 %", file=narrow)
    assert "accuracy 50 % ? 60 %" in (tmp_path / "said").read_text(encoding="latin-1")
