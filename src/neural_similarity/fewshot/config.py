"""All settings of training and testing a few-shot method, in one frozen table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from .. import _check
from ..errors import RunError
from ..train.settings import SIMILARITIES, Settings, setting
from .methods.base import Method
from .methods.registry import create_method

__all__ = ["FewShotConfig"]

BASES = ("train", "train+val")


@dataclass(frozen=True)
class FewShotConfig(Settings):
    """How a few-shot method is trained on base classes and tested on others.

    By default training episodes have the sizes of test episodes. Methods that learn from images
    use ``batch_size`` images a step, the others ``tasks`` episodes. Methods that learn from both do
    one of them in each step.

    Example:
        >>> FewShotConfig(method="proto", train_way=20).training_episode()
        (20, 5, 15)
    """

    model: str = setting("cnn4", "a network of `list_models()`")
    data: str = setting("glyphs", "a data set whose test classes are not in training")
    similarity: str = setting("method", "none, static, dynamic, or method (what it needs)")
    epochs: float = setting(30.0, "passes over the base images, or epoch_steps; 0 trains nothing")
    optimizer: str = setting("adam", "sgd or adam")

    method: str = setting("proto", "a method of `list_methods()`")
    method_options: dict[str, Any] = field(
        default_factory=dict, metadata={"help": "its options, as in method_options.inner_lr=0.1"}
    )
    backbone: str | None = setting(None, "the run of another method, whose backbone to start with")
    base: str = setting("train", "base classes: train, or train+val (then without validation)")
    augment: bool = setting(True, "augment base images in the usual way for the data set")

    n_way: int = setting(5, "classes in an episode of tests and validation")
    n_shot: int = setting(5, "labelled images of each class, in training and validation")
    n_query: int = setting(15, "images of each class to classify")
    train_way: int | None = setting(None, "training: classes in an episode; default n_way")
    train_shot: int | None = setting(None, "training: labelled images of a class; default n_shot")
    train_query: int | None = setting(None, "training: queries of a class; default n_query")
    tasks: int = setting(1, "episodes a step, over all processes")
    epoch_steps: int = setting(100, "steps that count as an epoch of episodes")

    val_episodes: int = setting(200, "episodes in a validation")
    patience: int | None = setting(
        None, "end training after so many validations without a higher accuracy; default: never"
    )
    episodes: int = setting(600, "episodes in a test")
    episode_seed: int = setting(0, "seed of test and validation episodes")
    batch_norm: str = setting(
        "running", "statistics in tests: running (inductive) or batch (transductive)"
    )

    kind: ClassVar[str] = "fewshot"
    similarities: ClassVar[tuple[str, ...]] = (*SIMILARITIES, "method")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.known_name("configuration", "base", self.base, BASES)
        self.at_least(0, "epochs", "episode_seed")
        self.at_least(
            1, "n_way", "n_shot", "n_query", "train_way", "train_shot", "train_query", "tasks",
            "epoch_steps", "episodes", "patience",
        )  # fmt: skip
        if self.patience is not None and self.base == "train+val":
            raise RunError(
                "configuration: expected base 'train' with patience, got 'train+val'. No classes "
                "are left for validation. Leave patience out, or train on 'train'."
            )
        self.at_least(2, "val_episodes")  # fewer have no interval
        if "batch_norm" in self.method_options:
            raise RunError(
                "configuration: expected batch_norm as a separate setting, got it in "
                "method_options. Set batch_norm instead."
            )
        needed = self.build_method().similarity
        if needed != "none" and self.similarity not in ("method", needed):
            raise RunError(
                f"configuration: expected similarity {needed!r} for {self.method!r}, got "
                f"{self.similarity!r}. The method needs it. Leave similarity out."
            )

    def build_method(self) -> Method:
        """The method with its options."""
        return create_method(self.method, batch_norm=self.batch_norm, **self.method_options)

    def similarity_kind(self) -> str:
        if self.similarity == "method":
            return self.build_method().similarity
        return self.similarity

    def gives_up(self, evaluations: int) -> bool:
        return self.patience is not None and evaluations >= self.patience

    def training_episode(self) -> tuple[int, int, int]:
        """Ways, shots and queries of training episodes."""
        return (
            self.train_way or self.n_way,
            self.train_shot or self.n_shot,
            self.train_query or self.n_query,
        )
