"""Networks by name: their sizes as worked out, their features, and what they refuse."""

import copy
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest
import torch
from support.networks import small_model
from torch import nn

import neural_similarity as ns
from neural_similarity.models import registry
from neural_similarity.models.cnn import CNN, authors_batch_norm
from neural_similarity.models.resnet import ResNet
from neural_similarity.nn.inventory import layer_similarities

MODULES = [
    import_module(f"neural_similarity.models.{module.name}")
    for module in iter_modules(ns.models.__path__)
]
ROWS = {
    name: row for module in MODULES for name, row in getattr(module, "CONFIGURATIONS", {}).items()
}


def numbers(model):
    return sum(p.numel() for p in model.parameters())


def test_every_network_has_a_row():
    assert sorted(ROWS) == ns.list_models()
    for kind in ("cnn", "efficientnet", "resnet"):
        names = [name for name in sorted(ROWS) if name.startswith(kind)]
        assert ns.list_models(f"{kind}*") == names


@pytest.mark.parametrize("name", ROWS)
def test_parameters_are_as_worked_out(name):
    row = ROWS[name]
    model = ns.create_model(name, getattr(row, "num_classes", 10))
    assert numbers(model) == row.parameters
    assert model.image_size == getattr(row, "image_size", 32)


def test_the_document_lists_every_network_with_its_parameters():
    document = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \| [\w ]+, \d+ px \|", document, re.MULTILINE)
    documented = {name: int(parameters.replace(",", "")) for name, parameters in rows}
    assert documented == {name: row.parameters for name, row in ROWS.items()}


@pytest.mark.parametrize("name", ["cnn4", "cnn9", "cnn10", "spherenet9_attention"])
def test_pooling_before_relu_is_the_same_bit_for_bit(name):
    """The definition rectifies first, then pools: ReLU and pooling change places."""
    ours, images = small_model(name)
    defined = copy.deepcopy(ours)
    for sequence in [m for m in defined.modules() if isinstance(m, nn.Sequential)]:
        pools = [i for i, layer in enumerate(sequence) if isinstance(layer, nn.MaxPool2d)]
        for i in pools:
            assert isinstance(sequence[i + 1], nn.ReLU)
            sequence[i], sequence[i + 1] = sequence[i + 1], sequence[i]
    results = []
    for model in (ours, defined):
        scores = model(images)
        scores.square().sum().backward()
        results.append([scores, *(p.grad for p in model.parameters())])
    assert any(isinstance(m, nn.MaxPool2d) for m in ours.modules())
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_cnn10_counts_of_table_5():
    millions = partial(round, ndigits=2)
    appendix = ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=32))
    plain, dynamic, half, plus = (
        numbers(ns.create_model(name, 1000, similarity))
        for name, similarity in (
            ("cnn10", None), ("cnn10", "dynamic"), ("cnn10", appendix), ("cnn10_plus", None),
        )
    )  # fmt: skip
    assert millions(plain / 1e6) == 8.90
    assert millions(dynamic / 1e6) == 9.61
    assert millions(plus / 1e6) == 9.71
    assert millions((half - plain) / 1e6) == 0.36


@pytest.mark.parametrize("num_classes", [10, 100])
def test_cnn9_plus_is_slightly_larger_than_every_variant(num_classes):
    plus = numbers(ns.create_model("cnn9_plus", num_classes))
    variants = [
        numbers(ns.create_model("cnn9", num_classes, config(structure)))
        for config in (ns.StaticSimilarity, ns.DynamicSimilarity)
        for structure in ("diagonal", "unconstrained", "kernel_shape")
    ]
    assert 1 < plus / max(variants) < 1.02


def test_cnn10_plus_is_slightly_larger_than_what_the_paper_compares_it_with():
    plus = numbers(ns.create_model("cnn10_plus", 1000))
    static = numbers(ns.create_model("cnn10", 1000, ns.StaticSimilarity("unconstrained")))
    dynamic = numbers(ns.create_model("cnn10", 1000, "dynamic"))
    assert static < dynamic < plus < 1.02 * dynamic


@pytest.mark.parametrize("name", ns.list_models())
def test_features_and_classifier_make_the_network(name):
    model, images = small_model(name)
    features = model.forward_features(images)
    assert features.dim() == 4
    assert features.shape[0] == 8
    vectors = model.forward_head(features, pre_logits=True)
    assert vectors.shape == (8, model.num_features)
    scores = model(images)
    assert scores.shape == (8, 5)
    assert torch.equal(model.forward_head(features), scores)
    assert torch.equal(model.get_classifier()(vectors), scores)
    scores.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "side", "features"),
    [
        ("cnn4", 84, 32 * 5 * 5),
        ("cnn4", 32, 32 * 2 * 2),
        ("cnn4", 28, 32),
        ("cnn9_root", 84, 128 * 10 * 10),
        ("cnn9_root", 28, 128 * 3 * 3),
        ("cnn9_root", 8, 128),
    ],
)
def test_poolings_drop_odd_rows(name, side, features):
    model = ns.create_model(name, in_channels=1, image_size=side).eval()
    assert model.num_features == features
    assert model.forward_features(torch.randn(1, 1, side, side)).flatten(1).shape == (1, features)


@pytest.mark.parametrize("side", [29, 57, 60, 64])
def test_the_entry_of_cnn10_keeps_odd_rows(side):
    model = ns.create_model("cnn10", image_size=side, width=4, hidden=None).eval()
    map_side = model.stages(model.stem(torch.randn(1, 3, side, side))).shape[-1]
    assert model.num_features == 16 * map_side**2


def test_cnn9_is_drawn_as_pytorch_draws_it():
    """Published experiments start from these weights: the network written out, one seed."""
    torch.manual_seed(3)
    layers, channels = [], 3
    for width in (32, 64, 128):
        for _ in range(3):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
            layers += [nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers += [nn.MaxPool2d(2)]
    written = nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 6)
    )
    torch.manual_seed(3)
    model = ns.create_model("cnn9", 6, image_size=16)
    for ours, theirs in zip(model.parameters(), written.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(model(images), written(images))


def test_he_initialisation_and_the_authors_batch_norm():
    model = ns.create_model("cnn9", init="he", norm_layer=authors_batch_norm)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, 0.001)}
    for layer in (model.stages[2][3], model.hidden[0]):
        fan_in = layer.weight[0].numel()
        # 147,456 numbers or more: their deviation is within 1 % of He's by five standard errors.
        assert layer.weight.std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.01)
    assert ROWS["cnn9_root"].init == "he"


def test_resnet18_has_the_names_of_torchvision():
    keys = {k: tuple(v.shape) for k, v in ns.create_model("resnet18", 1000).state_dict().items()}
    assert len(keys) == 122
    assert keys["conv1.weight"] == (64, 3, 7, 7)
    assert keys["bn1.running_mean"] == (64,)
    assert keys["layer1.1.conv2.weight"] == (64, 64, 3, 3)
    assert keys["layer2.0.downsample.0.weight"] == (128, 64, 1, 1)
    assert keys["layer4.0.downsample.1.num_batches_tracked"] == ()
    assert keys["fc.weight"] == (1000, 512)
    assert not any(key.startswith("layer1.0.downsample") for key in keys)


@pytest.mark.parametrize(
    ("name", "shallow"),
    [
        ("cnn9_root", {"depths": (1, 1, 1)}),
        ("efficientnet_lite0", {"depths": (1,) * 7}),
        ("resnet_cifar", {"depth": 8}),
    ],
)
def test_networks_export_for_any_batch(name, shallow):
    model, images = small_model(name, **shallow)
    batch = {0: torch.export.Dim("batch", min=2, max=64)}
    exported = torch.export.export(model.eval(), (images,), dynamic_shapes=(batch,)).module()
    torch.testing.assert_close(exported(images[:5]), model(images[:5]))


def test_resnets_of_other_depths():
    # He et al. give 0.46M for ResNet-32; torchvision counts 21,797,672 for ResNet-34.
    assert round(numbers(ns.create_model("resnet_cifar", depth=32)) / 1e6, 2) == 0.46
    assert numbers(ns.create_model("resnet18", 1000, depth=34)) == 21_797_672


@pytest.mark.parametrize(("poolings", "side"), [(None, 2), (2, 8), (0, 32)])
def test_fewer_poolings_leave_larger_maps(poolings, side):
    model = ns.create_model("cnn4", 5, image_size=32, width=3, poolings=poolings).eval()
    maps = model.forward_features(torch.randn(2, 3, 32, 32))
    assert maps.shape == (2, 3, side, side)
    assert model.num_features == 3 * side**2
    # Without pooling a stage is convolution, BatchNorm and ReLU, as with it.
    assert list(model.state_dict()) == list(ns.create_model("cnn4", 5, width=3).state_dict())
    assert (maps >= 0).all()


def test_a_network_of_ones_own(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    def make(num_classes, in_channels, **_):
        return nn.Sequential(nn.Conv2d(in_channels, num_classes, 5), nn.Flatten())

    ns.models.register_model("mine", make)
    ns.models.register_model("mine", make)  # a notebook cell that is run again
    model = ns.create_model("mine", 3, "static", in_channels=1, image_size=5, whatever=1)
    ns.models.register_model("bare", lambda num_classes, in_channels: nn.Identity())
    with pytest.raises(ns.UnknownNameError, match=r"\('bare'\): expected no options, got 'image_"):
        ns.create_model("bare", 3, image_size=5)
    assert model(torch.zeros(2, 1, 5, 5)).shape == (2, 3)
    assert layer_similarities(model[0])


@pytest.mark.parametrize("other", [partial(CNN, width=100), CNN, ResNet, lambda **_: None])
def test_a_name_in_use_is_refused(other):
    message = r"register_model: expected a name that is not in use, got 'cnn9' for .*\. It belongs "
    with pytest.raises(ns.DuplicateNameError, match=message + r"to neural_similarity.*\.CNN\."):
        ns.models.register_model("cnn9", other)
    assert numbers(ns.create_model("cnn9")) == ROWS["cnn9"].parameters
    ns.models.register_model("cnn9", partial(CNN, **ROWS["cnn9"].options()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "cnn"}, "expected name to be one of .*, got 'cnn'. Did you mean 'cnn"),
        ({"similarity": "statik"}, "'none', 'static', got 'statik'. Did you mean 'static'"),
        ({"similarity": 3}, "a StaticSimilarity, a DynamicSimilarity or to be one of"),
        ({"widht": 8}, r"create_model\('cnn9'\): expected an option .* Did you mean 'width'"),
        ({"num_classes": -1}, "CNN: expected num_classes to be a whole number of at least 0, got"),
        ({"in_channels": 1.5}, "expected in_channels to be a whole number .* got 1.5"),
        ({"image_size": True}, "expected image_size to be a whole number .* got True"),
        ({"image_size": 7}, "CNN: expected image_size of at least 8, got 7. 3 poolings"),
        ({"name": "cnn4", "image_size": 8}, "image_size of at least 16, got 8. 4 poolings"),
        ({"name": "cnn10", "image_size": 28}, "image_size of at least 29, got 28"),
        ({"width": 0}, "expected width to be a whole number of at least 1, got 0"),
        ({"hidden": 0}, "expected hidden to be a whole number of at least 1, got 0"),
        ({"depths": (1, 2)}, r"for the same stages, got \(1, 2, 4\) and \(1, 2\)"),
        ({"depths": (1, 0, 1)}, "expected depths to be a whole number of at least 1, got 0"),
        ({"poolings": 4}, "expected at most one pooling per stage, got 4 poolings and 3 stages"),
        ({"poolings": -1}, "expected poolings to be a whole number of at least 0, got -1"),
        ({"poolings": 2, "image_size": 3}, "image_size of at least 4, got 3. 2 poolings"),
        ({"stem": "leaf"}, "expected stem to be one of 'imagenet', 'none', 'root', got 'leaf'"),
        ({"init": "she"}, "expected init to be one of 'he', 'pytorch', got 'she'"),
        ({"name": "resnet_cifar", "depth": 18}, "multiple of 6, got 18. .* The nearest is 20"),
        ({"name": "resnet_cifar", "stem": "x"}, "ResNet: expected stem to be one of 'cifar'"),
        (
            {"name": "spherenet9", "similarity": "dynamic"},
            "has a dynamic version .*got SphereConv2d",
        ),
    ],
)
def test_what_create_model_refuses(options, message):
    with pytest.raises(ns.NeuralSimilarityError, match=message):
        ns.create_model(**{"name": "cnn9", **options})


def test_images_that_do_not_fit():
    model = CNN(image_size=8, width=4, hidden=8)
    with pytest.raises(ns.ShapeError, match=r"CNN: .*\('N', 3, 8, 8\), got \(1, 3, 9, 9\)"):
        model(torch.zeros(1, 3, 9, 9))
    with pytest.raises(ns.ShapeError, match=r"got \(3, 8, 8\)"):
        model(torch.zeros(3, 8, 8))
    model = ns.create_model("resnet_cifar", depth=8)
    with pytest.raises(ns.ShapeError, match=r"ResNet: .*\('N', 3, 'H', 'W'\), got \(1, 1, 9, 9\)"):
        model(torch.zeros(1, 1, 9, 9))


def test_a_network_is_registered_by_name_and_function():
    for wrong in ((CNN, "mine"), ("mine", 3)):
        with pytest.raises(ns.ShapeError, match="register_model: expected a name and a function"):
            ns.models.register_model(*wrong)


class Weighted(nn.Conv2d):
    """A convolution with a layer of its own inside."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.inner = nn.Conv2d(self.out_channels, self.out_channels, 1)
        nn.init.constant_(self.inner.weight, 0.5)

    def forward(self, input):
        return self.inner(super().forward(input))


@pytest.mark.parametrize("name", ["cnn9", "cnn9_root", "resnet_cifar", "resnet18"])
def test_layers_inside_what_conv_layer_makes_are_left_alone(name):
    small = {"width": 8} if name.startswith("cnn") else {}
    model = ns.create_model(name, 3, "static", image_size=32, conv_layer=Weighted, **small)
    inner = {path for path, module in model.named_modules() if path.endswith(".inner")}
    assert inner
    for path in inner:
        assert (model.get_submodule(path).weight == 0.5).all()
        assert not layer_similarities(model.get_submodule(path))
        assert layer_similarities(model.get_submodule(path.removesuffix(".inner")))


@pytest.mark.parametrize("name", ["cnn9", "cnn9_root", "resnet_cifar", "efficientnet_lite0"])
def test_conv_layer_may_have_a_parametrization(name):
    def weight_norm(*arguments, **options):
        return nn.utils.parametrizations.weight_norm(nn.Conv2d(*arguments, **options))

    model = ns.create_model(name, 3, image_size=32, conv_layer=weight_norm)
    assert model.eval()(torch.zeros(2, 3, 32, 32)).isfinite().all()
