"""The equal-cost study: what networks cost, the curve of plain ones, and the verdict."""

import json
from dataclasses import replace
from math import log
from pathlib import Path

import pytest
import torch

import neural_similarity as ns
from experiments.costs import AXES, costs_file, measure, read_costs
from experiments.records import RESULTS, write_record
from experiments.report.equal_cost.curve import Point, above_curve, frontier, verdict
from experiments.report.equal_cost.headline import HEAD, equal_cost_rows
from experiments.report.equal_cost.picture import draw_study
from experiments.report.equal_cost.text import RECOMMENDED, equal_cost_text, read_study
from experiments.tables import find_table
from experiments.tables.equal_cost import STUDIES, member_names
from experiments.tables.registry import find_tables
from neural_similarity.convert import multiply_adds

CIFAR10 = "equal-cost-cifar10"


def point(name, cost, *accuracies):
    return Point(name, name, dict.fromkeys(AXES, cost), dict(enumerate(accuracies)))


def test_the_curve_is_straight_over_the_logarithm_and_pairs_seeds():
    plain = [point("plain-1", 100, 50, 52), point("plain-2", 400, 60, 66)]
    member = point("image-both-8", 200, 58, 60)  # half way: 55 and 59
    excess = above_curve(member, plain, "seconds")
    assert excess.mean == pytest.approx(2.0)
    assert excess.high - excess.mean == pytest.approx(12.706 * 2**0.5 / 2**0.5)  # of 3 and 1
    third = above_curve(point("x", 100 * 4 ** (1 / 4), 0, 0), plain, "seconds")
    assert third.mean == pytest.approx(-(51 + 12 / 4))


def test_nothing_is_said_outside_the_curve_or_of_other_seeds():
    plain = [point("plain-1", 100, 50), point("plain-2", 400, 60)]
    assert above_curve(point("x", 99, 70), plain, "seconds") is None
    assert above_curve(point("x", 401, 70), plain, "seconds") is None
    other = Point("x", "x", dict.fromkeys(AXES, 200), {7: 70.0})
    assert above_curve(other, plain, "seconds") is None


def test_a_plain_network_that_a_cheaper_one_equals_is_no_yardstick():
    points = [point("plain-3", 300, 55), point("plain-1", 100, 50), point("plain-2", 200, 60)]
    assert [p.name for p in frontier(points, "seconds")] == ["plain-1", "plain-2"]
    lucky, dearer = point("plain-1", 100, 60), point("plain-2", 200, 61, 50)
    assert frontier([lucky, dearer], "seconds") == [lucky, dearer], "better on the seed of both"


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [((61, 60.9, 61.1), "above"), ((57, 63, 60), "on the curve"), ((58, 58.1, 57.9), "below"),
     ((61,), "one seed")],
)  # fmt: skip
def test_a_verdict_needs_an_interval(accuracies, expected):
    plain = [point("plain-1", 100, 50, 50, 50), point("plain-2", 400, 70, 70, 70)]
    assert verdict(above_curve(point("x", 200, *accuracies), plain, "seconds")) == expected
    assert verdict(None) == "outside the curve"


def test_costs_are_those_of_the_networks():
    study = replace(
        STUDIES[CIFAR10],
        rows=tuple(STUDIES[CIFAR10].row(n) for n in ("plain-16", "image-channels-4")),
    )
    lines = []
    costs = measure(study, 1, lines.append)
    plain = ns.create_model("cnn9", 10, width=16, hidden=128)
    assert costs["rows"]["plain-16"]["parameters"] == sum(p.numel() for p in plain.parameters())
    of_plain = sum(multiply_adds(plain, torch.zeros(1, 3, 32, 32)).values())
    assert costs["rows"]["plain-16"]["multiply_adds"] == of_plain
    assert costs["rows"]["image-channels-4"]["parameters"] > costs["rows"]["plain-16"]["parameters"]
    assert all(row["seconds"] > 0 for row in costs["rows"].values())
    assert len(lines) == 2


def test_rows_change_width_or_similarity_alone():
    study = find_table(CIFAR10)
    base = study.row("plain-16").training("short")
    assert study.row("plain-24").training("short") == replace(
        base, options={"width": 24, "hidden": 192}
    )
    member = study.row("image-both-8").training("short")
    assert (member.options, member.over, member.predictor) == (base.options, "both", "image")
    assert len(member_names()) == len(study.rows) - 5
    assert find_tables("equal-cost") == list(STUDIES.values())


@pytest.fixture
def results(tmp_path):
    """Made-up results of three seeds, in which one member is above the curve."""
    study = STUDIES[CIFAR10]
    errors = {"plain-16": 0.21, "plain-20": 0.19, "image-channels-8": 0.195, "pixel-taps-8": 0.207}
    costs = {"plain-16": 100, "plain-20": 200, "image-channels-8": 110, "pixel-taps-8": 115}
    for name, error in errors.items():
        for seed in range(3):
            row = study.row(name)
            config = json.loads(json.dumps(row.training("short", seed).to_dict()))
            record = {
                "table": CIFAR10, "row": name, "budget": "short", "seed": seed, "config": config,
                "commit": "0" * 40, "parameters": 1, "error": error + 0.0001 * seed, "metrics": {},
            }  # fmt: skip
            write_record(tmp_path / f"{row.key('short', seed)}.json", record)
    rows = {name: dict.fromkeys(AXES, cost) for name, cost in costs.items()}
    write_record(costs_file(tmp_path, CIFAR10, 1), {"rows": {}})
    write_record(costs_file(tmp_path, CIFAR10, 2), {"rows": rows})
    return tmp_path


def test_the_report_names_who_is_above_the_curve(results):
    assert read_costs(results, CIFAR10)["plain-20"]["seconds"] == 200
    text = " ".join("\n".join(equal_cost_text(results, "short", "pictures")).split())
    assert "### Equal cost: CNN-9 on CIFAR-10" in text
    assert "CIFAR-FS" not in text
    assert "for parameters: `image-channels-8`; for multiply-adds: `image-channels-8`" in text
    excess = 80.5 - (79 + 2 * log(1.1) / log(2))
    assert f"| +{excess:.2f} ± 0.00 |" in text
    assert "![Equal cost: CNN-9 on CIFAR-10](pictures/equal-cost-cifar10.png)" in text
    assert list(equal_cost_text(results, "paper", "pictures")) == []


def test_a_headline_says_where_the_recommended_network_is(results):
    assert list(equal_cost_rows(results, "short")) == []  # it has no results here
    (row,) = equal_cost_rows(results, "short", "image-channels-8")
    excess = 80.5 - (79 + 2 * log(1.1) / log(2))
    assert row == ["CNN-9 on CIFAR-10", *[f"**+{excess:.2f} ± 0.00**"] * 3, "3"]
    assert len(row) == len(HEAD)
    (row,) = equal_cost_rows(results, "short", "pixel-taps-8")
    assert row[1] == f"**−{79 + 2 * log(1.15) / log(2) - 79.3:.2f} ± 0.00**"


def test_without_two_plain_networks_there_is_no_verdict(results):
    for file in (results / CIFAR10 / "short").glob("plain-20-*.json"):
        file.unlink()
    text = " ".join("\n".join(equal_cost_text(results, "short", "pictures")).split())
    assert "There is no curve yet" in text
    assert "CNN-9 at half width" in text


def test_the_picture_is_drawn(results, tmp_path):
    draw_study(read_study(CIFAR10, results, "short"), "title", tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size > 5000


def test_the_guide_says_what_was_measured():
    heights, ratios = [], {}
    for points in read_study("equal-cost-cifar-fs", RESULTS, "short").values():
        by_name = {point.name: point for point in points}
        ours = by_name[RECOMMENDED]
        heights += [above_curve(ours, frontier(points, axis), axis).mean for axis in AXES]
        ratios = {axis: ours.cost[axis] / by_name["plain-32"].cost[axis] - 1 for axis in AXES}
    text = " ".join((Path(__file__).parents[2] / "docs" / "choose.md").read_text().split())
    assert f"by {min(heights):.1f} to {max(heights):.1f} points" in text
    parameters, work, seconds = (f"{100 * ratio:.0f} %" for ratio in ratios.values())
    assert f"It has {parameters} more parameters and {work} more multiply-adds than" in text
    assert f"a step takes {seconds} longer" in text
