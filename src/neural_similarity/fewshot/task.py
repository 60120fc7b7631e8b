"""Training a few-shot method on base classes, with the training loop of ``train``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..convert import attach
from ..data import Episodes, train_loader
from ..data.loader import Loader
from ..errors import RunError
from ..train.build import build_similarity, check_options
from ..train.distributed import World
from ..train.ingredients.losses import l1_on_similarity
from ..train.loop import Callback, carry_out
from ..train.start import check_images, check_same_network
from ..train.task import Batches
from .batches import as_batch
from .config import FewShotConfig
from .evaluate import Evaluator
from .methods.base import Method
from .methods.metric.proto import Proto
from .network import FewShotNetwork
from .runs import FewShotRun
from .training_data import EpisodeLoader, MixedLoader, base_augment, base_classes

__all__ = ["FewShotTask", "train_method"]


def train_method(
    config: FewShotConfig | None,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    force: bool = False,
    callback: Callback | None = None,
    tensorboard: bool = False,
) -> FewShotRun:
    """Train a few-shot method into a new folder, or continue the run in a folder.

    Checkpoints, resuming and several processes work as in :func:`neural_similarity.train.train`.

    Args:
        config: the settings; None uses those in the folder.
        folder: where the run goes.
        resume: continue from the last checkpoint, if there is one.
        force: replace the run in the folder.
        callback: called with every line of metrics.
        tensorboard: also write events for TensorBoard into the folder.
    """
    run = FewShotRun.open(folder) if config is None else FewShotRun(Path(folder), config)
    carry_out(
        run,
        lambda world: FewShotTask(run, world),
        resume=resume,
        force=force,
        callback=callback,
        tensorboard=tensorboard,
    )
    return run


class FewShotTask:
    """Training of a method on images or episodes of base classes, validated on other classes."""

    def __init__(self, run: FewShotRun, world: World) -> None:
        config = run.config
        self.config, self.method = config, config.build_method()
        self.base, self.validation = base_classes(config)
        self.mean, self.std = self.base.statistics()
        shape = (self.base.in_channels, self.base.image_size[0])
        source = self._source()
        self.trained = self.base.classes
        if source is not None:
            self.trained += tuple(c for c in source.trained_classes() if c not in self.trained)
            _check_source(source, config, *shape)
            self.mean, self.std = source.normalisation()
        self.batches: Batches
        if self.method.trains_on == "images":
            self.batches, self.images = self._image_loader(world), config.batch_size
        else:
            episodes = EpisodeLoader(self.base, config, self.mean, self.std, world)
            self.batches, self.images = episodes, episodes.images
            if self.method.trains_on == "both":
                mixed = MixedLoader(self._image_loader(world), episodes, self.method.image_share)
                self.batches, self.images = mixed, mixed.images
        if self.validation is not None:
            self._val_episodes()  # raises now if there are too few images
        check_options(run.config, *shape)
        self.model = run.build_network(self.base.num_classes, *shape)
        if source is not None:
            begin_with(self.model, source, config)

    def facts(self) -> dict[str, Any]:
        fingerprints = {"base": self.base.fingerprint}
        if self.validation is not None:
            fingerprints["val"] = self.validation.fingerprint
        return {
            "classes": list(self.base.classes),
            "trained_classes": list(self.trained),
            "in_channels": self.base.in_channels,
            "image_size": self.base.image_size[0],
            "mean": list(self.mean),
            "std": list(self.std),
            "data_copies": fingerprints,
        }

    @property
    def skips_parameters(self) -> bool:
        return self.method.trains_on == "both"  # the head has a part for each

    def network(self) -> nn.Module:
        return _Loss(self.model, self.method, self.config.similarity_l1)

    def freeze(self, frozen: bool) -> None:
        """Do nothing: a method itself freezes what it does not train."""

    def evaluate(self, world: World) -> dict[str, Any] | None:
        if self.validation is None:
            return None
        method = validating_method(self.method)
        evaluator = Evaluator(method, self.model, self.validation, self.mean, self.std, world)
        result = evaluator.run(self._val_episodes())
        return {
            "error": 1 - result.mean,
            "interval": result.interval,
            "episodes": len(result.accuracies),
            "validated_by": method.name,
        }

    def _image_loader(self, world: World) -> Loader:
        config = self.config
        return train_loader(
            self.base,
            config.batch_size,
            augment=base_augment(config),
            mean=self.mean,
            std=self.std,
            seed=config.seed,
            rank=world.rank,
            world_size=world.size,
        )

    def _source(self) -> FewShotRun | None:
        config, source_method = self.config, self.method.starts_from
        if config.backbone is not None:
            return FewShotRun.open(config.backbone)
        if source_method is not None:
            raise RunError(
                f"fewshot: expected a backbone for {config.method!r}, got none. It starts with the "
                f"trained network of {source_method!r}. Train that first and name its run with "
                f"--backbone; `nsl fewshot --method {config.method}` and plan_runs do both."
            )
        return None

    def _val_episodes(self) -> Episodes:
        assert self.validation is not None
        config = self.config
        return Episodes(
            self.validation.labels,
            config.n_way,
            config.n_shot,
            config.n_query,
            config.episode_seed,
            config.val_episodes,
        )


def validating_method(method: Method) -> Method:
    """The method used for validation.

    That is the method itself, unless it learns from images and its tests do much more: tune the
    network in every episode, or use all queries of an episode or the mean of all base images. Then
    it is validated with prototypes of its features.
    """
    slow = not method.from_features or method.transductive or method.needs_base_mean
    if method.trains_on == "images" and slow:
        return Proto(method.batch_norm)
    return method


def begin_with(network: FewShotNetwork, source: FewShotRun, config: FewShotConfig) -> None:
    """Give a network another run's backbone; a similarity missing there is the identity.

    A method that trains on episodes also takes the head of a run of its own, if it fits.
    """
    trained = source.load_network().backbone
    similarity = build_similarity(config)
    if similarity is not None and source.config.similarity_kind() == "none":
        attach(trained, similarity)
    network.backbone.load_state_dict(trained.state_dict())
    method = config.build_method()
    if method.needs_base_classifier:
        _take_classifier(network, source, config)
    elif method.trains_on != "images" and source.config.method == config.method:
        trains = config.epochs > 0 or config.steps
        if not _take_head(network, source) and not trains:
            raise RunError(
                f"backbone {source.folder}: expected a head that fits these options of "
                f"{config.method!r}, got another one. Use the options of that run, or train for "
                f"some epochs."
            )


def _take_classifier(network: FewShotNetwork, source: FewShotRun, config: FewShotConfig) -> None:
    """Give a network the other run's base-class classifier too."""
    if source.has_base_classifier() and _take_head(network, source):
        return
    if config.epochs == 0 and not config.steps:
        raise RunError(
            f"backbone {source.folder}: expected a run with a classifier of the same base classes "
            f"for {config.method!r}, got a run of {source.config.method!r} without one. Name a run "
            f"that trained one, such as a run of 'finetune', or train for some epochs."
        )


def _take_head(network: FewShotNetwork, source: FewShotRun) -> bool:
    """Give a network the other run's head if it has the same shape; return whether it does."""
    theirs, ours = source.load_network().head.state_dict(), network.head.state_dict()
    fits = {k: v.shape for k, v in theirs.items()} == {k: v.shape for k, v in ours.items()}
    if fits:
        network.head.load_state_dict(theirs)
    return fits


class _Loss(nn.Module):
    """The loss of a method as a module; errors are not counted."""

    def __init__(self, network: FewShotNetwork, method: Method, similarity_l1: float) -> None:
        super().__init__()
        self.network, self.method, self.similarity_l1 = network, method, similarity_l1

    def forward(self, *batch: Tensor) -> tuple[Tensor, None]:
        with l1_on_similarity(self.network, self.similarity_l1) as penalised:
            return penalised(self.method.loss(self.network, as_batch(batch))), None


def _check_source(
    source: FewShotRun, config: FewShotConfig, in_channels: int, image_size: int
) -> None:
    """Raise unless the other run's network fits data and method."""
    where = f"backbone {source.folder}"
    check_images(where, source, config, in_channels, image_size)
    has, needs = source.config.similarity_kind(), config.similarity_kind()
    if has != needs and (has != "none" or needs == "dynamic"):
        raise RunError(
            f"{where}: expected a network with similarity {needs!r} for {config.method!r}, got "
            f"{has!r}. Name a run of a method with that similarity."
        )
    check_same_network(where, source, config, has != "none")
