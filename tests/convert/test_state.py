"""State dicts in every direction, copies, the meta device, freezing and counting."""

import copy

import pytest
import torch
from support.cases import LAYERS, STRUCTURES, disturb, layers, output
from support.networks import NETWORKS, PlainCNN, ResNet, train_step
from torch import nn

import neural_similarity as ns

STATIC = ns.StaticSimilarity("unconstrained")


@pytest.mark.parametrize("layer", LAYERS)
def test_a_stock_checkpoint_loads_into_an_attached_layer(layer):
    pretrained, shape = layers()[layer]
    module, _ = layers()[layer]
    ns.attach(module, ns.StaticSimilarity(target_modules=".*"))
    result = module.load_state_dict(pretrained.state_dict())
    assert not result.missing_keys
    assert not result.unexpected_keys
    input = torch.randn(shape)
    assert torch.equal(output(module.eval(), input), output(pretrained.eval(), input))


@pytest.mark.filterwarnings("ignore::neural_similarity.SkippedLayerWarning")
@pytest.mark.parametrize("network", NETWORKS)
def test_round_trips_of_whole_networks(network):
    make, shape, targets = NETWORKS[network]
    config = ns.StaticSimilarity("unconstrained", target_modules=targets)
    first, second, plain = make().eval(), make().eval(), make().eval()
    ns.attach(first, config)
    ns.attach(second, config)
    disturb(first)
    input = torch.randn(shape)
    second.load_state_dict(first.state_dict())
    assert torch.equal(second(input), first(input))
    plain.load_state_dict(ns.effective_state_dict(first))
    torch.testing.assert_close(plain(input), first(input))

    similarity = [p.clone() for p in ns.similarity_parameters(first)]
    first.load_state_dict(make().state_dict())
    for before, after in zip(similarity, ns.similarity_parameters(first), strict=True):
        assert torch.equal(before, after), "a stock checkpoint must leave the similarity alone"


def test_a_checkpoint_that_lacks_a_weight_is_still_refused():
    model = ns.attach(PlainCNN(), STATIC)
    state = PlainCNN().state_dict()
    del state["features.3.weight"]
    with pytest.raises(RuntimeError, match=r"features\.3\.parametrizations\.weight\.original"):
        model.load_state_dict(state)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict({**PlainCNN().state_dict(), "features.0.nonsense": torch.ones(1)})


@pytest.mark.parametrize("layer", LAYERS)
def test_deep_copies_are_independent(layer):
    module, shape = layers()[layer]
    module.eval()
    ns.attach(module, ns.StaticSimilarity(target_modules=".*"))
    disturb(module)
    input = torch.randn(shape)
    before = output(module, input)  # recurrent layers now hold computed weights
    copied = copy.deepcopy(module)
    assert torch.equal(output(copied, input), before)
    disturb(copied)
    assert not torch.equal(output(copied, input), before)
    assert torch.equal(output(module, input), before)
    copied.load_state_dict(layers()[layer][0].state_dict())  # its own hook, not the original's
    assert torch.equal(output(module, input), before)


def test_freeze_backbone_leaves_similarity_and_classifier():
    model = ns.attach(PlainCNN(), ns.StaticSimilarity())
    total = sum(p.numel() for p in model.parameters())
    summary = ns.freeze_backbone(model)
    classifier = 10 * 4 + 4
    assert summary == ns.TrainableSummary(
        trainable=9 + 9 + 15 + classifier, total=total, similarity=33, deployed=total - 33
    )
    assert str(summary) == (
        f"trains 77 of {total:,} parameters ({7700 / total:.2f}%), 33 of them similarity; "
        f"{total - 33:,} once merged"
    )
    frozen = {k: v.clone() for k, v in model.named_parameters() if not v.requires_grad}
    train_step(model, torch.randn(5, 3, 12, 10))
    assert all(torch.equal(v, frozen[k]) for k, v in model.named_parameters() if k in frozen)
    assert not torch.equal(next(iter(ns.similarity_parameters(model))), torch.ones(9)), (
        "the similarity must learn"
    )


def test_freeze_backbone_knows_every_name_of_what_is_shared():
    neck, body = nn.Linear(4, 4), nn.Conv2d(3, 4, 3)
    model = nn.ModuleDict({"body": body, "first": neck, "second": neck, "head": nn.Linear(4, 4)})
    model["tied"] = nn.Linear(4, 4, bias=False)
    model["tied"].weight = neck.weight
    ns.attach(model, ns.StaticSimilarity())
    for also in ("second|head", ["second"], ["tied.weight"]):
        ns.freeze_backbone(model, also_train=also)
        assert neck.weight.requires_grad
        assert not body.bias.requires_grad


def test_freeze_backbone_also_train():
    def trained(also):
        model = ns.attach(PlainCNN(), ns.StaticSimilarity(target_modules=["3"]))
        ns.freeze_backbone(model, also_train=also)
        return {n for n, p in model.named_parameters() if p.requires_grad}

    similarity = {"features.3.parametrizations.weight.0.numbers.diagonal"}
    assert trained([]) == similarity
    assert trained(["1"]) == similarity | {"features.1.weight", "features.1.bias"}
    assert trained(r".*bias") == similarity | {
        "classifier.bias", "features.1.bias", "features.3.bias", "features.6.bias",
    }  # fmt: skip
    for nothing in (["nothing"], "nothing"):
        with pytest.raises(ns.AttachError, match="got 'nothing', which matches none"):
            trained(nothing)


def test_the_last_of_several_linear_layers_is_the_classifier():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 8), nn.Linear(8, 2))
    ns.attach(model, ns.StaticSimilarity())
    ns.freeze_backbone(model)
    assert [p.requires_grad for p in model[2].parameters()] == [False, False]
    assert [p.requires_grad for p in model[3].parameters()] == [True, True]


def test_freeze_backbone_finds_timm_style_classifiers():
    model = ns.attach(PlainCNN(), ns.StaticSimilarity())
    model.get_classifier = lambda: model.features[6]
    ns.freeze_backbone(model)
    assert model.features[6].bias.requires_grad
    assert not model.classifier.weight.requires_grad


def test_freezing_what_has_nothing_to_train_is_an_error():
    with pytest.raises(ns.AttachError, match="freeze_backbone: expected a model with an attached"):
        ns.freeze_backbone(PlainCNN())
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 3, 3)), STATIC)
    with pytest.raises(ns.AttachError, match="expected a classifier"):
        ns.freeze_backbone(model)
    assert all(p.requires_grad for p in model.parameters())
    assert ns.freeze_backbone(model, also_train=[]).trainable == 81


def test_summary_of_a_plain_model():
    model = ResNet()
    count = sum(p.numel() for p in model.parameters())
    assert ns.trainable_summary(model) == ns.TrainableSummary(count, count, 0, count)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("scope", ["layer", "kernel"])
def test_models_made_on_the_meta_device_begin_where_others_do(structure, scope):
    kind = STRUCTURES[structure]
    usual = ns.nn.StaticConv2d(3, 4, 3, structure=kind, scope=scope)
    with torch.device("meta"):
        conv = ns.nn.StaticConv2d(3, 4, 3, structure=kind, scope=scope)
        over = ns.nn.GlobalSimilarityConv2d(3, 4, 3, structure=kind, size=3)
        attention = ns.nn.SelfAttention2d(4)
    for module in (conv, over, attention):
        module.to_empty(device="cpu")
        for parameter in module.parameters():
            nn.init.constant_(parameter, 7.0)  # what memory may hold
        for part in module.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
    for ours, theirs in zip(
        ns.similarity_parameters(conv), ns.similarity_parameters(usual), strict=True
    ):
        assert torch.equal(ours, theirs)
    begun = ns.nn.GlobalSimilarityConv2d(3, 4, 3, structure=kind, size=3)
    image = torch.randn(1, 3, 3, 3)
    assert torch.equal(over.similarity.similarity(image), begun.similarity.similarity(image))
    assert attention.gain == 0
