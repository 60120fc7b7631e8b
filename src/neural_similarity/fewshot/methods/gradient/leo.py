"""LEO: gradient steps on a latent code that decodes to a classifier (Rusu et al., 2019).

Paper: "Meta-Learning with Latent Embedding Optimization", Andrei A. Rusu, Dushyant Rao, Jakub
Sygnowski, Oriol Vinyals, Razvan Pascanu, Simon Osindero and Raia Hadsell,
https://arxiv.org/abs/1807.05960.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import e, log
from typing import ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....errors import RunError
from ...batches import Images, Tasks, query_labels
from ...network import FewShotNetwork
from ..base import FeatureMethod
from ..registry import register_method

__all__ = ["Fit", "Leo", "LeoHead", "support_loss"]

_PAIRS = 2**17  # pairs of support images at a time, about 100 MB


class Fit(NamedTuple):
    """The result of an episode."""

    weights: Tensor
    """Of the classifier, ``(B, n_way, D)``."""
    divergence: Tensor
    """The mean KL divergence of a code's entries from N(0, 1)."""
    movement: Tensor
    """The mean squared distance of final code entries (held fixed) from the initial ones."""


@register_method
@dataclass(frozen=True)
class Leo(FeatureMethod):
    r"""A classifier decoded from a latent code per class, on features of a frozen network.

    .. math:: z_w \sim q(\cdot \mid S), \qquad
        z_w \leftarrow z_w - \alpha \nabla_{z_w} L_S(\theta(z)), \qquad
        \theta_w \leftarrow \theta_w - \alpha' \nabla_{\theta_w} L_S(\theta)

    An encoder and a relation network take the support set S and return a Gaussian for the code
    :math:`z_w` of every class; a decoder returns one for the weights :math:`\theta_w` of its linear
    classifier (:class:`LeoHead`). First the codes take steps down the loss :math:`L_S` of the
    support set: the sum over classes of the mean cross-entropy of their images. Then the weights
    do. Training learns all of this, and both step sizes, with the queries' loss after these steps
    and its exact gradient through them:

    .. math:: L_Q + \beta \, \mathrm{KL}(q \| \mathcal N(0, 1)) + \gamma \|\bar z' - z\|^2
        + \tfrac12 \lambda_1 \sum_i w_i^2 + \lambda_2 \|C - 1\|^2

    with the final codes :math:`\bar z'`, held fixed, all weights :math:`w_i` and the cosines C
    between the columns of the decoder; norms and divergence are means over entries. Training
    samples codes and classifiers, the latter anew in every step. Tests use the means, as in the
    authors' code, so a test has no randomness.

    The defaults are the authors' for five shots on mini-ImageNet.

    Args:
        latents: entries of a code.
        inner_steps, inner_lr: steps on the codes, and their initial step size α, learned for each
            entry of a code.
        tuning_steps, tuning_lr: steps on the weights, and their initial step size α', learned for
            each feature.
        dropout: of features, in training.
        divergence: β.
        encoder_penalty: γ.
        weight_penalty: λ₁.
        orthogonality: λ₂.
    """

    latents: int = 64
    inner_steps: int = 5
    inner_lr: float = 1.0
    tuning_steps: int = 5
    tuning_lr: float = 0.001
    dropout: float = 0.3
    divergence: float = 0.47
    encoder_penalty: float = 2.7e-7
    weight_penalty: float = 8.5e-9
    orthogonality: float = 1.5e-3

    name: ClassVar[str] = "leo"
    starts_from: ClassVar[str | None] = "finetune"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.dropout < 1:
            raise RunError(f"Leo: expected dropout below 1, got {self.dropout}.")

    def build(
        self, backbone: nn.Module, num_classes: int, image_shape: tuple[int, int, int]
    ) -> FewShotNetwork:
        network = super().build(backbone, num_classes, image_shape)
        network.freeze()
        return network

    def head(self, network: FewShotNetwork, num_classes: int) -> nn.Module:
        return LeoHead(
            network.num_features, self.latents, self.dropout, self.inner_lr, self.tuning_lr
        )

    def feature_scores(self, network: FewShotNetwork, support: Tensor, query: Tensor) -> Tensor:
        head = cast(LeoHead, network.head)
        size = max(1, _PAIRS // support.shape[1:3].numel() ** 2)
        fits = [self.fit(head, part).weights for part in support.split(size)]
        return head.scores(query, torch.cat(fits))

    def loss(self, network: FewShotNetwork, batch: Images | Tasks) -> Tensor:
        if isinstance(batch, Images):
            return super().loss(network, batch)
        head = cast(LeoHead, network.head)
        support, query = self.embed_episodes(network, batch.support, batch.query)
        fit = self.fit(head, support)
        scores = head.scores(query, fit.weights)
        loss = F.cross_entropy(scores.flatten(0, 1), batch.labels.flatten())
        penalties = self.divergence * fit.divergence + self.encoder_penalty * fit.movement
        squares, cosines = head.penalties()
        return loss + penalties + self.weight_penalty / 2 * squares + self.orthogonality * cosines

    @torch.enable_grad()  # evaluation disables gradients
    def fit(self, head: LeoHead, support: Tensor) -> Fit:
        """The classifiers for support features ``(B, n_way, n_shot, D)``.

        If the head is in training mode, codes and weights are sampled, and the result is a
        differentiable function of the head's parameters. Otherwise they are means.
        """
        training = head.training
        with torch.set_grad_enabled(training):
            means, deviations = head.codes(support)
        first = _drawn(means, deviations) if training else means.requires_grad_()
        codes = first
        for _ in range(self.inner_steps):
            loss = support_loss(head, support, self._weights(head, codes))
            codes = _step(loss, codes, head.inner_rates, training)
        weights = self._weights(head, codes)
        if not training:
            weights = weights.detach().requires_grad_()
        for _ in range(self.tuning_steps):
            loss = support_loss(head, support, weights)
            weights = _step(loss, weights, head.tuning_rates, training)
        divergence = (means.square() + deviations.square() - 1) / 2 - deviations.log()
        return Fit(weights, divergence.mean(), (codes.detach() - first).square().mean())

    def _weights(self, head: LeoHead, codes: Tensor) -> Tensor:
        means, deviations = head.weights(codes)
        return _drawn(means, deviations) if head.training else means

    def adapted(self, network: FewShotNetwork, n_way: int) -> int:
        return n_way * network.num_features


class LeoHead(nn.Module):
    r"""Encoder, relation network and decoder, all without biases, and the step sizes.

    .. math:: (\mu, u)_w = \frac1{WK^2} \sum_{k} \sum_{vl} r(e(x_{wk}), e(x_{vl})), \qquad
        (\mu', u')_w = d(z_w)

    with K images of each of W classes, linear e and d, and a network r of three layers on pairs. μ
    and μ' are means of codes and weights. Standard deviations are ``s(u)`` and ``σ₀ s(u')``, with
    ``s(u) = softplus(u + log(e − 1))``, which is 1 at 0, and ``σ₀ = √(2 / (W + D))``, Glorot's
    standard deviation for the classifier. An exponential in place of s could grow with every step
    on the codes, until it overflows.

    Args:
        features: D. They are scaled to unit length.
        latents: entries of a code.
        dropout: of features, in training.
        inner_lr, tuning_lr: the initial step sizes of codes and weights.
    """

    def __init__(
        self, features: int, latents: int, dropout: float, inner_lr: float, tuning_lr: float
    ) -> None:
        super().__init__()
        width = 2 * latents
        self.encoder = nn.Linear(features, latents, bias=False)
        self.relation = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.decoder = nn.Linear(latents, 2 * features, bias=False)
        for layer in self._layers():
            nn.init.xavier_uniform_(layer.weight)
        self.inner_rates = nn.Parameter(torch.full((latents,), float(inner_lr)))
        self.tuning_rates = nn.Parameter(torch.full((features,), float(tuning_lr)))
        self.dropout = nn.Dropout(dropout)

    def codes(self, support: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations ``(B, n_way, latents)`` from ``(B, n_way, n_shot, D)``."""
        first, second, last = (cast(nn.Linear, layer) for layer in self.relation)
        encoded = self.encoder(self._inputs(support.flatten(1, 2)))
        # A linear layer on a pair is a sum, and the mean commutes with a linear layer.
        left, right = (encoded @ part.mT for part in first.weight.chunk(2, dim=1))
        pairs = second((left.unsqueeze(2) + right.unsqueeze(1)).relu()).relu()
        means = last(pairs.mean(2).unflatten(1, support.shape[1:3]).mean(2))
        mean, raw = means.chunk(2, dim=-1)
        return mean, _deviation(raw)

    def weights(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Means and standard deviations ``(B, n_way, D)`` from codes ``(B, n_way, latents)``."""
        mean, raw = self.decoder(codes).chunk(2, dim=-1)
        usual: float = (2 / (codes.shape[1] + mean.shape[-1])) ** 0.5
        return mean, usual * _deviation(raw)

    def scores(self, features: Tensor, weights: Tensor) -> Tensor:
        """Scores ``(B, Q, n_way)`` of features ``(B, Q, D)``."""
        return self._inputs(features) @ weights.mT

    def penalties(self) -> tuple[Tensor, Tensor]:
        """The sum of all squared weights, and the mean of ``(C − 1)²`` over the decoder's cosines.

        C are the cosines between the columns of the decoder, one per entry of a code.
        """
        squares = torch.stack([layer.weight.square().sum() for layer in self._layers()]).sum()
        columns = F.normalize(self.decoder.weight, dim=0)
        cosines = columns.mT @ columns
        identity = torch.eye(len(cosines), dtype=cosines.dtype, device=cosines.device)
        return squares, (cosines - identity).square().mean()

    def _inputs(self, features: Tensor) -> Tensor:
        inputs: Tensor = self.dropout(F.normalize(features, dim=-1))
        return inputs

    def _layers(self) -> list[nn.Linear]:
        return [m for m in self.modules() if isinstance(m, nn.Linear)]


def support_loss(head: LeoHead, support: Tensor, weights: Tensor) -> Tensor:
    """The loss of the support set, as a sum over episodes: each has its own weights.

    Within an episode it is the sum over classes of the mean loss of their images.
    """
    batch, n_way, n_shot = support.shape[:3]
    scores = head.scores(support.flatten(1, 2), weights)
    labels = query_labels(n_way, n_shot, support.device).repeat(batch)
    return F.cross_entropy(scores.flatten(0, 1), labels, reduction="sum") / n_shot


def _deviation(raw: Tensor) -> Tensor:
    """Positive values; 1 at 0."""
    return F.softplus(raw + log(e - 1))


def _drawn(means: Tensor, deviations: Tensor) -> Tensor:
    return means + deviations * torch.randn_like(means)


def _step(loss: Tensor, tensor: Tensor, rates: Tensor, differentiable: bool) -> Tensor:
    """The tensor after a step down the loss, differentiable or as a new leaf."""
    (slope,) = torch.autograd.grad(loss, tensor, create_graph=differentiable)
    after = tensor - rates * slope
    return after if differentiable else after.detach().requires_grad_()
