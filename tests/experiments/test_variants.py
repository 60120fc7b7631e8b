"""The search among variants: its settings, its table, and a run that can be continued."""

import json

import pytest

from experiments import variants
from experiments.report.equal_cost.variants import variants_text
from neural_similarity.train import build_model


def write(folder, name, seed, accuracy):
    file = folder / "variants" / f"{name}-{seed}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"accuracy": accuracy}))


@pytest.mark.parametrize("name", variants.VARIANTS)
def test_every_variant_is_a_network_of_its_own(name):
    config = variants.config_of(name, 100)
    assert (config.seed, config.val_episodes, config.eval_every) == (100, 1000, 8)
    model = build_model(config, 64, 3, 32)
    similar = sum("predictor" in part for part, _ in model.named_parameters()) > 0
    assert similar == (name != "plain")
    others = (variants.config_of(other, 100) for other in variants.VARIANTS if other != name)
    assert config not in others


def test_the_seeds_are_not_those_of_the_tables():
    assert min(variants.SEEDS) >= 100


def test_the_table_compares_seed_by_seed(tmp_path):
    for seed, plain, image in ((100, 60.0, 61.0), (101, 62.0, 63.5)):
        write(tmp_path, "plain", seed, plain)
        write(tmp_path, "image", seed, image)
    write(tmp_path, "tanh", 101, 63.0)
    *_, table = variants_text(tmp_path)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert [row[1:] for row in rows] == [
        ["2", "61.00 ± 12.71", "–", "−1.25 ± 3.18"],
        ["2", "62.25 ± 15.88", "+1.25 ± 3.18", "–"],
        ["1", "63.00", "+1.00", "−0.50"],
    ]


def test_without_results_there_is_no_text(tmp_path):
    assert list(variants_text(tmp_path)) == []


def test_a_short_run_is_stored_once(tmp_path, monkeypatch, capsys):
    small = {"data": "glyphs", "options": {"width": 4}, "steps": 2, "val_episodes": 3, "n_query": 2}
    whole = variants.config_of
    monkeypatch.setattr(
        variants, "config_of", lambda *of: type(whole(*of))(**{**vars(whole(*of)), **small})
    )
    command = ["image", "--work", str(tmp_path / "work"), "--seeds", "1", "--results"]
    variants.main([*command, str(tmp_path)])
    file = tmp_path / "variants" / "image-100.json"
    record = json.loads(file.read_text())
    assert 0 <= record["accuracy"] <= 100
    assert record["episodes"] == 3
    assert str(tmp_path) not in file.read_text()
    assert "image-100" in capsys.readouterr().out
    variants.main([*command, str(tmp_path)])
    assert "image-100" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        variants.main(["imagen", *command[1:], str(tmp_path)])


def test_a_stopped_command_says_how_to_continue(tmp_path, monkeypatch, capsys):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(variants, "train_method", interrupted)
    with pytest.raises(SystemExit) as stopped:
        variants.main(["image", "--work", str(tmp_path), "--results", str(tmp_path)])
    assert stopped.value.code == 130
    assert "Run the same command" in capsys.readouterr().err
