"""Methods learn from base classes what helps with new ones."""

import pytest
import torch
import torch.nn.functional as F

import neural_similarity as ns
from neural_similarity.data import Episodes
from neural_similarity.fewshot import Images, as_tasks, create_method, query_labels

CLASSES, EACH, SIDE = 40, 12, 16


def patterns() -> tuple[torch.Tensor, torch.Tensor]:
    """A class is a coarse pattern; an image shows it shifted, in some contrast, with noise."""
    draw = torch.Generator().manual_seed(0)
    coarse = torch.randn(CLASSES, 1, 5, 5, generator=draw)
    clean = F.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear").repeat_interleave(EACH, 0)
    shifts = torch.randint(-3, 4, (len(clean), 2), generator=draw).tolist()
    moved = torch.stack([x.roll(s, (1, 2)) for x, s in zip(clean, shifts, strict=True)])
    contrast = 0.5 + torch.rand(len(clean), 1, 1, 1, generator=draw)
    noise = 0.5 * torch.randn(moved.shape, generator=draw)
    return contrast * moved + noise, torch.arange(CLASSES).repeat_interleave(EACH)


def accuracy(method, network, images, labels) -> float:
    drawn = Episodes(labels, n_shot=1, n_query=5, count=100, seed=1).batch(0, 100)
    network.eval()
    with torch.no_grad():
        features = method.embed(network, images)
        shown, asked = features[drawn.support], features[drawn.query].flatten(1, 2)
        scores = method.feature_scores(network, shown, asked)
    return (scores.argmax(-1) == query_labels(5, 5)).double().mean().item()


@pytest.mark.parametrize("name", ["proto", "r2d2", "ridge", "finetune"])
def test_new_classes_from_one_image_each(name):
    images, labels = patterns()
    base, new = labels < 30, labels >= 30
    method = create_method(name)
    backbone = ns.create_model("cnn4", 30, in_channels=1, image_size=SIDE, width=16)
    network = method.build(backbone, 30 if method.trains_on == "images" else 5, (1, SIDE, SIDE))
    untrained = accuracy(method, network, images[new], labels[new])
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    episodes = Episodes(labels[base], n_shot=1, n_query=5, count=160)
    network.train()
    for step in range(40):
        drawn = episodes.batch(4 * step, 4 * step + 4)
        batch = as_tasks(images[base][drawn.support], images[base][drawn.query])
        if method.trains_on == "images":
            rows = torch.randperm(int(base.sum()))[:120]
            batch = Images(images[base][rows], labels[base][rows])
        optimiser.zero_grad()
        method.loss(network, batch).backward()
        optimiser.step()
    trained = accuracy(method, network, images[new], labels[new])
    # Chance is 0.2. Were an episode only worth one answer, the standard deviation over 100 of them
    # would be 0.04: this is five of these above chance.
    assert trained > 0.4
    assert trained > untrained + 0.1
