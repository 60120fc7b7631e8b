"""Whether weights or statistics of BatchNorm make a network fail."""

from dataclasses import replace

import pytest

from experiments import norm_statistics
from experiments.norm_statistics import compare, stored_results, table
from experiments.records import RESULTS
from neural_similarity.errors import RunError
from neural_similarity.train import Run, TrainConfig, train


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A network whose BatchNorm averages so slowly that it knows next to nothing of its maps."""
    config = TrainConfig(
        model="cnn4", data="digits", options={"width": 16, "poolings": 2}, epochs=3,
        batch_size=32, lr=0.03, norm_momentum=1e-4, norm_start="zero",
    )  # fmt: skip
    return train(config, tmp_path_factory.mktemp("norm") / "run")


def test_statistics_of_the_final_weights_lower_the_error(run):
    result = compare(run)
    errors = {way: of["errors"] / of["images"] for way, of in result.items()}
    assert errors["averaged"] > 0.5
    assert errors["of_final_weights"] < 0.2


def test_a_run_that_held_out_images_is_refused(run):
    """Its test images are training images of the data set."""
    held_out = Run(run.folder, replace(run.config, validation=0.1))
    with pytest.raises(RunError, match="expected a run that was trained on all training images"):
        compare(held_out)


def test_a_result_is_stored_once_and_shown(run, tmp_path, monkeypatch, capsys):
    call = ["norm_statistics", str(run.folder), "digits", "--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", call)
    norm_statistics.main()
    shown = capsys.readouterr().out.strip()
    assert shown == table(stored_results(tmp_path)).strip()
    with pytest.raises(SystemExit, match="2"):
        norm_statistics.main()
    assert "expected no result yet, got one" in capsys.readouterr().err


def test_a_folder_without_a_run_ends_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["norm_statistics", str(tmp_path), "x"])
    with pytest.raises(SystemExit, match="2"):
        norm_statistics.main()
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_the_document_has_the_table_of_the_results():
    document = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert table(stored_results(RESULTS)) in document
