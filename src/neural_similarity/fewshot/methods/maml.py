"""Model-agnostic meta-learning (Finn, Abbeel and Levine, 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..network import FewShotNetwork
from .meta_learned import MetaLearned
from .registry import register_method

__all__ = ["MAML"]


@register_method
@dataclass(frozen=True)
class MAML(MetaLearned):
    """A network trained so that a few gradient steps on a support set make it right for queries.

    All parameters and the classifier are adapted. Second order, unless ``first_order``. The
    published numbers are transductive: ``batch_norm="batch"``.

    Args:
        test_steps: gradient steps at test time.
    """

    test_steps: int = 10

    name: ClassVar[str] = "maml"

    @property
    def steps_in_tests(self) -> int:
        return self.test_steps

    def names(self, network: FewShotNetwork) -> list[str]:
        return [name for name, _ in network.backbone.named_parameters()]
