"""Multiply-adds against numbers worked out by hand."""

import pytest
import torch
from support.networks import PlainCNN
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import neural_similarity as ns
from neural_similarity.convert import multiply_adds

HIDDEN = 4


def count(module, *shape):
    return sum(multiply_adds(module, torch.randn(shape)).values())


PLAIN = {  # layer, input, multiply-adds
    "conv": (nn.Conv2d(6, 8, (3, 5), groups=2, padding=(1, 2)), (2, 6, 7, 9), 2 * 63 * 8 * 3 * 15),
    "strided": (nn.Conv2d(4, 5, 3, stride=2), (1, 4, 9, 7), 4 * 3 * 5 * 4 * 9),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, 2, groups=2), (2, 4, 5, 7), 2 * 35 * 4 * 3 * 9),
    "sequence": (nn.Conv1d(3, 4, 5), (2, 3, 12), 2 * 8 * 4 * 3 * 5),
    "volume": (nn.Conv3d(2, 4, (3, 1, 2)), (1, 2, 5, 4, 6), 3 * 4 * 5 * 4 * 2 * 6),
    "linear": (nn.Linear(6, 5), (2, 7, 6), 2 * 7 * 6 * 5),
    # four gates of 8 from 6 or 8 inputs and 8 states, seven steps
    "lstm": (nn.LSTM(6, 8, num_layers=2), (7, 2, 6), 2 * 7 * 32 * (6 + 8 + 8 + 8)),
    "norm": (nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2)), (2, 3, 8, 8), 0),
}


@pytest.mark.parametrize("name", PLAIN)
def test_stock_layers_by_hand(name):
    layer, shape, expected = PLAIN[name]
    assert count(layer, *shape) == expected


@pytest.mark.parametrize(
    ("structure", "per_position"), [("diagonal", 4 * 9), ("unconstrained", 4 * 81)]
)
def test_a_dynamic_convolution_by_hand(structure, per_position):
    """Stride 2 on 9 × 7: 5 × 4 = 20 positions. 4 channels, 3 × 3 taps, 6 kernels."""
    predictor = ns.SpherePredictor(hidden=HIDDEN)
    layer = ns.nn.DynamicConv2d(4, 6, 3, 2, 1, structure=structure, predictor=predictor)
    plain = 20 * 6 * 4 * 9
    assert count(nn.Conv2d(4, 6, 3, 2, 1), 1, 4, 9, 7) == plain
    numbers = 9 if structure == "diagonal" else 81
    first = 20 * HIDDEN * 4 * 9
    norms = 5 * 7 * 3 + 5 * 4 * 3  # a column of three on the rows that count, then a row of three
    last = 20 * numbers * HIDDEN * 9
    assert count(layer, 1, 4, 9, 7) == plain + 20 * per_position + first + norms + last


@pytest.mark.parametrize("structure", ["diagonal", "unconstrained"])
def test_pytorchs_counter_counts_the_operation_and_its_gradients(structure):
    """Two operations per multiply-add; each gradient takes as many as the convolution."""
    taps, M = 9, torch.randn(2, *{"diagonal": (9,), "unconstrained": (9, 9)}[structure], 6, 6)
    input, weight = torch.randn(2, 4, 6, 6), torch.randn(6, 4, 3, 3)
    once = 2 * 36 * (6 * 4 * taps + 4 * taps * (taps if structure == "unconstrained" else 1))
    with FlopCounterMode(display=False) as forward:
        ns.ops.similarity_conv2d(input, weight, M, padding=1)
    assert forward.get_total_flops() == 2 * once
    with FlopCounterMode(display=False) as both:
        output = ns.ops.similarity_conv2d(
            input, weight.requires_grad_(), M.requires_grad_(), padding=1
        )
        output.sum().backward()
    assert both.get_total_flops() == 2 * once * 3  # forward, and two gradients


def test_a_plain_predictor_and_one_channel_in_groups():
    """Depthwise, as M weights all channels of every group: 5 channels, 6 × 6 positions."""
    predictor = ns.ConvPredictor(hidden=HIDDEN)
    layer = ns.nn.DynamicConv2d(5, 5, 3, padding=1, groups=5, predictor=predictor)
    predicting = 36 * HIDDEN * 5 * 9 + 36 * 9 * HIDDEN * 9
    assert count(layer, 2, 5, 6, 6) == 2 * (36 * 5 * 9 + 36 * 5 * 9 + predicting)


@pytest.mark.parametrize(("structure", "mixing"), [("diagonal", 12), ("unconstrained", 12 * 4)])
def test_a_dynamic_linear_layer_by_hand(structure, mixing):
    """12 features in blocks of 4, to 5; the predictor sees all 12 and gives 4 or 16 numbers."""
    layer = ns.nn.DynamicLinear(
        12, 5, structure=structure, block_size=4, predictor=ns.ConvPredictor(hidden=HIDDEN)
    )
    numbers = 4 if structure == "diagonal" else 16
    assert count(layer, 3, 12) == 3 * (12 * 5 + mixing + 12 * HIDDEN + HIDDEN * numbers)


def test_a_dynamic_recurrent_cell_by_hand():
    cell = ns.nn.DynamicLSTMCell(3, 6, predictor=ns.ConvPredictor(hidden=HIDDEN))
    predicting = 2 * 9 * HIDDEN + HIDDEN * 3 + HIDDEN * 6
    assert count(cell, 2, 3) == 2 * (4 * 6 * (3 + 6) + 3 + 6 + predicting)


def test_attention_by_hand():
    """16 channels, 8 × 4 positions: query and key 2 wide, then value and both products."""
    convolutions = 32 * 16 * (2 + 2 + 16)
    assert count(ns.nn.SelfAttention2d(16), 1, 16, 8, 4) == convolutions + 32 * 32 * (2 + 16)


def test_a_network_layer_by_layer():
    model, image = PlainCNN(), torch.randn(1, 3, 12, 10)
    counts = multiply_adds(model, image)
    assert counts == {
        "features.0": 120 * 6 * 3 * 9,
        "features.3": 120 * 8 * 6 * 9,
        "features.6": 30 * 10 * 8 * 15,
        "classifier": 10 * 4,
    }
    twice = multiply_adds(model, image.expand(2, -1, -1, -1))
    assert twice == {name: 2 * number for name, number in counts.items()}


@pytest.mark.parametrize("structure", ["diagonal", "unconstrained", "orthogonal"])
def test_a_static_similarity_counts_nothing(structure):
    image = torch.randn(1, 3, 12, 10)
    plain = multiply_adds(PlainCNN(), image)
    model = ns.attach(PlainCNN(), ns.StaticSimilarity(structure))
    assert multiply_adds(model, image) == plain
    assert multiply_adds(ns.merge(model), image) == plain


def test_layers_that_share_a_predictor_are_each_charged_for_it():
    """Two equal layers behind one predictor cost the same."""
    model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2)))
    predictor = ns.SpherePredictor(hidden=HIDDEN)
    ns.attach(model, ns.DynamicSimilarity(predictor=predictor, shared=True, shared_width=5))
    first, second = multiply_adds(model, torch.randn(1, 4, 8, 8)).values()
    assert first == second > 64 * 4 * 4 * 9 + 64 * 4 * 9


def test_what_lies_between_layers_and_a_layer_used_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = self.again = nn.Linear(6, 6)

        def forward(self, input):
            return self.again(self.inner(input)) @ input.mT

    model = nn.Sequential(Twice())
    assert multiply_adds(model, torch.randn(5, 6)) == {"0": 5 * 5 * 6, "0.inner": 2 * 5 * 36}


def test_the_model_is_left_as_it_was():
    model = ns.attach(PlainCNN(), ns.DynamicSimilarity())
    model.features[1].eval()
    before = {name: (m.training, len(m._forward_hooks)) for name, m in model.named_modules()}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for image in (torch.randn(1, 3, 12, 10), torch.randn(1, 4, 12, 10)):
        if image.shape[1] == 4:
            with pytest.raises(ns.ShapeError, match="expected input with 3 channels"):
                multiply_adds(model, image)
        else:
            multiply_adds(model, image)
        after = {name: (m.training, len(m._forward_hooks)) for name, m in model.named_modules()}
        assert after == before
        assert torch.backends.mkldnn.enabled
        assert torch.backends.mha.get_fastpath_enabled()
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


@pytest.mark.parametrize("asked", [("x", "w", "m"), ("x", "m"), ("w", "m"), ("x",), ("w",)])
def test_the_gradients_of_input_and_m_share_a_product(asked):
    """Two convolutions for three gradients; weighting the patches comes on top of each."""
    tensors = {
        "x": torch.randn(2, 4, 6, 6), "w": torch.randn(5, 4, 3, 3), "m": torch.randn(2, 9, 4, 4),
    }  # fmt: skip
    for name in asked:
        tensors[name].requires_grad_()
    output = ns.ops.similarity_conv2d(tensors["x"], tensors["w"], tensors["m"])
    with FlopCounterMode(display=False) as counter:
        output.sum().backward()
    products, weighting = 2 * 16 * 5 * 4 * 9, 2 * 16 * 4 * 9
    convolutions = ("x" in asked or "m" in asked) + ("w" in asked)
    expected = convolutions * products + len(asked) * weighting
    assert counter.get_total_flops() == 2 * expected
