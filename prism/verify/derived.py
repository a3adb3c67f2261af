"""Laws of the paper's Table 1, and schemata of them, that follow from the axioms.

They are not loaded: a test holds that the e-graph derives them. The compound parallelized sums
exist for every number of parallel dimensions (paper section 4), so a generator writes them.

Forms 6 to 8 as the paper prints them, such as red(red(part(part(t, d, p), d, q), p), q) =
red(part(t, d, p), p), equate tensors of different extents along d; they hold under a sum over d,
which is how they stand here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product

from prism.verify.axiom import Axiom, differ, lacks

DEPTH = 3  # a kernel splits an axis by one grid dimension and the loop at most (equation 2)


def _matmuls() -> Iterator[Axiom]:
    """The parallelized matmuls with their comb, as the paper has them."""
    yield Axiom(
        "parallelized matmul (row partition)",
        "comb(matmul(part(s, d, p), repl(t, p)), d, p) = matmul(s, t) where t lacks d",
        "(Comb (Mat (Part s d p) (Repl t p) k) d p)",
        "(Mat s t k)",
        (differ("d", "k"), lacks("t", "d")),
        mirror=("Mat",),
    )
    yield Axiom(
        "parallelized matmul (leading dim)",
        "comb(matmul(part(s, d, p), part(t, d, p)), d, p) = matmul(s, t)",
        "(Comb (Mat (Part s d p) (Part t d p) k) d p)",
        "(Mat s t k)",
        (differ("d", "k"),),
    )


def _forms() -> Iterator[Axiom]:
    """Compound parallelized sums as Table 1 numbers them; 6 to 8 under a sum over d."""
    nested = "(Part (Part t d p) d q)"
    merged = "(Fold o (Merge o (Part t d p) p) d)"
    forms = {
        1: ("(Fold o (Merge o (Part t d p) p) d)", "(Fold o t d)"),
        2: ("(Fold o (Comb (Fold o (Part t d p) d) d p) d)", "(Fold o t d)"),
        3: (f"(Fold o (Comb (Merge o {nested} q) d p) d)", "(Fold o t d)"),
        4: (f"(Fold o (Comb (Merge o {nested} p) d q) d)", "(Fold o t d)"),
        5: (f"(Fold o (Merge o (Comb {nested} d p) q) d)", "(Fold o t d)"),
        6: ("(Fold o (Merge o (Part (Merge o (Part t d p) p) d q) q) d)", merged),
        7: (f"(Fold o (Merge o (Merge o {nested} p) q) d)", merged),
        8: (f"(Fold o (Merge o (Merge o {nested} q) p) d)", merged),
    }
    for number, (left, right) in forms.items():
        yield Axiom(f"compound parallelized sum (form {number})", f"{left} = {right}", left, right)


def compound_sums(depth: int) -> Iterator[Axiom]:
    """Sums of a tensor whose axis d is partitioned by `depth` parallel dimensions in turn.

    Each dimension is then removed by red, or by comb along d, in any order; before or after the sum
    over d, which the combs make necessary once more.
    """
    pars = "pqr"[:depth]
    parted = "t"
    for par in pars:
        parted = f"(Part {parted} d {par})"
    for order in permutations(pars):
        for kinds in product(("red", "comb"), repeat=depth):
            steps = list(zip(order, kinds, strict=True))
            name = ", ".join(f"{kind} {par}" for par, kind in steps)
            inner, outer = parted, f"(Fold o {parted} d)"
            for par, kind in steps:
                inner = _removed(inner, kind, par)
                outer = _removed(outer, kind, par)
            if "comb" in kinds:
                outer = f"(Fold o {outer} d)"
            whole = "(Fold o t d)"
            law = f"partitioned {depth} times: {name}"
            yield Axiom(f"sum after {law}", law, f"(Fold o {inner} d)", whole)
            if kinds.count("comb") <= 1:  # a second comb would lengthen the axis the first made
                yield Axiom(f"sum before {law}", law, outer, whole)


def _removed(pattern: str, kind: str, par: str) -> str:
    return f"(Merge o {pattern} {par})" if kind == "red" else f"(Comb {pattern} d {par})"


DERIVED: tuple[Axiom, ...] = (
    *_matmuls(),
    *_forms(),
    *(axiom for depth in range(1, DEPTH + 1) for axiom in compound_sums(depth)),
)
