"""What was found, from the JSON files alone: a report, its pictures, and the README's part of it.

The same files make the same text, byte for byte, so that a test can hold the one against the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from textwrap import fill

from neural_similarity.errors import RunError

from ..records import RESULTS, write_text
from ..tables.registry import TABLES
from ..tables.row import BUDGETS, Table
from ..theory.report import markdown
from ..trials import render_trials
from .comparison import Runs, findings, has_results, read_table, shots_of
from .markdown import NONE, difference, in_shots, ours, pairs, published, render

__all__ = ["BEGIN", "END", "README", "REPORT", "Report", "between_markers"]

REPORT = Path(__file__).parents[1] / "REPORT.md"
README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- results: written by nsl reproduce report -->"
END = "<!-- end of results -->"

IN_README = ("table6", "table6-mini", "table4")
PICTURES = {
    "table4": (
        "error-over-time.png",
        "Table 4: test error over training time and over epochs. Lines are means over seeds, bands "
        "reach from the best seed to the worst. Time is steps times the seconds of a little "
        "disturbed one.",
    ),
    "table6": (
        "accuracy-over-adapted.png",
        "Table 6: accuracy against numbers adapted in an episode. Blue: static similarities; "
        "orange: dynamic ones. Points are moved sideways a little, so that none hides another.",
    ),
}
HOW_TO_READ = """
Intervals are 95 %. With several seeds they are over seeds (Student's t), and over episodes too
where all seeds were tested on the same: both are drawn by chance. One seed has an interval over its
episodes, or over the test images (Wilson's), and the table says so: it tells of that network, not
of its method. Differences to the baseline are paired, seed by seed; where all were tested on the
same episodes, episode by episode as well; a row that was tested on fewer episodes is compared on
those. A difference whose interval contains zero is not separated. Nothing is corrected for the
number of rows: among twenty rows that are all equal, one is expected to look separated. Minutes are
the steps of training times the seconds of one in the fastest tenth of a seed's measurements, of the
best seed: the machine did other work as well, not always as much, and the same training may differ
by a twentieth. Parameters are all that were trained: where few-shot methods learn from images, with
the classifier of the training classes that episodes have no use for. Every JSON file names the
copies of the data by fingerprint.
"""


@dataclass(frozen=True)
class Report:
    """A report and where it belongs.

    Args:
        results: folder of JSON files.
        budget: which of them.
        file: the report; its pictures are in a folder beside it.
        readme: a file with markers, between which the short form stands; ``None`` for no such file.
    """

    results: Path = RESULTS
    budget: str = "short"
    file: Path = REPORT
    readme: Path | None = README

    def write(self) -> list[Path]:
        """Write text and pictures; what was written."""
        runs = self._runs()
        texts = self._texts(runs)
        pictures = self._draw(runs)
        for file, text in texts.items():
            write_text(file, text)
        return [*texts, *pictures]

    def check(self) -> None:
        """Raise if a text is not what the JSON files give."""
        for file, text in self._texts(self._runs()).items():
            there = file.read_text(encoding="utf-8") if file.is_file() else ""
            if there != text:
                lines = zip_longest(there.splitlines(), text.splitlines())
                line = next((n for n, (a, b) in enumerate(lines, start=1) if a != b), "the last")
                raise RunError(
                    f"{file}: expected what the JSON files give, got another text from line {line} "
                    f"on. Write it again by nsl reproduce report."
                )

    def _runs(self) -> dict[str, dict[str, Runs]]:
        """By table and row, of tables that have any."""
        tables = sorted(TABLES.values(), key=lambda table: table.name)
        runs = {table.name: read_table(table, self.results, self.budget) for table in tables}
        found = {name: of for name, of in runs.items() if has_results(TABLES[name], of)}
        if not found:
            raise RunError(
                f"{self.results}: expected results of the {self.budget} budget, got none. Make "
                f"some by nsl reproduce table4 --budget {self.budget}."
            )
        return found

    def _texts(self, runs: Mapping[str, dict[str, Runs]]) -> dict[Path, str]:
        """What each file is to hold."""
        texts = {self.file: self._full(runs)}
        if self.readme is not None:
            there = self.readme.read_text(encoding="utf-8")
            texts[self.readme] = between_markers(self.readme, there, self._short(runs, self.readme))
        return texts

    def _full(self, runs: Mapping[str, dict[str, Runs]]) -> str:
        parts = [
            "# What was found",
            _filled(
                f"Written by `nsl reproduce report` from the JSON files in `results/`, and not to "
                f"be edited. Budget `{self.budget}` ({BUDGETS[self.budget]})."
            ),
            _filled(HOW_TO_READ),
        ]
        for name, of in runs.items():
            parts += [render(TABLES[name], of, self.budget), *self._shown(name, of, self.file)]
        if self.budget == "short":
            parts += render_trials(self.results)
        if strays := self._strays():
            parts += ["## In no table", _filled(f"Results of rows that no table has: {strays}.")]
        return "\n\n".join(parts) + "\n"

    def _strays(self) -> str:
        """Results that would otherwise be passed over in silence."""
        rows = {(row.kept_in, row.name) for table in TABLES.values() for row in table.rows}
        files = sorted(self.results.glob(f"*/{self.budget}/*.json"))
        names = [(file.parts[-3], file.stem.rpartition("-")[0]) for file in files]
        return ", ".join(
            f"`{table}/{file.name}`"
            for file, (table, row) in zip(files, names, strict=True)
            if (table, row) not in rows
        )

    def _short(self, runs: Mapping[str, dict[str, Runs]], readme: Path) -> str:
        """For the README: our numbers first, the paper's beside them."""
        parts = []
        for name in IN_README:
            if name in runs and _anything(runs[name]):
                table = TABLES[name]
                parts += [
                    _filled(f"**{table.title}.** Ours: {table.budgets[self.budget]}."),
                    _short_table(table, runs[name]),
                    *pairs(table, runs[name], briefly=True),
                    *([_filled(" ".join(table.notes))] if table.notes else []),
                    *self._shown(name, runs[name], readme),
                ]
        report = _link(self.file, readme)
        parts.append(
            _filled(
                f"± is a 95 % interval; differences are to the baseline, and paired. Of one seed "
                f"it is over the test's episodes or images, and tells of that network, not of its "
                f"method. [All tables]({report}), with what departs from the paper and why, and "
                f"which data and machine."
            )
        )
        return "\n\n".join(parts)

    def _shown(self, name: str, of: Mapping[str, Runs], shown_in: Path) -> Iterator[str]:
        """The picture of a table, if it has one."""
        if name in PICTURES and _anything(of):
            file, caption = PICTURES[name]
            picture = _link(self._pictures / file, shown_in)
            yield f"![{caption.partition('.')[0]}]({picture})"
            yield _filled(caption)

    def _draw(self, runs: Mapping[str, dict[str, Runs]]) -> list[Path]:
        from .pictures import draw_accuracy, draw_error

        self._pictures.mkdir(parents=True, exist_ok=True)
        drawn = []
        for name, (file, _) in PICTURES.items():
            if name in runs and _anything(of := runs[name]):
                drawn.append(self._pictures / file)
                if TABLES[name].metric == "error":
                    draw_error(of, drawn[-1])
                else:
                    shots = {n: findings(TABLES[name], of, n) for n in shots_of(of)}
                    draw_accuracy(shots, drawn[-1])
        return drawn

    @property
    def _pictures(self) -> Path:
        return self.file.parent / "pictures"


def between_markers(file: Path, text: str, part: str) -> str:
    """The text with another part between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RunError(
            f"{file}: expected the markers {BEGIN!r} and {END!r}, each on a line of its own, got a "
            f"text without them. Results are written between the two."
        )
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"


def _short_table(table: Table, runs: Mapping[str, Runs]) -> str:
    """Rows that were run, with columns for every number of shots."""
    known = {"paper": table.paper, "published": table.published}
    shots = shots_of(runs) if table.metric == "accuracy" else [None]
    found = {n: [one for one in findings(table, runs, n) if one.runs.by_seed] for n in shots}
    head, columns = [""], [[one.row.title for one in found[shots[0]]]]
    for n, of in found.items():
        head.append(f"{table.metric if n is None else in_shots(n)}, %")
        columns.append([ours(one, briefly=True) for one in of])
        for source, numbers in known.items():
            cells = [published(numbers, one.row.name, n) for one in of]
            if set(cells) != {NONE}:
                head.append(source)
                columns.append(cells)
        head.append("difference")
        columns.append([difference(one, table.baseline, briefly=True) for one in of])
    head.append("seeds")
    columns.append([str(len(one.runs.by_seed)) for one in found[shots[0]]])
    return markdown(head, [list(row) for row in zip(*columns, strict=True)])


def _filled(text: str) -> str:
    return fill(" ".join(text.split()), 99, break_long_words=False, break_on_hyphens=False)


def _link(file: Path, shown_in: Path) -> str:
    return Path(os.path.relpath(file, shown_in.parent)).as_posix()


def _anything(runs: Mapping[str, Runs]) -> bool:
    """Whether any run came to its end."""
    return any(of.finished for of in runs.values())
