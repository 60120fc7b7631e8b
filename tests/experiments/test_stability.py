"""A nine-layer dynamic network trains at learning rate 0.1 without diverging."""

import pytest

from experiments import stability
from experiments.records import RESULTS


def test_the_first_steps_do_not_diverge():
    result = stability.train("SphereNet", seed=100, steps=12)
    assert result["diverged_at"] is None
    assert result["losses"][-1] < result["losses"][0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ten_seeds(seed):
    result = stability.train("SphereNet", seed=seed, steps=100)
    assert result["diverged_at"] is None
    assert result["accuracy"] > 0.9


def test_results_are_kept_and_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(
        stability, "train", lambda *_: {"diverged_at": 3, "losses": [1.0], "accuracy": None}
    )
    first = stability.run_or_read("CNN", 0, 5, tmp_path)
    monkeypatch.setattr(stability, "train", None)
    assert stability.run_or_read("CNN", 0, 5, tmp_path) == first
    assert [p.suffix for p in tmp_path.iterdir()] == [".json"]
    assert "| CNN | 1 | 1 | 0 | – | – | – |" in stability.table({"CNN": [first]})


def test_the_document_has_the_table_of_the_results(monkeypatch):
    monkeypatch.setattr(stability, "train", None)  # a missing result is an error
    rows = {
        name: [stability.run_or_read(name, seed, 100, RESULTS) for seed in range(10)]
        for name in stability.PREDICTORS
    }
    assert stability.table(rows) in (RESULTS.parent / "README.md").read_text(encoding="utf-8")
