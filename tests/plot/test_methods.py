"""The picture of few-shot methods: where their markers are, and what is written beside bars."""

from itertools import pairwise
from math import inf, log10, nan

import pytest
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from neural_similarity.plot import draw_methods


def result(n_shot=1, mean=0.5, interval=0.01, adapted=0, n_way=5):
    return {
        "n_shot": n_shot, "n_way": n_way, "mean": mean, "interval": interval, "adapted": adapted
    }  # fmt: skip


def markers(axes):
    """The marker of every accuracy, without its interval."""
    return [container.lines[0] for container in axes.containers]


def test_a_crowd_of_methods_stays_at_its_parameters(tmp_path, drawn):
    adapted = [0, 0, 36, *[645] * 12, 700, 40_000]
    results = {f"m{n}": [result(adapted=count)] for n, count in enumerate(adapted)}
    draw_methods(results, tmp_path / "methods.png")
    found = [line.get_xdata()[0] for line in markers(drawn[0].axes[1])]
    assert found == pytest.approx([log10(1 + count) for count in adapted], abs=0.1001)
    crowd = found[3:16]
    assert all(b > a for a, b in pairwise(crowd)), "side by side"
    assert sum(crowd[:12]) / 12 == pytest.approx(log10(646), abs=0.02), "around their number"


def test_every_method_has_its_own_marker(tmp_path, drawn):
    results = {f"m{n}": [result()] for n in range(40)}
    draw_methods(results, tmp_path / "methods.png")
    looks = {(m.get_marker(), m.get_fillstyle()) for m in markers(drawn[0].axes[1])}
    assert len(looks) == 40


def test_a_short_bar_has_its_text_beside_it(tmp_path, drawn):
    results = {"poor": [result(mean=0.05, interval=0.02)], "good": [result(mean=0.6)]}
    draw_methods(results, tmp_path / "methods.png")
    poor, good = drawn[0].axes[0].texts
    assert (poor.get_text(), good.get_text()) == ("5.0 ± 2.0", "60.0 ± 1.0")
    assert poor.get_position()[0] > 7
    assert max(to_rgb(poor.get_color())) < 0.5, "dark on white"
    assert good.get_position()[0] < 7
    assert good.get_color() == "white"


def test_one_episode_has_no_interval(tmp_path, drawn):
    draw_methods({"proto": [result(interval=inf)]}, tmp_path / "methods.png")
    bars, points = drawn[0].axes
    assert [text.get_text() for text in bars.texts] == ["50.0"]
    assert points.get_ylim()[0] == 45


def test_a_method_that_diverged_says_so(tmp_path, drawn):
    draw_methods({"maml": [result(mean=nan, interval=nan)]}, tmp_path / "methods.png")
    bars, points = drawn[0].axes
    (text,) = bars.texts
    assert (text.get_text(), text.get_position()[0]) == ("nan", 1.5)
    assert text.get_color() != "white"
    assert points.get_ylim() == (0, 100)


def test_shots_that_the_first_method_lacks_are_in_the_legend(tmp_path, drawn):
    results = {"proto": [result(5)], "maml": [result(1), result(5)]}
    draw_methods(results, tmp_path / "methods.png")
    words = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert sorted(words) == ["1-shot", "5-shot", "chance"]


@pytest.mark.parametrize("most", [0, 5_000, 100_000, 10_000_000])
def test_numbers_of_parameters_do_not_overlap(most, tmp_path, drawn):
    results = {"proto": [result()], "maml": [result(adapted=most)]}
    draw_methods(results, tmp_path / "methods.png")
    labels = drawn[0].axes[1].get_xticklabels()
    boxes = [Text.get_window_extent(label) for label in labels]
    assert all(b.x0 > a.x1 for a, b in pairwise(boxes))
