"""Few-shot methods that adapt the network: what changes, and by which gradients."""

from copy import deepcopy
from weakref import WeakSet

import pytest
import torch
import torch.nn.functional as F
from support.fewshot_cases import IMAGE, N_WAY, backbone, episodes, made, network_of
from torch import nn

import neural_similarity as ns
from neural_similarity.convert import similarity_parameters
from neural_similarity.fewshot import Tasks, as_tasks, create_method, query_labels
from neural_similarity.fewshot.inner_loop.episode_parameters import BIAS, WEIGHT

CLOSE = {"rtol": 1e-8, "atol": 1e-10}
META = ["maml", "meta_static", "meta_dynamic"]


def numbers(tensors) -> int:
    return sum(t.numel() for t in tensors)


def shaken(network):
    """Off the identity, where predictors and similarities would hide mistakes."""
    with torch.no_grad():
        for parameter in similarity_parameters(network.backbone):
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize("start", ["zero", "prototypes"])
@pytest.mark.parametrize(("name", "options"), [("static", {}), ("finetune", {"tune": "all"})])
def test_tuning_by_the_optimiser_of_torch(name, options, start):
    method, network = made(name, lr=0.3, epochs=5, start=start, **options)
    support, query = episodes(1)
    queries = query.flatten(1, 2)
    scores = method.scores(network, support, queries)[0]

    copy = deepcopy(network)
    tuned = list(
        similarity_parameters(copy.backbone) if name == "static" else copy.backbone.parameters()
    )
    linear = nn.Linear(network.num_features, N_WAY).double()
    images, labels = support[0].flatten(0, 1), query_labels(*support.shape[1:3])
    prototypes = network(images).detach().unflatten(0, support.shape[1:3]).mean(1)
    prototypes = prototypes * (start == "prototypes")
    with torch.no_grad():
        linear.weight.copy_(2 * prototypes)
        linear.bias.copy_(-prototypes.square().sum(1))
    copy.requires_grad_(False)
    for parameter in tuned:
        parameter.requires_grad_(True)
    optimiser = torch.optim.SGD(
        [*tuned, *linear.parameters()],
        method.lr, method.momentum, method.dampening, method.weight_decay,
    )  # fmt: skip
    for rows in method.batches(len(images)):
        optimiser.zero_grad()
        F.cross_entropy(linear(copy(images[rows])), labels[rows]).backward()
        optimiser.step()
    torch.testing.assert_close(scores, linear(copy(queries[0])).detach(), **CLOSE)
    untuned = linear(network(queries[0])).detach()
    assert not torch.allclose(scores, untuned, atol=1e-3)  # the network itself was tuned
    assert numbers([*tuned, *linear.parameters()]) == method.adapted(network, N_WAY)


def test_static_trains_the_plain_network():
    method, network = made("static")
    plain = create_method("finetune").build(backbone(), N_WAY, IMAGE)
    assert not any(p.requires_grad for p in similarity_parameters(network.backbone))
    trained = numbers(p for p in network.parameters() if p.requires_grad)
    assert trained == numbers(plain.parameters())
    assert method.adapted(network, 5) == 2 * 9 + 5 * (network.num_features + 1)


def test_dynamic_tunes_the_classifier_alone():
    method, network = made("dynamic")
    assert method.from_features
    assert method.adapted(network, 5) == 5 * (network.num_features + 1)
    assert all(p.requires_grad for p in network.parameters())
    first = next(m for m in network.backbone.modules() if isinstance(m, ns.nn.DynamicConv2d))
    assert numbers(first.predictor.parameters()) > 0


@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_a_similarity_of_your_own_is_kept(name):
    structure = "unconstrained"
    config = {
        "static": ns.StaticSimilarity(structure),
        "dynamic": ns.DynamicSimilarity(structure, ns.SpherePredictor(hidden=4)),
    }[name]
    model = backbone(config)
    before = numbers(similarity_parameters(model))
    network = create_method(name).build(model, N_WAY, IMAGE)
    assert numbers(similarity_parameters(network.backbone)) == before


@pytest.mark.parametrize(
    ("name", "start", "options"),
    [
        ("maml", "learned", {}), ("maml", "prototypes", {}),
        ("meta_static", "learned", {}), ("meta_static", "zero", {}),
        ("meta_static", "prototypes", {"fixed_classifier": True}),
        ("meta_dynamic", "zero", {}), ("meta_dynamic", "prototypes", {}),
    ],
)  # fmt: skip
def test_meta_gradients_by_finite_differences(name, start, options):
    method, network = made(name, start=start, inner_steps=3, inner_lr=0.05, **options)
    shaken(network)
    _smooth(network)
    tasks = as_tasks(*episodes(2))
    method.loss(network, tasks).backward()
    for key, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        direction = torch.randn_like(parameter)
        step = 1e-5 * direction / direction.norm()
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * step)
            losses.append(method.loss(network, tasks).item())
            with torch.no_grad():
                parameter.sub_(sign * step)
        expected = (losses[0] - losses[1]) / 2
        # Central differences: an error of the step squared, and rounding of the loss.
        assert (parameter.grad * step).sum().item() == pytest.approx(expected, 1e-4, 1e-12), key


def _smooth(network):
    """Softplus and average pooling: differences across a kink are no derivatives."""
    for module in network.modules():
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.Softplus())
            if isinstance(child, nn.MaxPool2d):
                setattr(module, name, nn.AvgPool2d(2))


def test_a_step_of_maml_by_hand():
    """θ' = θ − α ∇L(θ), twice, on a copy of the network."""
    method, network = made("maml", inner_lr=0.1, test_steps=2)
    support, query = episodes(1)
    with torch.no_grad():
        scores = method.scores(network, support, query.flatten(1, 2))
    copy = deepcopy(network)
    optimiser = torch.optim.SGD(copy.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        images = support[0].flatten(0, 1)
        labels = query_labels(*support.shape[1:3])
        F.cross_entropy(copy.head(copy(images)), labels).backward()
        optimiser.step()
    expected = copy.head(copy(query[0].flatten(0, 1)))
    torch.testing.assert_close(scores[0], expected.detach(), **CLOSE)


@pytest.mark.parametrize("name", META)
def test_first_order_leaves_out_second_derivatives(name):
    """Its gradient is that of the queries' loss at the adapted tensors."""
    method, network = made(name, first_order=True, inner_lr=0.05, start="learned")
    second = create_method(name, inner_lr=0.05, start="learned")
    shaken(network)
    tasks = as_tasks(*episodes(1))
    parameters = dict(network.backbone.named_parameters())
    ours = torch.autograd.grad(method.loss(network, tasks), network.head.weight)[0]
    full = torch.autograd.grad(second.loss(network, tasks), network.head.weight)[0]
    fitted = method.fit(network, tasks.support[0], method.inner_steps, False)
    leaves = {key: tensor.detach().requires_grad_() for key, tensor in fitted.items()}
    own = {key: leaf for key, leaf in leaves.items() if key in parameters}
    features = torch.func.functional_call(network.backbone, own, (tasks.query[0],))
    loss = F.cross_entropy(F.linear(features, leaves[WEIGHT], leaves[BIAS]), tasks.labels[0])
    expected = torch.autograd.grad(loss, leaves[WEIGHT])[0]
    torch.testing.assert_close(ours, expected, **CLOSE)
    assert not torch.allclose(ours, full, rtol=1e-3)


@pytest.mark.parametrize("name", ["meta_static", "meta_dynamic"])
def test_meta_learning_moves_similarity_and_classifier_alone(name):
    method, network = made(name, start="learned")
    theta = set(method.names(network))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    network.train()
    optimiser = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1)
    method.loss(network, as_tasks(*episodes())).backward()
    optimiser.step()
    for key, value in network.state_dict().items():
        moves = key.removeprefix("backbone.") in theta or key.startswith("head.")
        assert torch.equal(value, before[key]) != moves, key


@pytest.mark.parametrize("name", ["meta_static", "meta_dynamic"])
def test_further_steps_are_the_classifiers(name):
    """Twenty steps of the classifier on features that no longer move."""
    few = create_method(name, classifier_steps=1)
    many = create_method(name)
    network = shaken(network_of(few))
    support, _ = episodes(1)
    ours, more = (m.fit(network, support[0], 5, False) for m in (few, many))
    for key in few.names(network):
        assert torch.equal(ours[key], more[key])
        assert not torch.equal(ours[key], dict(network.backbone.named_parameters())[key])
    own = {key: ours[key] for key in few.names(network)}
    features = torch.func.functional_call(network.backbone, own, (support[0].flatten(0, 1),))
    weight, bias = (ours[key].detach().requires_grad_() for key in (WEIGHT, BIAS))
    optimiser = torch.optim.SGD([weight, bias], lr=0.2)
    for _ in range(19):
        optimiser.zero_grad()
        scores = F.linear(features.detach(), weight, bias)
        F.cross_entropy(scores, query_labels(*support.shape[1:3])).backward()
        optimiser.step()
    torch.testing.assert_close(more[WEIGHT].detach(), weight.detach(), **CLOSE)
    torch.testing.assert_close(more[BIAS].detach(), bias.detach(), **CLOSE)


@pytest.mark.parametrize("start", ["learned", "prototypes"])
def test_steps_of_the_similarity_alone(start):
    """Gradient descent on M, with the classifier that it starts with."""
    method, network = made("meta_static", start=start, inner_lr=0.05, fixed_classifier=True)
    shaken(network)
    support, _ = episodes(1)
    images, labels = support[0].flatten(0, 1), query_labels(*support.shape[1:3])
    weight, bias = network.head.parameters() if start == "learned" else (None, None)
    if start == "prototypes":
        means = network(images).unflatten(0, support.shape[1:3]).mean(1).detach()
        weight, bias = 2 * means, -(means**2).sum(1)
    found = method.fit(network, support[0], 3, False)
    own = dict(network.backbone.named_parameters())
    M = [own[name] for name in method.names(network)]
    assert method.adapted(network, N_WAY) == numbers(M)
    optimiser = torch.optim.SGD(M, lr=0.05)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(F.linear(network(images), weight, bias), labels).backward()
        optimiser.step()
    for name in method.names(network):
        torch.testing.assert_close(found[name], own[name], **CLOSE)
    torch.testing.assert_close(found[WEIGHT], weight, **CLOSE)
    torch.testing.assert_close(found[BIAS], bias, **CLOSE)
    with pytest.raises(ns.RunError, match=r"expected start 'prototypes' or 'learned'"):
        create_method("meta_static", fixed_classifier=True)


def test_what_is_adapted_of_a_predictor():
    network = network_of(create_method("meta_dynamic"))
    counts = {}
    for part in ("gains", "last", "all"):
        method = create_method("meta_dynamic", part=part)
        counts[part] = method.adapted(network, 0)
    layers = [m for m in network.backbone.modules() if isinstance(m, ns.nn.DynamicConv2d)]
    assert counts["gains"] == 18 * len(layers) == 36
    assert counts["last"] == 36 + 2 * 9 * 64 * 9
    assert counts["all"] == numbers(similarity_parameters(network.backbone))
    bare = backbone(ns.DynamicSimilarity(predictor=ns.SpherePredictor(8, batch_norm=False)))
    method = create_method("meta_dynamic")
    assert method.adapted(method.build(bare, N_WAY, IMAGE), 0) == 2 * 9 * 8 * 9
    for predictor, each in (
        (ns.ImagePredictor(hidden=8), 8 * 9 + 9),  # the last layer
        (ns.PixelPredictor(hidden=8, batch_norm=True), 8 * 9 + 9),
        (ns.PairPredictor(channels=4), 1),  # the gain
    ):
        network = method.build(backbone(ns.DynamicSimilarity(predictor=predictor)), N_WAY, IMAGE)
        assert method.adapted(network, 0) == 2 * each


@pytest.mark.parametrize("name", ["maml", "meta_static"])
def test_ways_that_were_not_learned(name):
    method, network = made(name, start="learned")
    support, query = episodes(1)
    with pytest.raises(ns.ShapeError, match=r"episodes with 3 ways, got 2\. The initial"):
        method.scores(network, support[:, :2], query.flatten(1, 2))
    method, network = made(name, start="zero")
    assert method.scores(network, support[:, :2], query.flatten(1, 2)).shape[-1] == 2


def test_a_frozen_network_still_adapts():
    method, network = made("maml")
    support, query = episodes(1)
    expected = method.scores(network, support, query.flatten(1, 2))
    network.requires_grad_(False)
    assert torch.equal(method.scores(network, support, query.flatten(1, 2)), expected)


@pytest.mark.parametrize("name", ["meta_static", "meta_dynamic"])
def test_recomputing_changes_nothing_but_memory(name):
    tasks = as_tasks(*episodes())
    method, network = made(name, start="learned")
    shaken(network)
    trained = [p for p in network.parameters() if p.requires_grad]
    gradients = []
    for recompute in (True, False):
        method = create_method(name, start="learned", recompute=recompute)
        gradients.append(torch.autograd.grad(method.loss(network, tasks), trained))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("name", ["maml", "meta_static"])
def test_tasks_are_forgotten_one_by_one(name):
    """The gradient is that of the mean, and what a task was computed from is gone with it."""
    tasks = as_tasks(*episodes(3))
    method, network = made(name)
    trained = [p for p in network.parameters() if p.requires_grad]
    alive, most = WeakSet(), 0

    def pack(tensor):
        nonlocal most
        alive.add(held := Held(tensor))
        most = max(most, len(alive))
        return held

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
        loss = method.loss(network, tasks)
        assert len(alive) == 0
        whole, most = most, 0
        method.loss(network, Tasks(*(part[:1] for part in tasks)))
    assert whole == most > 0, "three tasks hold no more than one"
    wanted = torch.stack(list(method._losses(network, tasks))).mean()
    torch.testing.assert_close(loss, wanted)
    for ours, theirs in zip(
        torch.autograd.grad(2 * loss, trained),
        torch.autograd.grad(2 * wanted, trained),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, **CLOSE)


def test_memory_grows_with_the_similarity():
    """Each step keeps what is adapted: no activation, and no kernel, of which there are many."""
    wide = {"width": 64, "growth": (1,), "depths": (2,)}
    method = create_method("meta_static")
    network = method.build(backbone("static", **wide), N_WAY, IMAGE).eval()
    adapted = 8 * method.adapted(network, N_WAY)
    assert adapted < 8 * numbers(network.parameters()) / 3
    tasks = as_tasks(*episodes(1))

    def kept(steps: int, **options) -> int:
        alive = WeakSet()

        def pack(tensor):
            alive.add(held := Held(tensor))
            return held

        method = create_method("meta_static", inner_steps=steps, **options)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
            (loss,) = method._losses(network, tasks)
        storages = [held.tensor.untyped_storage() for held in alive]
        total = sum({s.data_ptr(): s.nbytes() for s in storages}.values())
        del loss
        return total

    # A step is kept with its arguments, and may share them with the one before.
    assert (kept(8) - kept(4)) / 4 <= adapted
    assert (kept(8, recompute=False) - kept(4, recompute=False)) / 4 > 5 * adapted


class Held:
    """A tensor that a graph holds on to."""

    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("finetune", {"tune": "all"}), ("maml", {"inner_steps": 2}), ("meta_dynamic", {}),
        ("transductive_finetune", {"epochs": 2}),
    ],
)  # fmt: skip
def test_an_episode_leaves_shared_predictors_alone(name, options):
    torch.manual_seed(0)
    predictor = ns.SpherePredictor(hidden=4)
    similarity = ns.DynamicSimilarity(predictor=predictor, shared=True, shared_width=4)
    backbone = ns.create_model("cnn4", 3, similarity, image_size=16, width=4)
    method = create_method(name, **options)
    network = method.build(backbone, 3, (3, 16, 16)).eval()
    before = {key: (id(p), p.detach().clone()) for key, p in network.named_parameters()}
    support, query = torch.randn(1, 3, 1, 3, 16, 16), torch.randn(1, 6, 3, 16, 16)
    first = method.scores(network, support, query)
    for key, parameter in network.named_parameters():
        assert id(parameter) == before[key][0]
        assert torch.equal(parameter, before[key][1])
    assert torch.equal(method.scores(network, support, query), first)
