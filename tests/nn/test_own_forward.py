"""Dynamic versions of layers with their own forward: supported if they only pad, else refused."""

import contextlib
import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.cases import SMALL, disturb
from support.padded_convolutions import (
    PADDED,
    AutoConv2d,
    CausalConv1d,
    InnerConv2d,
    OneSizeConv2d,
    RememberingConv2d,
    SameConv2d,
    SometimesPaddedConv2d,
)
from torch import nn

import neural_similarity as ns
from neural_similarity.export import export_model
from neural_similarity.nn.dynamic import DynamicLayer
from neural_similarity.nn.own_forward import find_padding

DYNAMIC = ns.DynamicSimilarity(predictor=SMALL)
SIZES = [(16, 16), (17, 24), (13, 11), (9, 10)]


def output_and_gradients(conv, input):
    input = input.clone().requires_grad_()
    output = conv(input)
    gy = torch.cos(torch.arange(output.numel()).to(output)).reshape(output.shape)
    return [output, *torch.autograd.grad(output, [input, conv.weight, conv.bias], gy)]


@pytest.mark.parametrize("cls", PADDED)
@pytest.mark.parametrize("kernel", [3, 5, (2, 4)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("stride", [1, 2, 3, (1, 2)])
def test_starts_as_the_layer_was(cls, kernel, dilation, stride):
    plain = cls(4, 6, kernel, stride=stride, dilation=dilation, groups=2).double()
    dynamic = ns.attach(copy.deepcopy(plain), DYNAMIC)
    for size in SIZES:
        input = torch.randn(2, 4, *size, dtype=torch.float64)
        expected = output_and_gradients(plain, input)
        for one, truth in zip(output_and_gradients(dynamic, input), expected, strict=True):
            torch.testing.assert_close(one, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cls", [SameConv2d, OneSizeConv2d, InnerConv2d])
def test_is_the_dynamic_convolution_of_the_padded_image(cls):
    conv = ns.attach(cls(3, 4, (3, 5), stride=2), DYNAMIC).eval()
    stock = ns.nn.DynamicConv2d(3, 4, (3, 5), stride=2, predictor=SMALL).eval()
    disturb(conv)
    stock.load_state_dict(conv.state_dict())
    input = torch.randn(2, 3, 17, 24)
    sides = (2, 3, 1, 1) if cls is InnerConv2d else conv.sides((17, 24))
    torch.testing.assert_close(conv(input), stock(F.pad(input, sides)))
    torch.testing.assert_close(conv(input[0]), conv(input)[0])
    assert conv.similarity(input).shape[2:] == conv(input).shape[2:]


@pytest.mark.parametrize(
    ("conv", "padding"),
    [
        (SameConv2d(2, 2, (3, 5), stride=(2, 1)), (None, (2, 2))),
        (SameConv2d(2, 2, 1, stride=2), ((0, 0), (0, 0))),
        (SameConv2d(2, 2, 16, stride=16), (None, None)),
        (SameConv2d(2, 2, 2), ((0, 1), (0, 1))),
        (OneSizeConv2d(2, 2, 3, stride=2), ((1, 1), (0, 1))),
        (InnerConv2d(2, 2, 3), ((1, 1), (2, 3))),
        (CausalConv1d(2, 2, 3, dilation=2), ((4, 0),)),
    ],
)
def test_what_is_found(conv, padding):
    assert find_padding(conv) == padding
    assert find_padding(copy.deepcopy(conv).to("meta")) == padding
    assert find_padding(copy.deepcopy(conv).half()) == padding


def test_subclasses_without_a_forward():
    reflected = AutoConv2d(3, 4, 3, padding_mode="reflect")
    reflected._reversed_padding_repeated_twice = [1, 1, 1, 1]
    plain = nn.Sequential(AutoConv2d(3, 4, (5, 3), stride=2), reflected.requires_grad_(False))
    plain[1].in_channels = 4
    plain[1].weight = nn.Parameter(torch.randn(4, 4, 3, 3))
    model = ns.attach(copy.deepcopy(plain), DYNAMIC)
    input = torch.randn(2, 3, 12, 10)
    torch.testing.assert_close(model(input), plain(input))
    assert model[1].own_padding is None


def test_sequences():
    plain = CausalConv1d(3, 4, 3, dilation=2)
    dynamic = ns.attach(copy.deepcopy(plain), DYNAMIC)
    input = torch.randn(2, 3, 20)
    torch.testing.assert_close(dynamic(input), plain(input))


def network():
    return nn.Sequential(
        SameConv2d(3, 4, 3, stride=2), nn.ReLU(), OneSizeConv2d(4, 5, 3, image_size=(9, 9)),
        nn.ReLU(), SometimesPaddedConv2d(5, 4, 5, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def test_without_a_similarity_it_is_the_layer_again():
    plain = network()
    model = ns.attach(copy.deepcopy(plain), DYNAMIC)
    input = torch.randn(2, 3, 13, 18)
    disturb(model)
    assert not torch.allclose(model(input), plain(input), atol=1e-3)
    with ns.without_similarity(model):
        assert torch.equal(model(input), plain(input))
    assert isinstance(model[0], SameConv2d)
    assert isinstance(model[0], ns.nn.DynamicConv2d)
    assert type(model[0]).__name__ == "DynamicSameConv2d"
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if "predictor" not in k})


def test_copies_files_and_a_second_similarity(tmp_path):
    plain = network().eval()
    model = ns.attach(copy.deepcopy(plain), DYNAMIC).eval()
    disturb(model)
    input = torch.randn(2, 3, 13, 18)
    expected = model(input)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(again(input), expected)
        assert type(again[0]) is type(model[0])
    ns.save_similarity(model, tmp_path / "one.safetensors")
    loaded = copy.deepcopy(plain)
    ns.load_similarity(loaded, tmp_path / "one.safetensors")
    assert torch.equal(loaded.eval()(input), expected)
    ns.attach(model, DYNAMIC, name="other")
    torch.testing.assert_close(model(input), plain(input))
    assert torch.equal(ns.set_similarity(model, "default")(input), expected)


def test_descriptions():
    model = ns.attach(network(), DYNAMIC)
    layers = ns.convert.describe_layers(model, torch.randn(1, 3, 12, 12))
    assert [layer.kind for layer in layers][:2] == ["SameConv2d", "OneSizeConv2d"]
    assert layers[0].similarity == "dynamic diagonal"


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.slow)])
def test_compiled_for_many_sizes(backend):
    conv = ns.attach(SameConv2d(3, 4, (3, 1), stride=(2, 1)), DYNAMIC).eval()
    disturb(conv)
    compiled = torch.compile(conv, fullgraph=True, backend=backend, dynamic=True)
    for size in ((13, 18), (12, 18), (16, 15)):
        input = torch.randn(2, 3, *size)
        for one, truth in zip(
            *(output_and_gradients(f, input) for f in (compiled, conv)), strict=True
        ):
            torch.testing.assert_close(one, truth)


@pytest.mark.parametrize(
    ("form", "suffix"),
    [("torch-export", ".pt2"), pytest.param("onnx", ".onnx", marks=pytest.mark.slow)],
)
def test_export(form, suffix, tmp_path):
    if form == "onnx":
        pytest.importorskip("onnxruntime")
    model = nn.Sequential(SameConv2d(3, 4, 3, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    disturb(ns.attach(model, DYNAMIC).eval())
    path = tmp_path / f"network{suffix}"
    assert export_model(model, torch.randn(3, 3, 13, 18), path, form) < 1e-4


class Doubled(nn.Conv2d):
    def forward(self, x):
        return 2 * super().forward(x)


class InPlace(nn.Conv2d):
    def forward(self, x):
        return super().forward(x).add_(1)


class Standardised(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight - self.weight.mean(), self.bias)


class Hidden(nn.Conv2d):
    """Does something else, and catches what stops it."""

    def forward(self, x):
        with contextlib.suppress(Exception):
            x = x * 2
        return super().forward(x)


class Ones(nn.Conv2d):
    def forward(self, x):
        return super().forward(F.pad(x, (1, 1, 1, 1), value=1.0))


class Mirrored(nn.Conv2d):
    def forward(self, x):
        return super().forward(F.pad(x, (1, 1, 1, 1), mode="reflect"))


class Cropped(nn.Conv2d):
    def forward(self, x):
        return super().forward(F.pad(x, (-1, 1)))


class WiderChannels(nn.Conv2d):
    def forward(self, x):
        return super().forward(F.pad(x, (0, 0, 0, 0, 0, 1))[:, 1:])


class Square(nn.Conv2d):
    def forward(self, x):
        high, wide = x.shape[-2:]
        return super().forward(F.pad(x, (0, max(high - wide, 0), 0, max(wide - high, 0))))


class SwappedAxes(SameConv2d):
    def sides(self, size):
        return super().sides(size[::-1])


class BeforeMore(SameConv2d):
    def sides(self, size):
        left, right, top, bottom = super().sides(size)
        return [right, left, bottom, top]


class OnlyLarge(SameConv2d):
    def sides(self, size):
        return [1, 1, 1, 1] if max(size) > 25 else super().sides(size)


class InTraining(SameConv2d):
    def sides(self, size):
        return super().sides(size) if self.training else [0, 0, 0, 0]


class OtherStride(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias, 1)


class NoBias(nn.Conv2d):
    def forward(self, x):
        return F.conv2d(x, self.weight, None, self.stride)


class Twice(nn.Conv2d):
    def forward(self, x):
        super().forward(x)
        return super().forward(x)


class Frozen(nn.Conv2d):
    def forward(self, x):
        with torch.no_grad():
            return super().forward(x)


class LowPrecision(nn.Conv2d):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


class Undifferentiated(nn.Conv2d):
    def forward(self, x):
        with torch.inference_mode():
            return super().forward(x)


class TwoResults(nn.Conv2d):
    def forward(self, x):
        return super().forward(x), x


class TwoInputs(nn.Conv2d):
    def forward(self, x, y):
        return super().forward(x)


REFUSED = {
    Doubled: r"calls torch\.Tensor\.\w*mul",
    InPlace: r"calls torch\.Tensor\.add_",
    Standardised: r"calls torch\.Tensor\.mean",
    Hidden: r"calls torch\.Tensor\.",
    Ones: "with mode 'constant' and value 1.0",
    Mirrored: "with mode 'reflect'",
    Cropped: r"pads by \[-1, 1\]",
    WiderChannels: "pads channels or samples",
    Square: "by an unknown rule",
    SwappedAxes: "by an unknown rule",
    BeforeMore: "by an unknown rule",
    OnlyLarge: "by an unknown rule",
    InTraining: "by an unknown rule",
    OtherStride: "a stride, dilation or groups other than",
    NoBias: "a weight or bias other than",
    Twice: "convolves more than once",
    Frozen: "calls .*set_grad_enabled",
    LowPrecision: "(autocast|calls)",
    Undifferentiated: "(autocast|calls)",
    TwoResults: "returns something other than",
    TwoInputs: "fails on an image of .*TypeError",
    RememberingConv2d: "changes the layer",
    ns.nn.SphereConv2d: r"calls ",
}


@pytest.mark.parametrize("cls", REFUSED)
def test_what_does_more_than_pad_is_refused_by_name(cls):
    model = nn.Sequential(nn.Conv2d(3, 3, 3), cls(3, 4, 3, stride=2))
    before = repr(model), vars(model[1]).copy(), dict(model[1]._modules)
    message = rf"1: expected a layer that has a dynamic version \(Conv2d.*\), got {cls.__name__}"
    with pytest.raises(ns.AttachError, match=rf"{message}, whose forward .*{REFUSED[cls]}"):
        ns.attach(model, DYNAMIC)
    assert (repr(model), vars(model[1]), dict(model[1]._modules)) == before


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (nn.utils.parametrizations.weight_norm(SameConv2d(3, 4, 3)), "ParametrizedSameConv2d"),
        (nn.LazyConv2d(4, 3), "LazyConv2d, whose shape is not known yet"),
        (nn.Conv3d(3, 4, 3), "Conv3d"),
    ],
)
def test_layers_that_are_still_refused(layer, why):
    with pytest.raises(ns.AttachError, match=f"has a dynamic version .*got {why}.*exclude_modules"):
        ns.attach(nn.Sequential(layer), DYNAMIC)


def test_a_name_that_dynamic_layers_use():
    conv = nn.Conv2d(3, 4, 3)
    conv.active, conv.config = True, {}
    with pytest.raises(ns.AttachError, match="without attributes named active, config, got a Conv"):
        ns.attach(nn.Sequential(conv), DYNAMIC)
    assert conv.active is True


def hook(module):
    """What libraries do that move weights or count calls."""
    forward = module.forward

    def hooked(*args, **kwargs):
        return forward(*args, **kwargs)

    module.forward = hooked


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(3, 4, 3), SameConv2d(3, 4, 3), nn.Linear(3, 4), nn.LSTMCell(3, 4)]
)
def test_a_forward_of_the_instance_is_refused(layer):
    model = nn.Sequential(nn.Conv2d(3, 3, 3), layer)
    hook(model[1])
    config = ns.DynamicSimilarity(predictor=SMALL, target_modules=["0", "1"])
    name = type(layer).__name__
    with pytest.raises(
        ns.AttachError,
        match=rf"1: expected a layer whose forward is that of its class, got a {name} .*hook again",
    ):
        ns.attach(model, config)
    assert not any(isinstance(module, DynamicLayer) for module in model.modules())
    del model[1].forward
    ns.attach(model, config)
    hook(model[1])
    ns.attach(model, config, name="other")  # its class stays, so the forward is the right one
    assert ns.list_similarities(model) == ["default", "other"]


def test_a_forward_of_the_instance_and_a_static_similarity():
    model = nn.Sequential(SameConv2d(3, 4, 3, stride=2))
    hook(model[0])
    ns.attach(model, ns.StaticSimilarity("unconstrained"))
    disturb(model)
    input = torch.randn(2, 3, 9, 12)
    expected = model(input)
    torch.testing.assert_close(ns.merge(model)(input), expected)
    assert type(model[0]) is SameConv2d


def test_merging_checks_the_layer_behind_a_forward_of_the_instance():
    """The check compares two modules, and a hook holds the first: it must not run twice."""
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3)), ns.StaticSimilarity())
    with torch.no_grad():
        next(ns.similarity_parameters(model))[0] = torch.nan
    model[0].forward = lambda input: torch.ones(1)
    with pytest.raises(ns.MergeError, match="relative difference of nan"):
        ns.merge(model)
