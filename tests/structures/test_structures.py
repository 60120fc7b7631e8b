"""What M may be: each structure keeps its promise, at the start and anywhere else."""

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.cases import STARTS_AT_IDENTITY, STRUCTURES, random_numbers
from torch.autograd import gradcheck, gradgradcheck

from neural_similarity import DuplicateNameError, ShapeError, UnknownNameError, structures
from neural_similarity.ops import effective_weight
from neural_similarity.structures import Block, base

BLOCK = Block(taps=(3, 5))
LEADING = (2,)


def matrix(structure, numbers, block=BLOCK):
    M = structure.similarity(numbers, block)
    leading = (
        next(iter(numbers.values())).dim() - next(iter(structure.initial(block).values())).dim()
    )
    return torch.diag_embed(M) if M.dim() == leading + 1 else M


def moved(name):
    return random_numbers(STRUCTURES[name], BLOCK, *LEADING)


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("block", [BLOCK, Block((5,)), Block((3, 1, 3)), Block((3, 3), channels=2)])
def test_starts_exactly_at_the_identity_unless_it_says_otherwise(name, block):
    structure = STRUCTURES[name]
    start = matrix(structure, structure.initial(block), block)
    assert torch.equal(start, torch.eye(block.size)) == structure.starts_at_identity(block)


@pytest.mark.parametrize(
    ("structure", "starts"),
    [
        (structures.Dilated(2), False),
        (structures.Dilated(1), True),
        (structures.Sparse(0.06), False),  # 14 of 225 entries
        (structures.Sparse(0.067), True),
        (structures.KernelShape(structures.Dilated(2)), False),
    ],
)
def test_which_options_start_at_the_identity(structure, starts):
    start = matrix(structure, structure.initial(BLOCK))
    assert torch.equal(start, torch.eye(15)) == structure.starts_at_identity(BLOCK) == starts


@pytest.mark.parametrize("name", STRUCTURES)
def test_moves_away_from_the_identity_one_block_at_a_time(name):
    structure, numbers = STRUCTURES[name], moved(name)
    M = matrix(structure, numbers)
    assert M.shape == (*LEADING, 15, 15)
    assert not torch.allclose(M[0], M[1])
    alone = matrix(structure, {k: v[1] for k, v in numbers.items()})
    torch.testing.assert_close(M[1], alone)
    assert (M - torch.eye(15)).abs().max() > 0.1


@pytest.mark.parametrize("name", STRUCTURES)
def test_derivatives_are_exact_unless_the_structure_says_otherwise(name):
    structure, block = STRUCTURES[name], Block((3, 1))
    numbers = random_numbers(structure, block, 2)

    def f(*values):
        return structure.similarity(dict(zip(numbers, values, strict=True)), block)

    values = tuple(v.requires_grad_() for v in numbers.values())
    if structure.is_straight_through:
        assert not gradcheck(f, values, raise_exception=False)
        return
    assert gradcheck(f, values)
    assert gradgradcheck(f, values)


def test_a_kernel_shape_of_a_straight_through_structure_is_one_too():
    assert structures.KernelShape("shift", boolean=False).is_straight_through
    assert not structures.KernelShape("psd", boolean=False).is_straight_through


@pytest.mark.parametrize("name", [n for n, s in STRUCTURES.items() if s.is_straight_through])
def test_straight_through_gives_every_number_the_gradient_of_what_it_makes(name):
    structure = STRUCTURES[name]
    numbers = {k: v.requires_grad_() for k, v in moved(name).items()}
    direction = torch.randn(*LEADING, 15, 15, dtype=torch.float64)
    (matrix(structure, numbers) * direction).sum().backward()
    if not isinstance(structure, structures.KernelShape):
        (only,) = numbers.values()
        torch.testing.assert_close(only.grad, direction)
        return
    inner = structure.inner.similarity(numbers, BLOCK).detach()
    R = torch.diag_embed(inner) if inner.dim() == 2 else inner
    torch.testing.assert_close(numbers["shape"].grad, (direction * R).sum(-1))


def test_symmetric_is_symmetric_with_as_many_numbers_as_it_needs():
    M = matrix(STRUCTURES["symmetric"], moved("symmetric"))
    assert torch.equal(M, M.mT)
    assert moved("symmetric")["lower"].shape == (2, 15 * 16 // 2)


def test_psd_eigenvalues_are_not_negative():
    M = matrix(STRUCTURES["psd"], moved("psd"))
    torch.testing.assert_close(M, M.mT)
    values = torch.linalg.eigvalsh(M)
    assert (values > -1e-12 * values.max()).all()


def test_orthogonal_is_a_rotation():
    M = matrix(STRUCTURES["orthogonal"], moved("orthogonal"))
    torch.testing.assert_close(M.mT @ M, torch.eye(15).double().expand_as(M), rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.linalg.det(M), torch.ones(2).double())
    assert moved("orthogonal")["skew"].shape == (2, 15 * 14 // 2)


@pytest.mark.parametrize("keep", [0.01, 0.2, 0.5, 1.0])
def test_sparse_keeps_the_largest(keep):
    structure = structures.Sparse(keep)
    numbers = random_numbers(structure, BLOCK)
    M = structure.similarity(numbers, BLOCK)
    kept = M != 0
    assert kept.sum() == structure.kept_entries(BLOCK) == max(1, round(keep * 225))
    assert torch.equal(M[kept], numbers["matrix"][kept])
    if keep < 1:
        assert numbers["matrix"][kept].abs().min() >= numbers["matrix"][~kept].abs().max()


def test_sparse_keeps_the_diagonal_first():
    start = structures.Sparse(keep=7 / 225)
    M = start.similarity(start.initial(BLOCK), BLOCK)
    assert M.diagonal().sum() == M.sum() == 7


def test_shift_moves_taps_and_nothing_else():
    structure, numbers = STRUCTURES["shift"], moved("shift")
    M = structure.similarity(numbers, BLOCK)
    assert torch.equal(M.sum(-1), torch.ones(2, 15).double())
    assert set(M.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(M.argmax(-1), numbers["score"].argmax(-1))


def test_shift_is_a_shift():
    """When every tap chooses tap j, the layer is a 1×1 convolution of the moved image."""
    score = torch.zeros(9, 9)
    score[:, 5] = 1  # row 1, column 2: one to the right of the centre
    M = structures.Shift().similarity({"score": score}, Block((3, 3)))
    input, weight = torch.randn(1, 2, 6, 7), torch.randn(4, 2, 3, 3)
    moved_image = F.pad(input, (0, 1))[..., 1:]
    torch.testing.assert_close(
        F.conv2d(input, effective_weight(weight, M), padding=1),
        F.conv2d(moved_image, weight.sum((2, 3), keepdim=True)),
    )


def test_a_dilated_five_by_five_is_a_three_by_three_of_dilation_two():
    structure, block = structures.Dilated(2), Block((5, 5))
    numbers = random_numbers(structure, block)
    assert numbers["gain"].shape == (9,)
    input, weight = torch.randn(2, 3, 9, 8).double(), torch.randn(4, 3, 5, 5).double()
    large = F.conv2d(input, effective_weight(weight, structure.similarity(numbers, block)))
    small = weight[..., ::2, ::2] * numbers["gain"].reshape(3, 3)
    torch.testing.assert_close(large, F.conv2d(input, small, dilation=2))


def test_kernel_shape_masks_rows_of_the_similarity():
    structure = structures.KernelShape("unconstrained", threshold=0.5)
    numbers = random_numbers(structure, BLOCK)
    M, D = structure.similarity(numbers, BLOCK), structure.shape(numbers)
    assert set(D.tolist()) == {0.0, 1.0}
    assert torch.equal(D.bool(), numbers["shape"] > 0.5)
    torch.testing.assert_close(M, torch.diag(D) @ numbers["matrix"])


@pytest.mark.parametrize(
    "inner", sorted(set(STARTS_AT_IDENTITY) - {n for n in STRUCTURES if "shape" in n})
)
def test_a_kernel_shape_of_ones_is_its_similarity(inner):
    R = STRUCTURES[inner]
    structure, numbers = structures.KernelShape(R), moved(inner)
    with_shape = {"shape": torch.ones(*LEADING, 15).double(), **numbers}
    assert torch.equal(structure.similarity(with_shape, BLOCK), R.similarity(numbers, BLOCK))


def test_the_update_of_the_kernel_shape_is_the_papers():
    """D_r ← D_r − η ∂L/∂D, and a tap goes when D_r falls to the threshold."""
    structure = structures.KernelShape(threshold=0.5)
    numbers = {k: v.requires_grad_() for k, v in structure.initial(Block((3, 1))).items()}
    loss = structure.similarity(numbers, Block((3, 1))) @ torch.tensor([4.0, 1.0, 0.0])
    loss.backward()
    with torch.no_grad():
        numbers["shape"] -= 0.2 * numbers["shape"].grad
    torch.testing.assert_close(numbers["shape"].detach(), torch.tensor([0.2, 0.8, 1.0]))
    assert structure.shape(numbers).tolist() == [0.0, 1.0, 1.0]


def test_a_tap_exactly_at_the_threshold_is_off():
    """The paper's I(v, α) is 1 only if v > α."""
    structure = structures.KernelShape(threshold=0.5)
    assert structure.shape({"shape": torch.tensor([0.5, 0.5 + 1e-6])}).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("block", [BLOCK, Block((5, 3), channels=2)])
def test_the_bound_on_parameters_holds(name, block):
    structure = STRUCTURES[name]
    count = sum(start.numel() for start in structure.initial(block).values())
    assert count <= structure.most_parameters(block)


@pytest.mark.parametrize("name", STRUCTURES)
def test_configuration_round_trip(name):
    structure = STRUCTURES[name]
    again = structures.from_config(structure.to_config())
    assert again.to_config() == structure.to_config()
    numbers = moved(name)
    assert torch.equal(structure.similarity(numbers, BLOCK), again.similarity(numbers, BLOCK))


@pytest.mark.parametrize(
    ("structure", "block", "message"),
    [
        (structures.Dilated(2), Block((4, 5)), r"multiple of dilation 2, got \(4, 5\)"),
        (
            structures.Dilated(0),
            Block((5, 5)),
            "dilation to be a whole number .* got 0",
        ),
        (structures.Dilated("x"), BLOCK, "dilation to be a whole number of at least 1, got 'x'"),
        (structures.Sparse("a"), BLOCK, "expected keep to be a number, got 'a'"),
        (structures.KernelShape(threshold="a"), BLOCK, "threshold to be a number, got 'a'"),
        (structures.KernelShape(structures.Dilated("x")), BLOCK, "dilation to be a whole number"),
        (structures.Sparse(0.0), BLOCK, "expected keep above 0 and up to 1, got 0.0"),
        (structures.KernelShape(threshold=1.0), BLOCK, "expected threshold below 1, got 1.0"),
        (
            structures.KernelShape(threshold=float("nan")),
            BLOCK,
            "expected threshold below 1, got nan",
        ),
        (structures.KernelShape(structures.KernelShape()), BLOCK, "inside a kernel shape"),
        (structures.KernelShape(structures.Dilated(3)), BLOCK, "multiple of dilation 3"),
    ],
)
def test_what_cannot_be_says_why(structure, block, message):
    with pytest.raises(ShapeError, match="here: .*" + message):
        structure.check(block, "here")


def test_options_of_numpy_go_to_files():
    structure = structures.KernelShape(structures.Dilated(np.int64(2)), np.float64(0.25))
    structure.check(BLOCK, "here")
    again = structures.from_config(json.loads(json.dumps(structure.to_config())))
    assert again.to_config() == structure.to_config()


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_answers_of_every_structure(name):
    structure, numbers = STRUCTURES[name], moved(name)
    mask = structure.mask(numbers)
    assert (mask is None) == (structure.mask_name is None)
    M, R = matrix(structure, numbers), matrix(structure.predicted, numbers)
    torch.testing.assert_close(M, R if mask is None else mask.unsqueeze(-1) * R)
    masked = "shape" in name
    assert (mask is not None) == masked
    assert {key for key in numbers if not structure.decays(key)} == {"shape"} & set(numbers)
    if masked:
        assert structure.label == f"kernel_shape of {structure.of.name}"
        assert structure.predicted is structure.of
    else:
        assert structure.label == structure.name
        assert structure.predicted is structure
    if structure.has_free_entries:
        (only,) = numbers.values()
        assert structure.similarity(numbers, BLOCK) is only


def test_a_name_in_use_is_refused(monkeypatch):
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))

    def define():
        @dataclass(frozen=True)
        class Mine(structures.Diagonal):
            name: ClassVar[str] = "mine"

        return Mine

    assert structures.register(define()) is not structures.register(again := define())
    assert type(structures.resolve("mine")) is again, "a notebook cell that is run again"

    class Other(structures.Diagonal):
        name: ClassVar[str] = "mine"

    message = (
        r"register: expected a name that is not in use, got 'mine' for .*Other\. It belongs to .*"
    )
    with pytest.raises(
        DuplicateNameError, match=message + r"define.<locals>.Mine\. Choose another"
    ):
        structures.register(Other)
    assert type(structures.resolve("mine")) is again


def test_an_unknown_structure_lists_the_choices():
    with pytest.raises(
        UnknownNameError, match=r"'diagonal', 'dilated'.* got 'diagnal'. Did you mean 'diagonal'\?"
    ):
        structures.resolve("diagnal")


def test_what_numbers_in_files_mean():
    """Files hold these numbers: another order, or another side, would make another M of them."""
    block, six = Block((3,)), torch.tensor([2.0, 3.0, 5.0, 7.0, 11.0, 13.0])
    L = torch.tensor([[2.0, 0, 0], [3, 5, 0], [7, 11, 13]])
    symmetric = structures.Symmetric().similarity({"lower": six}, block)
    assert torch.equal(symmetric, L + L.T - torch.diag(L.diagonal()))
    psd = structures.PositiveSemidefinite().similarity({"cholesky": six}, block)
    assert torch.equal(psd, L @ L.T)
    A = torch.tensor([[0, 0, 0], [0.1, 0, 0], [0.2, 0.3, 0]])
    turned = structures.Orthogonal().similarity({"skew": torch.tensor([0.1, 0.2, 0.3])}, block)
    torch.testing.assert_close(turned, torch.matrix_exp(A - A.T))
