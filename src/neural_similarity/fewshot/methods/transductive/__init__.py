"""Transductive methods: they look at all queries of an episode before they classify any.

Their scores are not comparable with those of inductive methods, and they profit from queries that
are balanced, as those of our episodes are.
"""

from . import bd_cspn, laplacianshot, pt_map, tim, transductive_finetune

__all__ = ["bd_cspn", "laplacianshot", "pt_map", "tim", "transductive_finetune"]
