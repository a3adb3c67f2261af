"""Concrete graphs: sizes for the symbols d_p, their space, and what they cost in scratch memory."""

from prism.instantiate.concrete import Concrete
from prism.instantiate.space import sample, sizes

__all__ = ["Concrete", "sample", "sizes"]
