"""What M may be: one structure per file."""

from .base import Block, Structure, from_config, list_structures, register, resolve
from .diagonal import Diagonal
from .dilated import Dilated
from .kernel_shape import KernelShape
from .orthogonal import Orthogonal
from .psd import PositiveSemidefinite
from .shift import Shift
from .sparse import Sparse
from .symmetric import Symmetric
from .unconstrained import Unconstrained

__all__ = [
    "Block",
    "Diagonal",
    "Dilated",
    "KernelShape",
    "Orthogonal",
    "PositiveSemidefinite",
    "Shift",
    "Sparse",
    "Structure",
    "Symmetric",
    "Unconstrained",
    "from_config",
    "list_structures",
    "register",
    "resolve",
]
