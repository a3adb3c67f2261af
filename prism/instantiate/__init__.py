"""Concrete graphs: sizes for the symbols d_p, their space, and what they cost in scratch memory."""

from prism.instantiate.concrete import Concrete
from prism.instantiate.sampling import sample
from prism.instantiate.space import sizes

__all__ = ["Concrete", "sample", "sizes"]
