"""The README's results: computed from the files, and honest about them."""

import pytest
from support.results_cases import keep, keep_error, keep_tests

from experiments.report.headlines import HEADLINES, headlines, pair_rows
from experiments.report.row_results import read_table
from experiments.tables import TABLES


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def rows(results) -> list[list[str]]:
    tables = {name: read_table(TABLES[name], results, "short") for name in ("table4", "table6")}
    return list(pair_rows(tables))


def test_errors_with_difference_and_budget(results):
    for seed, (plain, static) in enumerate([(0.30, 0.28), (0.32, 0.29), (0.31, 0.285)]):
        keep_error(results, "cnn", seed, plain)
        keep_error(results, "static-diagonal", seed, static)
    # Differences −2, −3, −2.5: mean −2.5, half 4.303 · 0.5 / √3 = 1.24.
    assert rows(results) == [
        [
            "static similarity", "plain network", "CIFAR-10, error", "28.50 ± 1.24", "31.00 ± 2.48",
            "**−2.50 ± 1.24**", "3 seeds, `cnn9` of width 16, 4 epochs",
        ]
    ]  # fmt: skip


def test_a_difference_that_chance_may_have_made_is_not_bold(results):
    for seed, error in enumerate([0.29, 0.33, 0.29]):
        keep_error(results, "cnn", seed, 0.31)
        keep_error(results, "static-diagonal", seed, error)
    (row,) = rows(results)
    assert row[5] == "−0.67 ± 5.74"


def test_one_seed_has_no_interval(results):
    keep_error(results, "cnn", 0, 0.3)
    keep_error(results, "static-diagonal", 0, 0.2)
    (row,) = rows(results)
    assert row[5:] == ["−10.00", "1 seed, `cnn9` of width 16, 4 epochs"]


def test_accuracies_for_every_number_of_shots(results):
    for seed in range(2):
        keep_tests(results, "wide-parameters", seed, [[0.2, 0.4], [0.5, 0.6]])
        keep_tests(results, "dynamic", seed, [[0.3, 0.5], [0.4, 0.5]])
    one, five = rows(results)
    assert one[2:6] == ["CIFAR-FS, 1 shot", "40.00 ± 19.60", "30.00 ± 19.60", "**+10.00 ± 0.00**"]
    assert five[2] == "CIFAR-FS, 5 shots"
    assert five[5:] == ["**−10.00 ± 0.00**", "2 seeds, `cnn4` of width 32, 10 epochs"]


def test_a_row_that_diverged_is_not_compared(results):
    keep_error(results, "cnn", 0, 0.3)
    keep(results, "table4", "static-diagonal", 0, diverged=40)
    (row,) = rows(results)
    assert row[3] == "diverged, 1 of 1"
    assert row[5] == "–"


def test_the_text_has_the_tables_that_have_rows_and_their_links(results):
    keep_error(results, "cnn", 0, 0.3)
    keep_error(results, "static-diagonal", 0, 0.2)
    tables = {"table4": read_table(TABLES["table4"], results, "short")}
    text = " ".join(headlines(results, "short", tables, "results.md", "adapt.md").split())
    assert "**Other comparisons**" in text
    assert "([all tables](results.md), [all ways to adapt](adapt.md))." in text
    assert "| static similarity | plain network | CIFAR-10, error | 20.00" in text
    assert "equal cost" not in text, "no study has results here"
    assert "](" not in headlines(results, "short", tables)


def test_nothing_to_compare_yet(results):
    keep_error(results, "cnn", 0, 0.3)
    tables = {"table4": read_table(TABLES["table4"], results, "short")}
    assert headlines(results, "short", tables) == "There are no results to compare yet."


def test_headlines_are_rows_of_their_tables():
    assert len(HEADLINES) <= 5
    for headline in HEADLINES:
        table = TABLES[headline.table]
        assert table.row(headline.row) != table.row(headline.other)
        if headline.other != table.baseline:
            assert (headline.row, headline.other) in table.pairs
