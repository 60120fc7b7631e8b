"""The comparison of ways to adapt: tasks are fair, and every way is measured."""

import numpy as np
import pytest
import torch
from PIL import Image
from support.adapt_cases import EYE, pictures

from experiments.adapt import compare, finetuning, shares
from experiments.adapt.cells import part_name, read_studies
from experiments.adapt.headline import adapt_rows
from experiments.adapt.page import write_page
from experiments.adapt.pools import draws, embed_pool, photographs
from experiments.records import write_record

ABOUT = {"pool": "birds", "backbone": "eye", "image_size": 8, "n_way": 2}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setattr("neural_similarity.adapt.feature_cache.cache_directory", lambda: tmp_path)
    images, labels = pictures((12,) * 4)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / "birds" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "birds" / label / f"{number:02}.png")
    pool = photographs(tmp_path / "birds", "birds", slice(1, 4))
    assert pool.classes == ("kind 1", "kind 2", "kind 3")
    return embed_pool(EYE, pool)


def test_tasks_are_the_same_every_time_and_test_other_images(data):
    first, again = (list(draws(data, 2, 5, range(3))) for _ in range(2))
    for draw, same in zip(first, again, strict=True):
        assert torch.equal(draw.rows, same.rows)
        train, test = draw.rows[: draw.n_train], draw.rows[draw.n_train :]
        assert torch.bincount(draw.labels[: draw.n_train]).tolist() == [5, 5]
        assert not set(train.tolist()) & set(test.tolist())
        part = data.subset(draw.rows, draw.labels)
        own = data.labels[draw.rows]
        assert all(len(own[part.labels == way].unique()) == 1 for way in (0, 1))
    assert not torch.equal(first[0].rows, first[1].rows)


def test_every_way_is_measured_and_written(data, tmp_path):
    pytest.importorskip("sklearn")
    result = compare.compare_heads(data, 2, 5, range(2), skip=("static",))
    names = {"ensemble", "ridge", "proto", "linear", "auto", *compare.reference_names()}
    assert set(result["accuracies"]) == names
    assert all(
        len(values) == 2 and np.min(values) > 0.5 for values in result["accuracies"].values()
    )
    write_record(tmp_path / "results" / "heads.json", {**ABOUT, "n_shot": 5, **result})
    (tmp_path / "pictures").mkdir()
    page, picture = write_page(tmp_path / "results", tmp_path)
    assert "| method | 2 ways, 5 |" in page.read_text()
    assert all(f"| {name} |" in page.read_text().replace("`", "") for name in names)
    assert picture.stat().st_size > 1000


def test_shares_between_none_and_all_are_those_of_the_two_methods(data):
    pytest.importorskip("sklearn")
    found = shares.measure(data, 2, 5, range(3))
    heads = compare.compare_heads(data, 2, 5, range(3), skip=("static", "laplace"))["accuracies"]
    for share, name in (("0.0", "linear"), ("1.0", "ridge"), ("0.125", "ensemble")):
        assert found[share] == pytest.approx([100 * value for value in heads[name]])
    first, *gains = shares.cells({"0.0": [50.0, 60.0], "1.0": [51.0, 62.0]})
    assert first.startswith("55.00 ±")
    assert gains == ["+1.50 ± 0.98"]


def test_the_page_says_who_is_best_on_the_same_tasks(tmp_path):
    """Worked by hand: pairs of tasks, where one method saw only the first two."""
    heads = {"auto": [0.6, 0.6, 0.6], "linear": [0.6, 0.8, 0.7], "ridge": [0.5, 0.5, 0.5]}
    heads |= {"proto": [0.5, 0.5, 0.5], "laplace": [0.5, 0.5, 0.5]}
    better, equal = compare.reference_names()
    heads |= {better: [0.7, 0.7, 0.7], equal: [0.6, 0.5, 0.7]}
    record = {"accuracies": heads, "seconds": dict.fromkeys(heads, 0.25)}
    tuned = {"accuracies": {"static": [0.7, 0.8]}, "seconds": {"static": 7.0}}
    results = tmp_path / "results"
    write_record(results / "heads.json", {**ABOUT, "n_shot": 5, **record})
    write_record(
        results / "static.json", {**ABOUT, "n_shot": 5, **tuned, "parameters": {"static": 1234}}
    )
    (tmp_path / "pictures").mkdir()
    text = write_page(results, tmp_path)[0].read_text()
    # The differences 0, -20 and -10: 4.303 standard errors of 10 / √3.
    assert "-10.0 ± 24.8 points from `linear`" in text
    words = " ".join(text.split())
    assert "difference in 0 of 2 cases, and worse in 1; the lowest difference is -10.0 poi" in words
    assert "of 1 cases, `auto` is below by more than the interval of the difference." in words
    assert "| `linear` | 3 | 70.0 ± 24.8 |  | 2,562 | 0.2 |" in text
    assert "worse by more than the interval 0 times, and better 0 times." in words
    # The differences 10 and 0: mean 5, and 12.706 standard errors of 5.
    assert "| `static` | 2 | 75.0 ± 63.5 | 5.0 ± 63.5 | 1,234 | 7.0 |" in text


def test_parts_are_read_in_the_order_of_their_tasks(tmp_path):
    """Also beyond ten parts, where names and numbers have different orders."""
    for first, count in ((0, 8), (8, 4), (12, 2)):
        values = [number / 100 for number in range(first, first + count)]
        record = {"accuracies": {"LoRA": values}, "seconds": {"LoRA": first}}
        about = {**ABOUT, "n_shot": 5, "parameters": {"LoRA": 9}}
        write_record(tmp_path / part_name("finetuning", first), {**about, **record})
    (cell,) = read_studies(tmp_path)[0].cells.values()
    assert cell.accuracies["LoRA"] == [number / 100 for number in range(14)]
    assert cell.seconds["LoRA"] == [0, 8, 12]
    assert cell.tuned == ["LoRA"]


@pytest.mark.parametrize("way", finetuning.WAYS)
def test_finetuning_tunes_what_it_says(way):
    torch.manual_seed(0)
    last = torch.nn.Sequential(
        torch.nn.Conv2d(4, 6, 1, bias=False), torch.nn.BatchNorm2d(6), torch.nn.ReLU()
    ).eval()
    maps = torch.randn(20, 2, 4, 3, 3)
    labels = torch.arange(2).repeat(10)
    maps[:, :, 0] += 4 * labels[:, None, None, None]
    below = finetuning.BelowLastBlocks(maps, last)
    correct, tuned = finetuning.finetune(way, below, torch.arange(20), labels, 10, 1e-2)
    head = 2 * 6 + 2
    assert tuned == head + {"head-only": 0, "BatchNorm": 12, "LoRA": 40, "last blocks": 36}[way]
    assert correct > 0.6


def test_the_headline_compares_birds_and_cars(tmp_path):
    about = {"backbone": "efficientnet_lite0", "image_size": 224, "n_way": 10, "n_shot": 10}
    for pool, right in (("birds", 0.9), ("cars", 0.6)):
        assert list(adapt_rows(tmp_path)) == []
        record = {
            "accuracies": {
                "auto": [right, right + 0.1], "scikit-learn, C=1": [right - 0.1, right - 0.02],
            },
            "seconds": {"auto": 1.0, "scikit-learn, C=1": 1.0},
        }  # fmt: skip
        write_record(tmp_path / f"heads-{pool}.json", {**about, "pool": pool, **record})
    ((_, result, budget),) = adapt_rows(tmp_path, "page.md")
    # Student's interval of two tasks that differ by 10 and 12 points: 12.706 · 1.414 / √2.
    assert result == "birds: 95.0 against 84.0, +11.0 ± 12.7; cars: 65.0 against 54.0, +11.0 ± 12.7"
    assert budget == "[2 tasks, `efficientnet_lite0` pretrained on ImageNet](page.md)"
