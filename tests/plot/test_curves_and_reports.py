"""Curves and reports: what is drawn, from which numbers, and complete files or none."""

from html.parser import HTMLParser

import pytest
from matplotlib.image import imread

from neural_similarity._io import whole_file
from neural_similarity.plot import (
    Facts,
    Picture,
    Section,
    Table,
    Text,
    draw_comparison,
    draw_run,
    write_report,
)


def metrics(best, steps=40):
    """A run whose test error falls from 80 % to ``best``."""
    lines = []
    for step in range(steps + 1):
        error = 0.8 + (best - 0.8) * step / steps
        line = {"step": step, "epoch": step / 10, "seconds": 0.5 * step, "error": error}
        lines.append({"kind": "train", "loss": 2 * error, "lr": 0.1, **line})
        if step % 10 == 0:
            lines.append({"kind": "eval", "loss": 3 * error, **line})
    return lines


def lines_of(axes):
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]


def test_a_run_is_drawn_over_its_steps(tmp_path, drawn):
    draw_run(metrics(0.2), tmp_path / "run.png", "a run")
    loss, error, rate = drawn[0].axes
    (_, training), (steps, test) = lines_of(loss)
    assert steps == [0, 10, 20, 30, 40]
    assert len(training) == 41
    assert test == pytest.approx([2.4, 1.95, 1.5, 1.05, 0.6])
    assert lines_of(error)[1][1] == pytest.approx([80, 65, 50, 35, 20])
    assert lines_of(rate)[0][1] == [0.1] * 41
    assert error.get_ylabel() == "error (%)"
    assert rate.get_xlabel() == "step"
    height, width, _ = imread(tmp_path / "run.png").shape
    assert (width, height) == (832, 806)  # inches times 130


def test_runs_are_compared_over_epochs_and_seconds(tmp_path, drawn):
    draw_comparison({"plain": metrics(0.3), "static": metrics(0.2)}, tmp_path / "all.png")
    epochs, seconds = drawn[0].axes
    assert lines_of(epochs)[0][0] == [0, 1, 2, 3, 4]
    assert lines_of(seconds)[0][0] == [0, 5, 10, 15, 20]
    assert lines_of(epochs)[1][1] == lines_of(seconds)[1][1] == pytest.approx([80, 65, 50, 35, 20])
    assert [text.get_text() for text in seconds.get_legend().get_texts()] == ["plain", "static"]
    colours = [line.get_color() for line in epochs.get_lines()]
    assert len(set(colours)) == 2


def test_letters_that_the_font_lacks_are_no_reason_to_warn(tmp_path):
    draw_run(metrics(0.2), tmp_path / "run.png", "麻雀 가나다")
    assert imread(tmp_path / "run.png").shape[:2] == (806, 832)  # as with any other title


@pytest.mark.parametrize(("best", "scale"), [(0.05, "log"), (0.2, "linear"), (0.0, "linear")])
def test_a_logarithm_where_it_helps(best, scale, tmp_path, drawn):
    draw_comparison({"run": metrics(best)}, tmp_path / "all.png")
    assert drawn[0].axes[0].get_yscale() == scale


@pytest.mark.parametrize(
    "lines", [[], metrics(0.1, steps=1)[:1], [{**metrics(0.1)[1], "error": float("nan")}]]
)
def test_runs_that_have_hardly_begun(lines, tmp_path):
    draw_run(lines, tmp_path / "run.png", "a run")
    draw_comparison({"run": lines}, tmp_path / "all.png")
    assert imread(tmp_path / "run.png").shape == (806, 832, 4)
    draw_comparison({}, tmp_path / "none.png")


@pytest.mark.parametrize(("low", "high"), [(2.7, 4.3), (0.51, 0.93), (1.01, 1.9), (0.01, 5.0)])
def test_the_axis_of_the_loss_has_numbers(low, high, tmp_path, drawn):
    lines = [{"kind": "train", "step": n, "loss": x} for n, x in enumerate((high, low))]
    draw_run(lines, tmp_path / "run.png", "a run")
    axis = drawn[0].axes[0].yaxis
    bottom, top = drawn[0].axes[0].get_ylim()
    assert sum(bottom <= tick <= top for tick in axis.get_majorticklocs()) > 2
    assert not len(axis.get_minorticklocs())


def test_a_run_of_one_logged_line_can_be_seen(tmp_path, drawn):
    draw_run(metrics(0.2)[:1], tmp_path / "run.png", "a run")
    loss, error, rate = drawn[0].axes
    assert {axes.get_lines()[0].get_marker() for axes in (loss, error, rate)} == {"o"}
    assert rate.get_ylim() == pytest.approx((0, 0.105))
    assert error.get_ylim() == pytest.approx((0, 84))


def test_runs_differ_without_colours(tmp_path, drawn):
    draw_comparison({str(n): metrics(0.2) for n in range(8)}, tmp_path / "all.png")
    looks = [(li.get_linestyle(), li.get_marker()) for li in drawn[0].axes[0].get_lines()]
    assert len(set(looks)) == 8


def test_curves_say_on_what_was_measured(tmp_path, drawn):
    draw_run(metrics(0.2), tmp_path / "run.png", "a run", "validation")
    draw_comparison({"plain": metrics(0.2)}, tmp_path / "all.png", "validation")
    words = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert words == ["training", "validation"]
    assert drawn[1].axes[0].get_ylabel() == "validation error (%)"


class Reader(HTMLParser):
    """Collects tags, attributes and text, and checks that tags close in order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.addresses, self.text = [], [], [], ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data


def test_a_report_holds_everything_within(tmp_path):
    draw_run(metrics(0.2), tmp_path / "run.png", "a run")
    sections = [
        Section("Result <1>", [Facts({"a & b": 1234567, "c": 0.123456}), Text("two  words")]),
        Section("Layers", [Table(["layer", "numbers"], [["<b>", 9], ["conv", 1000]])]),
        Section("Pictures", [Picture(tmp_path / "run.png", 'over "steps"')]),
        Section("Empty", [Table(["nothing"], [])]),
        Section("Log", [Text("line 1\n  <line> 2", preformatted=True)]),
    ]
    path = tmp_path / "report.html"
    write_report(path, "Run <script>", sections)
    (tmp_path / "run.png").unlink()
    reader = Reader()
    reader.feed(path.read_text())
    assert not reader.open
    for text in (
        "Run <script>", "Result <1>", "a & b", "1,234,567", "0.1235", "two  words", "<b>", "1,000",
        'over "steps"', "line 1\n  <line> 2",
    ):  # fmt: skip
        assert text in reader.text
    assert not {"script", "link", "b", "line"} & set(reader.tags)
    assert [a[:22] for a in reader.addresses] == ["data:image/png;base64,"]
    assert "url(" not in path.read_text()
    assert '<th scope="col" class="number">numbers</th>' in path.read_text()


def test_settings_are_written_verbatim():
    facts = Facts({"seed": 20240101, "rate": 0.000123456, "<a>": "<b>"}, verbatim=True).html()
    for text in ("<dd>20240101<", "<dd>0.000123456<", "<dt>&lt;a&gt;<", "<dd>&lt;b&gt;<"):
        assert text in facts


def test_a_file_is_whole_or_not_there(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")

    def fail():
        with whole_file(target) as file:
            file.write_text("half")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(FileNotFoundError, match="no such folder"):
        write_report(tmp_path / "missing" / "report.html", "", [])
