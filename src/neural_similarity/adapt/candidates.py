"""The methods that a classifier chooses from, each with its backbone and image features."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from ..errors import RunError
from .backbones.extractor import FeatureExtractor
from .backbones.load import (
    PLAIN_TWIN,
    SHIPPED_DYNAMIC,
    default_backbone,
    list_backbones,
    load_backbone,
)
from .feature_cache import open_cache
from .methods import (
    METHODS,
    TUNING,
    Adapter,
    StaticOptions,
    can_adapt,
    make_adapter,
    share_fits,
    takes_long,
)
from .training_images import TrainingImages, embed_images

__all__ = ["Backbone", "Candidates"]

Backbone = str | os.PathLike[str] | FeatureExtractor | None
"""What :class:`~neural_similarity.FewShotClassifier` takes."""


@dataclass
class Candidates:
    """The methods to choose from.

    Args:
        method: a method's name, or ``"auto"``.
        static: options of method ``static``.

    Attributes:
        adapters: the methods that can be used.
        left_out: why the others cannot, or are skipped.
    """

    method: str
    static: StaticOptions
    adapters: dict[str, Adapter] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def on_images(
        self,
        backbone: Backbone,
        images: list[Any],
        labels: Tensor,
        n_way: int,
        callback: Callable[[int, int], None] | None,
    ) -> Candidates:
        """With images, whose features are computed here, once per backbone."""
        methods = self._of(METHODS)
        backbones = _backbones(backbone, methods)
        embedded: dict[FeatureExtractor, TrainingImages] = {}
        for method in methods:
            extractor = backbones.get(method)
            if extractor is None:
                self._leave_out(method, None, "has no backbone")
            elif self._suits(method, extractor):
                if extractor not in embedded:
                    cache = open_cache(extractor)
                    embedded[extractor] = embed_images(
                        extractor, images, labels, n_way, callback, cache
                    )
                self.adapters[method] = make_adapter(method, embedded[extractor], self.static)
        share_fits(self.adapters)
        return self

    def on_features(self, data: TrainingImages, methods: Sequence[str]) -> Candidates:
        """With images whose features are already computed."""
        for method in self._of(methods):
            if self._suits(method, data.backbone):
                self.adapters[method] = make_adapter(method, data, self.static)
        share_fits(self.adapters)
        return self

    def _of(self, methods: Sequence[str]) -> tuple[str, ...]:
        return tuple(methods) if self.method == "auto" else (self.method,)

    def _suits(self, method: str, backbone: FeatureExtractor) -> bool:
        """Whether a method can be used; if not, the reason is stored."""
        reason = can_adapt(method, backbone, self.static)
        if reason is not None:
            self._leave_out(method, backbone, reason)
        elif self.method == "auto" and (long := takes_long(method, backbone)) is not None:
            self.left_out[method] = long
        return method not in self.left_out

    def _leave_out(self, method: str, backbone: FeatureExtractor | None, reason: str) -> None:
        if self.method != "auto":
            raise RunError(
                f"FewShotClassifier: expected a backbone that suits the method, got "
                f"{backbone.name if backbone else None}: method {method!r} {reason}. Choose "
                f"another method or backbone."
            )
        self.left_out[method] = reason


def _backbones(backbone: Backbone, methods: tuple[str, ...]) -> dict[str, FeatureExtractor]:
    """The backbone of each method; a method may have none."""
    if isinstance(backbone, FeatureExtractor):
        return dict.fromkeys(methods, _in_evaluation(backbone))
    if backbone is not None:
        return dict.fromkeys(methods, load_backbone(backbone))
    if default_backbone() != SHIPPED_DYNAMIC and methods != ("dynamic",):
        return dict.fromkeys(methods, load_backbone())
    backbones = {}
    plain = set(methods) & set(TUNING)
    if set(methods) - plain:
        backbones = dict.fromkeys(set(methods) - plain, load_backbone(SHIPPED_DYNAMIC))
    if plain and (PLAIN_TWIN in list_backbones() or len(methods) == 1):
        backbones |= dict.fromkeys(plain, load_backbone(PLAIN_TWIN))
    return backbones


def _in_evaluation(backbone: FeatureExtractor) -> FeatureExtractor:
    """The backbone, or a copy if it is in training mode: the user's module must not change."""
    if not any(part.training for part in backbone.module.modules()):
        return backbone
    return replace(backbone, module=copy.deepcopy(backbone.module).eval())
