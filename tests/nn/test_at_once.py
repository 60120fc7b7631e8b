"""A dynamic layer in one operation: the same output as step by step, only where allowed."""

import pytest
import torch
from support.networks import disturb_norms
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import neural_similarity as ns
from neural_similarity.nn.dynamic import at_once
from neural_similarity.ops.similarity_conv import compiled, dispatch

pytestmark = pytest.mark.skipif(compiled.load() is None, reason="no compiled operator here")

LAYERS = {
    "same": {"kernel_size": 3, "padding": 1, "bias": False},
    "strided": {"kernel_size": (3, 2), "stride": (2, 1), "padding": (0, 1), "dilation": (1, 2)},
    "grouped": {"kernel_size": (2, 3), "groups": 2, "padding": "same"},
    "reflected": {"kernel_size": 3, "padding": (2, 1), "padding_mode": "reflect"},
    "row": {"kernel_size": (1, 5), "padding": (0, 2)},
    "one position": {"kernel_size": (9, 7)},
}
SPHERE = ns.SpherePredictor(hidden=5, first_scale=1, last_scale=1)


def layer(name="same", predictor=SPHERE, **options):
    torch.manual_seed(0)
    conv = ns.nn.DynamicConv2d(4, 6, **LAYERS[name], predictor=predictor, **options)
    disturb_norms(conv)
    return conv.double().eval()


def image(dtype=torch.float64):
    return torch.randn(2, 4, 9, 7, dtype=dtype, generator=torch.Generator().manual_seed(1))


def steps(conv, *inputs):
    """The output step by step."""
    with torch.enable_grad():
        return conv(*inputs).detach()


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.fixture
def calls(monkeypatch):
    """The outputs that were computed at once."""
    made, original = [], at_once.folded_dynamic_conv2d

    def remember(*args):
        made.append(original(*args))
        return made[-1]

    monkeypatch.setattr(at_once, "folded_dynamic_conv2d", remember)
    return made


@pytest.mark.parametrize("name", LAYERS)
def test_it_is_the_same_function(name, calls):
    conv, input = layer(name), image()
    expected = steps(conv, input)
    assert not calls
    for mode in (torch.no_grad, torch.inference_mode):
        for format in (torch.contiguous_format, torch.channels_last):
            given = input.contiguous(memory_format=format)
            with mode():
                found = conv(given)
            same(found, expected)
            assert found.stride() == steps(conv, given).stride()
    with torch.no_grad():
        same(conv(input[0]), expected[0])
        same(conv(input[:0]), expected[:0])
    assert len(calls) == 6
    assert all(output is not None for output in calls)


def test_it_is_as_exact_in_float32():
    truth, conv = steps(layer(), image()), layer().float()
    with torch.no_grad():
        error = (conv(image(torch.float32)) - truth).abs().max()
    assert error <= 2 * (steps(conv, image(torch.float32)) - truth).abs().max().clamp(min=1e-7)


def stride(conv):
    conv.stride = (1, 2)


def no_similarity(conv):
    conv.active = None


def weight(conv):
    conv.weight.data.mul_(2)


def start(conv):
    conv.predictor.start += 1


def predictor(conv):
    conv.predictor.network.last.weight.data.mul_(2)


def training(conv):
    conv.train()


@pytest.mark.parametrize("change", [stride, no_similarity, weight, start, predictor, training])
def test_a_change_is_noticed(change):
    conv, input = layer(), image()
    with torch.no_grad():
        before = conv(input)
        change(conv)
        after = conv(input)
    assert before.shape != after.shape or not torch.allclose(before, after)
    same(after, steps(conv, input))


def hook(conv, input):
    conv.predictor.register_forward_hook(lambda module, args, output: 2 * output)
    return conv(input)


def hook_of_the_network(conv, input):
    conv.predictor.network.register_forward_pre_hook(lambda module, args: (2 * args[0], args[1]))
    return conv(input)


def own_forward(conv, input):
    network, forward = conv.predictor.network, conv.predictor.network.forward
    network.forward = lambda *args: 2 * forward(*args)
    return conv(input)


def parametrized(conv, input):
    nn.utils.parametrizations.weight_norm(conv)
    conv.parametrizations.weight.original0.data.mul_(2)
    return conv(input)


def kept(conv, input):
    conv.predictor.keeps = True
    output = conv(input)
    same(conv.predictor.kept, conv.similarity(input))
    return output


def watched(conv, input):
    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            return function(*args, **(kwargs or {}))

    with Watch():
        return conv(input)


def transformed(conv, input):
    return torch.func.vmap(lambda one: conv(one[None])[0])(input)


def compiled_by_torch(conv, input):
    torch.compiler.reset()
    return torch.compile(conv, backend="eager", fullgraph=True)(input)


def exported(conv, input):
    return torch.export.export(conv, (input,)).module()(input)


def without_compiler(conv, input):
    with dispatch.only("panels"):
        return conv(input)


STEPS = [
    hook, hook_of_the_network, own_forward, parametrized, kept, watched, transformed,
    compiled_by_torch, exported, without_compiler,
]  # fmt: skip


@pytest.mark.parametrize("run", STEPS, ids=lambda run: run.__name__)
def test_where_it_is_not_at_once(run, calls):
    conv, input = layer(), image()
    with torch.no_grad():
        found = run(conv, input)
    assert not any(output is not None for output in calls)
    same(found, steps(conv, input))


OTHERS = {
    "shape": {"structure": "kernel_shape"},
    "matrix": {"structure": "unconstrained"},
    "groups": {"similarity_groups": 2},
    "channels": {"over": "channels"},
    "kernels": {"over": "kernels"},
    "conv": {"predictor": ns.ConvPredictor(hidden=5, batch_norm=True)},
    "both": {"predictor": ns.SpherePredictor(hidden=5, normalize="both")},
}


@pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
def test_other_similarities_take_their_steps(options, calls):
    conv, input = layer(**options), image()
    with torch.no_grad():
        found = conv(input)
    assert not calls
    same(found, steps(conv, input))


def test_autocast_computes_as_before(calls):
    conv, input = layer().float(), image(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        expected = steps(conv, input)
        with torch.no_grad():
            assert torch.equal(conv(input), expected)
    assert not calls


@pytest.mark.parametrize("shape", [(2, 5, 9, 7), (2, 4, 2, 7)], ids=["channels", "small"])
def test_wrong_inputs_are_explained(shape):
    conv, messages = layer("grouped" if shape[1] == 5 else "strided"), []
    for computed in (steps, lambda conv, input: torch.no_grad()(conv)(input)):
        with pytest.raises(ns.errors.ShapeError, match="DynamicConv2d: expected") as error:
            computed(conv, torch.randn(shape, dtype=torch.float64))
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_a_predictor_for_another_layer_is_explained():
    conv = layer()
    conv.predictor.network = layer("row").predictor.network
    with torch.no_grad(), pytest.raises(ns.errors.ShapeError, match="9 parameters"):
        conv(image())
