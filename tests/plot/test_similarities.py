"""Heat maps of M: the numbers in them are the model's."""

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from support.cases import disturb
from torch import nn

import neural_similarity as ns
from neural_similarity import structures
from neural_similarity.plot import draw_dynamic, draw_static


def network(config=None, depth=2):
    layers = [nn.Conv2d(3, 4, 3, padding=1), *(nn.Conv2d(4, 4, 3) for _ in range(depth - 1))]
    model = nn.Sequential(*layers)
    if config is not None:
        ns.attach(model, config)
        disturb(model)
    return model.eval()


def maps(figure):
    """What is shown, by the title above it."""
    return {
        axes.get_title(): np.asarray(axes.get_images()[0].get_array())
        for axes in figure.axes
        if axes.get_images() and axes.get_title()
    }


def learned(model, layer):
    return model[layer].parametrizations.weight[0].similarity().detach()


def test_a_diagonal_is_drawn_as_the_kernel(tmp_path, drawn):
    model = network(ns.StaticSimilarity("diagonal"))
    draw_static(model, tmp_path / "static.png")
    shown = maps(drawn[0])
    assert set(shown) == {"0\ndiagonal", "1\ndiagonal"}
    gains = learned(model, 1).reshape(3, 3)
    np.testing.assert_array_equal(shown["1\ndiagonal"], gains - 1)
    panel = next(a for a in drawn[0].axes if a.get_title().startswith("1"))
    written = [text.get_text() for text in panel.texts]
    assert written == [f"{gain:.2f}" for gain in gains.flatten().tolist()]
    scales = {a.get_images()[0].get_clim() for a in drawn[0].axes if a.get_images()}
    largest = max((learned(model, i) - 1).abs().max().item() for i in (0, 1))
    assert scales == {(-largest, largest)}  # the identity in the middle, one scale for all
    assert imread(tmp_path / "static.png").ndim == 3


def test_a_matrix_is_drawn_as_a_matrix(tmp_path, drawn):
    model = network(ns.StaticSimilarity("unconstrained"))
    draw_static(model, tmp_path / "static.png")
    np.testing.assert_array_equal(
        maps(drawn[0])["0\nunconstrained"], learned(model, 0) - torch.eye(9)
    )


def test_a_kernel_shape_is_drawn_beside_its_similarity(tmp_path, drawn):
    model = network(ns.StaticSimilarity("kernel_shape"))
    numbers = model[0].parametrizations.weight[0].numbers
    with torch.no_grad():
        numbers["shape"][::2] = 0.0
    draw_static(model, tmp_path / "static.png")
    expected = (numbers["shape"] > 0.5).float().reshape(3, 3)
    assert 0 < expected.sum() < 9
    np.testing.assert_array_equal(maps(drawn[0])["0\nshape D"], expected)


@pytest.mark.parametrize(
    ("scope", "shape", "label"),
    [("channel", (3, 3), "mean of 3"), ("kernel", (3, 3), "mean of 4"), ("full", (3, 9), "")],
)
def test_many_similarities_in_one_layer(scope, shape, label, tmp_path, drawn):
    model = network(ns.StaticSimilarity("diagonal", scope=scope))
    draw_static(model, tmp_path / "static.png")
    title, shown = next((t, m) for t, m in maps(drawn[0]).items() if t.startswith("0"))
    assert label in title
    M = learned(model, 0)
    expected = M.reshape(shape) if scope == "full" else M.mean(0).reshape(shape)
    np.testing.assert_allclose(shown, expected - 1, atol=1e-6)  # a mean of a few float32


def test_kernels_of_every_kind(tmp_path, drawn):
    model = nn.Sequential(nn.Conv1d(2, 3, 5), nn.Conv3d(2, 3, (2, 3, 4)), nn.Linear(7, 2))
    targets = {"target_modules": ["0", "1", "2"]}
    ns.attach(model, ns.StaticSimilarity("diagonal", **targets))
    draw_static(model, tmp_path / "static.png")
    assert [m.shape for m in maps(drawn[0]).values()] == [(1, 5), (6, 4), (1, 7)]


@pytest.mark.parametrize("structure", ["diagonal", "unconstrained"])
def test_what_a_dynamic_layer_predicts(structure, tmp_path, drawn):
    config = ns.DynamicSimilarity(structure, ns.SpherePredictor(hidden=4))
    model, image = network(config), torch.randn(3, 8, 7)
    draw_dynamic(model, image, tmp_path / "dynamic.png")
    M = model[0].similarity(image[None])[0].detach()
    difference = M - (1 if structure == "diagonal" else torch.eye(9)[..., None, None])
    mean = difference.mean((-2, -1))
    shown = maps(drawn[0])
    expected = mean.reshape(3, 3) if structure == "diagonal" else mean
    np.testing.assert_allclose(shown["0\nmean of M"], expected, atol=1e-5)
    # The tap that changes most is drawn where it is.
    entries = difference.reshape(-1, 8, 7)
    most = int(entries.var((1, 2)).argmax())
    i, j = divmod(most, 9)
    tap = "tap {},{}".format(*(t + 1 for t in divmod(most, 3)))
    if structure == "unconstrained":
        tap = "{},{} ← {},{}".format(*(t + 1 for t in (*divmod(i, 3), *divmod(j, 3))))
    np.testing.assert_allclose(shown[tap], entries[most], atol=1e-5)
    distance = next(m for title, m in shown.items() if title.startswith("distance"))
    by_hand = entries.square().sum(0).sqrt() / 3  # the norm of nine ones
    np.testing.assert_allclose(distance, by_hand, rtol=1e-4)
    assert shown["image"].shape == (8, 7, 3)


def test_dynamic_layers_of_other_kinds(tmp_path, drawn):
    predictor = ns.SpherePredictor(hidden=4)
    model = nn.Sequential(
        ns.nn.DynamicConv2d(1, 2, 3, structure="kernel_shape", predictor=predictor),
        nn.Flatten(),
        ns.nn.DynamicLinear(24, 4, block_size=6, predictor=predictor),
    ).eval()
    draw_dynamic(model, torch.randn(1, 6, 5), tmp_path / "dynamic.png")
    shown = maps(drawn[0])
    assert shown["shape D"].tolist() == [[1.0] * 3] * 3
    assert shown["2\nmean of M"].shape == (1, 6)
    assert shown["image"].shape == (6, 5)


def test_groups_of_channels_and_one_m_an_image(tmp_path, drawn):
    pixel, image = ns.PixelPredictor(hidden=4), ns.ImagePredictor(hidden=4)
    model = nn.Sequential(
        ns.nn.DynamicConv2d(4, 6, 3, predictor=pixel, over="both", similarity_groups=2),
        ns.nn.DynamicConv2d(6, 2, 3, predictor=image),
        ns.nn.DynamicConv2d(2, 3, 2, predictor=pixel, over="kernels"),
    ).eval()
    disturb(model)
    picture = torch.randn(4, 8, 7)
    draw_dynamic(model, picture, tmp_path / "dynamic.png")
    shown = maps(drawn[0])
    groups = model[0].similarity(picture).detach().unflatten(1, (2, 9)).mean((0, 1, 3, 4)) - 1
    np.testing.assert_allclose(shown["0, mean of 2\nmean of M"].flatten(), groups, atol=1e-5)
    assert shown["1\nmean of M"].shape == (3, 3)
    assert shown["2, mean of 6\nmean of M"].shape == (2, 2)


@pytest.mark.parametrize("over", ["channels", "both"])
def test_the_distance_of_many_diagonals_is_not_that_of_their_mean(over, tmp_path, drawn):
    model = network(ns.DynamicSimilarity(predictor=ns.PixelPredictor(hidden=4), over=over))
    picture = torch.randn(3, 8, 7)
    draw_dynamic(model, picture, tmp_path / "dynamic.png")
    M = model[0].similarity(picture[None])[0].detach() - 1
    shown = maps(drawn[0])
    distance = next(m for title, m in shown.items() if title.startswith("distance"))
    np.testing.assert_allclose(distance, M.square().mean(0).sqrt(), rtol=1e-4)
    table = next(layer for layer in ns.convert.describe_layers(model, picture[None]))
    assert np.sqrt(np.square(distance).mean()) == pytest.approx(table.distance, rel=1e-4)


def test_over_channels_gates_are_drawn(tmp_path, drawn):
    model = network(ns.DynamicSimilarity(predictor=ns.PixelPredictor(hidden=4), over="channels"), 1)
    picture = torch.randn(3, 8, 7)
    draw_dynamic(model, picture, tmp_path / "dynamic.png")
    gates = model[0].similarity(picture[None])[0].detach().unflatten(0, (3, 9))[:, 0] - 1
    shown = maps(drawn[0])
    mean = gates.mean((1, 2))[None]
    np.testing.assert_allclose(shown["0, gates: 3\nmean of M"], mean, atol=1e-5)
    for number in range(3):
        np.testing.assert_allclose(shown[f"gate {number + 1}"], gates[number], atol=1e-5)
    model = nn.Sequential(
        ns.nn.DynamicConv2d(4, 6, 3, over="channels", similarity_groups=1,
                            predictor=ns.PixelPredictor(hidden=4)),
    ).eval()  # fmt: skip
    draw_dynamic(model, torch.randn(4, 8, 7), tmp_path / "dynamic.png")
    assert [title for title in maps(drawn[1]) if "tap" in title or "gate " in title] == ["gate 1"]


def test_deep_networks_are_cut_and_say_so(tmp_path, drawn, monkeypatch):
    from neural_similarity.plot import similarities

    monkeypatch.setattr(similarities, "_MOST_TILES", 4)
    monkeypatch.setattr(similarities, "_MOST_LAYERS", 3)
    draw_static(network(ns.StaticSimilarity(), depth=6), tmp_path / "static.png")
    assert "the first 4 of 6" in drawn[0].get_suptitle()
    config = ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=2))
    draw_dynamic(network(config, depth=6), torch.randn(3, 14, 14), tmp_path / "dynamic.png")
    assert "3 of 6 layers" in drawn[1].get_suptitle()
    assert {"0\nmean of M", "5\nmean of M"} <= set(maps(drawn[1]))


def test_pictures_leave_the_model_alone(tmp_path):
    model = network(ns.DynamicSimilarity(structures.Diagonal(), ns.SpherePredictor(hidden=2)))
    before = [len(m._forward_hooks) for m in model.modules()]
    draw_dynamic(model, torch.randn(3, 8, 8), tmp_path / "dynamic.png")
    assert [len(m._forward_hooks) for m in model.modules()] == before


def test_models_without_what_is_to_be_drawn(tmp_path):
    with pytest.raises(ns.AttachError, match="draw_static: expected a model with static"):
        draw_static(network(), tmp_path / "static.png")
    with pytest.raises(ns.AttachError, match="draw_dynamic: expected a model with dynamic"):
        draw_dynamic(network(), torch.randn(3, 8, 8), tmp_path / "dynamic.png")
    with pytest.raises(ns.ShapeError, match=r"\(C, H, W\), got \(1, 3, 8, 8\)"):
        draw_dynamic(network(), torch.randn(1, 3, 8, 8), tmp_path / "dynamic.png")
    assert list(tmp_path.iterdir()) == []
