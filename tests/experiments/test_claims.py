"""What the results say about the paper's claims."""

import pytest

from experiments.report.claims import CLAIMS, Claim, claims_text, judge
from experiments.report.row_results import RowResults
from experiments.tables.registry import TABLES


def _rows(table, **errors):
    """Results of a table of errors; a list of errors by seed, None for one that diverged."""
    rows = {row.name: RowResults(row, "short", {}, None) for row in TABLES[table].at("short").rows}
    for name, values in errors.items():
        name = name.replace("_", "-")
        records = {seed: _record(value) for seed, value in enumerate(values)}
        rows[name] = RowResults(rows[name].row, "short", records, None)
    return {table: rows}


def _record(error):
    if error is None:
        return {"diverged": 3}
    return {"error": error / 100, "metrics": {"eval": {"images": [10_000]}}}


HELPS = Claim("helps", (("table4", "static-diagonal", "cnn"),))
FREE = Claim("costs nothing", (("table3", "dynamic-shared", "dynamic-diagonal"),), margin=0.5)
STABLE = Claim("is stable", (("table1", "dynamic-diagonal", "cnn-predictor-bare"),), stable=True)


@pytest.mark.parametrize(
    ("static", "verdict"),
    [
        ([19.0, 19.1, 18.9], True),
        ([21.0, 21.1, 20.9], False),
        ([20.0, 20.1, 19.8], None),
        ([15.0], None),
        ([], None),
        ([19.0, 19.1, None], None),
    ],
)
def test_a_claim_needs_a_separated_difference_over_seeds(static, verdict):
    tables = _rows("table4", static_diagonal=static, cnn=[20.0, 20.05, 19.95])
    assert judge(HELPS, tables) is verdict


@pytest.mark.parametrize(
    ("shared", "verdict"),
    [
        ([20.01, 20.0, 20.02], True),
        ([20.1, 20.15, 20.08], True),  # separated, but by less than the margin
        ([20.6, 20.7, 20.65], False),
        ([20.0, 21.0, 19.0], None),
    ],
)
def test_costing_nothing_needs_an_interval_below_the_margin(shared, verdict):
    tables = _rows("table3", dynamic_shared=shared, dynamic_diagonal=[20.0, 20.05, 19.98])
    assert judge(FREE, tables) is verdict


def test_a_claim_with_a_comparison_that_was_not_run_is_open():
    two = Claim("helps", (*HELPS.pairs, ("table7", "spherenet-attention", "spherenet")))
    tables = _rows("table4", static_diagonal=[19.0, 19.1, 18.9], cnn=[20.0, 20.05, 19.95])
    assert judge(HELPS, tables) is True
    assert judge(two, tables) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ([20.0, 20.0], [None, None], True),
        ([20.0, None], [None, None], False),
        ([20.0, 20.0], [None, 21.0], None),
        ([20.0, 20.0], [None], None),
    ],
)
def test_stable_means_that_one_trains_and_the_other_diverges(ours, theirs, verdict):
    tables = _rows("table1", dynamic_diagonal=ours, cnn_predictor_bare=theirs)
    assert judge(STABLE, tables) is verdict


def test_every_claim_compares_rows_that_exist():
    for claim in CLAIMS:
        for table, *names in claim.pairs:
            assert {*names} <= {row.name for row in TABLES[table].at("short").rows}


def test_the_section_names_every_claim():
    text = "\n".join(claims_text(_rows("table4", cnn=[20.0])))
    assert all(claim.words in text for claim in CLAIMS)
    assert "not run" in text


def test_results_of_longer_training_stand_beside_the_verdict_and_do_not_count():
    short = _rows("table4", static_diagonal=[19.0, 19.1, 18.9], cnn=[20.0, 20.05, 19.95])
    longer = _rows("table4", static_diagonal=[8.0], cnn=[7.0])
    claim = CLAIMS[0].words
    lines = "\n".join(claims_text(short, longer)).splitlines()
    assert "| claim | verdict | ours | trained longer |" in lines
    *_, numbers, beside, _ = next(line for line in lines if claim in line).split("|")
    assert "CIFAR-10: Static NSN w/ DNS vs. Baseline CNN, −1.00 ± " in numbers
    assert beside == " CIFAR-10: Static NSN w/ DNS vs. Baseline CNN, +1.00 (one seed) "
    assert "trained longer" not in "\n".join(claims_text(short))
