"""Which images, weights and statistics a few-shot run trains and is tested with."""

import shutil
from dataclasses import replace

import pytest
import torch
from support.fewshot_runs import SMALL, load

from neural_similarity.data import Augment, DatasetInfo, Episodes, register_dataset
from neural_similarity.data.augment import apply_numbers, draw_numbers
from neural_similarity.data.loader import generator_of
from neural_similarity.fewshot import Trial, evaluate, query_labels, train_method
from neural_similarity.fewshot.training_data import EpisodeLoader, base_classes, load_split
from neural_similarity.train.checkpoint import write_weights
from neural_similarity.train.distributed import World

VARIED = DatasetInfo("varied", "few-shot", ("train", "val", "test"), "x", augment=Augment(1))
register_dataset(VARIED, lambda request: replace(load(request), name="varied"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train_method(SMALL, tmp_path_factory.mktemp("runs") / "run")


def test_a_run_is_tested_by_its_weights_and_statistics_on_test_classes(run, tmp_path, monkeypatch):
    shutil.copytree(run.folder, tmp_path / "run")
    run = replace(run, folder=tmp_path / "run")
    other = replace(run, config=replace(run.config, seed=9)).build_network(6, 1, 8)
    write_weights(run.folder / "last.safetensors", other, {"step": 12})
    mean, std = (0.9,), (0.1,)  # not those of the data, which would hide a mistake
    monkeypatch.setattr(type(run), "normalisation", lambda self: (mean, std))
    test = load_split(run.config, "test")
    assert [name.split()[0] for name in test.classes] == ["test"] * 4
    support, query, _ = Episodes(test.labels, 3, 1, 4, 3, 25).batch(0, 25)
    images = (test.images / 255 - mean[0]) / std[0]
    method, found = run.config.build_method(), {}
    for which in ("best", "last"):
        (record,) = run.evaluate([Trial(1, episodes=25, seed=3, which=which)])
        with torch.no_grad():
            network = run.load_network(which)
            scores = method.scores(network, images[support], images[query].flatten(1, 2))
        right = (scores.argmax(-1) == query_labels(3, 4)).double().mean(1)
        assert record["accuracies"] == pytest.approx(right.tolist())
        assert (record["data_copy"], record["episode_seed"]) == (test.fingerprint, 3)
        found[which] = record["accuracies"]
    assert found["best"] != found["last"]


def test_embedding_reads_every_image(run, monkeypatch):
    test = load_split(run.config, "test")
    made = (run.config.build_method(), run.load_network(), test, *run.normalisation())
    whole = evaluate.Evaluator(*made).embed()
    monkeypatch.setattr(evaluate, "_IMAGES", 7)
    pieces = evaluate.Evaluator(*made).embed()
    torch.testing.assert_close(pieces, whole, rtol=1e-5, atol=1e-5)
    assert len(pieces.unique(dim=0)) > len(pieces) // 2


@pytest.mark.parametrize("augment", [True, False])
def test_training_episodes_are_varied_step_by_step_and_shared(augment):
    config = replace(SMALL, data="varied", augment=augment)
    base, validation = base_classes(config)
    assert {name.split()[0] for name in validation.classes} == {"val"}
    mean, std = base.statistics()
    loaders = [EpisodeLoader(base, config, mean, std, World(rank, 2)) for rank in range(2)]
    step = 4 + 2  # epoch 1, batch 2
    support = torch.cat([next(loader.epoch(1, 2))[0] for loader in loaders])
    drawn = Episodes(base.labels, 3, 2, 4, config.seed, 100).batch(2 * step, 2 * step + 2)
    rows = torch.cat((drawn.support, drawn.query), 2)
    images = base.images[rows.flatten()]
    if augment:
        numbers = draw_numbers(rows.numel(), generator_of(config.seed, "episode augment", step))
        images = apply_numbers(images, Augment(1), numbers)
    wanted = ((images.float() / 255 - mean[0]) / std[0]).unflatten(0, rows.shape)[:, :, :2]
    torch.testing.assert_close(support, wanted, rtol=1e-5, atol=1e-5)


def test_a_network_of_another_run_keeps_its_statistics(tmp_path):
    first = train_method(replace(SMALL, method="finetune", steps=1), tmp_path / "first")
    config = replace(SMALL, data="swapped", backbone=str(first.folder), epochs=0.0)
    second = train_method(config, tmp_path / "second")
    assert second.normalisation() == first.normalisation()
    assert second.normalisation() != base_classes(config)[0].statistics()
