"""The paper's claims, and what our results say of each: confirmed, contradicted or open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .. import markdown
from ..tables.registry import TABLES
from .cells import NONE, signed
from .comparison import Comparison, compare
from .row_results import RowResults, shots_of

__all__ = ["CLAIMS", "Claim", "claims_text", "judge"]

Tables = Mapping[str, Mapping[str, RowResults]]


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, as comparisons of rows.

    Args:
        words: the claim.
        pairs: table, row that should be better, and row it is compared with.
        margin: for a claim that something costs little, how many points of error it may cost at
            most; None for a claim that something is better.
        stable: whether the claim is that the first row trains and the second one diverges.
        caveat: what a reader must know of the comparison.
    """

    words: str
    pairs: tuple[tuple[str, str, str], ...]
    margin: float | None = None
    stable: bool = False
    caveat: str = ""


_CLASSIFICATION = ("table4", "table4-cifar100")
_FEWSHOT = ("table6", "table6-mini")
_QUOTED = ("nearest", "matching", "proto", "maml", "relation")
CLAIMS = (
    Claim(
        "The static NSN outperforms the baseline CNN",
        tuple((table, "static-diagonal", "cnn") for table in _CLASSIFICATION)
        + (("table4", "static-unconstrained", "cnn"),),
    ),
    Claim(
        "The dynamic NSN outperforms both the baseline CNN and the larger CNN++",
        tuple(
            (table, "dynamic-diagonal", other)
            for table in _CLASSIFICATION for other in ("cnn", "cnn-plus")
        ),
    ),
    Claim(
        "The dynamic NSN performs generally better than the static NSN",
        tuple((table, "dynamic-diagonal", "static-diagonal") for table in _CLASSIFICATION),
    ),
    Claim(
        "With a CNN as predictor and an unbounded output training does not converge; with "
        "SphereNet it does",
        (("table1", "dynamic-diagonal", "cnn-predictor-bare"),), stable=True,
        caveat="the two also start differently: the CNN at He's scale, SphereNet at the identity; "
        "at the authors' scale the CNN trains, on digits",
    ),
    Claim(
        "Also learning the kernel's shape helps",
        (
            ("table2", "static-joint", "static-diagonal"),
            ("table2", "dynamic-joint", "dynamic-diagonal"),
        ),
    ),
    Claim(
        "A shared predictor performs only slightly worse than one per layer (here: by less than "
        "half a point)",
        (("table3", "dynamic-shared", "dynamic-diagonal"),), margin=0.5,
    ),
    Claim(
        "The static NSN beats finetuning (not stated, but so in Table 6)",
        tuple((table, "static", "finetune") for table in _FEWSHOT),
    ),
    Claim(
        "The static NSN works better than most existing methods (here: than all with four "
        "convolutions)",
        tuple((table, "static", other) for table in _FEWSHOT for other in _QUOTED),
    ),
    Claim(
        "Meta-learning helps the static NSN (not stated, but so in Table 6)",
        tuple((table, "meta-static", "static") for table in _FEWSHOT),
    ),
    Claim(
        "The meta-learned static NSN has obvious advantages over MAML",
        tuple((table, "meta-static", "maml") for table in _FEWSHOT),
    ),
    Claim(
        "The dynamic NSN outperforms the other competitive methods (here: those with four "
        "convolutions)",
        tuple(
            (table, "dynamic", other)
            for table in _FEWSHOT for other in ("finetune", *_QUOTED, "static", "meta-static")
        ),
    ),
    Claim(
        "Self-attention helps SphereNets",
        (("table7", "spherenet-attention", "spherenet"),),
    ),
)  # fmt: skip

_INTRODUCTION = """
Differences in points, at this budget, which is far below the paper's: of accuracy in Table 6, at 1
and 5 shots, and of error, where less is better, in the others. Confirmed: every comparison is
separated in the claim's favour, over several seeds. Contradicted: at least one, in bold, is
separated against it; nothing is corrected for their number. Open: anything else, such as too few
seeds. With one seed the interval is over its episodes, and decides nothing.
"""
_TRAINED_LONGER = """
The last column has the same differences at the budget `long`, which is nearer to the published
training. It does not count in the verdict, but shows how much a difference depends on the budget.
"""


def claims_text(tables: Tables, at_length: Tables | None = None) -> Iterator[str]:
    """A section with a line for every claim; ``at_length`` has results of the long budget."""
    columns = [
        ["claim", *(claim.words for claim in CLAIMS)],
        ["verdict", *(_verdict(claim, tables) for claim in CLAIMS)],
        ["ours", *(_numbers(claim, tables) for claim in CLAIMS)],
    ]
    introduction = _INTRODUCTION
    if at_length:
        longer = (_at_length(claim, at_length) for claim in CLAIMS)
        columns.append(["trained longer", *longer])
        introduction += _TRAINED_LONGER
    head, *rows = zip(*columns, strict=True)
    yield "## The paper's claims"
    yield markdown.paragraph(introduction)
    yield markdown.table(head, rows)


def judge(claim: Claim, tables: Tables) -> bool | None:
    """True if our results confirm a claim, False if they contradict it, None if it is open."""
    if claim.stable:
        return _trains_where_the_other_diverges(claim, tables)
    answers = [_answer(claim, of) for _, _, of in _compared(claim, tables)]
    if False in answers:
        return False
    whole = len({pair for pair, *_ in _compared(claim, tables)}) == len(claim.pairs)
    return True if answers and whole and all(answers) else None


def _verdict(claim: Claim, tables: Tables) -> str:
    return {True: "**confirmed**", False: "**contradicted**", None: "open"}[judge(claim, tables)]


def _numbers(claim: Claim, tables: Tables) -> str:
    lines = [*_measurements(claim, tables)] or ["not run"]
    return "<br>".join([*lines, claim.caveat] if claim.caveat else lines)


def _at_length(claim: Claim, tables: Tables) -> str:
    """The differences at the long budget; nothing is bold, because they decide nothing."""
    if claim.stable:
        return NONE
    return "<br>".join(_differences(claim, tables, decide=False).values()) or NONE


def _measurements(claim: Claim, tables: Tables) -> Iterator[str]:
    """A line for every comparison."""
    if claim.stable:
        for table, *names in claim.pairs:
            for name in names:
                if (row := tables.get(table, {}).get(name)) is not None and row.by_seed:
                    counts = f"{len(row.diverged)} of {len(row.by_seed)}"
                    yield f"{_title(row)}: {counts} seeds diverged"
        return
    differences = _differences(claim, tables)
    yield from differences.values()
    missing = [pair for pair in claim.pairs if pair not in differences]
    shapeless = [
        pair for pair in missing
        if (row := tables.get(pair[0], {}).get(pair[1])) is not None and _has_learned_no_shape(row)
    ]  # fmt: skip
    for table, name, _ in shapeless:
        yield f"{_data(table)}: {_title(tables[table][name])}, no tap was switched off"
    if not_run := len(missing) - len(shapeless):
        yield f"{not_run} of {len(claim.pairs)} comparisons not run"


def _differences(
    claim: Claim, tables: Tables, decide: bool = True
) -> dict[tuple[str, str, str], str]:
    """A line for every comparison that was run, by its rows; bold if it decides against a claim."""
    numbers: dict[tuple[str, str, str], list[str]] = {}
    for pair, shots, of in _compared(claim, tables):
        if of.difference is not None:
            number = signed(of.difference, brief=True)
            bold = "**" * (decide and _answer(claim, of) is False)
            words = "" if shots is None else f"{shots} shot{'s' * (shots > 1)} "
            numbers.setdefault(pair, []).append(f"{words}{bold}{number}{bold}")
    lines = {}
    for pair, of_pair in numbers.items():
        table, *names = pair
        titles = " vs. ".join(_title(tables[table][name]) for name in names)
        lines[pair] = f"{_data(table)}: {titles}, {', '.join(of_pair)}{_seeds(pair, tables)}"
    return lines


def _title(row: RowResults) -> str:
    return row.row.title.removesuffix(" †")


def _data(table: str) -> str:
    """The data set of a table, from its title."""
    match = re.search(r"CIFAR-\w+|mini-ImageNet", TABLES[table].title)
    return match[0] if match else TABLES[table].title


def _seeds(pair: tuple[str, str, str], tables: Tables) -> str:
    table, row, other = pair
    both = tables[table][row].finished.keys() & tables[table][other].finished.keys()
    return " (one seed)" if len(both) == 1 else ""


def _has_learned_no_shape(row: RowResults) -> bool:
    """Whether kernel shapes were to be learned, and all taps stayed on: a plain similarity."""
    counts = [record["taps_off"][0] for record in row.finished.values() if "taps_off" in record]
    return bool(counts) and not any(counts)


def _compared(
    claim: Claim, tables: Tables
) -> Iterator[tuple[tuple[str, str, str], int | None, Comparison]]:
    """Every comparison of a claim that was run, for every number of shots, if there are any."""
    for pair in claim.pairs:
        name, row, other = pair
        rows = tables.get(name)
        if rows is None or not all(one in rows and rows[one].tested for one in (row, other)):
            continue
        if _has_learned_no_shape(rows[row]):
            continue
        table = TABLES[name]
        for shots in shots_of(rows) if table.metric == "accuracy" else [None]:
            yield pair, shots, compare(rows[row], rows[other], table.metric, shots)


def _answer(claim: Claim, of: Comparison) -> bool | None:
    """What one comparison says; a single seed says nothing about a method."""
    if of.difference is None or "seeds" not in of.difference.over:
        return None
    if claim.margin is None:
        return of.better
    low, high = of.difference.low, of.difference.high
    if low is None or high is None or low <= claim.margin <= high:
        return None
    return high < claim.margin


def _trains_where_the_other_diverges(claim: Claim, tables: Tables) -> bool | None:
    ((table, row, other),) = claim.pairs
    if table not in tables:
        return None
    ours, theirs = tables[table][row], tables[table][other]
    if len(ours.by_seed) < 2 or len(theirs.by_seed) < 2:
        return None
    if ours.diverged:
        return False
    return True if len(theirs.diverged) == len(theirs.by_seed) else None
