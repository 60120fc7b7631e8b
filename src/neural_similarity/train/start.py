"""Start from the weights of another run, and first train only the similarity (Section 4).

The paper takes a trained network, adds similarities, trains these with all other weights fixed,
and then optionally everything.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ..convert import freeze_backbone, freeze_statistics
from ..errors import RunError
from .build import find_classifier, held_out_share
from .config import TrainConfig
from .runs.run import Run
from .runs.run_folder import RunFolder
from .settings import NETWORK_SETTINGS, SIMILARITY_SETTINGS, Settings

__all__ = [
    "begin_with",
    "check_division",
    "check_images",
    "check_same_network",
    "check_source",
    "freeze",
    "source_settings",
]

_DATA = ("data", "data_dir", "image_size", "pixels")


def source_settings(source: Run) -> dict[str, Any]:
    """The settings that a run takes from the one it starts from, unless they are set."""
    has_similarity = source.config.similarity != "none"
    similarity = ("similarity", *SIMILARITY_SETTINGS) if has_similarity else ()
    names = (*NETWORK_SETTINGS, *_DATA, *similarity)
    return {name: getattr(source.config, name) for name in names}


def check_source(source: Run, config: TrainConfig, in_channels: int, image_size: int) -> None:
    """Raise unless the weights of the other run fit the network of the settings."""
    where, has = f"from_run {source.folder}", source.config.similarity
    check_images(where, source, config, in_channels, image_size)
    if has not in ("none", config.similarity):
        raise RunError(
            f"{where}: expected a network with similarity {config.similarity!r} or without one, "
            f"got {has!r}. Set similarity to its value."
        )
    check_same_network(where, source, config, has != "none", "pixels")


def check_division(source: Run, config: TrainConfig) -> None:
    """Raise if a run would be validated on images that the other run was trained on."""
    theirs, ours = ((held_out_share(of), of.seed) for of in (source.config, config))
    if source.config.data == config.data and theirs != ours:
        raise RunError(
            f"from_run {source.folder}: expected the division into training and validation images "
            f"of that run (validation {theirs[0]:g}, seed {theirs[1]}), got another one "
            f"(validation {ours[0]:g}, seed {ours[1]}). It was trained on images that would be "
            f"validation images here. Set validation and seed to its values."
        )


def check_images(
    where: str, source: RunFolder[Any], config: Settings, in_channels: int, image_size: int
) -> None:
    """Raise unless a trained network is one for images of this shape."""
    environment = source.environment()
    got = (environment["in_channels"], environment["image_size"])
    if got != (in_channels, image_size):
        raise RunError(
            f"{where}: expected a network for images of {in_channels} channel(s) and side "
            f"{image_size}, as in {config.data!r}, got one for {got[0]} and {got[1]}. Set "
            f"image_size, or start from a network for these images."
        )


def check_same_network(
    where: str, source: RunFolder[Any], config: Settings, with_similarity: bool, *more: str
) -> None:
    """Raise unless a trained network is the one that the settings describe.

    Args:
        where: what the error begins with.
        source: the run that trained the network.
        config: the settings of the run that starts from it.
        with_similarity: whether the trained network has a similarity.
        more: further settings that must be the same.
    """
    similarity = SIMILARITY_SETTINGS if with_similarity else ()
    for name in (*NETWORK_SETTINGS, *more, *similarity):
        theirs, ours = getattr(source.config, name), getattr(config, name)
        if theirs != ours:
            raise RunError(
                f"{where}: expected {name} {ours!r}, got {theirs!r}. The trained network cannot "
                f"change. Set {name} to its value."
            )


def begin_with(model: nn.Module, source: Run, classes: tuple[str, ...]) -> bool:
    """Give a network the weights of another run; return whether its classifier stays new.

    A similarity that the other network lacks keeps its initial values. The classifier is taken if
    the classes are the same.
    """
    state = source.load_model().state_dict()
    is_new = classes != source.classes()
    if is_new:
        classifier = find_classifier(f"from_run {source.folder}", source.config.model, model)
        own = {id(tensor) for tensor in classifier.state_dict(keep_vars=True).values()}
        ours = model.state_dict(keep_vars=True)
        state |= {name: tensor.detach() for name, tensor in ours.items() if id(tensor) in own}
    model.load_state_dict(state)
    return is_new


def freeze(model: nn.Module, new_classifier: bool) -> None:
    """Train only the similarity and a new classifier; other BatchNorm keeps its statistics."""
    freeze_backbone(model, None if new_classifier else [])
    freeze_statistics(model)
