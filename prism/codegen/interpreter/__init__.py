"""The interpreter of tile programs: the reference for every printer."""

from prism.codegen.interpreter.run import run

__all__ = ["run"]
