"""Axioms, e-graph proof, exact numeric semantics and refutation."""

from prism.verify.egraph import Limits
from prism.verify.encode import encode
from prism.verify.prove import Proofs, prove, prove_all, saturated_table
from prism.verify.refute import Refuter
from prism.verify.verdict import Outcome, Verdict

__all__ = [
    "Limits",
    "Outcome",
    "Proofs",
    "Refuter",
    "Verdict",
    "encode",
    "prove",
    "prove_all",
    "saturated_table",
]
