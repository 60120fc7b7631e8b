"""The report's pictures, drawn from invented results."""

from itertools import combinations, pairwise

import pytest
from matplotlib.text import Text
from support.results_cases import keep_error, keep_tests

from experiments.report.comparison import compare_rows
from experiments.report.pictures import draw_accuracy, draw_error, spread
from experiments.report.row_results import read_table
from experiments.tables import TABLES


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


def test_labels_move_as_little_as_they_must():
    assert spread([0.0, 1.0, 10.0], 3.0) == [-1.0, 2.0, 10.0]
    assert spread([0.0, 5.0, 10.0], 3.0) == [0.0, 5.0, 10.0]
    close = spread([1.0, 1.0, 1.0, 2.0], 2.0)
    assert [b - a for a, b in pairwise(close)] == [2.0] * 3
    assert sum(close) == pytest.approx(5.0)


def test_curves_are_means_over_seeds(results, tmp_path, drawn):
    for seed, error in enumerate((0.3, 0.4)):
        keep_error(results, "cnn", seed, error)
    keep_error(results, "dynamic-diagonal", 0, 0.2)
    draw_error(read_table(TABLES["table4"], results, "short"), tmp_path / "e.png")
    (axes,) = drawn[-1].axes
    assert [list(line.get_ydata()) for line in axes.lines] == [
        pytest.approx([90, 35]), pytest.approx([90, 20])
    ]  # fmt: skip


def test_names_and_numbers_stay_on_paper(results, tmp_path, drawn):
    table = TABLES["table6"].at("short")
    names = ("proto-pretrained", "wide-time", "transductive-finetune")
    for place, (name, adapted) in enumerate(zip(names, (0, 1_400, 44_000), strict=True)):
        keep_tests(results, name, 0, [[0.5, 0.6 + place / 1000]] * 2, adapted=adapted)
    rows = read_table(table, results, "short")
    draw_accuracy({n: compare_rows(table, rows, n) for n in (1, 5)}, tmp_path / "a.png")
    figure = drawn[-1]
    right = figure.bbox.x1
    for axes, others in zip(figure.axes, (figure.axes[2], figure.axes[2], None, None), strict=True):
        end = right if others is None else others.get_window_extent().x0
        assert axes.texts
        assert all(Text.get_window_extent(name).x1 < end for name in axes.texts)
    assert max(figure.axes[1].get_xticks()) <= 50_000, "no numbers below the names"


@pytest.mark.slow
def test_no_name_lies_over_another(results, tmp_path, drawn):
    table = TABLES["table6"].at("short")
    for place, row in enumerate(table.rows):  # all alike, but for the four that adapt nothing
        tests = [[0.5, 0.6 + place / 1000]] * 2
        keep_tests(results, row.name, 0, tests, adapted=0 if place < 4 else 640 + place)
    rows = read_table(table, results, "short")
    draw_accuracy({n: compare_rows(table, rows, n) for n in (1, 5)}, tmp_path / "a.png")
    assert len(drawn[-1].axes) == 4
    others = len(table.rows) - 4
    for axes, names in zip(drawn[-1].axes, (4, others, 4, others), strict=True):
        boxes = [Text.get_window_extent(name) for name in axes.texts]  # without its line
        assert len(boxes) == names
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
