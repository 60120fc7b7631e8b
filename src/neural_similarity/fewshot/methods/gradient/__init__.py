"""Methods whose gradient steps on a support set go through the network."""

from . import finetune, maml

__all__ = ["finetune", "maml"]
