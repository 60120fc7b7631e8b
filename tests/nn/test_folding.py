"""BatchNorm in the predictor's convolutions: the same M, whatever changed since the last call."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.networks import disturb_norms
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import neural_similarity as ns
from neural_similarity.nn.predictors import folding

PREDICTORS = {
    "sphere": ns.SpherePredictor(hidden=5, first_scale=1, last_scale=1),
    "conv": ns.ConvPredictor(hidden=5, batch_norm=True, output="sigmoid", first_scale=1),
}
GEOMETRIES = {
    "same": {"kernel_size": 3, "padding": 1},
    "strided": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1), "dilation": (1, 2)},
}


def layer(predictor="sphere", geometry="same", dtype=torch.float64):
    torch.manual_seed(0)
    conv = ns.nn.DynamicConv2d(4, 6, **GEOMETRIES[geometry], predictor=PREDICTORS[predictor])
    disturb_norms(conv)
    return conv.to(dtype).eval()


def image(dtype=torch.float64):
    return torch.randn(2, 4, 9, 7, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def calls(monkeypatch):
    """How often BatchNorm was computed."""
    made, original = [], F.batch_norm
    monkeypatch.setattr(
        F, "batch_norm", lambda *args, **kwargs: made.append(1) or original(*args, **kwargs)
    )
    return made


def apart(conv, input):
    """M with BatchNorm computed as such."""
    with torch.enable_grad():
        return conv.similarity(input).detach()


@pytest.mark.parametrize("geometry", GEOMETRIES)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_it_is_the_same_function(predictor, geometry, calls, path):
    conv, input = layer(predictor, geometry), image()
    with torch.no_grad():
        for _ in range(2):
            folded = conv.similarity(input)
        torch.testing.assert_close(conv.similarity(input[:0]), folded[:0])
    assert not calls
    expected = apart(conv, input)
    assert len(calls) == 2
    torch.testing.assert_close(folded, expected, rtol=1e-12, atol=1e-12)


def test_it_is_as_exact_in_float32():
    truth = apart(layer(), image())
    conv, input = layer(dtype=torch.float32), image(torch.float32)
    with torch.no_grad():
        error = (conv.similarity(input) - truth).abs().max()
    assert error <= 2 * (apart(conv, input) - truth).abs().max().clamp(min=1e-7)


def step(conv):
    optimiser = torch.optim.SGD(conv.parameters(), lr=0.5)
    with torch.enable_grad():
        conv(image()).square().sum().backward()
    optimiser.step()


def load(conv):
    conv.load_state_dict({key: value * 1.5 for key, value in conv.state_dict().items()})


def train(conv):
    conv.train()
    conv(image())
    conv.eval()


def one_batch_of_a_norm(conv):
    norm = conv.predictor.network.last_norm
    norm.training = True
    norm(torch.randn(3, 9, 2, 2, dtype=torch.float64))
    norm.training = False


def replace_parameter(conv):
    network = conv.predictor.network
    network.last.weight = nn.Parameter(network.last.weight + 1)


def replace_data(conv):
    for parameter in conv.predictor.parameters():
        parameter.data = parameter.data * 2


def write_data(conv):
    for parameter in conv.predictor.parameters():
        parameter.data.mul_(2)


def replace_norm(conv):
    conv.predictor.network.first_norm = copy.deepcopy(layer().predictor.network.first_norm)
    nn.init.ones_(conv.predictor.network.first_norm.weight)


def change_eps(conv):
    conv.predictor.network.first_norm.eps = 3.0


def convert(conv):
    conv.float()
    replace_data(conv)
    conv.double()


CHANGES = [
    step, load, train, one_batch_of_a_norm, replace_parameter, replace_data, write_data,
    replace_norm, change_eps, convert,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_is_noticed(change):
    conv, input = layer(), image()
    with torch.no_grad():
        before = conv.similarity(input)
        change(conv)
        after = conv.similarity(input)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, apart(conv, input), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("place", ["first", "first_norm", "last", "last_norm"])
def test_a_change_of_any_tensor_is_noticed(place):
    conv, input = layer(), image()
    for name, tensor in conv.predictor.network.get_submodule(place).state_dict().items():
        if tensor.is_floating_point():
            with torch.no_grad():
                before = conv.similarity(input)
                tensor += 0.5  # shares the version with the parameter
                after = conv.similarity(input)
            assert not torch.equal(before, after), name
            torch.testing.assert_close(after, apart(conv, input), rtol=1e-12, atol=1e-12)


def test_nothing_is_stored_in_the_layer():
    conv, input = layer(), image()
    keys, attributes = list(conv.state_dict()), set(vars(conv.predictor.network))
    with torch.no_grad():
        expected = conv.similarity(input)
        assert list(conv.state_dict()) == keys
        assert set(vars(conv.predictor.network)) == attributes
        for twin in (copy.deepcopy(conv), pickle.loads(pickle.dumps(conv))):
            torch.testing.assert_close(twin.similarity(input), expected)
            nn.init.zeros_(twin.predictor.network.last.weight)
            assert not torch.allclose(twin.similarity(input), expected)
            torch.testing.assert_close(conv.similarity(input), expected)
    kept = len(folding._KEPT)
    del twin, conv
    assert len(folding._KEPT) < kept


def with_gradients(conv, input):
    with torch.enable_grad():
        return conv.similarity(input)


def with_a_hook(conv, input):
    conv.predictor.network.last_norm.register_forward_hook(lambda *_: None)
    return conv.similarity(input)


def watched(conv, input):
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Watch():
        return conv.similarity(input)


def transformed(conv, input):
    return torch.func.vmap(lambda one: conv.similarity(one[None])[0])(input)


def compiled(conv, input):
    torch.compiler.reset()
    return torch.compile(conv.similarity, backend="eager")(input)


APART = [with_gradients, with_a_hook, watched, transformed, compiled]


@pytest.mark.parametrize("run", APART, ids=lambda run: run.__name__)
def test_where_it_is_not_folded(run, calls):
    conv, input = layer(), image()
    expected = apart(conv, input)
    calls.clear()
    with torch.no_grad():
        found = run(conv, input)
    assert calls or run is compiled  # a compiled function calls PyTorch's own
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_inference_tensors_are_folded_too():
    conv, input = layer(), image()
    with torch.inference_mode():
        found = copy.deepcopy(conv).similarity(input).clone()
    torch.testing.assert_close(found, apart(conv, input), rtol=1e-12, atol=1e-12)


def test_other_parameters_for_one_call():
    conv, input = layer(), image()
    others = {name: 2 * value for name, value in conv.state_dict().items()}
    with torch.no_grad():
        before = conv(input)
        found = torch.func.functional_call(conv, others, input)
        torch.testing.assert_close(conv(input), before, rtol=0, atol=0)
    other = layer()
    other.load_state_dict(others)
    torch.testing.assert_close(found, other(input).detach(), rtol=1e-12, atol=1e-12)


def test_autocast_computes_as_before():
    conv, input = layer(dtype=torch.float32), image(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = apart(conv, input)
        with torch.no_grad():
            assert torch.equal(conv.similarity(input), expected)
