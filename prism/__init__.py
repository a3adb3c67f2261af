"""Prism: a symbolic superoptimizer for tensor programs."""

__version__ = "0.1.0"
