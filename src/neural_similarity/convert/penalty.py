"""Soft regularisation: of M (Section 3.4), and of filters (Appendix B)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .._autocast import without_autocast
from ..errors import AttachError, ShapeError
from ..nn.inventory import predictor_modules, static_similarities
from ..nn.static import SimilarityParametrization

__all__ = ["filter_orthogonality_penalty", "similarity_penalty"]


def similarity_penalty(
    model: nn.Module, *, l1: float = 0.0, l2: float = 0.0, orthogonality: float = 0.0
) -> Tensor:
    r"""A term to add to the loss, summed over the active static similarity of every layer.

    .. math:: \lambda_1 \|M\|_1 + \lambda_2 \|M - I\|_F^2
        + \lambda_\perp \|M^\top M - I\|_F^2

    ``l1`` is the paper's soft sparsity; ``l2`` draws M towards the identity, that is, the layer
    towards a plain convolution; ``orthogonality`` keeps M near a rotation. If a layer has several
    blocks (scope ``"channel"`` or ``"kernel"``), they are summed.

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
            "similarity_penalty: expected a model with a static similarity that is active, got one "
            "without. Call attach or set_similarity first."
        )
    return torch.stack(terms).sum()


def filter_orthogonality_penalty(model: nn.Module, weight: float = 2e-4) -> Tensor:
    r"""A term to add to the loss that draws the filters of each convolution towards orthonormal.

    .. math:: \frac{\lambda}{2} \sum_{\text{layers}} \| W W^\top - I \|_F^2

    with a filter in each row of W and λ = ``weight``. The default 2e-4 is that of Appendix B, and
    the factor 1/2 that of the authors' code. Every convolution counts, also fully connected layers
    written as convolutions and those of attention. Predictors do not count, as they begin at zero.
    Filters of different groups see different channels and are not compared. A layer with more
    filters than weights in one filter cannot reach zero.

    Cost in multiply-adds: O² times the size of a filter, for each layer, whatever the batch.

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
