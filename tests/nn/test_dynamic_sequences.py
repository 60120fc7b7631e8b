"""Dynamic layers for sequences and features: Conv1d, Linear and LSTMCell against their formulas."""

import copy

import pytest
import torch
from support.cases import SMALL, disturb
from torch import nn

import neural_similarity as ns
from neural_similarity import structures


@pytest.mark.parametrize(
    "structure", ["diagonal", "unconstrained", "psd", structures.KernelShape()]
)
@pytest.mark.parametrize("block_size", [None, 3])
def test_linear_against_the_formula(structure, block_size):
    layer = ns.nn.DynamicLinear(6, 4, structure=structure, block_size=block_size, predictor=SMALL)
    layer.double().eval()
    plain = nn.Linear(6, 4).double()
    layer.load_state_dict(plain.state_dict())
    input = torch.randn(5, 2, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(input), plain(input))
    disturb(layer)
    M = layer.predictor(input.reshape(-1, 6)).detach()
    M = torch.diag_embed(M) if M.dim() == 2 else M
    if isinstance(structure, structures.KernelShape):
        M = torch.diag(structure.shape({"shape": layer.predictor.shape_numbers})).detach() @ M
    for sample, whole, y in zip(input.reshape(-1, 6), M, layer(input).reshape(-1, 4), strict=True):
        blocks = torch.block_diag(*[whole] * (6 // len(whole)))
        torch.testing.assert_close(y, plain.weight @ blocks @ sample + plain.bias)


@pytest.mark.parametrize("structure", ["diagonal", "unconstrained"])
def test_lstm_cell_against_the_formula(structure):
    cell = ns.nn.DynamicLSTMCell(3, 5, structure=structure, predictor=SMALL).double().eval()
    plain = nn.LSTMCell(3, 5).double()
    cell.load_state_dict(plain.state_dict())
    x, h, c = (torch.randn(4, n, dtype=torch.float64) for n in (3, 5, 5))
    for ours, theirs in zip(cell(x, (h, c)), plain(x, (h, c)), strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(cell(x)[0], plain(x)[0])
    torch.testing.assert_close(cell(x[0])[0], plain(x[0])[0])
    disturb(cell)
    seen = torch.cat([x, h], 1)
    M_ih, M_hh = cell.predictor_ih(seen), cell.predictor_hh(seen)
    mixed = [
        m * v if structure == "diagonal" else torch.einsum("bij,bj->bi", m, v)
        for m, v in ((M_ih, x), (M_hh, h))
    ]
    gates = mixed[0] @ cell.weight_ih.T + cell.bias_ih + mixed[1] @ cell.weight_hh.T + cell.bias_hh
    i, f, g, o = gates.chunk(4, 1)
    memory = f.sigmoid() * c + i.sigmoid() * g.tanh()
    ours = cell(x, (h, c))
    torch.testing.assert_close(ours[1], memory)
    torch.testing.assert_close(ours[0], o.sigmoid() * memory.tanh())


@pytest.mark.parametrize("mode", ["zeros", "circular"])
def test_conv1d_is_a_conv2d_of_one_row(mode):
    plain = nn.Conv1d(4, 6, 3, stride=2, padding=2, groups=2, padding_mode=mode)
    layer = ns.nn.DynamicConv1d(
        4, 6, 3, stride=2, padding=2, groups=2, padding_mode=mode, predictor=SMALL
    )
    layer.load_state_dict(plain.state_dict())
    input = torch.randn(2, 4, 11)
    torch.testing.assert_close(layer(input), plain(input))
    torch.testing.assert_close(layer(input[0]), plain(input[0]))
    disturb(layer)
    assert not torch.allclose(layer(input), plain(input))
    assert layer.predictor.network.last.weight.shape == (3, 4, 1, 3), "it stays in its row"
    row = ns.nn.DynamicConv2d(
        4, 6, (1, 3), stride=(1, 2), padding=(0, 2), groups=2, padding_mode=mode, predictor=SMALL
    )
    state = {k: v.unsqueeze(2) if k == "weight" else v for k, v in layer.state_dict().items()}
    row.load_state_dict(state)
    torch.testing.assert_close(layer.eval()(input), row.eval()(input.unsqueeze(2)).squeeze(2))


def test_dense_layers_take_any_batch():
    linear, cell = ns.nn.DynamicLinear(6, 4, block_size=3), ns.nn.DynamicLSTMCell(3, 5)
    assert linear(torch.randn(0, 6)).shape == (0, 4)
    assert linear(torch.randn(6)).shape == (4,)
    assert cell(torch.randn(0, 3))[0].shape == (0, 5)
    assert cell(torch.randn(1, 3))[0].shape == (1, 5)


def transformer():
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, dropout=0.0)
    ns.attach(layer, ns.DynamicSimilarity(predictor=SMALL, target_modules=["linear1", "linear2"]))
    disturb(layer)
    return layer.eval()


def test_transformers_do_not_pass_over_the_similarity():
    layer, input = transformer(), torch.randn(2, 5, 8)
    with torch.no_grad():
        torch.testing.assert_close(layer(input), layer.train()(input))
        torch.testing.assert_close(copy.deepcopy(layer).eval()(input), layer(input))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_refused_by_name():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 1)
    encoder.layers[0] = transformer()
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad(), pytest.raises(ns.ShapeError, match="set use_nested_tensor to False"):
        encoder.eval()(torch.randn(2, 3, 8), src_key_padding_mask=padding)
    encoder.use_nested_tensor = False
    with torch.no_grad():
        assert encoder(torch.randn(2, 3, 8), src_key_padding_mask=padding).isfinite().all()


@pytest.mark.parametrize("structure", ["unconstrained", structures.KernelShape("psd")])
def test_conv1d_of_any_structure_is_a_conv2d_of_one_row(structure):
    given = {"structure": structure, "predictor": SMALL}
    layer = ns.nn.DynamicConv1d(4, 6, 3, padding=1, **given).eval()
    disturb(layer)
    if isinstance(structure, structures.KernelShape):
        layer.predictor.shape_numbers.data = torch.tensor([1.0, 0.2, 1.0])  # no middle tap
    row = ns.nn.DynamicConv2d(4, 6, (1, 3), padding=(0, 1), **given).eval()
    state = layer.state_dict()
    row.load_state_dict({**state, "weight": state["weight"].unsqueeze(2)})
    x = torch.randn(2, 4, 11)
    torch.testing.assert_close(layer(x), row(x.unsqueeze(2)).squeeze(2))


def test_lstm_cell_with_blocks_and_a_kernel_shape():
    structure = structures.KernelShape("unconstrained")
    cell = ns.nn.DynamicLSTMCell(6, 4, structure=structure, block_size=2, predictor=SMALL)
    cell.double().eval()
    disturb(cell)
    with torch.no_grad():
        cell.predictor_ih.shape_numbers.copy_(torch.tensor([0.2, 1.0]))
        cell.predictor_hh.shape_numbers.copy_(torch.tensor([1.0, 0.2]))
    x, h, c = (torch.randn(3, n, dtype=torch.float64) for n in (6, 4, 4))
    seen, gates = torch.cat([x, h], 1), cell.bias_ih + cell.bias_hh
    for predictor, D, input, W in (
        (cell.predictor_ih, (0.0, 1.0), x, cell.weight_ih),
        (cell.predictor_hh, (1.0, 0.0), h, cell.weight_hh),
    ):
        M = torch.diag(torch.tensor(D, dtype=torch.float64)) @ predictor(seen)
        for sample in range(3):
            whole = torch.block_diag(*[M[sample]] * (input.shape[1] // 2))
            gates = gates + torch.eye(3)[sample][:, None] * (W @ whole @ input[sample])
    i, f, g, o = gates.chunk(4, 1)
    memory = f.sigmoid() * c + i.sigmoid() * g.tanh()
    ours = cell(x, (h, c))
    torch.testing.assert_close(ours[1], memory)
    torch.testing.assert_close(ours[0], o.sigmoid() * memory.tanh())


@pytest.mark.parametrize("shape", [(9,), (2, 4, 9, 9), (2, 3, 9)])
def test_sequences_of_the_wrong_shape(shape):
    with pytest.raises(ns.ShapeError, match=r"input of shape \(N, 4, L\) or \(4, L\), got "):
        ns.nn.DynamicConv1d(4, 8, 3)(torch.randn(shape))


@pytest.mark.parametrize("shape", [(4, 1, 6), (4, 5)])
def test_cells_refuse_inputs_of_the_wrong_shape(shape):
    with pytest.raises(ns.ShapeError, match=r"input of shape \(N, 6\) or \(6,\), got "):
        ns.nn.DynamicLSTMCell(6, 3)(torch.randn(shape))


@pytest.mark.parametrize("length", [1, 10])
def test_a_gradient_of_one_sequence_that_is_differentiated_again(length):
    """PyTorch's BatchNorm takes gradients of one image with unusual strides for other ones."""
    torch.manual_seed(0)
    predictor = ns.SpherePredictor(4, batch_norm=True)
    layer = ns.nn.DynamicConv1d(
        3, 4, 3, padding=1 + (length == 1), structure="unconstrained", predictor=predictor
    ).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    input = torch.randn(1, 3, length, dtype=torch.double, requires_grad=True)
    once, twice = (
        torch.autograd.grad(layer(input).sin().sum(), input, create_graph=again)[0]
        for again in (False, True)
    )
    torch.testing.assert_close(twice, once)
