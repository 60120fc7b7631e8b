"""Method ``blocks``: the last blocks and a classifier are tuned, and nothing else changes."""

import pytest
import torch
from support.adapt_cases import EYE, METHODS, backbone, pictures
from torch import nn

import neural_similarity as ns
from neural_similarity.adapt import FeatureExtractor, embed_images, make_adapter
from neural_similarity.errors import RunError

N_WAY = 3


@pytest.fixture(scope="module")
def data():
    images, _ = pictures((8,) * N_WAY, noise=10)
    return embed_images(backbone(), images, torch.arange(N_WAY).repeat_interleave(8), N_WAY)


class Odd(nn.Module):
    """A layer that never runs, one that is registered last and runs first, and a tied weight."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(6)))
        self.body[1].weight = self.body[5].weight
        self.unused = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        self.first = nn.Conv2d(3, 3, 1)

    def forward(self, images):
        return self.norm(self.body(self.first(images))).mean((2, 3))


def adapt(module):
    images, _ = pictures((2,) * N_WAY)
    extractor = FeatureExtractor(module, EYE.preprocessing)
    labels = torch.arange(N_WAY).repeat_interleave(2)
    return make_adapter("blocks", embed_images(extractor, images, labels, N_WAY))


def test_the_last_four_layers_are_tuned_and_the_norms_after_them():
    adapter = adapt(ns.create_model("resnet18", num_classes=0, image_size=8).eval())
    weights = {name for name, tensor in adapter.start.items() if tensor.dim() == 4}
    assert weights == {
        f"layer4.{name}.weight" for name in ("0.conv2", "0.downsample.0", "1.conv1", "1.conv2")
    }
    norms = {name.rpartition(".")[0] for name, tensor in adapter.start.items() if tensor.dim() == 1}
    assert norms == {f"layer4.{name}" for name in ("0.bn2", "0.downsample.1", "1.bn1", "1.bn2")}


def test_layers_count_that_run_and_weights_of_two_layers_stay():
    adapter = adapt(Odd().eval())
    tuned = {f"body.{n}.{kind}" for n in (2, 3, 4, 5) for kind in ("weight", "bias")}
    assert set(adapter.start) == tuned - {"body.5.weight"} | {"norm.weight", "norm.bias"}
    rows = torch.arange(len(adapter.data))
    learned = adapter.fit(rows)
    pixels = adapter.data.backbone.preprocessing.normalise(adapter.data.pixels(rows))
    torch.testing.assert_close(
        adapter.network(learned)(pixels), adapter.scores(learned, rows), rtol=1e-4, atol=1e-4
    )


def test_similarities_are_merged_before():
    module = ns.attach(backbone().module, ns.StaticSimilarity())
    assert not any("similarit" in name or "parametriz" in name for name in adapt(module).start)


def test_training_images_are_learned_and_the_network_gives_the_same_scores(data):
    adapter, rows = make_adapter("blocks", data), torch.arange(len(data))
    before = {name: tensor.clone() for name, tensor in adapter.start.items()}
    learned = adapter.fit(rows)
    scores = adapter.scores(learned, rows)
    assert (scores.argmax(1) == data.labels).all()
    assert all(torch.equal(tensor, adapter.start[name]) for name, tensor in before.items())
    changed = [name for name in before if not torch.equal(before[name], learned[name])]
    assert set(changed) == set(before), "a parameter was not tuned"
    network = adapter.network(learned)
    pixels = data.backbone.preprocessing.normalise(data.pixels(rows))
    torch.testing.assert_close(network(pixels), scores, rtol=1e-4, atol=1e-4)
    own = dict(data.backbone.module.named_parameters())
    for name, parameter in network.backbone.named_parameters():
        assert name in before or torch.equal(parameter, own[name])


def test_it_is_the_same_each_time_and_on_a_part_of_the_images(data):
    adapter, rows = make_adapter("blocks", data), torch.arange(0, len(data), 2)
    first, again = adapter.fit(rows), adapter.subset(rows, data.labels[rows])
    second = again.fit(torch.arange(len(rows)))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_class_of_few_images_counts_as_much_as_one_of_many(data):
    """As if its images came more often: the loss of each class has the same share."""
    adapter = make_adapter("blocks", data)
    rows = torch.cat([torch.arange(8), torch.tensor([8, 16])])
    learned = adapter.fit(rows)
    found = adapter.scores(learned, rows[8:]).argmax(1)
    assert found.tolist() == [1, 2]


def test_the_classifier_chooses_it_by_name_alone():
    images, labels = pictures((4, 4), noise=20)
    base = backbone()
    made = ns.FewShotClassifier("blocks", base, folds=2).fit(images, labels)
    assert made.method_ == "blocks"
    auto = ns.FewShotClassifier(backbone=base, folds=2).fit(images, labels)
    assert "takes minutes" in auto.cross_validation_.left_out["blocks"]
    with pytest.raises(RunError, match="'blocks' needs a backbone with weights in float32"):
        ns.FewShotClassifier("blocks", EYE).fit(images, labels)
    with pytest.raises(RunError, match="needs a backbone without a dynamic"):
        ns.FewShotClassifier("blocks", backbone(METHODS["dynamic"])).fit(images, labels)
    numbers = torch.tensor([0] * 4 + [1] * 4)
    with pytest.raises(RunError, match="expected a method that works here, got none: blocks tak"):
        ns.FewShotClassifier().fit_embedded(
            embed_images(base, images, numbers, 2), ["a", "b"], ("blocks",)
        )


def test_it_is_saved_and_loaded(tmp_path):
    images, labels = pictures((5, 4, 6))
    made = ns.FewShotClassifier("blocks", backbone(), folds=1).fit(images, labels)
    new, new_labels = pictures((9, 9, 9), seed=1)
    made.save(tmp_path / "mine")
    loaded = ns.FewShotClassifier.load(tmp_path / "mine")
    assert (loaded.predict_proba(new) == made.predict_proba(new)).all()
    assert made.score(new, new_labels) > 0.8
