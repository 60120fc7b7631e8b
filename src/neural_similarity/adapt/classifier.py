"""A classifier for your own images, in the style of scikit-learn."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import _check
from ..errors import DataError, RunError
from ..ops.effective_weight import Scope
from .backbones.extractor import FeatureExtractor
from .candidates import Backbone, Candidates
from .inputs import check_lengths, label_array, listed, numbered
from .methods import (
    METHODS,
    AdaptedNetwork,
    Layers,
    RememberedFits,
    StaticOptions,
    static_options,
)
from .prediction import Prediction, Predictions, predict_files, predict_pixels
from .preprocessing import Preprocessing, in_batches, read_all
from .storage import Adapted, Examples, load_adapted, save_adapted
from .training_images import TrainingImages
from .validation import (
    CrossValidation,
    cross_validate,
    fit_rejection,
    fold_numbers,
)

__all__ = ["FewShotClassifier"]

Callback = Callable[[str, int, int], None]
"""Takes what is counted, ``"images"`` or ``"fits"``, how many are done, and the total."""
_BATCH = 64
_SEEDS = (-(2**63), 2**64 - 1)  # the range that PyTorch accepts


class FewShotClassifier:
    """A classifier that learns from a few examples of each class.

    Images are a list of paths, PIL images or uint8 arrays ``(H, W)`` or ``(H, W, 3)``, or a tensor
    ``(N, C, H, W)`` of uint8 or of floats from 0 to 1. Sizes may differ. Labels are any hashable
    values.

    Args:
        method: ``"static"``: similarities and a classifier are tuned, then merged into a plain
            network; ``"dynamic"``: a classifier is tuned on a dynamic network; ``"proto"``: the
            nearest class mean; ``"ridge"``: ridge regression; ``"linear"``: logistic regression;
            ``"laplace"``: the same, with a prior from the classifier that the backbone was trained
            with. All but static are the few-shot methods of the same names. ``"ensemble"``: linear
            and ridge, averaged; ``"blocks"``: all weights of the last blocks and a classifier are
            tuned;
            ``"auto"``: ensemble, unless another one is clearly better in cross-validation.
        backbone: what :func:`~neural_similarity.adapt.load_backbone` takes, or a
            :class:`~neural_similarity.adapt.FeatureExtractor`. None is the best one installed
            (:func:`~neural_similarity.adapt.default_backbone`): a network trained on ImageNet, or
            the shipped dynamic network, and for methods static and blocks its plain twin. Method
            dynamic uses the shipped dynamic network.
        folds: number of cross-validation folds; 1 skips cross-validation.
        seed: seed of the division into folds.
        structure, scope: for method static only, as in
            :class:`~neural_similarity.StaticSimilarity`. None is ``"unconstrained"`` and
            ``"layer"``.
        layers: for method static only: the layers that get a similarity. A number is a share of
            them, counted from the last one; a string or a list is as ``target_modules`` of
            :class:`~neural_similarity.StaticSimilarity`. None is the last third.

    Attributes:
        classes_: the labels, sorted.
        method_: the chosen method.
        cross_validation_: an estimate of the accuracy on new images
            (:class:`~neural_similarity.adapt.CrossValidation`).
        model_: an ``nn.Module`` from preprocessed images to scores; their softmax gives the class
            probabilities.
        preprocessing_: how images are prepared for it.

    Example:
        >>> from torch import nn
        >>> from neural_similarity.adapt import FeatureExtractor, Preprocessing
        >>> eye = FeatureExtractor(nn.AvgPool2d(4), Preprocessing(8, (0.5,), (0.5,)))
        >>> dark, light = np.zeros((8, 8), np.uint8), np.full((8, 8), 200, np.uint8)
        >>> classifier = FewShotClassifier("proto", eye).fit([dark, light], ["night", "day"])
        >>> classifier.predict([light]).tolist()
        ['day']
    """

    classes_: NDArray[Any]
    method_: str
    cross_validation_: CrossValidation
    model_: AdaptedNetwork
    _examples: Examples | Path
    backbone_: FeatureExtractor

    def __init__(
        self,
        method: str = "auto",
        backbone: Backbone = None,
        folds: int = 5,
        seed: int = 0,
        structure: str | None = None,
        scope: Scope | None = None,
        layers: Layers | None = None,
    ) -> None:
        self.method = method
        self.backbone = backbone
        self.folds = folds
        self.seed = seed
        self.structure = structure
        self.scope = scope
        self.layers = layers

    def fit(
        self,
        images: Sequence[Any] | Tensor,
        labels: Sequence[Hashable],
        callback: Callback | None = None,
    ) -> Self:
        """Learn from images.

        Args:
            images: the images.
            labels: their labels.
            callback: called with ``"images"`` while features are computed and then with
                ``"fits"`` during cross-validation, each time with the number done and the total.
        """
        self._check_settings()
        _refuse_tuned(self.backbone)
        examples = listed(images)
        classes, numbers = numbered(labels, len(examples))
        on_image = partial(callback, "images") if callback is not None else None
        candidates = Candidates(self.method, self._static_options()).on_images(
            self.backbone, examples, numbers, len(classes), on_image
        )
        return self._learn(candidates, classes, callback)

    def fit_embedded(
        self,
        data: TrainingImages,
        classes: Sequence[Hashable],
        methods: Sequence[str] = METHODS,
        callback: Callback | None = None,
    ) -> Self:
        """Learn from images whose features are already computed.

        The backbone is the one that computed them, not the constructor's.

        Args:
            data: what :func:`~neural_similarity.adapt.embed_images` returns.
            classes: the label of every number in ``data.labels``.
            methods: those that ``"auto"`` chooses from.
            callback: called with ``"fits"``, the number done and the total.
        """
        self._check_settings()
        _refuse_tuned(data.backbone)
        candidates = Candidates(self.method, self._static_options()).on_features(data, methods)
        return self._learn(candidates, label_array(list(classes)), callback)

    @property
    def preprocessing_(self) -> Preprocessing:
        self._check_fitted()
        return self.backbone_.preprocessing

    def predict(self, images: Sequence[Any] | Tensor) -> NDArray[Any]:
        """The most probable class of every image."""
        places = self.predict_proba(images).argmax(1)
        return np.asarray(self.classes_[places])

    def predict_proba(self, images: Sequence[Any] | Tensor) -> NDArray[np.float32]:
        """Probabilities ``(N, n_classes)``, in the order of ``classes_``."""
        return self._predictions(images).probabilities.numpy()

    def is_known(self, images: Sequence[Any] | Tensor) -> NDArray[np.bool_]:
        """Whether each image is like one of the classes; if not, it is none of them.

        About 95 % of new images of the classes are (:class:`~neural_similarity.adapt.Rejection`).
        Without cross-validation this cannot be tested, and all images count as known.
        """
        return self._predictions(images).is_known.numpy()

    def predict_files(
        self, files: Sequence[str | os.PathLike[str]]
    ) -> list[Prediction | DataError]:
        """The result for each image file, or why it cannot be read.

        All files are read at once: pass them in batches.
        """
        self._check_fitted()
        return predict_files(self.model_, self.preprocessing_, files)

    def score(self, images: Sequence[Any] | Tensor, labels: Sequence[Hashable]) -> float:
        """The share of images that are classified correctly."""
        predicted = self.predict(images)
        check_lengths(len(predicted), len(labels))
        return float(np.mean([a == b for a, b in zip(predicted.tolist(), labels, strict=True)]))

    def scores_and_features(self, images: Sequence[Any] | Tensor) -> tuple[Tensor, Tensor]:
        """Scores of images, and the features that they are computed from."""
        predictions = self._predictions(images)
        return predictions.scores, predictions.features

    def adapted(self) -> Adapted:
        """The fitted classifier, and the training images."""
        self._check_fitted()
        settings = {k: _check.plain_number(v) for k, v in self.get_params().items()}
        return Adapted(
            self.model_, self.backbone_, self.classes_.tolist(), self.cross_validation_,
            settings, self._examples,
        )  # fmt: skip

    def save(self, folder: str | os.PathLike[str], force: bool = False) -> None:
        """Write the fitted classifier to a folder, completely or not at all."""
        save_adapted(self.adapted(), folder, force)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        backbone: Backbone = None,
    ) -> Self:
        """The classifier in a folder of :meth:`save`.

        ``backbone`` is needed only if it was a ``module:function`` or a module: a file cannot
        contain code. The examples in the folder are read only when needed.
        """
        adapted = load_adapted(folder, backbone)
        classifier = cls(**{**adapted.settings, "backbone": adapted.backbone})
        classifier.classes_ = label_array(adapted.classes)
        classifier.method_ = adapted.validation.method
        classifier.cross_validation_ = adapted.validation
        classifier.model_, classifier.backbone_ = adapted.network, adapted.backbone
        classifier._examples = adapted.stored
        return classifier

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments, following scikit-learn's protocol."""
        return {name: getattr(self, name) for name in _parameters(type(self))}

    def set_params(self, **params: Any) -> Self:
        """Change the constructor's arguments; call ``fit`` afterwards."""
        for name, value in params.items():
            _check.known_name("set_params", "a parameter", name, _parameters(type(self)))
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        # Only scikit-learn calls this, so it must be installed.
        from sklearn.utils import ClassifierTags, Tags, TargetTags

        target = TargetTags(required=True)
        return Tags("classifier", target, classifier_tags=ClassifierTags())

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.get_params().items())
        return f"{type(self).__name__}({inside})"

    def _predictions(self, images: Sequence[Any] | Tensor) -> Predictions:
        self._check_fitted()
        parts = [
            predict_pixels(self.model_, self.preprocessing_, read_all(batch, self.preprocessing_))
            for batch in in_batches(listed(images), _BATCH)
        ]
        return Predictions(
            torch.cat([part.scores for part in parts]),
            torch.cat([part.features for part in parts]),
            torch.cat([part.is_known for part in parts]),
        )

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise RunError(
                "FewShotClassifier: expected a fitted classifier, got one that is not fitted. "
                "Call fit(images, labels) first."
            )

    def _check_settings(self) -> None:
        _check.known_name("FewShotClassifier", "method", self.method, ("auto", *METHODS))
        _check.whole_numbers("FewShotClassifier", folds=self.folds)
        _check_seed(_check.plain_number(self.seed))

    def _learn(
        self, candidates: Candidates, classes: NDArray[Any], callback: Callback | None
    ) -> Self:
        """Cross-validate the methods, choose one, and train it on all images."""
        adapters = candidates.adapters
        if not adapters:
            reasons = "; ".join(f"{name} {reason}" for name, reason in candidates.left_out.items())
            raise RunError(
                f"FewShotClassifier: expected a method that works here, got none: {reasons}."
            )
        folds, seed = map(_check.plain_number, (self.folds, self.seed))
        on_fit = partial(callback, "fits") if callback is not None else None
        data = next(iter(adapters.values())).data
        numbers, n_way = data.labels, len(classes)
        tested = {name: RememberedFits(adapter) for name, adapter in adapters.items()}
        validation = cross_validate(tested, numbers, n_way, folds, seed, on_fit, data.groups)
        validation = replace(validation, left_out=candidates.left_out)
        adapter, fits = adapters[validation.method], tested[validation.method]
        network = adapter.network(adapter.fit(torch.arange(len(numbers))))
        network.classifier.weight.div_(validation.temperature)
        network.classifier.bias.div_(validation.temperature)
        self.classes_, self.method_ = classes, validation.method
        self.cross_validation_ = validation
        self.model_, self.backbone_ = network, adapter.data.backbone
        names = [str(i) if isinstance(i, str | os.PathLike) else "" for i in data.images]
        features = adapter.features_in(network)
        parts = fold_numbers(numbers, folds, seed, data.groups)
        network.rejection = fit_rejection(
            features, numbers, n_way, parts, features_after=fits.features_after, groups=data.groups
        )
        self._examples = Examples(adapter.data.thumbnails, numbers, features, names)
        return self

    def _static_options(self) -> StaticOptions:
        return static_options(
            self.method, structure=self.structure, scope=self.scope, layers=self.layers
        )


def _parameters(cls: type[FewShotClassifier]) -> list[str]:
    return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]


def _refuse_tuned(backbone: Backbone) -> None:
    """Raise for a network that was tuned to images: learned from again, they look too easy."""
    if isinstance(backbone, FeatureExtractor) and backbone.tuned:
        raise RunError(
            "FewShotClassifier: expected a backbone to learn on, got the network of a loaded "
            "classifier, which was tuned to its images. Their accuracy would be overestimated. "
            "Name the backbone again: set_params(backbone=...)."
        )


def _check_seed(seed: Any) -> None:
    if not _check.is_whole(seed) or not _SEEDS[0] <= seed <= _SEEDS[1]:
        raise RunError(
            f"FewShotClassifier: expected seed to be a whole number of at most 64 bits, got "
            f"{seed!r}. The same seed gives the same folds."
        )
