"""All settings of training and testing a few-shot method, in one frozen dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

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
    use ``batch_size`` images per step, the others ``tasks`` episodes. Methods that learn from both
    use either in each step.

    Example:
        >>> FewShotConfig(method="proto", train_way=20).training_episode()
        (20, 5, 15)
    """

    model: str = setting("cnn4", "network; names below")
    data: str = setting("glyphs", "data set whose test classes are not in training")
    similarity: str = setting("method", "none, static, dynamic, or method (what the method needs)")
    epochs: float = setting(30.0, "passes over base images, or rounds of epoch_steps; 0: untrained")
    optimizer: str = setting("adam", "sgd or adam")

    method: str = setting("proto", "method; names below")
    method_options: dict[str, Any] = field(
        default_factory=dict,
        metadata={"help": "options of the method: method_options.inner_lr=0.1"},
    )
    backbone: str | None = setting(
        None, "a run to start from: its backbone, and its head if the method is the same"
    )
    head_rate: float = setting(
        1.0, "learning rate of what the method adds to the backbone, as a multiple of lr"
    )
    base: str = setting("train", "base classes: train, or train+val (no validation)")
    augment: bool = setting(True, "augment base images, as usual for the data set")

    n_way: int = setting(5, "classes per test or validation episode")
    n_shot: int = setting(5, "labelled images per class, in training and validation")
    n_query: int = setting(15, "images per class to classify")
    train_way: int | None = setting(None, "training: classes per episode; default: n_way")
    train_shot: int | None = setting(None, "training: labelled images per class; default: n_shot")
    train_query: int | None = setting(None, "training: queries per class; default: n_query")
    tasks: int = setting(1, "episodes per step, over all processes")
    epoch_steps: int = setting(100, "training steps per epoch, for episodes")

    val_episodes: int = setting(200, "episodes per validation")
    patience: int | None = setting(
        None, "stop after this many validations without a higher accuracy; default: never"
    )
    episodes: int = setting(600, "episodes per test")
    episode_seed: int = setting(0, "seed of test and validation episodes")
    batch_norm: str = setting(
        "running", "BatchNorm statistics in tests: running (inductive) or batch (transductive)"
    )

    kind: ClassVar[str] = "fewshot"
    similarities: ClassVar[tuple[str, ...]] = (*SIMILARITIES, "method")

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.known_name("configuration", "base", self.base, BASES)
        self.at_least(0, "epochs", "episode_seed", "head_rate")
        self.at_least(
            1, "n_way", "n_shot", "n_query", "train_way", "train_shot", "train_query", "tasks",
            "epoch_steps", "episodes", "patience",
        )  # fmt: skip
        if self.patience is not None and self.base == "train+val":
            raise RunError(
                "configuration: expected base 'train' with patience, got 'train+val'. No classes "
                "are left for validation. Leave patience out, or train on 'train'."
            )
        self.at_least(2, "val_episodes")  # an interval needs two
        if "batch_norm" in self.method_options:
            raise RunError(
                "configuration: expected batch_norm as a separate setting, got it in "
                "method_options. Set batch_norm instead."
            )
        self.need_similarity("similarity_l1")
        method = self.build_method()
        if self.similarity_l1 and not (method.trains_on == "images" and method.trains_similarity):
            raise RunError(
                f"configuration: expected a method that trains the similarity on images with "
                f"similarity_l1, got {self.method!r}. The penalty is part of that loss. Leave "
                f"similarity_l1 out."
            )
        needed = method.similarity
        if needed != "none" and self.similarity not in ("method", needed):
            raise RunError(
                f"configuration: expected similarity {needed!r} for {self.method!r}, got "
                f"{self.similarity!r}. The method needs it. Leave similarity out."
            )

    def build_method(self) -> Method:
        """The method with its options."""
        return create_method(self.method, batch_norm=self.batch_norm, **self.method_options)

    def lr_factors(self, model: nn.Module) -> dict[nn.Parameter, float]:
        head = getattr(model, "head", None)  # a backbone alone has none
        return dict.fromkeys(head.parameters(), self.head_rate) if head is not None else {}

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
