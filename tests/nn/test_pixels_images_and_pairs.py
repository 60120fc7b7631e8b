"""Predictors from a pixel, an image and pairs: each against its equation, one entry at a time."""

import copy

import pytest
import torch
from support import oracle
from support.cases import EVEN, GEOMETRIES, disturb
from torch import nn

import neural_similarity as ns
from neural_similarity.nn.predictors import predictor_from_config

ALL = {**GEOMETRIES, **EVEN}
GATES = {
    "none": lambda z: 1 + z,
    "tanh": lambda z: 1 + torch.tanh(z),
    "sigmoid": lambda z: 2 / (1 + torch.exp(-z)),
}


def layer(geometry, predictor, **kwargs):
    conv = ns.nn.DynamicConv2d(
        geometry.channels, geometry.kernels, geometry.kernel, **geometry.options,
        predictor=predictor, **kwargs,
    ).double()  # fmt: skip
    disturb(conv)
    return conv.eval()


def centre(geometry, position):
    """The row and column in the middle of a window, which may lie outside the image."""
    return tuple(
        l * s - p + d * (k - 1) // 2
        for l, s, p, d, k in zip(
            position, geometry.stride, geometry.padding, geometry.dilation, geometry.kernel,
            strict=True,
        )
    )  # fmt: skip


def pixel(image, place):
    inside = all(0 <= at < size for at, size in zip(place, image.shape[1:], strict=True))
    return image[(slice(None), *place)] if inside else image.new_zeros(image.shape[0])


def two_layers(network, x):
    """What the two layers make of one vector."""
    hidden = network.first.weight.flatten(1) @ x
    if network.first.bias is not None:
        hidden = hidden + network.first.bias
    norm = network.first_norm
    if not isinstance(norm, nn.Identity):
        hidden = (hidden - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
        hidden = hidden * norm.weight + norm.bias
    return network.last.weight.flatten(1) @ hidden.clamp(min=0) + network.last.bias


def positions(geometry):
    P, Q = geometry.positions
    return [(p, q) for p in range(P) for q in range(Q)]


@torch.no_grad()
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", ALL)
def test_a_pixel_predicts(name, gate):
    geometry = ALL[name]
    norm = gate == "tanh"
    conv = layer(geometry, ns.PixelPredictor(hidden=3, gate=gate, batch_norm=norm))
    input = geometry.input(dtype=torch.float64)
    conv.train()(input)  # statistics of their own, if there are any
    M = conv.eval().similarity(input)
    assert M.shape == (geometry.batch, geometry.taps, *geometry.positions)
    for n in range(geometry.batch):
        for at in positions(geometry):
            x = pixel(input[n], centre(geometry, at))
            expected = GATES[gate](two_layers(conv.predictor.network, x))
            torch.testing.assert_close(M[(n, slice(None), *at)], expected)


@torch.no_grad()
@pytest.mark.parametrize("pool", [2, 3, 50])
@pytest.mark.parametrize("name", ALL)
def test_the_average_of_a_square_predicts(name, pool):
    geometry = ALL[name]
    conv = layer(geometry, ns.PixelPredictor(hidden=3, pool=pool))
    input = geometry.input(dtype=torch.float64)
    M = conv.similarity(input)
    assert M.shape == (geometry.batch, geometry.taps, *geometry.positions)
    squares = {}
    for p, q in positions(geometry):
        squares.setdefault((p // pool, q // pool), []).append((p, q))
    for n in range(geometry.batch):
        for square in squares.values():
            x = torch.stack([pixel(input[n], centre(geometry, at)) for at in square]).mean(0)
            expected = GATES["sigmoid"](two_layers(conv.predictor.network, x))
            for at in square:
                torch.testing.assert_close(M[(n, slice(None), *at)], expected)


@torch.no_grad()
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("gate", GATES)
def test_an_image_predicts(gate, norm):
    geometry = GEOMETRIES["padded"]
    conv = layer(geometry, ns.ImagePredictor(hidden=3, gate=gate, batch_norm=norm))
    input = geometry.input(dtype=torch.float64)
    conv.train()(input)
    M = conv.eval().similarity(input)
    assert M.shape == (geometry.batch, geometry.taps, 1, 1)
    for n in range(geometry.batch):
        total = sum(input[n, :, y, x] for y in range(6) for x in range(7))
        expected = GATES[gate](two_layers(conv.predictor.network, total / 42))
        torch.testing.assert_close(M[n, :, 0, 0], expected)


@torch.no_grad()
@pytest.mark.parametrize("form", ["dot", "gaussian", "dot softmax", "gaussian of a guide"])
@pytest.mark.parametrize("name", ALL)
def test_pairs_predict(name, form):
    geometry = ALL[name]
    gaussian, softmax, guided = "gaussian" in form, "softmax" in form, "guide" in form
    predictor = ns.PairPredictor(
        channels=4, kernel=form.split()[0], softmax=softmax, guide_channels=5 if guided else None,
        residual=not softmax,
    )  # fmt: skip
    groups = 2 if geometry.channels % 2 == 0 else 1
    conv = layer(geometry, predictor, similarity_groups=groups)
    input = geometry.input(dtype=torch.float64)
    guide = torch.randn(geometry.batch, 5, *geometry.image).double() if guided else None
    M = conv.similarity(input, guide)
    network = conv.predictor.network
    source = guide if guided else input
    features = torch.einsum("dc,nchw->ndhw", network.embedding.weight.flatten(1), source)
    window = (geometry.kernel, geometry.stride, geometry.padding, geometry.dilation)
    share = 4 // groups
    for n in range(geometry.batch):
        for at in positions(geometry):
            f = pixel(features[n], centre(geometry, at)).reshape(groups, 1, share)
            g = oracle.patch(features[n], range(4), at, *window)
            g = g.reshape(groups, share, geometry.taps).mT
            pairs = torch.exp(-((f - g) ** 2).sum(2) / 2) if gaussian else (f * g).sum(2)
            if softmax:
                expected = pairs.exp() / pairs.exp().sum(1, keepdim=True)
            else:
                expected = 1 + network.gain * pairs
            torch.testing.assert_close(M[(n, slice(None), *at)], expected.flatten())


def test_a_guide_reaches_the_layer_and_is_padded_like_the_input():
    predictor = ns.PairPredictor(channels=None, kernel="gaussian", guide_channels=2)
    conv = ns.nn.DynamicConv2d(
        3, 4, 3, padding=1, padding_mode="reflect", predictor=predictor
    ).double()
    plain = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect").double()
    conv.load_state_dict(plain.state_dict())
    input, guide = (torch.randn(2, c, 6, 7, dtype=torch.float64) for c in (3, 2))
    torch.testing.assert_close(conv(input, guide), plain(input))
    disturb(conv)
    bare = ns.nn.DynamicConv2d(3, 4, 3, predictor=predictor).double()
    bare.load_state_dict(conv.state_dict())
    inner = [nn.functional.pad(x, (1, 1, 1, 1), mode="reflect") for x in (input, guide)]
    torch.testing.assert_close(conv(input, guide), bare(*inner))
    torch.testing.assert_close(conv(input[0], guide[0]), bare(*inner)[0])
    assert not torch.allclose(conv(input, guide), conv(input, guide.flip(3)))
    message = r"expected a guide with 2 channels, got none\. .*layer\(input, guide\)"
    with pytest.raises(ns.ShapeError, match=message):
        conv(input)
    with pytest.raises(ns.ShapeError, match=r"a guide with 2 channels, got one with 3\."):
        conv(input, input)
    with pytest.raises(ns.ShapeError, match=r"shape \(2, D, 6, 7\), got \(2, 2, 6, 6\)"):
        conv(input, guide[..., :-1])
    one_for_all = guide[:1].expand(2, -1, -1, -1)
    torch.testing.assert_close(conv(input, guide[:1]), conv(input, one_for_all))
    with pytest.raises(ns.ShapeError, match="expected no guide for ImagePredictor, got one of"):
        ns.nn.DynamicConv2d(3, 4, 3, predictor=ns.ImagePredictor())(input.float(), guide.float())


def test_a_start_without_the_identity():
    raw = ns.PixelPredictor(hidden=3, gate="none", residual=False, start="random")
    conv = ns.nn.DynamicConv2d(3, 4, 3, padding=1, predictor=raw)
    input = torch.randn(2, 3, 5, 6)
    network = conv.predictor.network
    expected = network.last(network.first(input).relu())
    assert torch.equal(conv.similarity(input), expected)
    random = ns.nn.DynamicConv2d(3, 4, 3, predictor=ns.ImagePredictor(start="random"))
    assert (random.similarity(input) != 1).all()


def test_the_patch_predictor_is_the_papers():
    assert ns.PatchPredictor is ns.SpherePredictor


@pytest.mark.parametrize(
    "predictor",
    [
        ns.PatchPredictor(hidden=3, normalize="both"),
        ns.PixelPredictor(hidden=3, gate="tanh", batch_norm=True, pool=4),
        ns.ImagePredictor(gate="none", residual=False, start="random"),
        ns.PairPredictor(channels=None, kernel="gaussian", softmax=True, guide_channels=3),
    ],
)
def test_a_file_describes_every_predictor(predictor):
    assert predictor_from_config(predictor.to_config()) == predictor


@pytest.mark.parametrize("cls", [ns.PixelPredictor, ns.ImagePredictor])
def test_bad_values_are_named(cls):
    where = cls.__name__
    with pytest.raises(ns.UnknownNameError, match=f"{where}: expected gate .* got 'relu'"):
        cls(gate="relu")
    with pytest.raises(ns.UnknownNameError, match=f"{where}: expected start .* got 'authors'"):
        cls(start="authors")
    with pytest.raises(ns.ShapeError, match=f"{where}: expected hidden to be a whole number"):
        cls(hidden=None)
    with pytest.raises(
        ns.ShapeError, match=f"{where}: .*with residual=False, got start='identity'"
    ):
        cls(residual=False)
    with pytest.raises(ns.ShapeError, match=f"{where}: .*batch_norm to be true or false, got 'no'"):
        cls(batch_norm="no")


def test_other_predictors_name_bad_values():
    for cls in (ns.SpherePredictor, ns.ConvPredictor):
        with pytest.raises(ns.ShapeError, match=f"{cls.__name__}: .*residual to be true or false"):
            cls(residual="False")
        with pytest.raises(ns.ShapeError, match="expected batch_norm to be true or false, got 1"):
            cls(batch_norm=1)
        with pytest.raises(ns.ShapeError, match=r"last_scale to be a finite number .* 0, got -1"):
            cls(last_scale=-1)
        with pytest.raises(ns.ShapeError, match="first_scale to be a number, got 'big'"):
            cls(first_scale="big")
    with pytest.raises(ns.ShapeError, match="PairPredictor: expected softmax to be true or false"):
        ns.PairPredictor(softmax="maybe")
    with pytest.raises(ns.ShapeError, match="DynamicSimilarity: expected shared to be true or"):
        ns.DynamicSimilarity(shared="False")


def test_a_wrong_number_of_channels_is_named():
    layer = ns.nn.DynamicConv2d(4, 6, 3, predictor=ns.ImagePredictor(hidden=2))
    for shape in ((2, 3, 7, 6), (7, 6)):  # not for the lack of a batch dimension
        with pytest.raises(
            ns.ShapeError, match=r"DynamicConv2d.similarity: .* \(N, 4, H, W\), got"
        ):
            layer.similarity(torch.zeros(shape))


def test_bad_pairs_are_named():
    with pytest.raises(ns.UnknownNameError, match="expected kernel to be one of 'dot', 'gaussian'"):
        ns.PairPredictor(kernel="cosine")
    with pytest.raises(ns.ShapeError, match="expected channels to be a whole number of at least 1"):
        ns.PairPredictor(channels=0)
    with pytest.raises(ns.ShapeError, match="divide the 4 channels that are compared, got 3"):
        ns.nn.DynamicConv2d(3, 3, 3, predictor=ns.PairPredictor(4), similarity_groups=3)
    with pytest.raises(ns.ShapeError, match=r"with PairPredictor, got .* and 'unconstrained'"):
        ns.nn.DynamicConv2d(3, 3, 3, structure="unconstrained", predictor=ns.PairPredictor())
    with pytest.raises(ns.ShapeError, match="PatchPredictor or ConvPredictor, got PixelPredictor"):
        ns.nn.GlobalSimilarityConv2d(3, 3, 3, structure="diagonal", predictor=ns.PixelPredictor())


def test_a_shared_predictor_takes_no_guide():
    model = ns.attach(nn.Sequential(nn.Conv2d(4, 8, 3)), ns.DynamicSimilarity(shared=True))
    with pytest.raises(ns.ShapeError, match="expected no guide for SharedNetwork, got one"):
        model[0](torch.randn(2, 4, 7, 6), torch.randn(2, 3, 7, 6))


def test_a_model_is_copied_while_predictions_are_kept():
    model = ns.attach(nn.Sequential(nn.Conv2d(4, 8, 3)), ns.DynamicSimilarity())
    image = torch.randn(2, 4, 7, 6)
    with ns.keep_predictions(model):
        expected = model(image)
        torch.testing.assert_close(copy.deepcopy(model)(image), expected)
        assert ns.similarity_penalty(model, l1=1.0) > 0
