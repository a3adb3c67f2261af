"""All equivalence axioms as data (paper Table 1 and section 6); `axiom` explains the notation.

`PHASES` lists those that proofs use: each phase adds to the one before, for goals still open.
"""

from prism.verify.algebra import AC, ALGEBRA, MORE
from prism.verify.combs import COMBS
from prism.verify.derived import DERIVED
from prism.verify.parallel import PARALLEL

PHASES = (ALGEBRA + PARALLEL, COMBS + AC, MORE)

__all__ = ["AC", "ALGEBRA", "COMBS", "DERIVED", "MORE", "PARALLEL", "PHASES"]
