"""Networks whose M spans taps, channels, both or kernels: attached, saved, exported, inspected."""

import contextlib
import copy

import onnxruntime
import pytest
import torch
from support.cases import SMALL, disturb
from support.span_cases import SOURCES, SPANS
from torch import nn

import neural_similarity as ns
from neural_similarity.convert import describe_layers, multiply_adds
from neural_similarity.export import export_model


def network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, (2, 3), stride=2, groups=2),
        nn.ReLU(), nn.Conv2d(6, 4, 1),
    )  # fmt: skip


@pytest.mark.parametrize("source", [*SOURCES, "pair"])
@pytest.mark.parametrize("span", ["taps", "channels", "both in groups", "kernels in groups"])
def test_attach_save_load_and_switch(span, source, tmp_path):
    predictor = {**SOURCES, "pair": ns.PairPredictor(channels=4, kernel="gaussian")}[source]
    if source == "pair":
        chosen = {"similarity_groups": 2} if "in groups" in span else {}
    else:
        chosen = {k: 2 if v == "divisor" else v for k, v in SPANS[span].items()}
    target = {"target_modules": ["2", "4"]}  # of four and six channels
    plain = network().eval()
    config = ns.DynamicSimilarity(predictor=predictor, **chosen, **target)
    model = ns.attach(copy.deepcopy(plain), config, name="one")
    input = torch.randn(2, 3, 8, 9)
    torch.testing.assert_close(model(input), plain(input))
    ns.attach(model, ns.DynamicSimilarity(predictor=SMALL, **target), name="other")
    ns.set_similarity(model, "one")
    disturb(model)
    expected = model(input)
    assert not torch.allclose(expected, plain(input), atol=1e-3)
    ns.save_similarity(model, tmp_path / "file")
    loaded = ns.load_similarity(copy.deepcopy(plain), tmp_path / "file").eval()
    assert torch.equal(loaded(input), expected)
    assert loaded[2].config.to_config() == config.to_config()
    with ns.without_similarity(model):
        assert torch.equal(model(input), plain(input))
    with pytest.raises(ns.MergeError, match="got only dynamic ones"):
        ns.merge(loaded)
    other = ns.DynamicSimilarity(predictor=ns.ConvPredictor(hidden=4), **target)
    with pytest.raises(ns.FileFormatError, match="the predictor of '2' is"):
        ns.load_similarity(ns.attach(copy.deepcopy(plain), other), tmp_path / "file")


def test_layers_of_ones_own_are_saved_with_their_span(tmp_path):
    built = nn.Sequential(
        ns.nn.DynamicConv2d(4, 4, 3, predictor=SMALL, over="both", similarity_groups=2)
    )
    disturb(built)
    ns.save_similarity(built, tmp_path / "file")
    config = ns.load_similarity(nn.Sequential(nn.Conv2d(4, 4, 3)), tmp_path / "file")[0].config
    assert (config.over, config.similarity_groups) == ("both", 2)


def test_one_tap_has_channels_to_weight():
    config = ns.DynamicSimilarity(predictor=SOURCES["image"], over="channels")
    model = ns.attach(network(), config)
    assert isinstance(model[4], ns.nn.DynamicConv2d)
    with pytest.warns(ns.SkippedLayerWarning):
        model = ns.attach(network(), ns.DynamicSimilarity(predictor=SOURCES["image"]))
    assert type(model[4]) is nn.Conv2d


def one_of_each(kernel):
    """Layers that together hold what exporters and compilers have to understand."""
    pairs = ns.PairPredictor(channels=4, softmax=True)
    spans = (
        {"predictor": SOURCES["image"], "over": "channels", "similarity_groups": 2},
        {"predictor": SOURCES["pixel"], "over": "both", "stride": 2},
        {"predictor": pairs, "similarity_groups": 2, "padding": 1},
        {"predictor": SOURCES["image"], "over": "kernels", "groups": 2, "padding": 1},
    )
    model = nn.Sequential(*(ns.nn.DynamicConv2d(4, 4, kernel, **span) for span in spans))
    disturb(model)
    return model.eval()


def test_an_export_takes_any_batch(tmp_path):
    model, path = nn.Sequential(one_of_each((2, 1)), nn.Flatten()), tmp_path / "model.onnx"
    export_model(model, torch.randn(2, 4, 11, 9), path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in (1, 5):
        input = torch.randn(batch, 4, 11, 9)
        (scores,) = session.run(["scores"], {"image": input.numpy()})
        torch.testing.assert_close(torch.from_numpy(scores), model(input), rtol=1e-3, atol=1e-4)


def test_torch_compile_with_a_penalty():
    torch.compiler.reset()
    model = one_of_each((3, 2)).double()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    input = torch.randn(2, 4, 11, 9, dtype=torch.float64)
    torch.testing.assert_close(compiled(input), model(input))
    gradients = []
    for network in (model, compiled):
        with ns.keep_predictions(network):
            loss = network(input).square().mean() + ns.similarity_penalty(network, l1=0.3, l2=0.2)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
        assert all(layer.predictor.kept is None for layer in model)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_inspection_names_the_span_and_counts():
    model = nn.Sequential(
        ns.nn.DynamicConv2d(4, 5, 3, predictor=SOURCES["image"], over="channels", bias=False),
        ns.nn.DynamicConv2d(5, 6, 3, predictor=ns.PairPredictor(channels=4), bias=False),
        ns.nn.DynamicConv2d(6, 4, 3, predictor=SOURCES["pixel"], bias=False),
        ns.nn.DynamicConv2d(4, 6, 2, predictor=SOURCES["pixel"], over="kernels", groups=2),
        ns.nn.DynamicConv2d(
            6, 4, 1, predictor=SOURCES["image"], over="kernels", similarity_groups=1
        ),
    )
    image = torch.randn(1, 4, 9, 9)
    layers = describe_layers(model, image)
    assert [layer.similarity for layer in layers] == [
        "dynamic diagonal, over channels (4 groups), from image",
        "dynamic diagonal, from pairs",
        "dynamic diagonal, from pixel",
        "dynamic diagonal, over kernels (2 groups), from pixel",
        "dynamic diagonal, over kernels (1 group), from image",
    ]
    assert [layer.distance for layer in layers] == [0] * 5
    assert layers[3].similarity_numbers == 4 * (4 + 1) + (4 + 1) * 6 * 2 * 4
    assert multiply_adds(model, image) == {
        "0": 49 * 5 * 4 * 9 + 4 * (4 + 4),
        "1": 25 * 6 * 5 * 9 + 25 * 5 * 9 + 49 * 5 * 4 + 25 * 9 * 4,
        "2": 9 * 4 * 6 * 9 + 9 * 6 * 9 + 9 * 4 * (6 + 9),
        "3": 4 * 6 * 2 * 4 + 4 * 6 * 2 * 4 + 4 * 4 * (4 + 6 * 2 * 4),
        "4": 4 * 4 * 6 + 4 * (6 + 4),
    }
    with torch.no_grad():
        model[0].predictor.network.last.bias[0] = 100.0  # 2·sigmoid is 2: one channel of four
    assert describe_layers(model, image)[0].distance == pytest.approx(0.5, rel=1e-4)


def test_groups_must_fit_the_layer():
    config = ns.DynamicSimilarity(over="channels", similarity_groups=4, target_modules=["0"])
    with pytest.raises(ns.ShapeError, match="0: expected similarity_groups to divide the 3 chan"):
        ns.attach(network(), config)
    linear = nn.Sequential(nn.Linear(4, 4))
    for settings, message in (
        ({"over": "channels"}, r"0: expected over='taps' and one similarity group, got"),
        ({"predictor": ns.PixelPredictor()}, r"0: expected a PatchPredictor or .* no pixel"),
    ):
        with pytest.raises(ns.AttachError, match=message):
            ns.attach(linear, ns.DynamicSimilarity(target_modules=["0"], **settings))
    with pytest.raises(ns.AttachError, match=r"with shared=True, got ImagePredictor"):
        ns.DynamicSimilarity(predictor=ns.ImagePredictor(), shared=True)


@pytest.mark.parametrize("weights", [{"l1": 0.5}, {"l2": 0.25}, {"orthogonality": 2.0}])
@pytest.mark.parametrize(
    "settings",
    [
        {"structure": "unconstrained"},
        {"over": "both", "similarity_groups": 2},
        {"predictor": ns.ImagePredictor(hidden=4), "over": "channels"},
        {"over": "kernels", "similarity_groups": 2},
        {"structure": ns.structures.KernelShape("unconstrained", boolean=False)},
    ],
)
def test_penalties_of_what_is_predicted(settings, weights):
    conv = ns.nn.DynamicConv2d(4, 5, (3, 2), **{"predictor": SMALL, **settings}).double().eval()
    model = nn.Sequential(conv)
    disturb(model)
    input = torch.randn(3, 4, 6, 5, dtype=torch.float64)
    M = conv.similarity(input)
    if M.dim() == 4:  # each group has a diagonal of six taps
        M = torch.diag_embed(M.unflatten(1, (-1, 6)).movedim(2, -1)).movedim(1, -3)
    else:
        M = M.movedim((1, 2), (-2, -1)).unsqueeze(-3)
    if (D := conv.predictor.kernel_shape()) is not None:
        M = D[:, None] * M
    expected = 0.0
    identity = torch.eye(6).double()
    for block in M.reshape(-1, 6, 6):
        expected += weights.get("l1", 0) * block.abs().sum()
        expected += weights.get("l2", 0) * (block - identity).square().sum()
        expected += weights.get("orthogonality", 0) * (block.T @ block - identity).square().sum()
    with ns.keep_predictions(model):
        model(input + 1)
        model(input)
        penalty = ns.similarity_penalty(model, **weights)
    torch.testing.assert_close(penalty, expected / M[..., 0, 0, 0].numel())
    penalty.backward()
    assert all(p.grad.abs().max() > 0 for p in ns.similarity_parameters(model))


def test_nothing_is_kept_unless_asked_for():
    model = ns.attach(network(), ns.DynamicSimilarity(predictor=SMALL, target_modules=["0"]))
    ns.attach(model, ns.StaticSimilarity(target_modules=["2"]))
    input = torch.randn(2, 3, 8, 9)
    with contextlib.suppress(RuntimeError), ns.keep_predictions(model):
        model(input)
        both = ns.similarity_penalty(model, l1=1.0)
        raise RuntimeError("in the middle")
    assert both.item() == 9 + 6, "nine taps predicted, six learned, all at one"
    model(input)
    assert model[0].predictor.kept is None
    assert ns.similarity_penalty(model, l1=1.0).item() == 6
    copy.deepcopy(model)
    dynamic = ns.attach(network(), ns.DynamicSimilarity(predictor=SMALL, target_modules=["0"]))
    with pytest.raises(ns.AttachError, match=r"kept no M\. Call the model within keep_predictions"):
        ns.similarity_penalty(dynamic, l1=1.0)


class Uneven(nn.Conv2d):
    """A convolution that pads its input itself."""

    def forward(self, input):
        return super().forward(nn.functional.pad(input, (0, 2, 1, 0)))


@torch.no_grad()
@pytest.mark.parametrize("source", ["pixel", "image"])
def test_layers_that_pad_by_themselves(source):
    config = ns.DynamicSimilarity(predictor=SOURCES[source], over="both")
    plain = nn.Sequential(Uneven(3, 4, 3, stride=2)).eval()
    model = ns.attach(copy.deepcopy(plain), config)
    input = torch.randn(2, 3, 7, 8)
    torch.testing.assert_close(model(input), plain(input))
    disturb(model)
    M = model[0].similarity(input)
    padded = nn.functional.pad(input, (0, 2, 1, 0))
    weight, bias = plain[0].weight, plain[0].bias
    expected = ns.ops.similarity_conv2d(padded, weight, M, bias, stride=2, similarity_groups=3)
    torch.testing.assert_close(model(input), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(expected, plain(input), atol=1e-3)
