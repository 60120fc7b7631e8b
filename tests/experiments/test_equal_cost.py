"""The equal-cost study: what networks cost, the curve of plain ones, and the verdict."""

import json
from dataclasses import replace
from math import exp, hypot, log
from pathlib import Path

import numpy as np
import pytest
import torch

import neural_similarity as ns
from experiments.costs import (
    AXES,
    costs_file,
    differences,
    earlier_measurements,
    main,
    matching_rows,
    measure_here,
    read_costs,
    typical_seconds,
)
from experiments.intervals import paired_over_episodes
from experiments.records import RESULTS, write_record
from experiments.report.equal_cost.curve import Curve, Point, excesses, verdict
from experiments.report.equal_cost.headline import equal_cost_rows, guide_text
from experiments.report.equal_cost.picture import draw_study
from experiments.report.equal_cost.text import (
    RECOMMENDED,
    earlier_studies,
    equal_cost_text,
    read_study,
)
from experiments.tables import find_table
from experiments.tables.equal_cost import STUDIES, member_names
from experiments.tables.registry import find_tables
from neural_similarity.convert import multiply_adds

CIFAR10 = "equal-cost-cifar10"
ERROR = 0.03  # of timing


def point(name, cost, *accuracies):
    by_seed = {seed: [accuracy] for seed, accuracy in enumerate(accuracies)}
    return Point(name, name, {**dict.fromkeys(AXES, cost), "timing_error": ERROR}, by_seed)


def test_two_widths_are_a_straight_line_over_the_logarithm():
    curve = Curve.of([point("plain-1", 100, 50, 52), point("plain-2", 400, 60, 66)], "parameters")
    excess = curve.excess(point("image-both-8", 200, 58, 60))  # half way: 55 and 59
    assert excess.mean == pytest.approx(2.0)
    assert excess.high - excess.mean == pytest.approx(12.706 * 2**0.5 / 2**0.5)  # of 3 and 1
    third = curve.excess(point("x", 100 * 4 ** (1 / 4), 0, 0))
    assert third.mean == pytest.approx(-(51 + 12 / 4))
    assert curve.at(200) == pytest.approx(57)


def test_more_widths_are_a_fitted_parabola():
    costs = [100, 150, 250, 400, 500]
    noise = [0.3, -0.5, 0.4, -0.1, 0.2]
    accuracies = [50 + 3 * log(c) - log(c) ** 2 / 5 + n for c, n in zip(costs, noise, strict=True)]
    plain = [point(f"plain-{c}", c, a) for c, a in zip(costs, accuracies, strict=True)]
    curve = Curve.of(plain, "parameters")
    fit = np.polynomial.Polynomial.fit(np.log(costs), accuracies, 2)
    for cost in (100, 180, 333):
        assert curve.at(cost) == pytest.approx(fit(log(cost)))
        assert curve.excess(point("x", cost, 60)).mean == pytest.approx(60 - fit(log(cost)))


def test_nothing_is_said_outside_the_curve_or_of_other_seeds():
    curve = Curve.of([point("plain-1", 100, 50), point("plain-2", 400, 60)], "seconds")
    assert curve.excess(point("x", 99, 70)) is None
    assert curve.excess(point("x", 401, 70)) is None
    assert curve.excess(Point("x", "x", dict.fromkeys(AXES, 200), {7: [70.0]})) is None
    assert Curve.of([point("plain-1", 100, 50)], "seconds").excess(point("x", 100, 50)) is None


def test_a_width_that_a_faster_one_equals_is_left_out_of_the_axis_of_time():
    points = [point("plain-3", 300, 55), point("plain-1", 100, 50), point("plain-2", 200, 60)]
    assert [p.name for p in Curve.of(points, "seconds").widths] == ["plain-1", "plain-2"]
    assert len(Curve.of(points, "parameters").widths) == 3
    lucky, dearer = point("plain-1", 100, 60), point("plain-2", 200, 61, 50)
    assert len(Curve.of([lucky, dearer], "seconds").widths) == 2, "better on the seed of both"


def test_how_far_the_curve_misses_its_own_widths():
    exact = [point(f"plain-{c}", c, a) for c, a in ((100, 50), (200, 51), (400, 52), (800, 53))]
    assert [round(gap, 9) for _, gap in Curve.of(exact, "parameters").misfits()] == [0, 0, 0, 0]
    off = [*exact[:2], point("plain-400", 400, 54), exact[3]]
    gaps = dict(Curve.of(off, "parameters").misfits())
    # A parabola cannot follow (-1, 3, -3, 1): of two points too many, it misses -6/20 of that.
    assert list(gaps.values()) == pytest.approx([0.3, -0.9, 0.9, -0.3])


def test_a_width_with_few_seeds_does_not_cost_the_others_theirs():
    widths = [
        point("plain-1", 100, 50, 51),
        point("plain-2", 200, 70),
        point("plain-3", 400, 60, 62),
    ]
    curve = Curve.of(widths, "parameters")
    ours = point("x", 200, 57, 58)
    assert [w.name for w in curve.beside(ours).widths] == ["plain-1", "plain-3"]
    assert curve.seeds(ours) == [0, 1]
    assert curve.excess(ours).mean == pytest.approx((57 - 55 + 58 - 56.5) / 2)
    assert len(curve.beside(point("x", 200, 57)).widths) == 3
    more = [*widths[1:], point("plain-1", 100, 50, 51, 52, 53)]
    assert Curve.of(more, "parameters").excess(point("x", 200, 57, 58, 59, 60)) is not None
    apart = Point("plain-9", "", dict.fromkeys(AXES, 900), {9: [71.0]})
    assert len(Curve.of([*widths, apart], "seconds").widths) == 3


def test_the_seed_that_selected_a_network_does_not_count():
    widths = [point("plain-1", 100, 50, 50, 50), point("plain-2", 400, 60, 60, 60)]
    curve = Curve.of(widths, "parameters")
    selected = replace(point("x", 200, 90, 56, 58), selected_by=0)
    assert curve.seeds(selected) == [1, 2]
    assert curve.excess(selected).mean == pytest.approx(2)
    assert selected.accuracy.mean == pytest.approx(68), "of all seeds"
    alone = replace(point("x", 200, 90), selected_by=0)
    assert curve.excess(alone).mean == pytest.approx(35), "nothing else is known"


def test_episodes_that_all_share_widen_the_interval():
    plain = [
        Point(name, name, {"parameters": cost}, {0: [40, 60], 1: [41, 61]})
        for name, cost in (("plain-1", 100), ("plain-2", 400))
    ]
    plain[1] = replace(plain[1], by_seed={0: [42, 62], 1: [43, 63]})
    ours = Point("x", "x", {"parameters": 200}, {0: [47, 65], 1: [49, 67], 2: [0, 0]})
    excess = Curve.of(plain, "parameters").excess(ours)
    assert excess.mean == pytest.approx(5.5)
    # Seeds: 5 and 6, half 12.706 · 0.7071 / √2; episodes: 6.5 and 4.5, half 1.96 · 1.4142 / √2.
    assert excess.high - excess.mean == pytest.approx(hypot(6.353, 1.96))


def test_the_error_of_timing_widens_the_interval_on_the_axis_of_time():
    costs, accuracies = (50, 80, 105, 140, 200), (52.0, 54.0, 55.2, 55.9, 56.4)
    member = point("x", 90, 56, 56.2)
    noise, excesses = np.random.default_rng(0), []
    for _ in range(2000):
        times = [cost * np.exp(noise.normal(0, ERROR)) for cost in (*costs, 90)]
        widths = [point(f"plain-{t}", t, a) for t, a in zip(times[:-1], accuracies, strict=True)]
        moved = Curve("parameters", widths).excess(replace(member, cost={"parameters": times[-1]}))
        excesses.append(moved.mean)
    plain = [point(f"plain-{c}", c, a, a) for c, a in zip(costs, accuracies, strict=True)]
    exact, timed = (Curve.of(plain, axis).excess(member) for axis in ("parameters", "seconds"))
    assert timed.mean == exact.mean
    # 2,000 draws estimate a deviation to some 2 %; the rest is curvature.
    added = ((timed.high - timed.mean) ** 2 - (exact.high - exact.mean) ** 2) ** 0.5
    assert added == pytest.approx(1.96 * np.std(excesses), rel=0.08)
    single = replace(member, by_seed={0: [56.0]})
    assert Curve.of(plain, "seconds").excess(single).low is None


@pytest.mark.parametrize(
    ("accuracies", "expected"),
    [((61, 60.9, 61.1), "above"), ((57, 63, 60), "not separated"), ((58, 58.1, 57.9), "below"),
     ((61,), "one seed")],
)  # fmt: skip
def test_a_verdict_needs_an_interval(accuracies, expected):
    plain = [point("plain-1", 100, 50, 50, 50), point("plain-2", 400, 70, 70, 70)]
    excess = Curve.of(plain, "parameters").excess(point("x", 200, *accuracies))
    assert verdict(excess) == expected
    assert verdict(None) == "outside the curve"


def test_costs_are_those_of_the_networks():
    names = ("plain-16", "image-channels-4", "image-taps-4")
    costs = {"rows": measure_here(CIFAR10, 1, 0, names)}
    assert tuple(costs["rows"]) == names
    plain = ns.create_model("cnn9", 10, width=16, hidden=128)
    assert costs["rows"]["plain-16"]["parameters"] == sum(p.numel() for p in plain.parameters())
    of_plain = sum(multiply_adds(plain, torch.zeros(1, 3, 32, 32)).values())
    assert costs["rows"]["plain-16"]["multiply_adds"] == of_plain
    assert costs["rows"]["image-channels-4"]["parameters"] > costs["rows"]["plain-16"]["parameters"]
    assert all(row["seconds"] > 0 for row in costs["rows"].values())
    # M scales every tap of every patch: of 3, 16 and 16 channels at 32 × 32, and so on.
    taps = 9 * (32**2 * (3 + 2 * 16) + 16**2 * (16 + 2 * 32) + 8**2 * (32 + 2 * 64))
    extra = costs["rows"]["image-taps-4"]["multiply_adds"] - of_plain
    assert taps < extra < 1.02 * taps  # and the predictors


def test_patterns_choose_the_rows_to_measure():
    study = STUDIES[CIFAR10]
    assert matching_rows(study, ["plain-1?", "static-*"]) == [
        "plain-12", "plain-16", "static-channel"
    ]  # fmt: skip
    with pytest.raises(SystemExit, match=r"patterns of rows among plain-12, .*, got plan-\*\."):
        matching_rows(study, ["plan-*"])


def test_costs_of_few_shot_networks():
    name = "equal-cost-cifar-fs"
    costs = measure_here(name, 1, 0, ["plain-24"])["plain-24"]
    assert costs["parameters"] == 16_392  # without the classifier of the base classes
    assert costs["seconds"] > 0


def test_the_error_of_timing_is_the_spread_over_processes(tmp_path):
    noise = np.random.default_rng(0)
    true = {f"row {n}": 0.1 + n / 1000 for n in range(200)}
    slow = [1.0, 1.2, 1.0, 0.9, 1.0]  # whole processes
    times = {n: [t * s * np.exp(noise.normal(0, 0.02)) for s in slow] for n, t in true.items()}
    seconds, error = typical_seconds(times)
    errors = [log(seconds[name] / time) for name, time in true.items()]
    # The bound of π/2 is for many numbers; for five it is 1.43.
    assert 1 < error / np.std(errors) < 1.15
    assert typical_seconds({"plain-16": [1.0]}) == typical_seconds({}) == ({}, 0.03)
    rows = {name: {"seconds": times[name][0]} for name in times}
    record = {"rows": rows, "seconds_by_process": times}
    write_record(costs_file(tmp_path, CIFAR10, 1), record)
    read = read_costs(tmp_path, CIFAR10)["row 3"]
    assert error < 0.03, "measurements on different days differ by more"
    assert (read["seconds"], read["timing_error"]) == (seconds["row 3"], 0.03)
    rough = {n: [t * np.exp(noise.normal(0, 0.2)) for _ in slow] for n, t in true.items()}
    write_record(costs_file(tmp_path, CIFAR10, 2), {**record, "seconds_by_process": rough})
    assert read_costs(tmp_path, CIFAR10)["row 3"]["timing_error"] == typical_seconds(rough)[1] > 0.1


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
    winner, loser = (STUDIES[CIFAR10].row(n).title for n in ("image-channels-8", "pixel-taps-8"))
    assert f"| network | CNN-9 on CIFAR-10 | | --- | --- | | {winner} | ▲ ▲ ▲ |" in text
    assert f"| {loser} | ▼ ▼ ○ |" in text, "on the axis of time the error of timing counts"
    excess = 80.5 - (79 + 2 * log(1.1) / log(2))
    assert f"| +{excess:.2f} ± 0.00 |" in text
    assert "![Equal cost: CNN-9 on CIFAR-10](pictures/equal-cost-cifar10.png)" in text
    assert list(equal_cost_text(results, "paper", "pictures")) == []


def test_a_headline_says_where_the_recommended_network_is(results):
    assert list(equal_cost_rows(results, "short")) == []  # it has no results here
    (row,) = equal_cost_rows(results, "short", "page.md", "image-channels-8")
    excess = 80.5 - (79 + 2 * log(1.1) / log(2))
    assert row[0].endswith("plain networks of equal cost: CNN-9 on CIFAR-10")
    assert row[1].startswith(f"**+{excess:.2f} ± 0.00** (parameters), **+")
    assert row[2] == "[3 seeds](page.md#equal-cost)"
    (row,) = equal_cost_rows(results, "short", None, "pixel-taps-8")
    assert f"**−{79 + 2 * log(1.15) / log(2) - 79.3:.2f} ± 0.00** (parameters)" in row[1]
    assert row[2] == "2 seeds", "the first selected it"


def test_the_guide_shows_comparisons_of_several_seeds(results):
    assert guide_text(results, "short") == "There are no results yet."
    for seed in range(3):
        old = results / f"{STUDIES[CIFAR10].row('image-channels-8').key('short', seed)}.json"
        record = {**json.loads(old.read_text()), "row": RECOMMENDED}
        write_record(
            results / f"{STUDIES[CIFAR10].row(RECOMMENDED).key('short', seed)}.json", record
        )
        if seed == 0:
            cost = json.loads(costs_file(results, CIFAR10, 2).read_text())
            cost["rows"][RECOMMENDED] = dict.fromkeys(AXES, 110)
            write_record(costs_file(results, CIFAR10, 3), cost)
            assert guide_text(results, "short") == "There are no results yet.", "one seed"
    excess = 80.5 - (79 + 2 * log(1.1) / log(2))
    (row,) = guide_text(results, "short").splitlines()[2:]
    assert row.startswith(f"| CNN-9 on CIFAR-10 | 2·sigmoid | 3 | **+{excess:.2f} ± 0.00** | **+")


def measured_slower_before(results):
    """Two more measurements: the winner took 1.9 times as long in the first of them."""
    newest = json.loads(costs_file(results, CIFAR10, 2).read_text())["rows"]
    before = {**newest, "image-channels-8": dict.fromkeys(AXES, 190)}
    for number, rows in ((3, before), (4, newest)):
        by_process = {name: [row["seconds"]] * 2 for name, row in rows.items()}
        record = {"commit": "a name", "rows": rows, "seconds_by_process": by_process}
        write_record(costs_file(results, CIFAR10, number), record)


def test_an_earlier_measurement_of_times_is_not_hidden(results):
    """There the winner took 1.9 times as long: it is on the other side of the curve."""
    measured_slower_before(results)
    assert earlier_measurements(results, CIFAR10) == [3]
    text = " ".join("\n".join(equal_cost_text(results, "short", "pictures")).split())
    below = f"−{79 + 2 * log(1.9) / log(2) - 80.5:.2f} ±"
    title = STUDIES[CIFAR10].row("image-channels-8").title
    assert f"(`costs-3.json`) other verdicts on the time per step follow: {title} {below}" in text
    (row,) = equal_cost_rows(results, "short", None, "image-channels-8")
    assert f", **{below}" in row[1], "the least favourable one"


def test_measurements_are_compared_by_their_plain_networks(results, capsys):
    """The second machine is slower by half; besides, one of three networks is e^0.3 as slow."""
    for number, factors in ((3, (1, 1, 1, 1)), (4, (1.5, 1.5, 1.5 * exp(0.3), 9))):
        names = ("plain-12", "plain-16", "plain-20", "image-channels-8")
        rows = {n: {"seconds": f} for n, f in zip(names, factors, strict=True)}
        write_record(costs_file(results, CIFAR10, number), {"commit": "a name", "rows": rows})
    ((first, second, share),) = differences(results, CIFAR10)
    assert (first, second) == (3, 4)
    # Logarithms 0, 0, 0.3 around 0.1: variance 0.06 / 2, of which each measurement has half.
    assert share == pytest.approx((0.03 / 2) ** 0.5)
    main([CIFAR10, "--differences", "--results", str(results)])
    assert "costs-3.json and costs-4.json differ by 12.2%" in capsys.readouterr().out


def test_a_network_of_which_a_seed_diverged_is_left_out(results):
    (file,) = (results / CIFAR10 / "short").glob("image-channels-8-2.json")
    record = json.loads(file.read_text())
    del record["error"]
    file.unlink()
    write_record(file, {**record, "diverged": 7})
    text = " ".join("\n".join(equal_cost_text(results, "short", "pictures")).split())
    left_out = STUDIES[CIFAR10].row("image-channels-8").title
    assert f"Left out, because a seed diverged: {left_out}." in text
    assert f"| {left_out} |" not in text


def test_without_two_plain_networks_there_is_no_verdict(results):
    for file in (results / CIFAR10 / "short").glob("plain-20-*.json"):
        file.unlink()
    text = " ".join("\n".join(equal_cost_text(results, "short", "pictures")).split())
    assert "There is no curve yet" in text
    assert "CNN-9, 4 epochs" in text


def test_the_picture_is_drawn(results, tmp_path):
    draw_study(read_study(CIFAR10, results, "short"), "title", tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size > 5000


def test_the_picture_has_the_verdicts_of_the_table(results, tmp_path, drawn):
    """By the newest times the network wins, by earlier ones it does not."""
    measured_slower_before(results)
    earlier = {"": earlier_studies(CIFAR10, results, "short", "")}
    draw_study(read_study(CIFAR10, results, "short"), "title", tmp_path / "study.png", earlier)
    winners = [[text.get_text() for text in axes.texts] for axes in drawn[-1].axes]
    assert winners == [["channels, 8"], ["channels, 8"], []]


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ((110, 120), "above"),
        ((110, 200), "outside the curve"),
        ((138, 200), "outside the curve"),
        ((200, 138), "outside the curve"),
        ((180, 200), "below"),
        ((110, None), "above"),
    ],
)
def test_the_least_favourable_times_count(costs, expected):
    """The curve ends at 190; an earlier measurement may lack the network."""
    plain = [point("plain-1", 100, 50, 50.1, 50), point("plain-2", 190, 60, 60.1, 60)]
    measured = [
        plain if cost is None else [*plain, point("x", cost, 55.05, 54.9, 55)] for cost in costs
    ]
    assert verdict(excesses("x", measured[0], measured[1:])["seconds"]) == expected


def test_the_guide_says_what_was_measured():
    """Its table is generated; this holds the sentences around it."""
    text = " ".join((Path(__file__).parents[2] / "docs" / "choose.md").read_text().split())
    assert (
        "On CIFAR-FS, a network with it is more accurate than plain networks with as many" in text
    )
    for points in read_study("equal-cost-cifar-fs", RESULTS, "short").values():
        by_name = {point.name: point for point in points}
        ours, plain = by_name[RECOMMENDED], by_name["plain-32"]
        assert {verdict(Curve.of(points, axis).excess(ours)) for axis in AXES[:2]} == {"above"}
        more = [f"{100 * (ours.cost[axis] / plain.cost[axis] - 1):.0f} %" for axis in AXES]
        assert f"it has {more[0]} more parameters and {more[1]} more multiply-adds than" in text
    assert (
        "On CIFAR-10, with CNN-9 and with ResNet-20, its difference from plain networks of" in text
    )
    for study in (CIFAR10, "equal-cost-resnet"):
        (points,) = read_study(study, RESULTS, "short").values()
        (ours,) = (point for point in points if point.name == RECOMMENDED)
        assert {verdict(Curve.of(points, axis).excess(ours)) for axis in AXES} == {"not separated"}
    (points,) = read_study("equal-cost-cifar100", RESULTS, "short").values()
    ours, plain = (
        next(p for p in points if p.name == name).by_seed for name in (RECOMMENDED, "plain-16")
    )
    above, below = (ours[seed][0] - plain[seed][0] for seed in ours)
    assert f"it is {above:.1f} points above the plain network of the same width" in text
    assert f", and {-below:.1f} below." in text
    assert "On CIFAR-FS and CIFAR-10 (CNN-9) we see no clear difference between the two" in text
    several = set()
    for study in STUDIES:
        for points in read_study(study, RESULTS, "short").values():
            by_name = {point.name: point.by_seed for point in points}
            gates = [by_name.get(name, {}) for name in (RECOMMENDED, f"{RECOMMENDED}-tanh")]
            if len(shared := gates[0].keys() & gates[1].keys()) > 1:
                several.add(study)
                pairs = ([gate[seed] for seed in sorted(shared)] for gate in gates)
                assert paired_over_episodes(*pairs).contains(0.0)
    assert several == {"equal-cost-cifar-fs", CIFAR10}


def test_a_network_without_costs_is_named(results):
    costs = json.loads(costs_file(results, CIFAR10, 2).read_text())
    del costs["rows"]["image-channels-8"]
    write_record(costs_file(results, CIFAR10, 3), costs)
    text = " ".join("\n".join(equal_cost_text(results, "short", "pictures")).split())
    left_out = STUDIES[CIFAR10].row("image-channels-8").title
    assert f"Left out, because costs were not measured: {left_out}." in text
