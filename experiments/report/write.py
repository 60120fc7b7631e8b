"""Writes the report from the result files alone: texts, pictures, parts of the README and guide.

The same files make the same text, byte for byte, so that a test can compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from neural_similarity.errors import RunError

from .. import markdown
from ..records import RESULTS, write_text
from ..tables.base import BUDGETS
from ..tables.equal_cost import STUDIES
from ..tables.registry import TABLES
from ..trials import read_trials
from .claims import claims_text
from .comparison import compare_rows
from .equal_cost.curve import has_curve
from .equal_cost.headline import guide_text
from .equal_cost.text import earlier_studies, equal_cost_text, read_study
from .headlines import headlines
from .page import CAPTIONS, has_finished, link, page_text, picture_text
from .row_results import RowResults, has_results, read_table, shots_of
from .table_text import full_text
from .trials import trials_text

__all__ = ["BEGIN", "END", "GUIDE", "PAGE", "README", "REPORT", "Report", "between_markers"]

REPORT = Path(__file__).parents[1] / "REPORT.md"
PAGE = Path(__file__).parents[2] / "docs" / "results.md"
README = Path(__file__).parents[2] / "README.md"
GUIDE = Path(__file__).parents[2] / "docs" / "choose.md"
BEGIN = "<!-- results: written by nsl reproduce report -->"
END = "<!-- end of results -->"

HOW_TO_READ = """
Intervals are 95 %. With several seeds they are over seeds (Student's t); if all seeds were tested
on the same episodes, they are over seeds and episodes. With one seed the interval is over its
episodes, or over the test images (Wilson's), and the table says so: it describes that network, not
its method. Intervals over seeds do not include the choice of test images, nor of test classes.
Differences from the baseline are paired: by seed, and by episode if all were tested on the same
ones. A row that was tested on fewer episodes is compared on these. A difference whose interval
contains zero is "not separated". There is no correction for the number of rows: among twenty
equally good rows, one is expected to look separated. Minutes are the number of training steps times
the seconds per step at the fastest pace: the fastest tenth of the steps of the fastest seed. The
machines are not equally fast: the same training took more than twice as long on one as on another.
So minutes of two rows do not compare; benchmarks/ compares times. Parameters are those of the
network that is tested, before an episode adapts it: few-shot methods that train on images discard
the classifier of the base classes. A row without a seed is open: `nsl reproduce all` runs such
rows, in the order of `nsl reproduce list`. Every JSON file identifies its data by fingerprint.
"""


@dataclass(frozen=True)
class Report:
    """A report and its files.

    Args:
        results: folder of result files.
        budget: which of the results.
        file: the full report.
        page: the results page of the documentation; None for no page.
        readme: a file with markers, between which the headlines are written; None for no such file.
        guide: a file with markers, between which the evidence for the guide's recommendation is
            written; None for no such file.

    Pictures are written to a folder ``pictures`` beside the page, or beside the report if there is
    no page.
    """

    results: Path = RESULTS
    budget: str = "short"
    file: Path = REPORT
    page: Path | None = PAGE
    readme: Path | None = README
    guide: Path | None = GUIDE

    def write(self) -> list[Path]:
        """Write texts and pictures; the files that were written."""
        tables = self._tables()
        texts = self._texts(tables)
        pictures = self._draw(tables)
        for file, text in texts.items():
            write_text(file, text)
        return [*texts, *pictures]

    def check(self) -> None:
        """Raise if a text differs from what the result files give."""
        for file, text in self._texts(self._tables()).items():
            current = file.read_text(encoding="utf-8") if file.is_file() else ""
            if current != text:
                lines = zip_longest(current.splitlines(), text.splitlines())
                line = next((n for n, (a, b) in enumerate(lines, start=1) if a != b), "the last")
                raise RunError(
                    f"{file}: expected the text that the JSON files give, got another one from "
                    f"line {line} on. Write it again with: nsl reproduce report."
                )

    def _tables(self) -> dict[str, dict[str, RowResults]]:
        """Results by table and row, of tables that have any."""
        with_results = self._with_results(self.budget)
        if not with_results:
            raise RunError(
                f"{self.results}: expected results of the {self.budget} budget, got none. Run some "
                f"with: nsl reproduce table4 --budget {self.budget}."
            )
        return with_results

    def _at_length(self) -> dict[str, dict[str, RowResults]]:
        """Results of the long budget, which the report of the short one shows, too."""
        return self._with_results("long") if self.budget == "short" else {}

    def _with_results(self, budget: str) -> dict[str, dict[str, RowResults]]:
        tables = sorted(TABLES.values(), key=lambda table: table.name)
        rows = {table.name: read_table(table, self.results, budget) for table in tables}
        return {name: of for name, of in rows.items() if has_results(TABLES[name], of)}

    def _adapt_page(self) -> str | None:
        """The link from the README to the page on ways to adapt."""
        if self.page is None or self.readme is None:
            return None
        return link(self.page.with_name("adapt-results.md"), self.readme)

    def _texts(self, tables: Mapping[str, dict[str, RowResults]]) -> dict[Path, str]:
        """The text of each file."""
        texts = {self.file: self._full(tables)}
        if self.page is not None:
            texts[self.page] = page_text(
                tables, self._at_length(), self._equal_cost(self.page), self.budget, self.page,
                self.file, self._pictures,
            )  # fmt: skip
        if self.readme is not None:
            target = link(self.page or self.file, self.readme)
            part = headlines(self.results, self.budget, tables, target, self._adapt_page())
            texts[self.readme] = between_markers(self.readme, part)
        if self.guide is not None:
            part = guide_text(self.results, self.budget)
            texts[self.guide] = between_markers(self.guide, part)
        return texts

    def _full(self, tables: Mapping[str, dict[str, RowResults]]) -> str:
        parts = [
            "# Results in full",
            markdown.paragraph(
                f"Generated by `nsl reproduce report` from the JSON files in `results/`: do not "
                f"edit it. Budget `{self.budget}` ({BUDGETS[self.budget]})."
            ),
            markdown.paragraph(HOW_TO_READ),
            *claims_text(tables, self._at_length()),
        ]
        for name, rows in tables.items():
            parts.append(full_text(TABLES[name], rows, self.budget))
            parts += picture_text(name, rows, self._pictures, self.file)
        for name, rows in self._at_length().items():
            parts.append(full_text(TABLES[name], rows, "long"))
        parts += self._equal_cost(self.file)
        if self.budget == "short":
            parts += trials_text(read_trials(self.results))
        if strays := self._strays():
            text = f"Results of rows that are in no table: {strays}."
            parts += ["## In no table", markdown.paragraph(text)]
        return "\n\n".join(parts) + "\n"

    def _equal_cost(self, file: Path) -> list[str]:
        """The studies of equal cost, for a file that shows them."""
        return list(equal_cost_text(self.results, self.budget, link(self._pictures, file)))

    def _strays(self) -> str:
        """Results that no table shows."""
        tables = (*TABLES.values(), *STUDIES.values())
        rows = {(row.kept_in, row.name) for table in tables for row in table.rows}
        files = sorted(self.results.glob(f"*/{self.budget}/*.json"))
        names = [(file.parts[-3], file.stem.rpartition("-")[0]) for file in files]
        return ", ".join(
            f"`{table}/{file.name}`"
            for file, (table, row) in zip(files, names, strict=True)
            if (table, row) not in rows
        )

    def _draw(self, tables: Mapping[str, dict[str, RowResults]]) -> list[Path]:
        from .equal_cost.picture import draw_study
        from .pictures import draw_accuracy, draw_error

        self._pictures.mkdir(parents=True, exist_ok=True)
        pictures = []
        for name, (file, _) in CAPTIONS.items():
            if name in tables and has_finished(rows := tables[name]):
                pictures.append(self._pictures / file)
                if TABLES[name].metric == "error":
                    draw_error(rows, pictures[-1])
                else:
                    by_shots = {n: compare_rows(TABLES[name], rows, n) for n in shots_of(rows)}
                    draw_accuracy(by_shots, pictures[-1])
        for picture in self._study_pictures():
            study = read_study(picture.stem, self.results, self.budget)
            earlier = {
                test: earlier_studies(picture.stem, self.results, self.budget, test)
                for test in study
            }
            draw_study(study, STUDIES[picture.stem].title, picture, earlier)
            pictures.append(picture)
        return pictures

    def _study_pictures(self) -> list[Path]:
        """Pictures of the studies of equal cost that have results."""
        return [
            self._pictures / f"{name}.png" for name in STUDIES
            if any(map(has_curve, read_study(name, self.results, self.budget).values()))
        ]  # fmt: skip

    @property
    def _pictures(self) -> Path:
        return (self.page or self.file).parent / "pictures"


def between_markers(file: Path, part: str) -> str:
    """The text of a file with ``part`` between its markers."""
    text = file.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RunError(
            f"{file}: expected the markers {BEGIN!r} and {END!r}, each on its own line, got a text "
            f"without them. Results are written between the two."
        )
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"
