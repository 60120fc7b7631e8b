"""A predictor that trains in one operation does what its modules do, statistics included."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.nn.predictors import Window, fused
from neural_similarity.ops.similarity_conv import compiled, dispatch

pytestmark = pytest.mark.skipif(compiled.load() is None, reason="no compiled operator here")


def layer(**options: Any) -> Any:
    torch.manual_seed(0)
    predictor = ns.SpherePredictor(hidden=6, start="authors", last_scale=1.0)
    return ns.nn.DynamicConv2d(4, 5, 3, padding=1, predictor=predictor, **options).double()


def batches(count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 4, 6, 7, generator=generator).double() for _ in range(count)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a predictor was computed in one operation."""
    counted: list[int] = []
    whole = fused.fused_predictor

    def count(*arguments: Any) -> Any:
        counted.append(1)
        return whole(*arguments)

    monkeypatch.setattr(fused, "fused_predictor", count)
    return counted


def norms(model: nn.Module) -> list[nn.BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]


def train(model: nn.Module) -> dict[str, Tensor]:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches():
        optimiser.zero_grad()
        model(batch).square().mean().backward()
        optimiser.step()
    return model.state_dict()


@pytest.mark.parametrize("momentum", [0.1, 0.3, None])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_training_gives_the_same_network(calls: list[int], momentum: Any, layout: Any) -> None:
    ours = layer().to(memory_format=layout)
    for norm in norms(ours):
        norm.momentum = momentum
    steps = copy.deepcopy(ours)
    state = train(ours)
    assert len(calls) == len(batches())
    with dispatch.only("panels"):
        expected = train(steps)
    assert len(calls) == len(batches())
    torch.testing.assert_close(state, expected, rtol=1e-9, atol=1e-9)


def test_without_running_statistics_evaluation_takes_the_batch_too(calls: list[int]) -> None:
    model = layer()
    for norm in norms(model):
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    steps = copy.deepcopy(model).eval()
    found = model.eval()(batches()[0])
    assert calls
    with dispatch.only("panels"):
        torch.testing.assert_close(found, steps(batches()[0]))


def test_evaluation_and_frozen_statistics_go_step_by_step(calls: list[int]) -> None:
    model = layer().eval()
    model(batches()[0])
    norms(model.train())[1].eval()
    model(batches()[0])
    assert not calls


def test_other_norms_are_called(calls: list[int]) -> None:
    model = layer()
    norms(model)[0].register_forward_hook(lambda *_: calls.append(0))
    model(batches()[0])
    assert calls == [0]
    first, last = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 9, 3)
    shared = [(first, nn.SyncBatchNorm(6)), (last, nn.SyncBatchNorm(9))]
    assert fused.in_one_operation(batches()[0].float(), Window(), *shared) is None


def test_a_hook_sees_the_network_without_the_identity(calls: list[int]) -> None:
    model, outputs = layer(), []
    M = model.similarity(batches()[0])
    network = model.predictor.network
    network.register_forward_hook(lambda *arguments: outputs.append(arguments[-1]))
    torch.testing.assert_close(model.similarity(batches()[0]), M)
    torch.testing.assert_close(outputs[0] + 1, M)
    assert len(calls) == 2


@pytest.mark.parametrize("options", [{"normalize": "both"}, {"batch_norm": False}])
def test_other_predictors_go_step_by_step(calls: list[int], options: Any) -> None:
    predictor = ns.SpherePredictor(hidden=6, **options)
    ns.nn.DynamicConv2d(4, 5, 3, padding=1, predictor=predictor)(batches()[0].float())
    assert not calls


def test_one_value_for_a_channel_is_refused_as_ever() -> None:
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        layer()(batches()[0][:1, :, :1, :1])


def test_functional_call_and_transforms(calls: list[int]) -> None:
    model, batch = layer(), batches()[0]
    for norm in norms(model):  # transforms do not allow that statistics change in place
        norm.track_running_stats = False
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {name: tensor.detach().clone() for name, tensor in state.items()}

    def loss(state: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, state, (batch,)).square().mean()

    plain = loss(state)
    assert len(calls) == 1
    trained = {name: t for name, t in state.items() if name in dict(model.named_parameters())}
    rest = {name: t.clone() for name, t in state.items() if name not in trained}
    gradients, value = torch.func.grad_and_value(lambda p: loss({**p, **rest}))(trained)
    assert len(calls) == 1
    assert set(gradients) == set(trained)
    torch.testing.assert_close(value, plain)


def test_compiled_models_trace_the_single_operations(calls: list[int]) -> None:
    model, batch = layer(), batches()[0]
    expected = copy.deepcopy(model)(batch)
    assert len(calls) == 1
    found = torch.compile(model, backend="eager", fullgraph=True)(batch)
    assert len(calls) == 1
    torch.testing.assert_close(found, expected)
