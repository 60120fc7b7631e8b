"""Methods that compare a query with the support set; training learns the features to compare.

No parameters are fitted to the support set: all that is learned is in the network.
"""

from . import feat, matching, nearest, proto, relation, simpleshot, tadam

__all__ = ["feat", "matching", "nearest", "proto", "relation", "simpleshot", "tadam"]
