"""The section of the report: a table per study, and which networks lie above the curve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ... import markdown
from ...costs import AXES, earlier_measurements, read_costs
from ...intervals import Estimate
from ...tables.equal_cost import PLANNED, STUDIES
from ..cells import NONE, in_shots, number, signed
from ..origins import origins
from ..row_results import RowResults, read_table, shots_of
from .curve import Curve, Point, best_first, excesses, has_curve, points_of, verdict
from .variants import variants_text

__all__ = [
    "AXIS_NAMES", "RECOMMENDED", "earlier_studies", "equal_cost_text", "read_study", "study_words",
]  # fmt: skip

RECOMMENDED = "image-both-8"
"""The network with a similarity that the guides recommend."""

AXIS_NAMES = {
    "parameters": "parameters", "multiply_adds": "multiply-adds", "seconds": "time per step",
}  # fmt: skip

_INTRODUCTION = """
Does a similarity buy more than width does? Plain networks of several widths give a curve of
accuracy over cost. A network with a similarity that lies above the curve, at its own cost, is worth
its cost. "+0.72 ± 0.58" is its height above the curve in points of accuracy, with its 95 %
interval: if that contains zero, the height may be luck.
"""
_DETAILS = """
A network is compared with the curve seed by seed. The curve is fitted to plain networks: a parabola
in log cost, or a line if there are fewer than four widths. If some widths lack seeds of the
network, it is fitted to those that allow the most comparisons. On the axis of time, widths that are
no better than a faster one are left out. ± is a 95 % interval over seeds (Student's t), and over
episodes if all networks share them; on the axis of time it includes an error of timing of at least
3 %, by which measurements on different days differ. It includes neither the choice of test images
or test classes, nor how far the curve misses the plain networks themselves, which is given below
each table. With one seed it is over episodes alone, and describes that network, not its kind. It is
not corrected for the number of networks. A network is compared on the seeds that it shares with the
widths; the pictures show the curve of all seeds, which can differ slightly. Pictures and tables of
networks show the newest times. In the pictures, filled, coloured symbols lie above the curve by
more than the interval, in every measurement of times, and bars are 95 % intervals of networks with
at least three seeds.
"""
_SEEDS = """
For some networks, several seeds were planned from the start. Others got more seeds because their
first seed was near or above the curve. That seed was chosen for its good result, so it does not
count in their comparisons: "1 + 4" seeds are compared by the four. It does count in the accuracy
and in the pictures. The number of further seeds was not fixed in advance. Which networks were
planned was written into the code after the first results.
"""
_LEGEND = """
Every network with a similarity that is compared by several seeds, at equal parameters, equal
multiply-adds and equal time per step, in this order. ▲: above the curve by more than the interval.
▼: below it by more than the interval. ○: not separated from it. –: not comparable, because it costs
more, or less, than all plain networks with the same seeds. We measured the time per step
several times and report what is least favourable to our networks: ▼ in any measurement, or else –
in any, or else ○ in any.
"""
_MARKS = {"above": "▲", "below": "▼", "not separated": "○"}
_MISFIT = "The plain network that is furthest from the curve, and by how much:"


def read_study(
    name: str, results: Path, budget: str, measurement: int | None = None
) -> dict[str, list[Point]]:
    """The networks of a study that were tested, by test: one, or one for each number of shots.

    ``measurement`` is the number of the file of costs; None means the newest.
    """
    if not (results / name / budget).is_dir():
        return {}
    rows: dict[str, RowResults] = read_table(STUDIES[name], results, budget)
    costs = read_costs(results, name, measurement)
    if STUDIES[name].metric == "error":
        tests: dict[str, int | None] = {"": None}
    else:
        tests = {in_shots(n): n for n in shots_of(rows)}
    by_test = {
        words: points_of(rows, costs, shots, PLANNED[name]) for words, shots in tests.items()
    }
    return {words: points for words, points in by_test.items() if points}


def equal_cost_text(results: Path, budget: str, pictures: str) -> Iterator[str]:
    """Paragraphs about every study that has results; nothing if there are none.

    ``pictures`` is the folder of the pictures, as links name it.
    """
    studies = {name: read_study(name, results, budget) for name in STUDIES}
    if not any(studies.values()):
        return
    yield "## Equal cost"
    yield markdown.paragraph(_INTRODUCTION)
    yield from _verdicts(studies, results, budget)
    yield markdown.paragraph(_SEEDS)
    yield from _without_the_first_seed(studies)
    yield "### How networks are compared"
    yield markdown.paragraph(_DETAILS)
    for name, by_test in studies.items():
        if by_test:
            yield f"### {STUDIES[name].title}"
            words = STUDIES[name].budgets[budget]
            error = next(iter(read_costs(results, name).values()))["timing_error"]
            yield markdown.paragraph(
                f"{words[0].upper()}{words[1:]}. Error of timing: {error:.1%} (standard deviation)."
            )
        for words, points in by_test.items():
            if words:
                yield f"**{words}**"
            yield _table(points)
            yield _misfit(points)
        if by_test:
            yield from map(markdown.paragraph, _other_times(name, results, budget, by_test))
            yield from map(markdown.paragraph, _left_out(name, results, budget))
            rows = read_table(STUDIES[name], results, budget).values()
            runs = (record for row in rows for record in row.by_seed.values())
            yield markdown.paragraph(" ".join(origins(runs)))
        if any(map(has_curve, by_test.values())):
            yield f"![{STUDIES[name].title}]({pictures}/{name}.png)"
    yield from variants_text(results)


def _verdicts(
    studies: Mapping[str, Mapping[str, list[Point]]], results: Path, budget: str
) -> Iterator[str]:
    """A table of who is above which curve; nothing if no network has several seeds."""
    columns: dict[str, dict[str, str]] = {}  # the marks of each network, by test
    titles: dict[str, str] = {}
    for name, by_test in studies.items():
        for words, points in by_test.items():
            earlier = earlier_studies(name, results, budget, words)
            curve = Curve.of(points, AXES[0])
            marks = columns[f"{study_words(name)}{words and f', {words}'}"] = {}
            for point in best_first(points, curve):
                if len(curve.seeds(point)) > 1:
                    titles.setdefault(point.name, point.title)
                    heights = excesses(point.name, points, earlier).values()
                    marks[point.name] = " ".join(_MARKS.get(verdict(h), NONE) for h in heights)
    if titles:
        rows = [
            [title, *(marks.get(name, "") for marks in columns.values())]
            for name, title in titles.items()
        ]
        yield markdown.table(["network", *columns], rows)
        yield markdown.paragraph(_LEGEND)


def _without_the_first_seed(studies: Mapping[str, Mapping[str, list[Point]]]) -> Iterator[str]:
    """The recommended network, compared as if it had not been planned."""
    parts, title = [], ""
    for name, by_test in studies.items():
        for words, points in by_test.items():
            for point in (p for p in points if p.name == RECOMMENDED and len(p.by_seed) > 2):
                title = f"{point.title[0].lower()}{point.title[1:]}"
                as_selected = replace(point, selected_by=min(point.by_seed))
                heights = [Curve.of(points, axis).excess(as_selected) for axis in AXES[:2]]
                if None not in heights:
                    where = f"{study_words(name)}{words and f', {words}'}"
                    both = " and ".join(signed(h, brief=True) for h in heights if h is not None)
                    parts.append(f"{both} ({where})")
    if parts:
        yield markdown.paragraph(
            f"Compared without its first seed, like a network that was not planned, "
            f"{title} is above the curves of parameters and multiply-adds by {'; '.join(parts)}."
        )


def earlier_studies(name: str, results: Path, budget: str, test: str) -> list[list[Point]]:
    """The networks of a test with the times of earlier measurements."""
    studies = (
        read_study(name, results, budget, number) for number in earlier_measurements(results, name)
    )
    return [by_test[test] for by_test in studies if test in by_test]


def study_words(name: str) -> str:
    """Network and data set of a study: ``CNN-4 on CIFAR-FS``."""
    return STUDIES[name].title.partition(": ")[2]


def _other_times(
    name: str, results: Path, budget: str, by_test: Mapping[str, list[Point]]
) -> Iterator[str]:
    """Where an earlier measurement of times gives another verdict."""
    for measurement in earlier_measurements(results, name):
        differences = []
        for words, points in read_study(name, results, budget, measurement).items():
            curve, newest = (Curve.of(ps, "seconds") for ps in (points, by_test[words]))
            now = {point.name: verdict(newest.excess(point)) for point in by_test[words]}
            heights = [(p, curve.excess(p)) for p in points if not p.is_plain and p.name in now]
            differences += [
                f"{point.title}{words and f' ({words})'} {signed(height, brief=True)}"
                for point, height in heights
                if height is not None and verdict(height) not in ("one seed", now[point.name])
            ]
        if differences:
            yield (
                f"Times depend on the machine and the code. With an earlier measurement "
                f"(`costs-{measurement}.json`) other verdicts on the time per step follow: "
                f"{'; '.join(differences)}."
            )


def _left_out(name: str, results: Path, budget: str) -> Iterator[str]:
    """Networks that were tested and are not in the table, with the reason."""
    rows, costs = read_table(STUDIES[name], results, budget), read_costs(results, name)
    diverged = [row.row.title for row in rows.values() if row.diverged]
    tested = (row.row for row in rows.values() if row.tested and not row.diverged)
    unmeasured = [row.title for row in tested if row.name not in costs]
    if diverged:
        yield f"Left out, because a seed diverged: {'; '.join(diverged)}."
    if unmeasured:
        yield f"Left out, because costs were not measured: {'; '.join(unmeasured)}."


def _table(points: list[Point]) -> str:
    head = ["network", "seeds", "accuracy, %"]
    for axis in AXES:
        head += [AXIS_NAMES[axis], "above the curve"]
    curves = {axis: Curve.of(points, axis) for axis in AXES}
    plain = sorted((p for p in points if p.is_plain), key=lambda p: p.cost["parameters"])
    rows = []
    for point in (*plain, *best_first(points, curves["parameters"])):
        cells = [
            point.title,
            _seeds(point, curves["parameters"]),
            number(point.accuracy, brief=True),
        ]
        for axis in AXES:
            excess = None if point.is_plain else curves[axis].excess(point)
            cells += [
                _amount(axis, point.cost[axis]),
                NONE if excess is None else signed(excess, brief=True),
            ]
        rows.append(cells)
    return markdown.table(head, rows)


def _misfit(points: list[Point]) -> str:
    """How well the curves fit."""
    if not has_curve(points):
        return "There is no curve yet: it needs two plain networks."
    misfits = []
    for axis in AXES:
        title, gap = max(Curve.of(points, axis).misfits(), key=lambda misfit: abs(misfit[1]))
        width = title.removeprefix("Plain, ")
        misfits.append(f"{AXIS_NAMES[axis]} {signed(Estimate(gap, None, None, ''))} ({width})")
    return f"{_MISFIT} {'; '.join(misfits)}."


def _seeds(point: Point, curve: Curve) -> str:
    """How many seeds a network has; the one that selected it is counted apart."""
    others, all_seeds = len(point.compared), len(point.by_seed)
    seeds = str(all_seeds) if others == all_seeds else f"1 + {others}"
    compared = others if point.is_plain else len(curve.seeds(point))
    return seeds if compared in (0, others) else f"{seeds}, {compared} compared"


def _amount(axis: str, cost: float) -> str:
    if axis == "seconds":
        return f"{1000 * cost:.1f} ms"
    return f"{cost:,.0f}" if axis == "parameters" else f"{cost / 1e6:.2f} M"
