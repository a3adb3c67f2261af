"""Axioms, e-graph proof, exact numeric semantics and refutation."""

from prism.verify.encode import encode
from prism.verify.prove import Refuter, prove
from prism.verify.verdict import Outcome, Verdict

__all__ = ["Outcome", "Refuter", "Verdict", "encode", "prove"]
