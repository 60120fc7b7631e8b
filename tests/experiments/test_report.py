"""The report: text from invented results, and agreement with the stored ones."""

import json
import re

import pytest
from support.results_cases import change, keep, keep_error, keep_tests

from experiments.records import RESULTS
from experiments.report.comparison import compare_rows, on_same_episodes
from experiments.report.row_results import read_table
from experiments.report.write import BEGIN, END, PAGE, README, REPORT, Report
from experiments.tables import TABLES
from neural_similarity.errors import FileFormatError, RunError

DOCUMENT = f"# Project\n\n{BEGIN}\n\nold\n\n{END}\n\nmore\n"


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def report(tmp_path, results):
    """A report of results that a test will add."""
    for name in ("README.md", "guide.md"):
        (tmp_path / name).write_text(DOCUMENT)
    return Report(
        results,
        "short",
        tmp_path / "notes" / "REPORT.md",
        tmp_path / "docs" / "results.md",
        tmp_path / "README.md",
        tmp_path / "guide.md",
    )


@pytest.fixture
def no_pictures(monkeypatch):
    """For tests that look at the text alone."""
    monkeypatch.setattr(Report, "_draw", lambda self, tables: [])


def cells(text: str, title: str, heading: str = "#") -> list[str]:
    """A row of a Markdown table, behind a heading."""
    line = re.search(rf"^\| {re.escape(title)} \|.*$", text.partition(heading)[2], re.MULTILINE)
    return [cell.strip() for cell in line[0].strip("|").split("|")]


@pytest.mark.usefixtures("no_pictures")
class TestErrors:
    def test_a_row_over_seeds_beside_the_paper(self, results, report):
        for seed, (plain, dynamic) in enumerate([(0.30, 0.28), (0.32, 0.29), (0.31, 0.285)]):
            keep_error(results, "cnn", seed, plain)
            keep_error(results, "dynamic-diagonal", seed, dynamic)
        report.write()
        text = report.file.read_text()
        # Differences −2, −3, −2.5: mean −2.5, half 4.303 · 0.5 / √3 = 1.24.
        assert cells(text, "Dynamic NSN w/ DNS") == [
            "Dynamic NSN w/ DNS", "28.50 ± 1.24", "6.85", "−2.50 ± 1.24", "3", "1,234", "1.3",
            "better",
        ]  # fmt: skip
        assert cells(text, "Baseline CNN")[3] == "baseline"

    def test_what_chance_may_have_made_is_not_called_better(self, results, report):
        for seed, error in enumerate([0.29, 0.33, 0.29]):
            keep_error(results, "cnn", seed, 0.31)
            keep_error(results, "static-diagonal", seed, error)
        report.write()
        row = cells(report.file.read_text(), "Static NSN w/ DNS")
        assert row[-1] == "not separated at this budget"
        assert row[3].startswith("−0.67 ± 5.74")

    def test_one_seed_needs_more(self, results, report):
        keep_error(results, "cnn", 0, 0.30)
        keep_error(results, "dynamic-diagonal", 0, 0.10)
        report.write()
        row = cells(report.file.read_text(), "Dynamic NSN w/ DNS")
        assert row[1] == "10.00 (8.29 – 12.02) over images"  # Wilson's, of 100 among 1,000
        assert row[3] == "−20.00"
        assert row[-1] == "needs more seeds"

    def test_missing_and_diverged_are_reported(self, results, report):
        for seed in range(2):
            keep_error(results, "cnn", seed, 0.3)
        keep(results, "table1", "cnn-predictor-bare", 0, diverged=40)
        keep(results, "table1", "cnn-predictor-bare", 1, diverged=50)
        keep_error(results, "cnn-predictor-bare", 2, 0.25, table="table1")
        report.write()
        text = report.file.read_text()
        row = cells(text, "Dynamic NSN (CNN), unbounded output")
        assert row[1].startswith("diverged, 2 of 3; the others 25.00 (")
        assert (row[-5], row[-1]) == ("–", "diverged")
        assert "`cnn-predictor-bare` diverged at step 40 (seed 0), 50 (seed 1)." in text
        assert cells(text, "Dynamic NSN (CNN), sigmoid output")[-1] == "open"
        assert (
            "Not run yet: `cnn-predictor`, `cnn-predictor-sigmoid`, `dynamic-authors`, "
            "`dynamic-diagonal`; `cnn` seed 2." in text
        )
        assert "## Table 2" not in text, "it has only rows that it shares"

    def test_a_baseline_that_diverged_is_no_baseline(self, results, report):
        for seed in range(3):
            keep_error(results, "static-diagonal", seed, 0.3)
        for seed in range(2):
            keep_error(results, "cnn", seed, 0.4)
        keep(results, "table4", "cnn", 2, diverged=40)
        report.write()
        row = cells(report.file.read_text(), "Static NSN w/ DNS")
        assert (row[3], row[-1]) == ("–", "–")

    def test_times_and_adapted_parameters_of_several_seeds(self, results):
        for seed, step in enumerate((0.2, 0.4)):
            file = keep_tests(results, "finetune", seed, [[0.5], [0.5]], adapted=640 + seed)
            change(file, step_seconds=step)
            keep_error(results, "cnn", seed, 0.3)
        table = TABLES["table6"]
        (row, *_) = compare_rows(table, read_table(table, results, "short"), 1)
        assert (row.minutes, row.adapted) == (None, 641)
        assert row.step_seconds == pytest.approx(0.3)
        table = TABLES["table4"]
        (row, *_) = compare_rows(table, read_table(table, results, "short"))
        assert row.minutes == pytest.approx(200 * 0.4 / 60), "at the fastest pace"

    def test_the_pace_is_no_single_lucky_step(self, results):
        file = keep_error(results, "cnn", 0, 0.3)
        metrics = json.loads(file.read_text())["metrics"]
        times = [0.1, *(0.5 + 0.01 * n for n in range(19))]
        change(file, metrics={**metrics, "train": {"step_seconds": times}})
        runs = read_table(TABLES["table4"], results, "short")
        assert runs["cnn"].pace == pytest.approx(0.51), "the third of twenty"

    def test_settings_younger_than_a_result(self, results):
        def is_current(row):
            file = keep_error(results, row, 0, 0.3)
            settings = json.loads(file.read_text())["config"]
            change(file, config={k: v for k, v in settings.items() if k != "similarity"})
            return read_table(TABLES["table4"], results, "short")[row].is_current(0)

        assert is_current("cnn"), "it was none before there was a choice"
        assert not is_current("static-diagonal")

    def test_notes_tell_departures_data_machine_and_changed_settings(self, results, report):
        file = keep_error(results, "cnn-plus", 0, 0.3)
        settings = {**json.loads(file.read_text())["config"], "lr": 0.7}
        change(file, config=settings)
        report.write()
        text = report.file.read_text()
        assert "- Baseline CNN++: The paper does not describe its CNN++." in text
        assert "train `82612602206e`; pixel values rounded to multiples of 4." in text
        assert "abacus, cpu, 2 threads per process, PyTorch 2.13, Python 3.11; commit `abc`" in text
        assert (
            "Run with settings that differ from the row's current ones: `cnn-plus` seed 0." in text
        )
        assert "Budget `short`: CNN-9 at half width" in text


@pytest.mark.usefixtures("no_pictures")
class TestFewShot:
    def test_pairs_episode_by_episode(self, results, report):
        hard = [0.2, 0.4, 0.6, 0.8]
        for seed in range(2):
            keep_tests(results, "finetune", seed, [hard, hard])
            better = [a + 0.1 for a in hard]
            keep_tests(results, "ridge", seed, [better, [a + 0.02 for a in better]])
        report.write()
        text = report.file.read_text()
        title = "Ridge regression (R2D2) †"
        # Seeds are alike, episodes are not: 1.96 · 25.82 / √4 = 25.30. Their differences are.
        assert cells(text, title, "### 1 shot")[1:5] == [
            "60.00 ± 25.30", "60.00", "+10.00 ± 0.00", "2"
        ]  # fmt: skip
        assert cells(text, title, "### 5 shots")[3] == "+12.00 ± 0.00"
        assert "paper |" not in text, "the paper has no numbers on this data set"

    def test_rows_are_compared_with_others_than_the_baseline(self, results, report):
        for row, more in (("finetune", 0.0), ("dynamic", 0.2), ("wide-time", 0.1)):
            keep_tests(results, row, 0, [[0.2 + more, 0.4 + more], [0.3, 0.4 + more / 2]])
        report.write()
        for file, over in ((report.file, " over episodes"), (report.page, "")):
            text = file.read_text()
            assert cells(text, "Dynamic NSN", "Other pairs:") == [
                "Dynamic NSN", "Finetuning, twice the filters †",
                f"+10.00 ± 0.00{over}", "better, one seed",
                f"+2.50 ± 4.90{over}", "not separated at this budget",
            ]  # fmt: skip
            assert "as many parameters" not in text.partition("Other pairs:")[2].split("\n\n")[1]

    def test_results_of_the_long_budget_are_beside_the_short_ones(self, results, report):
        for budget, more in (("short", 0.0), ("long", 0.2)):
            for row in ("finetune", "ridge"):
                accuracies = [0.3 + more, 0.5 + more]
                keep_tests(results, row, 0, [accuracies, accuracies], budget=budget)
        keep_tests(results, "nearest", 0, [[0.5, 0.6], [0.5, 0.6]])  # has no long budget
        report.write()
        title = "Few-shot learning on CIFAR-FS, 5 ways"
        for file, heading in ((report.file, f"## Table 6: {title}"), (report.page, f"## {title}")):
            short, found, long = file.read_text().partition(f"{heading}, trained longer\n")
            assert found
            row = "Ridge regression (R2D2) †"
            assert cells(short, row)[1].startswith("40.00")
            assert cells(long, row, "\n")[1].startswith("60.00")
            assert cells(long, row, "\n")[2] == "60.00", "the published number"
            assert "Nearest Neighbor" in short
            assert "Nearest Neighbor" not in long
            assert "until ten validations" in long

    def test_options_that_a_method_had_by_default(self, results):
        def is_current(**options):
            change(file, tests=[{**test, "method_options": options} for test in tests])
            return read_table(TABLES["table6"], results, "short")["meta-static"].is_current(0)

        file = keep_tests(results, "meta-static", 0, [[0.5], [0.5]])
        tests = json.loads(file.read_text())["tests"]
        assert is_current(inner_lr=0.2)
        assert not is_current(inner_lr=0.1)

    def test_other_episodes_are_paired_by_seed_alone(self, results):
        keep_tests(results, "finetune", 0, [[0.5, 0.6], [0.5, 0.6]])
        keep_tests(results, "proto", 0, [[0.6, 0.7], [0.6, 0.7]], fingerprint="other")
        table = TABLES["table6"]
        rows = compare_rows(table, read_table(table, results, "short"), 1)
        proto = next(one for one in rows if one.row.name == "proto")
        assert proto.difference.mean == pytest.approx(10.0)
        assert proto.difference.low is None

    def test_fewer_episodes_are_compared_with_the_same_ones(self, results, report):
        hard_then_easy = [0.2, 0.4, 0.9, 0.9]
        for seed in range(2):
            keep_tests(results, "finetune", seed, [hard_then_easy, hard_then_easy])
            keep_tests(results, "static", seed, [[0.25, 0.45], [0.25, 0.45]])
        report.write()
        text = report.file.read_text()
        assert cells(text, "Static NSN", "### 1 shot")[3] == "+5.00 ± 0.00", "not 35 − 60"
        assert "`static` was tested on the first 2 of the 4 episodes of the baseline" in text
        assert "`finetune` was tested on" not in text

    @pytest.mark.parametrize("name", ["data_copy", "n_way", "n_query", "episode_seed"])
    def test_episodes_are_the_same_only_if_drawn_alike(self, name):
        drawn = {"data_copy": "t", "n_way": 5, "n_shot": 1, "n_query": 15, "episode_seed": 0}
        long = {**drawn, "fingerprint": "a", "accuracies": [0.1, 0.2, 0.3]}
        short = {**drawn, "fingerprint": "b", "accuracies": [0.4, 0.5]}
        assert on_same_episodes([long, short]) == [[0.1, 0.2], [0.4, 0.5]]
        assert on_same_episodes([long, {**short, name: 99}]) is None
        assert on_same_episodes([long, {**long, "fingerprint": "c"}]) is None

    def test_one_seed_is_over_episodes(self, results, report):
        keep_tests(results, "finetune", 0, [[0.5, 0.6], [0.5, 0.6]])
        keep_tests(results, "proto", 0, [[0.6, 0.71], [0.6, 0.71]], adapted=0)
        report.write()
        row = cells(report.file.read_text(), "ProtoNet")
        assert row[1].endswith("over episodes")
        # Differences 0.1 and 0.11: 1.96 · 0.00707 / √2 = 0.0098.
        assert row[3] == "+10.50 ± 0.98 over episodes"
        assert row[6] == "0"
        assert row[-1] == "better, one seed"

    def test_a_test_that_others_have_is_missed(self, results, report):
        keep_tests(results, "finetune", 0, [[0.5, 0.6], [0.5, 0.6]])
        change(keep_tests(results, "proto", 0, [[0.5], [0.5]]), tests=[])
        with pytest.raises(
            FileFormatError, match=r"proto-0: expected a test with 1 shots, got none"
        ):
            report.write()


@pytest.mark.usefixtures("no_pictures")
class TestSizes:
    def test_parameters_steps_and_commands(self, results, report):
        keep(results, "table5", "cnn", 0, losses=[7.0], parameters=8_899_048, image_size=224)
        report.write()
        text = report.file.read_text()
        assert cells(text, "Baseline CNN") == [
            "Baseline CNN", "8.90", "8.90", "0.2", "42.72", "19.11"
        ]  # fmt: skip
        assert "$ nsl train --model cnn10 --data imagenet --similarity none" in text
        assert "settings that differ" not in text

    def test_a_step_on_smaller_images_is_another_setting(self, results, report):
        keep(results, "table5", "cnn", 0, losses=[7.0], image_size=64)
        report.write()
        assert "differ from the row's current ones: `cnn` seed 0." in report.file.read_text()

    def test_networks_of_table_5_that_were_only_timed_and_that_were_trained(self, results, report):
        keep(results, "table5", "cnn", 0, losses=[7.0], image_size=224)
        report.write()
        text = report.file.read_text()
        assert cells(text, "Baseline CNN")[:4] == ["Baseline CNN", "0.00", "8.90", "0.2"]
        assert "our error, %" not in text
        assert "Seeds run" not in text
        keep_error(results, "dynamic-diagonal", 0, 0.5, table="table5")
        report.write()
        text = report.file.read_text()
        assert cells(text, "Dynamic NSN w/ DNS", "our error, %")[1:3] == [
            "50.00 ± 3.09 over images", "40.61"
        ]  # fmt: skip
        assert "Seeds run so far: 1 of 3." in text


class TestFiles:
    def test_divergence_alone_is_reported_and_not_drawn(self, results, report):
        keep(results, "table6", "maml", 0, diverged=7, tests=[])
        report.write()
        assert "`maml` diverged at step 7 (seed 0)." in report.file.read_text()
        assert list((report.page.parent / "pictures").iterdir()) == []

    def test_the_same_results_make_the_same_bytes(self, results, report):
        keep_error(results, "cnn", 0, 0.3)
        keep_tests(results, "finetune", 0, [[0.5, 0.6], [0.5, 0.6]])
        files = report.write()
        first = [file.read_bytes() for file in files]
        report.write()
        assert [file.read_bytes() for file in files] == first
        assert sorted(file.name for file in (report.page.parent / "pictures").iterdir()) == [
            "accuracy-over-adapted.png", "error-over-epochs.png"
        ]  # fmt: skip

    def test_the_page_has_the_main_tables_and_working_links(self, results, report):
        keep_error(results, "cnn", 0, 0.3)
        keep(results, "table1", "cnn-predictor-bare", 0, diverged=40)
        report.write()
        text = report.page.read_text()
        assert text.startswith("# Results\n\nResults of this implementation")
        assert cells(text, "Baseline CNN")[1:3] == ["30.00 (27.24 – 32.91)", "7.78"]
        assert "## The paper's claims\n" in text
        assert TABLES["table1"].title not in text, "Table 1 is only in the full report"
        for file in (report.page, report.file, report.readme):
            for target in re.findall(r"\]\(([^)]+)\)", file.read_text()):
                assert (file.parent / target).is_file(), (file.name, target)
        assert "](pictures/error-over-epochs.png)" in text
        assert "](../docs/pictures/error-over-epochs.png)" in report.file.read_text()

    def test_without_a_page_pictures_are_beside_the_report(self, results, report):
        keep_error(results, "cnn", 0, 0.3)
        alone = Report(results, "short", report.file, None, None, None)
        assert alone.write() == [
            report.file, report.file.parent / "pictures" / "error-over-epochs.png"
        ]  # fmt: skip
        assert "](pictures/error-over-epochs.png)" in report.file.read_text()

    def test_the_readme_keeps_what_is_outside_its_markers(self, results, report):
        for row, error in (("cnn", 0.3), ("static-diagonal", 0.2)):
            keep_error(results, row, 0, error)
        report.write()
        text = report.readme.read_text()
        assert text.startswith(f"# Project\n\n{BEGIN}\n\n| comparison | ")
        assert text.endswith(f"\n\n{END}\n\nmore\n")
        assert "\nold\n" not in text

    def test_results_of_no_row_are_named(self, results, report):
        file = keep_error(results, "cnn", 0, 0.3)
        file.with_name("forgotten-2.json").write_text("{}")
        report.write()
        assert "in no table: `table4/forgotten-2.json`." in report.file.read_text()

    def test_without_markers_nothing_is_written(self, results, report):
        keep_error(results, "cnn", 0, 0.3)
        report.readme.write_text(f"# Project\n{END}\n{BEGIN}\n")
        with pytest.raises(
            RunError, match=r"README.md: expected the markers .* got a text without"
        ):
            report.write()
        assert not report.file.parent.exists()

    @pytest.mark.parametrize("text", ["{", '{"row": "cnn"}', "[]"])
    def test_damaged_results_are_named(self, results, report, text):
        keep_error(results, "cnn", 0, 0.3).write_text(text)
        with pytest.raises(FileFormatError, match=r"cnn-0\.json: expected"):
            report.write()
        assert not report.file.exists()

    def test_results_in_the_wrong_place_are_named(self, results, report):
        change(keep_error(results, "cnn", 0, 0.3), seed=1)
        with pytest.raises(FileFormatError, match=r"table4/cnn, seed 0, got that of .*seed 1"):
            report.write()


def test_the_files_of_the_repository_agree_with_its_results():
    if not any(RESULTS.glob("*/short/*.json")):
        assert not REPORT.exists()
        pytest.skip("no results yet")
    Report().check()
    for file in (REPORT, PAGE):
        for picture in re.findall(r"\(([^)]*pictures/[^)]+)\)", file.read_text()):
            assert (file.parent / picture).is_file()


def test_the_readme_has_at_most_five_rows_of_results():
    part = README.read_text().partition(BEGIN)[2].partition(END)[0].strip()
    _, _, *rows = (line for line in part.splitlines() if line.startswith("|"))
    assert len(rows) <= 5
    assert all(" ± " in row and "](docs/" in row for row in rows)
