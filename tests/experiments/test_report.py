"""The report: text from results that never were, and agreement."""

import json
import re
import shlex
from pathlib import Path

import pytest
from support.command import nsl, one_line
from support.results_cases import change, keep, keep_error, keep_tests

from experiments.queue.commands import command_of
from experiments.records import RESULTS
from experiments.report.comparison import findings, on_same_episodes, read_table
from experiments.report.report import BEGIN, END, REPORT, Report
from experiments.tables.registry import TABLES
from neural_similarity.cli._settings import wanted_settings
from neural_similarity.errors import FileFormatError, RunError
from neural_similarity.train import TrainConfig

README = f"# Project\n\n{BEGIN}\n\nold\n\n{END}\n\nmore\n"


@pytest.fixture
def results(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def report(tmp_path, results):
    """A report of results that are yet to be made."""
    (tmp_path / "README.md").write_text(README)
    return Report(results, "short", tmp_path / "notes" / "REPORT.md", tmp_path / "README.md")


def cells(text: str, title: str, heading: str = "#") -> list[str]:
    """A row of a Markdown table, behind a heading."""
    line = re.search(rf"^\| {re.escape(title)} \|.*$", text.partition(heading)[2], re.MULTILINE)
    return [cell.strip() for cell in line[0].strip("|").split("|")]


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

    def test_one_seed_is_named_so(self, results, report):
        keep_error(results, "cnn", 0, 0.30)
        keep_error(results, "dynamic-diagonal", 0, 0.10)
        report.write()
        row = cells(report.file.read_text(), "Dynamic NSN w/ DNS")
        assert row[1] == "10.00 (8.29 – 12.02) over images"  # Wilson's, of 100 among 1,000
        assert row[3] == "−20.00"
        assert row[-1] == "one seed cannot tell"

    def test_missing_and_diverged_are_said(self, results, report):
        for seed in range(2):
            keep_error(results, "cnn", seed, 0.3)
        keep(results, "table1", "cnn-predictor-bare", 0, diverged=40)
        keep(results, "table1", "cnn-predictor-bare", 1, diverged=50)
        keep_error(results, "cnn-predictor-bare", 2, 0.25, table="table1")
        report.write()
        text = report.file.read_text()
        row = cells(text, "Dynamic NSN (CNN), neither normalised nor squashed")
        assert row[1].startswith("diverged, 2 of 3; else 25.00 (")
        assert (row[-5], row[-1]) == ("–", "diverged")
        assert "`cnn-predictor-bare` diverged at step 40 (seed 0), 50 (seed 1)." in text
        assert cells(text, "Dynamic NSN (CNN), squashed")[-1] == "not run"
        assert (
            "Not run yet: `cnn-predictor`, `cnn-predictor-sigmoid`, `dynamic-authors`, "
            "`dynamic-diagonal`; `cnn` seed 2." in text
        )
        assert "## Table 2" not in text, "it has but rows that it shares"

    def test_a_baseline_that_diverged_is_no_baseline(self, results, report):
        for seed in range(3):
            keep_error(results, "static-diagonal", seed, 0.3)
        for seed in range(2):
            keep_error(results, "cnn", seed, 0.4)
        keep(results, "table4", "cnn", 2, diverged=40)
        report.write()
        row = cells(report.file.read_text(), "Static NSN w/ DNS")
        assert (row[3], row[-1]) == ("–", "–")

    def test_times_and_adapted_numbers_of_several_seeds(self, results):
        for seed, step in enumerate((0.2, 0.4)):
            kept = keep_tests(results, "finetune", seed, [[0.5], [0.5]], adapted=640 + seed)
            change(kept, step_seconds=step)
            keep_error(results, "cnn", seed, 0.3)
        table = TABLES["table6"]
        (found, *_) = findings(table, read_table(table, results, "short"), 1)
        assert (found.minutes, found.adapted) == (None, 641)
        assert found.step_seconds == pytest.approx(0.3)
        table = TABLES["table4"]
        (found, *_) = findings(table, read_table(table, results, "short"))
        assert found.minutes == pytest.approx(200 * 0.4 / 60), "at the least disturbed pace"

    def test_the_pace_is_no_single_lucky_step(self, results):
        kept = keep_error(results, "cnn", 0, 0.3)
        metrics = json.loads(kept.read_text())["metrics"]
        times = [0.1, *(0.5 + 0.01 * n for n in range(19))]
        change(kept, metrics={**metrics, "train": {"step_seconds": times}})
        runs = read_table(TABLES["table4"], results, "short")
        assert runs["cnn"].pace == pytest.approx(0.51), "the third of twenty"

    def test_settings_younger_than_a_result(self, results):
        def as_now(row):
            file = keep_error(results, row, 0, 0.3)
            settings = json.loads(file.read_text())["config"]
            change(file, config={k: v for k, v in settings.items() if k != "similarity"})
            return read_table(TABLES["table4"], results, "short")[row].as_now(0)

        assert as_now("cnn"), "it was none before there was a choice"
        assert not as_now("static-diagonal")

    def test_notes_tell_departures_data_machine_and_changed_settings(self, results, report):
        file = keep_error(results, "cnn-plus", 0, 0.3)
        settings = {**json.loads(file.read_text())["config"], "lr": 0.7}
        change(file, config=settings)
        report.write()
        text = report.file.read_text()
        assert "- Baseline CNN++: The paper does not say what its CNN++ looks like" in text
        assert "train `82612602206e`; pixel values rounded to multiples of 4." in text
        assert "abacus, cpu, 2 threads a process, PyTorch 2.13, Python 3.11; commit `abc`" in text
        assert "Run with other settings than the row has now: `cnn-plus` seed 0." in text
        assert "Budget `short`: CNN-9 of half the width" in text


class TestFewShot:
    def test_pairs_episode_by_episode(self, results, report):
        hard = [0.2, 0.4, 0.6, 0.8]
        for seed in range(2):
            keep_tests(results, "finetune", seed, [hard, hard])
            better = [a + 0.1 for a in hard]
            keep_tests(results, "ridge", seed, [better, [a + 0.02 for a in better]])
        report.write()
        text = report.file.read_text()
        title = "Ridge regression, as R2D2 †"
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
        for file, over in ((report.file, " over episodes"), (report.readme, "")):
            text = file.read_text()
            assert cells(text, "Dynamic NSN", "Other pairs:") == [
                "Dynamic NSN", "Finetuning, twice the filters †",
                f"+10.00 ± 0.00{over}", "better, one seed",
                f"+2.50 ± 4.90{over}", "not separated at this budget",
            ]  # fmt: skip
            assert "as many parameters" not in text.partition("Other pairs:")[2].split("\n\n")[1]

    def test_options_that_a_method_had_by_default(self, results):
        def as_now(**options):
            change(file, tests=[{**test, "method_options": options} for test in tests])
            return read_table(TABLES["table6"], results, "short")["meta-static"].as_now(0)

        file = keep_tests(results, "meta-static", 0, [[0.5], [0.5]])
        tests = json.loads(file.read_text())["tests"]
        assert as_now(inner_lr=0.2)
        assert not as_now(inner_lr=0.1)

    def test_other_episodes_are_paired_by_seed_alone(self, results):
        keep_tests(results, "finetune", 0, [[0.5, 0.6], [0.5, 0.6]])
        keep_tests(results, "proto", 0, [[0.6, 0.7], [0.6, 0.7]], fingerprint="other")
        table = TABLES["table6"]
        found = findings(table, read_table(table, results, "short"), 1)
        proto = next(one for one in found if one.row.name == "proto")
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
        assert "`static` was tested on 2 episodes, the first of the 4 that the baseline" in text
        assert "`finetune` was tested" not in text

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

    def test_nothing_but_divergence_is_told_and_not_drawn(self, results, report):
        keep(results, "table6", "maml", 0, diverged=7, tests=[])
        report.write()
        assert "`maml` diverged at step 7 (seed 0)." in report.file.read_text()
        assert list((report.file.parent / "pictures").iterdir()) == []


class TestSizes:
    def test_parameters_steps_and_commands(self, results, report):
        keep(results, "table5", "cnn", 0, losses=[7.0], parameters=8_899_048, image_size=224)
        report.write()
        text = report.file.read_text()
        assert cells(text, "Baseline CNN") == ["Baseline CNN", "8.90", "8.90", "0.2"]
        assert "$ nsl train --model cnn10 --data imagenet --similarity none" in text
        assert "other settings" not in text

    def test_a_step_on_smaller_images_is_another_setting(self, results, report):
        keep(results, "table5", "cnn", 0, losses=[7.0], image_size=64)
        report.write()
        assert "than the row has now: `cnn` seed 0." in report.file.read_text()

    @pytest.mark.parametrize(
        ("row", "budget"),
        [
            pytest.param(row, budget, id=f"{name}-{row.name}-{budget}")
            for name in ("table1", "table4", "table5", "table7")
            for row in TABLES[name].rows
            for budget in ("short", "paper")
            if (name, budget) != ("table5", "short")  # a step, which no command takes
        ],
    )
    def test_a_command_has_the_rows_settings(self, row, budget):
        words = shlex.split(command_of(row.config(budget)))[2:]
        options, sets = {}, []
        for option, value in zip(words[::2], words[1::2], strict=True):
            if option == "--set":
                sets.append(value)
            elif option != "--out":
                options[option.removeprefix("--")] = value
        kinds = {"steps": int, "epochs": float, "lr": float}
        options |= {name: of(options[name]) for name, of in kinds.items() if name in options}
        assert TrainConfig.from_dict(wanted_settings(None, options, sets)) == row.config(budget)

    def test_networks_of_table_5_that_were_only_timed_and_that_were_trained(self, results, report):
        keep(results, "table5", "cnn", 0, losses=[7.0], image_size=224)
        report.write()
        text = report.file.read_text()
        assert cells(text, "Baseline CNN") == ["Baseline CNN", "0.00", "8.90", "0.2"]
        assert "error, %" not in text
        assert "Seeds:" not in text
        keep_error(results, "dynamic-diagonal", 0, 0.5, table="table5")
        report.write()
        text = report.file.read_text()
        assert cells(text, "Dynamic NSN w/ DNS", "our error, %")[1:3] == [
            "50.00 ± 3.09 over images", "40.61"
        ]  # fmt: skip
        assert "Seeds: 1 of the 3" in text


class TestFiles:
    def test_the_same_results_make_the_same_bytes(self, results, report, tmp_path):
        keep_error(results, "cnn", 0, 0.3)
        keep_tests(results, "finetune", 0, [[0.5, 0.6], [0.5, 0.6]])
        report.write()
        first = report.file.read_bytes(), report.readme.read_bytes()
        report.write()
        assert (report.file.read_bytes(), report.readme.read_bytes()) == first
        assert sorted(p.name for p in (tmp_path / "notes" / "pictures").iterdir()) == [
            "accuracy-over-adapted.png", "error-over-time.png"
        ]  # fmt: skip

    def test_the_readme_keeps_what_is_outside_its_markers(self, results, report):
        keep_error(results, "cnn", 0, 0.3)
        report.write()
        text = report.readme.read_text()
        assert text.startswith(f"# Project\n\n{BEGIN}\n\n**Static and dynamic")
        assert text.endswith(f"\n\n{END}\n\nmore\n")
        assert cells(text, "Baseline CNN")[1:3] == ["30.00 (27.24 – 32.91)", "7.78"]
        assert "(notes/pictures/error-over-time.png)" in text
        assert "old" not in text

    def test_results_of_no_row_are_not_passed_over(self, results, report):
        file = keep_error(results, "cnn", 0, 0.3)
        file.with_name("forgotten-2.json").write_text("{}")
        report.write()
        assert "no table has: `table4/forgotten-2.json`." in report.file.read_text()

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


class TestCommand:
    def test_writes_checks_and_finds_a_change(self, results, tmp_path, capsys, monkeypatch):
        keep_error(results, "cnn", 0, 0.3)
        (tmp_path / "README.md").write_text(README)
        where = (
            "--results",
            results,
            "--out",
            tmp_path / "r.md",
            "--readme",
            tmp_path / "README.md",
        )
        check = ("reproduce", "report", "--check", *where)
        assert "r.md: expected what the JSON" in one_line(nsl(capsys, monkeypatch, *check))
        assert nsl(capsys, monkeypatch, "reproduce", "report", *where).code == 0
        assert nsl(capsys, monkeypatch, *check).code == 0
        readme = tmp_path / "README.md"
        readme.write_text(readme.read_text().replace("30.00", "20.00"))
        said = one_line(nsl(capsys, monkeypatch, *check))
        assert re.search(r"README.md: expected what the JSON files give, .* from line \d+ on", said)
        assert "20.00" in readme.read_text(), "to check is not to write"

    def test_no_results_are_one_line(self, tmp_path, capsys, monkeypatch):
        asked = ("reproduce", "report", "--results", tmp_path, "--out", tmp_path / "r.md")
        said = one_line(nsl(capsys, monkeypatch, *asked))
        assert "expected results of the short budget, got none" in said
        assert list(tmp_path.iterdir()) == []

    def test_other_budgets_do_not_replace_the_report(self, capsys, monkeypatch):
        said = one_line(nsl(capsys, monkeypatch, "reproduce", "report", "--budget", "smoke"))
        assert "expected --out" in said


def test_the_repository_says_what_its_results_say():
    if not any(RESULTS.glob("*/short/*.json")):
        assert not REPORT.exists()
        pytest.skip("no results yet")
    Report().check()
    for picture in re.findall(r"\((pictures/[^)]+)\)", REPORT.read_text()):
        assert (Path(REPORT).parent / picture).is_file()
