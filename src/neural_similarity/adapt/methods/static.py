"""Method ``static``: similarities of late layers and a classifier are tuned together, then merged.

It starts with the classifier of method ``linear``. Some of the images are held out: they decide
after how many steps the similarities are best, possibly none. Finally ``linear`` refits the
classifier to all images. The few-shot method of the same name is the paper's: on all layers, for a
fixed number of steps.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ... import _check
from ...convert import attach, merge
from ...errors import RunError, SkippedLayerWarning
from ...fewshot.inner_loop.episode_parameters import BIAS, WEIGHT, Tensors, similarity_names
from ...fewshot.methods.classifiers.linear import balanced, choose_strength, fit_linear, inner_folds
from ...nn.inventory import static_similarities
from ...nn.static import StaticSimilarity
from ...ops.effective_weight import Scope
from ...structures import Structure, list_structures
from .. import linear_heads as heads
from ..backbones.extractor import FeatureExtractor
from .adam import Adam
from .base import AdaptedNetwork
from .cached_trunk import CachedTrunk
from .upper_part import UpperPartAdapter, network_to_tune

__all__ = [
    "Layers", "StaticAdapter", "StaticOptions", "late_layers", "static_options", "tuned_part",
]  # fmt: skip

Layers = float | str | list[str] | tuple[str, ...]
"""The last layers, as a share, or layers by name: see :class:`StaticOptions`."""

_BATCH = 64


@dataclass(frozen=True)
class StaticOptions:
    """What method ``static`` tunes, and how.

    Args:
        structure, scope: as in :class:`~neural_similarity.StaticSimilarity`.
        layers: which layers get a similarity. A number: the last ones, as a share of those that
            can have one in this network, at least one. Text or a list: as ``target_modules`` of
            :class:`~neural_similarity.StaticSimilarity`. Kernels of a single tap are skipped.
        image_steps: number of images used for tuning, counting repetitions.
        checks: how often the held-out images are tested, at equal intervals.
        batch_size: images per step.
        lr: learning rate of the similarities, with Adam; it falls linearly to zero.
        head_lr: learning rate of the classifier.
    """

    structure: str | Structure = "unconstrained"
    scope: Scope = "layer"
    layers: Layers = 1 / 3
    image_steps: int = 400
    checks: int = 3
    batch_size: int = 16
    lr: float = 0.03
    head_lr: float = 0.01

    def __post_init__(self) -> None:
        self.similarity(None if isinstance(self.layers, int | float) else self.layers)
        if isinstance(self.layers, int | float) and not 0 < self.layers <= 1:
            raise RunError(
                f"StaticOptions: expected layers to be a share above 0 and at most 1, got "
                f"{self.layers!r}. A number is the share of the layers, counted from the last one. "
                f"Pass names of layers as text."
            )

    def similarity(self, layers: str | list[str] | tuple[str, ...] | None) -> StaticSimilarity:
        """The similarity of these layers."""
        return StaticSimilarity(self.structure, self.scope, target_modules=layers)


@dataclass(eq=False)
class StaticAdapter(UpperPartAdapter):
    """Static similarities of late layers and a classifier on unit-length features, then merged.

    Mirror images are used too. BatchNorm keeps its statistics. If no class has two images, nothing
    can be held out, and the similarities stay the identity.

    Args:
        data: the images and their features.
        options: what is tuned, and how.
    """

    options: StaticOptions = field(default_factory=StaticOptions)

    def __post_init__(self) -> None:
        trunk = tuned_part(self.data.backbone, self.options)
        self.prepare(trunk, similarity_names(trunk.upper))

    def fit(self, rows: Tensor) -> Tensors:
        labels = self.data.labels[rows]
        apart = inner_folds(labels) == 0
        similarities = self._tuned(rows[~apart], rows[apart]) if apart.any() else self.start
        return similarities | self._head(similarities, rows)

    @torch.no_grad()
    def scores(self, learned: Tensors, rows: Tensor) -> Tensor:
        features = self._features(learned, rows)
        return F.linear(features, learned[WEIGHT], learned[BIAS])

    def network(self, learned: Tensors) -> AdaptedNetwork:
        module = merge(self.whole_with(learned))
        classifier = heads.linear(learned[WEIGHT], learned[BIAS])
        return AdaptedNetwork(module, classifier, True).eval().requires_grad_(False)

    def _tuned(self, rows: Tensor, apart: Tensor) -> Tensors:
        """The similarities learned from the images in rows that are best on the held-out ones."""
        options, labels = self.options, self.data.labels[rows]
        steps = max(1, options.image_steps // min(options.batch_size, len(rows)))
        strength = self._strength(rows)
        learned = self.start | self._head(self.start, rows, strength)
        tensors = {name: tensor.clone().requires_grad_() for name, tensor in learned.items()}
        weights = balanced(torch.ones_like(rows)[:, None], labels, self.data.n_way)[:, 0]
        leaves = list(tensors.values())
        rates = [options.lr if name in self.start else options.head_lr for name in tensors]
        optimiser = Adam(leaves, rates)
        best, gain = self.start, 0.0
        before = self._losses(self.start, rows, apart, strength)
        check_steps = {
            round(steps * (check + 1) / options.checks) for check in range(options.checks)
        }
        generator = torch.Generator().manual_seed(0)
        for step, batch in enumerate(self._batches(len(rows), steps, generator), 1):
            views = torch.randint(2, batch.shape, generator=generator)
            with torch.enable_grad():
                features = self.unit_features(tensors, self.maps[views, rows[batch]])
                scores = F.linear(features, tensors[WEIGHT], tensors[BIAS])
                losses = F.cross_entropy(scores, labels[batch], reduction="none")
                loss = (losses * weights[batch].to(losses)).mean()
                # The penalty of `linear`, whose cross-entropy is a sum.
                loss = loss + tensors[WEIGHT].square().sum() / (2 * strength * len(rows))
                slopes = torch.autograd.grad(loss, leaves)
            optimiser.step(slopes, share=1 - (step - 1) / steps)
            if step in check_steps:
                now = {name: tensors[name].detach().clone() for name in self.start}
                gains = before - self._losses(now, rows, apart, strength)
                if _surely_positive(gains) and gains.mean() > gain:
                    best, gain = now, float(gains.mean())
        return best

    def _batches(self, images: int, steps: int, generator: torch.Generator) -> Iterator[Tensor]:
        """The images of each step: all of them in a new order, repeatedly."""
        size, left = min(self.options.batch_size, images), torch.empty(0, dtype=torch.int64)
        for _ in range(steps):
            if len(left) < size:
                left = torch.randperm(images, generator=generator)
            yield left[:size]
            left = left[size:]

    @torch.no_grad()
    def _losses(
        self, similarities: Tensors, rows: Tensor, apart: Tensor, strength: float
    ) -> Tensor:
        """Cross-entropy of each held-out image, by ``linear`` on the features of the others.

        The losses are weighted so that classes count the same.
        """
        labels, n_way = self.data.labels, self.data.n_way
        weight, bias = fit_linear(
            self._features(similarities, rows), labels[rows], n_way, strength=strength
        )
        scores = F.linear(self._features(similarities, apart), weight, bias)
        losses = F.cross_entropy(scores, labels[apart], reduction="none")
        shares = balanced(torch.ones_like(apart)[:, None], labels[apart], n_way)[:, 0]
        return losses * shares.to(losses)

    def _strength(self, rows: Tensor) -> float:
        features = F.normalize(self.data.features[rows]).double()[None]
        return float(choose_strength(features, self.data.labels[rows], self.data.n_way))

    def _head(self, similarities: Tensors, rows: Tensor, strength: float | None = None) -> Tensors:
        """The classifier of ``linear`` for features with these similarities."""
        views = [self._features(similarities, rows, view) for view in (0, 1)]
        labels, n_way = self.data.labels[rows], self.data.n_way
        weight, bias = fit_linear(views[0], labels, n_way, views[1], strength)
        return {WEIGHT: weight, BIAS: bias}

    @torch.no_grad()
    def _features(self, similarities: Tensors, rows: Tensor, view: int = 0) -> Tensor:
        """Unit-length features of images, or of their mirror images (view 1)."""
        parts = [
            self.unit_features(similarities, self.maps[view, part]) for part in rows.split(_BATCH)
        ]
        return torch.cat(parts)


def _surely_positive(gains: Tensor) -> bool:
    """Whether the mean of the gains is above zero by more than a standard error.

    With few images, some gain by chance.

    >>> _surely_positive(torch.tensor([0.1, 0.2])), _surely_positive(torch.tensor([-0.1, 0.2]))
    (True, False)
    """
    error = gains.std() / len(gains) ** 0.5 if len(gains) > 1 else torch.inf
    return bool(gains.mean() > error)


def tuned_part(backbone: FeatureExtractor, options: StaticOptions) -> CachedTrunk:
    """The backbone with similarities, in two parts; all similarities are in the upper one."""
    module = network_to_tune(backbone)
    layers = options.layers
    if isinstance(layers, int | float):
        layers = "|".join(map(re.escape, late_layers(module, layers)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedLayerWarning)
        attach(module, options.similarity(layers))
    module.eval().requires_grad_(False)
    return CachedTrunk(module, _layers_with_similarity(module), backbone.image_shape)


def static_options(method: str, **changes: Any) -> StaticOptions:
    """The options with these changes, except None; only method static takes any.

    >>> static_options("static", structure="orthogonal", layers=None).structure
    'orthogonal'
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    if changes and method != "static":
        raise RunError(
            f"adapt: expected {', '.join(changes)} only with method 'static', got method "
            f"{method!r}. Other methods do not tune a similarity. Choose method 'static', or "
            f"leave out {', '.join(changes)}."
        )
    if "structure" in changes:
        _check.known_name("adapt", "structure", changes["structure"], list_structures())
    return StaticOptions(**{name: _check.plain_number(value) for name, value in changes.items()})


def late_layers(module: nn.Module, share: float) -> list[str]:
    """The last of the layers that can have a similarity in their network, in network order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedLayerWarning)
        attached = attach(copy.deepcopy(module), StaticSimilarity())
    names = _layers_with_similarity(attached)
    return names[-max(1, round(share * len(names))) :]


def _layers_with_similarity(module: nn.Module) -> list[str]:
    return [name for name, part in module.named_modules() if static_similarities(part)]
