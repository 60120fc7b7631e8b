"""Soft regularisation of M (Section 3.4), as one function of the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._autocast import without_autocast
from ..errors import AttachError
from ..nn.inventory import static_similarities
from ..nn.static import SimilarityParametrization

__all__ = ["similarity_penalty"]


def similarity_penalty(
    model: nn.Module, *, l1: float = 0.0, l2: float = 0.0, orthogonality: float = 0.0
) -> Tensor:
    r"""A term to add to the loss, summed over all static similarities of the model.

    .. math:: \lambda_1 \|M\|_1 + \lambda_2 \|M - I\|_F^2
        + \lambda_\perp \|M^\top M - I\|_F^2

    ``l1`` is the paper's soft sparsity; ``l2`` draws M towards the identity, that is, the layer
    towards a plain convolution; ``orthogonality`` keeps M near a rotation. With several blocks in
    a layer (scope ``"channel"`` or ``"kernel"``) the blocks are summed.

    Example:
        >>> import neural_similarity as ns
        >>> model = ns.attach(nn.Sequential(nn.Conv2d(3, 8, 3)), ns.StaticSimilarity())
        >>> similarity_penalty(model, l1=1.0, l2=1.0).item()     # nine ones, at the identity
        9.0
    """
    terms = []
    static = [s for module in model.modules() for s in static_similarities(module).values()]
    for parametrization in static:
        with without_autocast(next(parametrization.parameters()).device):
            terms.append(_penalty(parametrization, l1, l2, orthogonality))
    if not terms:
        raise AttachError(
            "similarity_penalty: expected a model with a static similarity attached, got one "
            "without. Call attach first."
        )
    return torch.stack(terms).sum()


def _penalty(
    parametrization: SimilarityParametrization, l1: float, l2: float, orthogonality: float
) -> Tensor:
    M = parametrization.similarity()
    if M.dim() == len(parametrization.leading) + 1:
        identity, product = torch.ones_like(M), M * M
    else:
        identity, product = torch.eye(M.shape[-1]).to(M).expand_as(M), M.mT @ M
    return (
        l1 * M.abs().sum()
        + l2 * (M - identity).square().sum()
        + orthogonality * (product - identity).square().sum()
    )
