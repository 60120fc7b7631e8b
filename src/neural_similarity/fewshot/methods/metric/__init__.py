"""Methods that compare a query with the support set; training learns the features to compare.

The support set fits no parameters: what is learned is in the network.
"""

from . import matching, nearest, proto, relation

__all__ = ["matching", "nearest", "proto", "relation"]
