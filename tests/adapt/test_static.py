"""Method static: which part of a network is tuned, and what is learned there."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.adapt_cases import SEEN, backbone, pictures
from torch import nn

import neural_similarity as ns
from neural_similarity.adapt import FeatureExtractor
from neural_similarity.adapt.candidates import Candidates
from neural_similarity.adapt.methods import StaticOptions, make_adapter
from neural_similarity.adapt.methods.adam import Adam
from neural_similarity.adapt.methods.cached_trunk import CachedTrunk
from neural_similarity.adapt.methods.static import StaticAdapter, tuned_part
from neural_similarity.adapt.training_images import embed_images
from neural_similarity.nn.inventory import static_similarities

ROWS = torch.arange(12)


def data_of(base, counts=(4, 4, 4), noise=90.0):
    images, _ = pictures(counts, noise=noise)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return embed_images(base, images, labels, len(counts))


class Shortcut(nn.Module):
    """A block whose input is used again behind its layers."""

    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, 2 * channels, 1)
        self.relu = nn.ReLU(inplace=True)
        self.second = nn.Conv2d(2 * channels, channels, 3, padding=1)

    def forward(self, input):
        return input + self.second(self.relu(self.first(input)))


class LongWay(nn.Module):
    """The image is used again at the end, so no map in the middle is enough."""

    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, input):
        return self.high(self.low(input)) + input


class Twice(nn.Module):
    """The lower layer is called a second time, after the upper one."""

    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, input):
        return self.low(self.high(self.low(input).relu()))


CUTS = [
    (nn.Sequential(Shortcut(3), Shortcut(3), Shortcut(3), nn.Flatten()), "2.second", "1"),
    (nn.Sequential(Shortcut(3), Shortcut(3), nn.Flatten()), "0.second", None),
    (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3)), "2", "1"),
    (nn.Sequential(nn.Conv2d(3, 40, 1), nn.Conv2d(40, 2, 1), nn.Conv2d(2, 60, 1),
                   nn.Conv2d(60, 4, 3)), "3", "1"),
    (LongWay(), "high", None),
    (Twice(), "high", None),
]  # fmt: skip


@pytest.mark.parametrize(("network", "layer", "cut"), CUTS)
def test_the_lower_part_is_computed_once(network, layer, cut):
    network.eval()
    part = CachedTrunk(network, [layer], (3, 8, 8))
    assert part.cut == cut
    images = torch.rand(5, 3, 8, 8)
    maps = part.lower(images)
    assert torch.equal(maps, images) == (cut is None)
    calls = []
    handles = [m.register_forward_hook(lambda *_: calls.append(1)) for m in network.modules()]
    with torch.no_grad():
        features = part(maps.clone())
        assert not calls or cut is None
        torch.testing.assert_close(features, network(images).flatten(1))
    for handle in handles:
        handle.remove()


def test_the_upper_part_has_all_similarities_and_no_more_than_it_needs():
    model = ns.create_model("cnn4", 5, image_size=32).eval()
    part = tuned_part(FeatureExtractor(model, replace(SEEN, image_size=32)), StaticOptions())
    assert part.cut == "stages.2"
    whole = ns.create_model("cnn4", 5, image_size=32)
    assert model.state_dict().keys() == whole.state_dict().keys(), "the user's network changed"


@pytest.mark.parametrize(
    ("layers", "names"),
    [
        (1.0, ["stages.0.0", "stages.1.0"]),
        (0.1, ["stages.1.0"]),
        (["stages.0.0"], ["stages.0.0"]),
        (r"stages\.0\..*", ["stages.0.0"]),
        ("all-conv", ["stages.0.0", "stages.1.0"]),
    ],
)
def test_layers_by_share_and_by_name(layers, names):
    part = tuned_part(backbone(), StaticOptions(layers=layers))
    assert [name for name, m in part.whole.named_modules() if static_similarities(m)] == names


def test_a_classifier_tunes_what_its_settings_name(tmp_path):
    images, labels = pictures((3, 3))
    settings = {"structure": "diagonal", "scope": "channel", "layers": ["stages.0.0"]}
    classifier = ns.FewShotClassifier("static", backbone(), 1, **settings)
    candidates = Candidates("static", classifier._static_options())
    candidates.on_images(classifier.backbone, list(images), torch.arange(6) // 3, 2, None)
    start = candidates.adapters["static"].start
    assert [tuple(tensor.shape) for tensor in start.values()] == [(3, 9)]
    assert all("stages.0.0" in name for name in start)
    classifier.fit(images, labels).save(tmp_path / "saved")
    again = ns.FewShotClassifier.load(tmp_path / "saved")
    assert {name: again.get_params()[name] for name in settings} == settings


@pytest.mark.parametrize(
    ("method", "settings", "text"),
    [
        ("linear", {"structure": "diagonal"}, "structure only with method 'static', got method 'l"),
        ("auto", {"layers": 0.5, "scope": "layer"}, "expected scope, layers only with method"),
        ("static", {"structure": "diagnal"}, "Did you mean 'diagonal'"),
        ("static", {"scope": "all"}, "scope to be one of"),
        ("static", {"layers": 0.0}, "a share above 0 and at most 1, got 0.0"),
        ("static", {"layers": 2}, "a share above 0 and at most 1, got 2"),
        ("static", {"layers": "("}, "a regular expression that matches whole names"),
        ("static", {"layers": ["head"]}, "needs layers that can have a similarity .*'head'"),
    ],
)
def test_settings_that_it_does_not_take(method, settings, text):
    images, labels = pictures((2, 2))
    with pytest.raises(ns.errors.NeuralSimilarityError, match=text):
        ns.FewShotClassifier(method, backbone(), **settings).fit(images, labels)


@pytest.mark.parametrize("structure", ["unconstrained", "orthogonal", "diagonal"])
def test_it_tunes_late_similarities_and_merges_them(structure, monkeypatch):
    base = backbone()
    data = data_of(base)
    adapter = StaticAdapter(data, StaticOptions(structure, lr=0.1, image_steps=200))
    kept_apart, start = torch.ones(3), adapter.start

    def losses(now, *_):  # as if the farthest from the identity were the best
        return -kept_apart * sum((now[name] - start[name]).norm() for name in start)

    monkeypatch.setattr(adapter, "_losses", losses)
    learned = adapter.fit(ROWS)
    assert set(learned) - {"classifier:weight", "classifier:bias"} == set(adapter.start)
    assert all("stages.1.0" in name for name in adapter.start), "early layers hurt"
    assert all((learned[name] - adapter.start[name]).abs().max() > 1e-3 for name in adapter.start)
    scores, network = adapter.scores(learned, ROWS), adapter.network(learned)
    with torch.no_grad():
        merged = network(SEEN.normalise(data.pixels(ROWS)))
    # the merged kernels are rounded once to float32
    torch.testing.assert_close(merged, scores, rtol=1e-3, atol=1e-3)
    plain, kept = base.module.state_dict(), network.backbone.state_dict()
    assert kept.keys() == plain.keys()
    different = [name for name in kept if not torch.equal(kept[name], plain[name])]
    assert different == ["stages.1.0.weight"], "BatchNorm and other layers stay"
    again = adapter.fit(ROWS)
    assert all(torch.equal(learned[name], again[name]) for name in learned)


def test_what_does_not_help_is_not_tuned():
    """A learning rate that destroys features ends in the classifier of method linear."""
    data = data_of(backbone())
    adapter = StaticAdapter(data, StaticOptions(lr=50.0))
    learned = adapter.fit(ROWS)
    assert all(torch.equal(learned[name], adapter.start[name]) for name in adapter.start)
    linear = make_adapter("linear", data)
    expected = linear.scores(linear.fit(ROWS), ROWS)
    torch.testing.assert_close(adapter.scores(learned, ROWS), expected, rtol=1e-3, atol=1e-3)


def test_it_can_learn_what_the_features_do_not_show():
    """The kernel blurs; with a similarity it can tell more."""
    torch.manual_seed(3)
    conv = nn.Conv2d(1, 1, 3, bias=False)
    nn.init.ones_(conv.weight)
    module = nn.Sequential(nn.Conv2d(3, 1, 1), conv, nn.AdaptiveMaxPool2d(2), nn.Flatten()).eval()
    base = FeatureExtractor(module, SEEN)
    data = data_of(base, (10, 10), noise=110.0)
    static = StaticAdapter(data, StaticOptions(lr=0.1))
    linear = make_adapter("linear", data)
    rows = torch.arange(20)
    errors = {}
    for adapter in (static, linear):
        scores = adapter.scores(adapter.fit(rows), rows)
        errors[type(adapter)] = F.cross_entropy(scores, data.labels).item()
    assert errors[StaticAdapter] < errors[type(linear)]


def test_its_steps_are_those_of_torch():
    start, target = torch.randn(4, 3).double(), torch.randn(4, 3).double()
    ours, theirs = start.clone(), start.clone().requires_grad_()
    optimiser, reference = Adam([ours], [0.1]), torch.optim.Adam([theirs], lr=0.1)
    for step in range(5):
        optimiser.step([4 * (ours - target) ** 3], share=1 - step / 5)
        reference.param_groups[0]["lr"] = 0.1 * (1 - step / 5)
        theirs.grad = 4 * (theirs.detach() - target) ** 3
        reference.step()
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-10, atol=1e-12)
    assert (ours - start).abs().min() > 0.1


def test_one_image_of_each_class_tunes_nothing():
    data = data_of(backbone(), (1, 1))
    adapter = make_adapter("static", data)
    learned = adapter.fit(torch.arange(2))
    assert all(torch.equal(learned[name], adapter.start[name]) for name in adapter.start)


def test_similarities_of_the_backbone_are_merged_first():
    base = backbone()
    ns.attach(base.module, ns.StaticSimilarity("diagonal"))
    with torch.no_grad():
        for parameter in ns.similarity_parameters(base.module):
            parameter.mul_(1.5)
    data = data_of(base)
    adapter = StaticAdapter(data, StaticOptions(lr=50.0))
    features = adapter._features(adapter.start, ROWS)
    torch.testing.assert_close(features, F.normalize(data.features), rtol=1e-4, atol=1e-5)
    assert ns.similarity_parameters(base.module), "the user's network changed"
