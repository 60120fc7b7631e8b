"""Predictors: what the paper says, the authors' initialisation, sharing, and custom predictors."""

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from support import oracle
from support.cases import PATCH_PREDICTORS, SMALL, disturb
from torch import nn

import neural_similarity as ns
from neural_similarity import structures


def weights(model):
    return sum(
        p.numel() for n, p in model.named_parameters() if "predictor" in n and "norm" not in n
    )


def test_parameter_counts_of_the_paper():
    """CNN-10's nine 3×3 layers gain 710,208 convolution weights with 64 hidden units."""
    half = ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=32))
    assert weights(ns.create_model("cnn10", similarity=half)) == 710_208 // 2
    cnn10 = ns.create_model("cnn10", similarity="dynamic")
    assert weights(cnn10) == 710_208
    batch_norms = 9 * 2 * (64 + 9)
    assert ns.trainable_summary(cnn10).similarity == 710_208 + batch_norms


def test_defaults_follow_the_paper():
    diagonal = ns.nn.DynamicConv2d(3, 4, 3).predictor.network
    assert diagonal.first.weight.shape == (64, 3, 3, 3)
    assert diagonal.last.weight.shape == (9, 64, 3, 3)
    assert isinstance(diagonal.first_norm, nn.BatchNorm2d)
    full = ns.nn.DynamicConv2d(3, 4, 3, structure="unconstrained").predictor.network
    assert full.first.weight.shape == (128, 3, 3, 3)
    assert full.last.weight.shape == (81, 128, 3, 3)
    assert isinstance(full.first_norm, nn.Identity)


def test_the_authors_start_is_available():
    identity = ns.nn.DynamicConv2d(8, 4, 3, predictor=ns.SpherePredictor())
    authors = ns.nn.DynamicConv2d(8, 4, 3, predictor=ns.SpherePredictor(start="authors"))
    input = torch.randn(16, 8, 12, 12)
    assert torch.equal(identity.similarity(input), torch.ones(16, 9, 10, 10))
    M = authors.similarity(input)
    assert M.mean().item() == pytest.approx(1, abs=0.01)
    assert 0.005 < M.std().item() < 0.05, "one plus a little noise"
    network = authors.predictor.network
    assert network.first.weight.std().item() == pytest.approx(0.1 * (2 / 72) ** 0.5, rel=0.1)
    assert network.last.weight.std().item() == pytest.approx(0.001 * (2 / 576) ** 0.5, rel=0.1)
    without = ns.SpherePredictor(residual=False, start="authors", batch_norm=False)
    M = ns.nn.DynamicConv2d(8, 4, 3, predictor=without).similarity(input)
    assert M.abs().max() < 0.1


def test_shared_predictors():
    plain = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, stride=2), nn.Conv2d(6, 4, 3, dilation=2),
        nn.Conv2d(4, 5, (1, 3)),
    )  # fmt: skip
    config = ns.DynamicSimilarity(predictor=SMALL, shared=True, shared_width=5)
    model = ns.attach(copy.deepcopy(plain), config)
    networks = [layer.predictor.network for layer in model]
    assert networks[0].core is networks[1].core is networks[2].core
    assert networks[3].core is not networks[0].core, "another kernel size"
    assert networks[1].adaptation is networks[2].adaptation, "equal widths"
    assert networks[0].adaptation is not networks[1].adaptation
    input = torch.randn(2, 3, 16, 15)
    torch.testing.assert_close(model(input), plain(input))
    names = [id(p) for p in ns.similarity_parameters(model)]
    assert len(names) == len(set(names))
    disturb(model)
    copied = copy.deepcopy(model)
    assert copied[0].predictor.network.core is copied[1].predictor.network.core
    assert not torch.allclose(model(input), plain(input))


def test_sharing_saves_about_half_of_the_papers_cnn9():
    disjoint = weights(ns.create_model("cnn9", similarity="dynamic"))
    shared = ns.create_model("cnn9", similarity=ns.DynamicSimilarity(shared=True))
    count = sum(p.numel() for p in ns.similarity_parameters(shared)) - 2 * (64 + 9)
    assert 0.45 < count / disjoint < 0.5


def test_fully_connected_layers_share_too():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 4))
    plain = copy.deepcopy(model)
    config = ns.DynamicSimilarity(
        predictor=SMALL, shared=True, shared_width=5, target_modules=["0", "1"]
    )
    ns.attach(model, config)
    disturb(model)
    first, last = (layer.predictor.network for layer in model.eval())
    assert first.core is last.core
    assert first.adaptation is last.adaptation
    x = torch.randn(7, 6)
    for layer, other in zip(model, plain, strict=True):
        M = 1 + first.core(first.adaptation(x), None)
        x, expected = layer(x), (M * x) @ other.weight.T + other.bias
        torch.testing.assert_close(x, expected)


class Nine(nn.Module):
    """A predictor of one's own."""

    def __init__(self, outputs=9, scale=0.0):
        super().__init__()
        self.net, self.scale = nn.Conv2d(3, outputs, 3, padding=1), scale

    def forward(self, input, window):
        return self.net(input) * self.scale


def test_a_predictor_of_your_own():
    plain = nn.Conv2d(3, 4, 3, padding=1)
    predictor = Nine()
    layer = ns.nn.DynamicConv2d(3, 4, 3, padding=1, predictor=predictor)
    layer.load_state_dict(plain.state_dict())
    input = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(layer(input), plain(input))
    predictor.scale = 0.7
    M = 1 + 0.7 * predictor.net(input).flatten(2)
    patches = F.unfold(input, 3, padding=1).unflatten(1, (3, 9))
    mixed = torch.einsum("oci,nil,ncil->nol", plain.weight.flatten(2), M, patches)
    expected = mixed.unflatten(2, (8, 8)) + plain.bias.reshape(-1, 1, 1)
    torch.testing.assert_close(layer(input), expected)
    with pytest.raises(
        ns.AttachError, match="got a Nine in layer '0', which a file cannot describe"
    ):
        ns.save_similarity(nn.Sequential(layer), "never-written")
    with pytest.raises(
        ns.AttachError, match=r"a configuration such as PatchPredictor\(\), got Nine"
    ):
        ns.DynamicSimilarity(predictor=Nine())


@pytest.mark.parametrize(
    ("predictor", "message"),
    [
        (Nine(8), r"expected 9 parameters at each position for structure 'diagonal' with 9 taps, "
                  r"got output of shape \(2, 8, 8, 8\)\. Give the predictor 9 output channels"),
        (nn.Sequential(), "forward"),
    ],
)  # fmt: skip
def test_a_predictor_that_does_not_fit(predictor, message):
    layer = ns.nn.DynamicConv2d(3, 4, 3, padding=1, predictor=predictor)
    with pytest.raises((ns.ShapeError, TypeError), match=message):
        layer(torch.randn(2, 3, 8, 8))


class Flat(nn.Module):
    """One M per image without the axes of positions."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 9)

    def forward(self, input, window):
        return self.linear(input.amax((2, 3)))


@pytest.mark.parametrize("batch", [9, 5])  # nine would look like one matrix for all
def test_a_prediction_without_positions_is_refused(batch):
    layer = ns.nn.DynamicConv2d(3, 4, 3, padding=1, predictor=Flat())
    message = rf"expected output of shape \(N, 9, P, Q\) for a batch of N = {batch}, got "
    with pytest.raises(ns.ShapeError, match=message + rf"\({batch}, 9\)\. .* is \(N, 9, 1, 1\)"):
        layer(torch.randn(batch, 3, 8, 8))


def test_a_prediction_for_another_batch_is_refused():
    class Half(Nine):
        def forward(self, input, window):
            return super().forward(input, window)[:2]

    layer = ns.nn.DynamicConv2d(3, 4, 3, padding=1, predictor=Half())
    with pytest.raises(ns.ShapeError, match=r"for a batch of N = 4, got \(2, 9, 8, 8\)"):
        layer(torch.randn(4, 3, 8, 8))
    assert layer(torch.randn(2, 3, 8, 8)).shape == (2, 4, 8, 8)


@pytest.mark.parametrize(
    "similarity",
    [SMALL, ns.ImagePredictor(hidden=2), ns.PixelPredictor(hidden=2), ns.PairPredictor(channels=2)],
    ids=lambda predictor: predictor.kind,
)
def test_dynamic_layers_run_on_the_meta_device(similarity):
    layer = ns.nn.DynamicConv2d(3, 4, 3, predictor=similarity).to("meta")
    assert layer(torch.empty(2, 3, 8, 8, device="meta")).shape == (2, 4, 6, 6)


def test_a_predictor_of_another_size_is_named():
    layer = ns.nn.DynamicConv2d(3, 4, 3, predictor=Nine())  # it pads, the layer does not
    with pytest.raises(ns.ShapeError, match=r"shape \(2, 9, 6, 6\), got \(2, 9, 8, 8\)"):
        layer(torch.randn(2, 3, 8, 8))


def predicted_by_hand(network, input, config, stride, padding):
    """The predictor in the paper's words, one position and unit at a time; 3×3 kernels."""

    def norm(v):
        return (float(v @ v) + 1e-4) ** 0.5

    def layer(x, weight, sphere, both, stride, padding):
        P, Q = ((s + 2 * padding - 3) // stride + 1 for s in x.shape[2:])
        y = torch.empty(len(x), len(weight), P, Q, dtype=x.dtype)
        for n in range(len(x)):
            for p in range(P):
                for q in range(Q):
                    patch = oracle.patch(
                        x[n],
                        range(x.shape[1]),
                        (p, q),
                        (3, 3),
                        (stride,) * 2,
                        (padding,) * 2,
                        (1, 1),
                    )
                    for o, w in enumerate(weight.reshape(len(weight), -1)):
                        value = float(w @ patch)
                        value /= norm(patch) if sphere else 1
                        value /= norm(w) if both else 1
                        y[n, o, p, q] = value
        return y

    def batch_norm(module, x):
        if isinstance(module, nn.Identity):
            return x
        shape = (1, -1, 1, 1)
        scale = module.weight / (module.running_var + module.eps).sqrt()
        return (x - module.running_mean.reshape(shape)) * scale.reshape(
            shape
        ) + module.bias.reshape(shape)

    sphere = isinstance(config, ns.SpherePredictor)
    both = sphere and config.normalize == "both"
    hidden = layer(input, network.first.weight, sphere, both, stride, padding)
    hidden = batch_norm(network.first_norm, hidden).clamp(min=0)
    z = batch_norm(network.last_norm, layer(hidden, network.last.weight, both, both, 1, 1))
    if not sphere and config.output == "normalized":
        z = z / (z.square().sum(1, keepdim=True) + 1e-4).sqrt()
    if not sphere and config.output == "sigmoid":
        z = 1 / (1 + torch.exp(-z)) - 0.5
    return z


@torch.no_grad()
@pytest.mark.parametrize("structure", ["diagonal", "unconstrained"])
@pytest.mark.parametrize("name", PATCH_PREDICTORS)
def test_predictors_are_what_the_paper_says(name, structure):
    layer = ns.nn.DynamicConv2d(
        2, 3, 3, stride=2, padding=1, structure=structure, predictor=PATCH_PREDICTORS[name]
    ).double()
    disturb(layer)
    input = torch.randn(2, 2, 6, 7, dtype=torch.float64)
    layer(input)  # BatchNorm statistics of their own
    layer.eval()
    z = predicted_by_hand(layer.predictor.network, input, PATCH_PREDICTORS[name], 2, 1)
    if structure == "diagonal":
        truth = z + 1
    else:
        truth = z.reshape(2, 9, 9, 3, 4) + torch.eye(9)[..., None, None]
    torch.testing.assert_close(layer.similarity(input), truth)


def test_half_a_predictor_is_refused():
    layer = ns.nn.DynamicConv2d(3, 4, 3, predictor=SMALL)
    state = layer.state_dict()
    del state["predictor.network.last.weight"]
    with pytest.raises(RuntimeError, match=r"Missing key.*predictor\.network\.last\.weight"):
        ns.nn.DynamicConv2d(3, 4, 3, predictor=SMALL).load_state_dict(state)


def test_the_meta_device_can_be_filled_in():
    with torch.device("meta"):
        layer = ns.nn.DynamicConv2d(3, 4, 3, predictor=SMALL)
    layer.to_empty(device="cpu")
    for module in reversed(list(layer.modules())):  # from the inside out
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert torch.equal(layer.similarity(torch.randn(1, 3, 5, 5)), torch.ones(1, 9, 3, 3))


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("structure", ["diagonal", "unconstrained"])
def test_a_model_from_the_meta_device_is_the_one_that_was_saved(structure, assign):
    config = ns.DynamicSimilarity(structure, SMALL)
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3)), config).bfloat16().eval()
    disturb(model)
    with torch.device("meta"):
        other = ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3)), config).eval()
    if not assign:
        other.bfloat16().to_empty(device="cpu")
        other[0].predictor.start.fill_(7)  # whatever was in memory
    other.load_state_dict(model.state_dict(), assign=assign)
    x = torch.randn(2, 3, 8, 8).bfloat16()
    assert torch.equal(other(x), model(x))


@dataclass(frozen=True)
class Sum(structures.Structure):
    """A structure with two tensors of parameters."""

    name = "sum"

    def initial(self, block):
        return {"one": torch.ones(block.size), "other": torch.zeros(block.size)}

    def similarity(self, numbers, block):
        return numbers["one"] + numbers["other"]


@pytest.mark.parametrize("structure", [Sum(), structures.KernelShape(Sum())])
def test_one_tensor_of_numbers_is_predicted(structure):
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3)), ns.StaticSimilarity(structure))
    assert ns.trainable_summary(model).similarity >= 18
    message = r"one tensor of parameters, got 'sum' with 2 \(one, other\)\. A dynamic similarity"
    with pytest.raises(ns.ShapeError, match=message):
        ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3)), ns.DynamicSimilarity(structure))
    with pytest.raises(ns.ShapeError, match=message):
        ns.nn.DynamicConv2d(3, 4, 3, structure=structure, predictor=nn.Identity())
