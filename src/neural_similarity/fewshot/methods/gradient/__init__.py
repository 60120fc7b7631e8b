"""Methods whose gradient steps on a support set go through the network."""

from . import finetune, leo, maml

__all__ = ["finetune", "leo", "maml"]
