"""Which parameters are trained: freezing, listing and counting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import AttachError
from ..nn.inventory import named_similarities, predictor_modules
from ..nn.parametrization import static_by_name
from ..nn.targets import check_pattern
from .norm_statistics import remember_statistics
from .select import matches
from .wrappers import unwrapped

__all__ = ["TrainableSummary", "freeze_backbone", "similarity_parameters", "trainable_summary"]


@dataclass(frozen=True)
class TrainableSummary:
    """How many parameters a model has, and how many of them are trained.

    Args:
        trainable: parameters that require a gradient.
        total: all parameters, including those of similarities that are not active.
        similarity: trainable parameters of the active similarity.
        deployed: parameters that are left after :func:`neural_similarity.merge`.
    """

    trainable: int
    total: int
    similarity: int
    deployed: int

    def __str__(self) -> str:
        share = 100 * self.trainable / max(self.total, 1)
        merged = f"; {self.deployed:,} once merged" if self.deployed != self.total else ""
        return (
            f"trains {self.trainable:,} of {self.total:,} parameters ({share:.2f}%), "
            f"{self.similarity:,} of them similarity{merged}"
        )


def similarity_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of the model's active similarity, for an optimiser.

    Example:
        >>> import neural_similarity as ns
        >>> model = ns.attach(nn.Sequential(nn.Conv2d(3, 8, 3)), ns.StaticSimilarity())
        >>> sum(p.numel() for p in similarity_parameters(model))
        9
    """
    seen: set[nn.Parameter] = set()  # layers may share a predictor
    for _, similarity in named_similarities(model):
        for parameter in similarity.parameters():
            if parameter not in seen:
                seen.add(parameter)
                yield parameter


def freeze_backbone(
    model: nn.Module, also_train: str | Sequence[str] | None = None
) -> TrainableSummary:
    """Train only the active similarity and the classifier; return the number of parameters.

    All other parameters are frozen, including those of similarities that are not active.

    Args:
        model: any model with an active similarity.
        also_train: modules or parameters to train as well, by suffix list or regular expression
            (a module stands for everything inside it). None means the classifier: what the
            model's ``get_classifier()`` returns if it has that method, and its last ``nn.Linear``
            otherwise. An empty list trains only the similarity.

    Only gradients are switched off. BatchNorm still updates its running statistics in training
    mode: to keep them, call :func:`freeze_statistics`. :func:`save_similarity` warns if they have
    changed since. Load weights before, not after.
    """
    if not list(named_similarities(model)):
        raise AttachError(
            "freeze_backbone: expected a model with an attached similarity that is active, got one "
            "without. Only the classifier would be trained. Call attach or set_similarity first."
        )
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise AttachError(
            "freeze_backbone: expected a model whose shapes are known, got a lazy layer that has "
            "not seen an input. Call the model once first. The model is unchanged."
        )
    if also_train is None:
        also = {id(p) for part in _classifiers(model) for p in part.parameters()}
    else:
        also = _named_parameters(model, also_train)
    also |= {id(p) for p in similarity_parameters(model)}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in also)
    remember_statistics(model)
    return trainable_summary(model)


def trainable_summary(model: nn.Module) -> TrainableSummary:
    """Count the parameters of the model: all, those that are trained, and those left by merging."""
    similarity = list(similarity_parameters(model))
    # Similarities that depend on the input or on the position cannot be merged.
    merged = {
        p
        for module in model.modules()
        for by_weight in static_by_name(module).values()
        for static in by_weight.values()
        for p in static.parameters()
    }
    total = sum(p.numel() for p in model.parameters())
    return TrainableSummary(
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        total=total,
        similarity=sum(p.numel() for p in similarity if p.requires_grad),
        deployed=total - sum(p.numel() for p in merged),
    )


def _classifiers(model: nn.Module) -> list[nn.Module]:
    """One module, or several if the model has several heads, as networks for distillation do."""
    get_classifier = getattr(unwrapped(model), "get_classifier", None)
    if callable(get_classifier):
        classifier = get_classifier()
        parts = list(classifier) if isinstance(classifier, (tuple, list)) else [classifier]
        if parts and all(isinstance(part, nn.Module) for part in parts):
            return parts
    inside = predictor_modules(model)
    linear: list[nn.Module] = [
        m for m in model.modules() if isinstance(m, nn.Linear) and m not in inside
    ]
    if not linear:
        raise AttachError(
            "freeze_backbone: expected a classifier (an nn.Linear, or get_classifier()), got a "
            "model without one. Name what to train in also_train, or pass also_train=[] to train "
            "the similarities alone."
        )
    return linear[-1:]


def _named_parameters(model: nn.Module, pattern: str | Sequence[str]) -> set[int]:
    check_pattern("freeze_backbone", "also_train", pattern)
    modules = dict(model.named_modules(remove_duplicate=False))  # every name of a shared one
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for part in (pattern,) if isinstance(pattern, str) else pattern:
        one = part if isinstance(pattern, str) else [part]
        if not any(matches(name, one) for name in (*modules, *parameters)):
            raise AttachError(
                f"freeze_backbone: expected also_train to name modules or parameters of the model, "
                f"got {part!r}, which matches none of them."
            )
    inside = (p for name, m in modules.items() if matches(name, pattern) for p in m.parameters())
    named = (p for name, p in parameters.items() if matches(name, pattern))
    return {id(p) for p in (*inside, *named)}
