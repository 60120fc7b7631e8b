"""Model-agnostic meta-learning (Finn, Abbeel and Levine, 2017).

Paper: "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks",
https://arxiv.org/abs/1703.03400.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...network import FewShotNetwork
from ..registry import register_method
from .meta_learned import MetaLearned

__all__ = ["MAML"]


@register_method
@dataclass(frozen=True)
class MAML(MetaLearned):
    """A network trained so that a few gradient steps on a support set suffice for its queries.

    All parameters and the classifier are adapted. Second order, unless ``first_order``. The
    published results are transductive: ``batch_norm="batch"``.

    Args:
        inner_lr: for the mean loss of the support images. The authors' 0.01 is for a loss that
            their code sums over classes: five times the mean with five classes.
        test_steps: gradient steps at test time.
    """

    inner_lr: float = 0.05
    test_steps: int = 10

    name: ClassVar[str] = "maml"

    @property
    def steps_in_tests(self) -> int:
        return self.test_steps

    def names(self, network: FewShotNetwork) -> list[str]:
        return [name for name, _ in network.backbone.named_parameters()]
