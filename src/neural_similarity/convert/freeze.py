"""What is trained: freezing, listing and counting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from ..errors import AttachError
from ..nn._targets import check_pattern
from ..nn.inventory import named_similarities, predictor_modules, static_similarities
from .select import matches

__all__ = ["TrainableSummary", "freeze_backbone", "similarity_parameters", "trainable_summary"]


@dataclass(frozen=True)
class TrainableSummary:
    """How many numbers a model learns, of how many."""

    trainable: int
    total: int
    similarity: int
    deployed: int

    def __str__(self) -> str:
        share = 100 * self.trainable / max(self.total, 1)
        merged = f"; {self.deployed:,} once merged" if self.deployed != self.total else ""
        return (
            f"trains {self.trainable:,} of {self.total:,} numbers ({share:.2f} %), "
            f"{self.similarity:,} of them similarity{merged}"
        )


def similarity_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The numbers behind every similarity of the model, as an optimiser takes them.

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
    """Leave only similarities and the classifier trainable; return how many numbers that is.

    Args:
        model: any model with attached similarities.
        also_train: modules or parameters to train as well, by suffix list or regular expression
            (everything inside a named module counts). None means the classifier: what the
            model's ``get_classifier()`` returns where there is one, and its last ``nn.Linear``
            otherwise. An empty list trains the similarities alone.

    Only gradients are switched off. BatchNorm still updates its running statistics in training
    mode: keep the model in ``eval()`` while adapting if they are to stay.
    """
    if not list(named_similarities(model)):
        raise AttachError(
            "freeze_backbone: expected a model with an attached similarity, got one without. "
            "Nothing but the classifier would be left to train. Call attach first."
        )
    if also_train is None:
        also = {id(p) for p in _classifier(model).parameters()}
    else:
        also = _named_parameters(model, also_train)
    also |= {id(p) for p in similarity_parameters(model)}
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in also)
    return trainable_summary(model)


def trainable_summary(model: nn.Module) -> TrainableSummary:
    """Count what the model trains, holds, and will hold once merged."""
    similarity = list(similarity_parameters(model))
    # What is predicted from the input, or differs from position to position, cannot be merged.
    merged = {
        p
        for module in model.modules()
        for static in static_similarities(module).values()
        for p in static.parameters()
    }
    total = sum(p.numel() for p in model.parameters())
    return TrainableSummary(
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        total=total,
        similarity=sum(p.numel() for p in similarity if p.requires_grad),
        deployed=total - sum(p.numel() for p in merged),
    )


def _classifier(model: nn.Module) -> nn.Module:
    get_classifier = getattr(model, "get_classifier", None)
    if callable(get_classifier) and isinstance(found := get_classifier(), nn.Module):
        return found
    inside = predictor_modules(model)
    linear = [m for m in model.modules() if isinstance(m, nn.Linear) and m not in inside]
    if not linear:
        raise AttachError(
            "freeze_backbone: expected a classifier (an nn.Linear, or get_classifier()), got a "
            "model without one. Name what to train in also_train, or pass also_train=[] to train "
            "the similarities alone."
        )
    return linear[-1]


def _named_parameters(model: nn.Module, pattern: str | Sequence[str]) -> set[int]:
    check_pattern("freeze_backbone", "also_train", pattern)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    for part in (pattern,) if isinstance(pattern, str) else pattern:
        one = part if isinstance(pattern, str) else [part]
        if not any(matches(name, one) for name in (*modules, *parameters)):
            raise AttachError(
                f"freeze_backbone: expected also_train to name modules or parameters, got "
                f"{part!r}, which means none in this model."
            )
    inside = (p for name, m in modules.items() if matches(name, pattern) for p in m.parameters())
    named = (p for name, p in parameters.items() if matches(name, pattern))
    return {id(p) for p in (*inside, *named)}
