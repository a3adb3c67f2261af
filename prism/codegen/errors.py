"""The error of code generation."""

from prism.errors import PrismError


class LoweringError(PrismError):
    """A concrete graph that cannot become a tile program; the message is the reason."""
