"""Soft regularisation: of M (Section 3.4), and of filters (Appendix B)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from .._autocast import without_autocast
from ..errors import AttachError, ShapeError
from ..nn.dynamic import PredictedSimilarity
from ..nn.inventory import layer_similarities, predictor_modules
from .wrappers import whole

__all__ = ["filter_orthogonality_penalty", "keep_predictions", "similarity_penalty"]


@contextmanager
def keep_predictions(model: nn.Module) -> Iterator[None]:
    """Let dynamic layers keep the M of their last forward pass, for :func:`similarity_penalty`.

    Within the block every forward pass replaces what the previous one has kept. At its end
    everything is released: outside, no memory is used. Call ``backward`` inside or outside.

    Example:
        >>> import neural_similarity as ns
        >>> model = ns.attach(nn.Sequential(nn.Conv2d(3, 8, 3)), ns.DynamicSimilarity())
        >>> with keep_predictions(model):
        ...     loss = model(torch.randn(2, 3, 9, 9)).square().mean()
        ...     loss = loss + similarity_penalty(model, l1=1e-3)
        >>> loss.backward()
    """
    predicted = [module for module in model.modules() if isinstance(module, PredictedSimilarity)]
    before = [module.keeps for module in predicted]
    for module in predicted:
        module.keeps = True
    try:
        yield
    finally:
        for module, keeps in zip(predicted, before, strict=True):
            module.keeps = keeps
            module.kept = None


def similarity_penalty(
    model: nn.Module, *, l1: float = 0.0, l2: float = 0.0, orthogonality: float = 0.0
) -> Tensor:
    r"""A term to add to the loss, summed over the active local similarity of every layer.

    .. math:: \lambda_1 \|M\|_1 + \lambda_2 \|M - I\|_F^2
        + \lambda_\perp \|M^\top M - I\|_F^2

    ``l1`` is the paper's soft sparsity; ``l2`` draws M towards the identity, that is, the layer
    towards a plain convolution; ``orthogonality`` keeps M near a rotation. If a layer has several
    blocks (scope ``"channel"`` or ``"kernel"``, groups of channels, or M over kernels), they are
    summed.

    For a dynamic layer it uses the M of the last forward pass within :func:`keep_predictions`,
    averaged over samples and positions. A dynamic layer that has kept nothing does not count.

    Raises:
        AttachError: there is no active similarity, no M was kept, or a predictor that is trained
            predicted M without recording a gradient, as in a reentrant checkpoint.

    Example:
        >>> import neural_similarity as ns
        >>> model = ns.attach(nn.Sequential(nn.Conv2d(3, 8, 3)), ns.StaticSimilarity())
        >>> similarity_penalty(model, l1=1.0, l2=1.0).item()     # nine ones, at the identity
        9.0
    """
    active = [s for module in model.modules() for s in layer_similarities(module).values()]
    terms = []
    for similarity in active:
        with without_autocast(next(chain(similarity.parameters(), similarity.buffers())).device):
            if isinstance(similarity, PredictedSimilarity):
                _check_gradient(similarity)
                M, count = _kept_similarity(similarity)
                diagonal = similarity.is_diagonal
            else:
                numbers = {name: whole(value) for name, value in similarity.numbers.items()}
                M, count = similarity.structure.similarity(numbers, similarity.block), 1
                diagonal = M.dim() == len(similarity.leading) + 1
            if M is not None:
                terms.append(_penalty(M, diagonal, l1, l2, orthogonality) / count)
    if not terms:
        what = "without. Call attach or set_similarity first."
        if active:
            what = "whose layers kept no M. Call the model within keep_predictions."
        raise AttachError(
            f"similarity_penalty: expected a model with an active local similarity, got one {what}"
        )
    return torch.stack(terms).sum()


def filter_orthogonality_penalty(model: nn.Module, weight: float = 2e-4) -> Tensor:
    r"""A loss term that draws the filters of each convolution towards orthonormality.

    .. math:: \frac{\lambda}{2} \sum_{\text{layers}} \| W W^\top - I \|_F^2

    with a filter in each row of W and λ = ``weight``. The default 2e-4 is that of Appendix B, and
    the factor 1/2 that of the authors' code. Every convolution counts, including fully connected
    layers written as convolutions and those of attention, but not predictors: they start at zero.
    Filters of different groups see different channels and are not compared. A layer with more
    filters than weights in one filter cannot reach zero.

    Cost in multiply-adds: O² times the size of a filter, for each layer, for any batch size.

    Example:
        >>> conv = nn.Conv2d(3, 8, 3)
        >>> _ = nn.init.orthogonal_(conv.weight)
        >>> filter_orthogonality_penalty(nn.Sequential(conv)).item() < 1e-12
        True
    """
    inside = predictor_modules(model)
    filters = [
        (module.weight, module.groups)
        for module in model.modules()
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and module not in inside
    ]
    if not filters:
        raise ShapeError(
            "filter_orthogonality_penalty: expected a model with a convolution, got one without."
        )
    terms = []
    for kernels, groups in filters:
        with without_autocast(kernels.device):
            W = kernels.reshape(groups, kernels.shape[0] // groups, -1)
            identity = torch.eye(W.shape[1]).to(W)
            terms.append((W @ W.mT - identity).square().sum())
    return weight / 2 * torch.stack(terms).sum()


def _penalty(M: Tensor, diagonal: bool, l1: float, l2: float, orthogonality: float) -> Tensor:
    """The sum over all M: ``(*leading, n)`` for diagonals and ``(*leading, n, n)`` for matrices."""
    if M.dtype.itemsize < 4:  # sums of many entries, and squares, would overflow
        M = M.float()
    identity = torch.ones_like(M) if diagonal else torch.eye(M.shape[-1]).to(M).expand_as(M)
    total = 0 * M.sum()  # a schedule may begin with weights of zero
    if l1:
        total = total + l1 * M.abs().sum()
    if l2:
        total = total + l2 * (M - identity).square().sum()
    if orthogonality:
        product = M * M if diagonal else M.mT @ M
        total = total + orthogonality * (product - identity).square().sum()
    return total


def _check_gradient(similarity: PredictedSimilarity) -> None:
    """Raise if the penalty would silently have no gradient."""
    M = similarity.kept
    if M is None or M.requires_grad or not torch.is_grad_enabled():
        return
    if any(parameter.requires_grad for parameter in similarity.network.parameters()):
        raise AttachError(
            "similarity_penalty: expected an M that was predicted with a gradient, got one "
            "without. It was predicted under torch.no_grad, or in a checkpoint with "
            "use_reentrant=True: use use_reentrant=False there. To compute a value alone, call "
            "similarity_penalty under torch.no_grad too."
        )


def _kept_similarity(similarity: PredictedSimilarity) -> tuple[Tensor | None, int]:
    """The M of the last forward pass with its kernel shape, taps last, and how many there are."""
    if similarity.kept is None:
        return None, 0
    diagonal, D = similarity.is_diagonal, similarity.kernel_shape()
    D = None if D is None else whole(D)
    M = similarity.taps_last(similarity.kept).to(similarity.start.dtype)
    if D is not None:
        M = M * (D if diagonal else D.unsqueeze(-1))
    one = similarity.diagonals * similarity.block.size ** (1 if diagonal else 2)
    return M, max(M.numel() // one, 1)
