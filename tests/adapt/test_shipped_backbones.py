"""The backbones that come with the package: complete, small and useful."""

import pytest
import torch
import torch.nn.functional as F

from neural_similarity import adapt, fewshot
from neural_similarity.adapt.backbones.load import PLAIN_TWIN, SHIPPED, SHIPPED_DYNAMIC, rebuild
from neural_similarity.data import Episodes, load_dataset
from neural_similarity.nn.inventory import named_similarities

NAMES = sorted(file.stem for file in SHIPPED.glob("*.safetensors"))


def test_the_dynamic_one_and_its_plain_twin_are_among_them():
    dynamic, plain = map(adapt.load_backbone, (SHIPPED_DYNAMIC, PLAIN_TWIN))
    assert {dynamic.name, plain.name} <= set(NAMES)
    assert len(list(named_similarities(dynamic.module))) == 4
    assert list(named_similarities(plain.module)) == []
    assert dynamic.image_shape == plain.image_shape == (3, 32, 32)
    assert dynamic.preprocessing == plain.preprocessing


@pytest.mark.parametrize("name", NAMES)
def test_the_card_tells_of_the_file(name):
    file, card = SHIPPED / f"{name}.safetensors", (SHIPPED / "README.md").read_text()
    backbone = adapt.load_backbone(name)
    count = sum(p.numel() for p in backbone.module.parameters())
    assert f"| `{name}` | as stored | {count:,} | {file.stat().st_size:,} |" in card
    assert file.stat().st_size < 300_000
    command = backbone.card.partition("by: ")[2].partition(". Limits")[0]
    assert command.startswith("nsl fewshot train ")
    assert f"$ {command}\n" in card


@pytest.mark.parametrize("name", NAMES)
def test_they_tell_characters_apart_that_they_never_saw(name):
    """Chance is 20%, and the same network with weights drawn anew is far below, too."""
    glyphs = load_dataset("glyphs", "test")
    backbone = adapt.load_backbone(name)
    trained = accuracy(backbone.module, glyphs)
    torch.manual_seed(0)
    drawn = rebuild(backbone.source, None)
    assert trained > 0.6
    assert trained > accuracy(drawn, glyphs) + 0.1


@torch.no_grad()
def accuracy(network, glyphs):
    method = fewshot.create_method("proto")
    network = method.build(network, 5, (3, 32, 32)).eval()
    episodes = Episodes(glyphs.labels, 5, 5, 10, seed=0, count=10)
    right = []
    for start in range(10):
        support, query, _ = episodes.batch(start, start + 1)
        images = [
            F.pad(glyphs.images[rows].expand(*rows.shape, 3, -1, -1) / 255 - 0.5, (2, 2, 2, 2))
            / 0.25
            for rows in (support, query.flatten(1))
        ]
        scores = method.scores(network, *images)
        right.append((scores.argmax(-1) == fewshot.query_labels(5, 10)).float().mean())
    return torch.stack(right).mean().item()
