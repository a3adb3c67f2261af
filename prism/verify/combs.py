"""What comb commutes with where it meets no part: operators on what another kernel has combined.

`COMBS` only serve proofs that the other axioms leave open: as a rule a comb meets its part, or a
reduction over its axis.
"""

from __future__ import annotations

from collections.abc import Iterator

from prism.verify.axiom import Axiom, differ, has, lacks, with_mirrors


def _binary_combs() -> Iterator[Axiom]:
    for name, guards in (
        ("", (has("s", "d"), has("t", "d"))),
        (" of a fresh axis", (lacks("s", "d"), lacks("t", "d"))),
    ):
        yield Axiom(
            f"binary and comb{name} commute",
            "f(comb(s, d, p), comb(t, d, p)) = comb(f(s, t), d, p)",
            "(Bin o (Comb s d p) (Comb t d p))",
            "(Comb (Bin o s t) d p)",
            guards,
        )
    yield Axiom(
        "binary of comb and a term without its axis",
        "f(comb(s, d, p), t) = comb(f(s, repl(t, p)), d, p) where t lacks d",
        "(Bin o (Comb s d p) t)",
        "(Comb (Bin o s (Repl t p)) d p)",
        (lacks("t", "d"),),
        mirror=("Bin o",),
    )
    yield Axiom(
        "binary of comb and a whole term",
        "f(comb(s, d, p), t) = comb(f(s, part(t, d, p)), d, p) where both have d",
        "(Bin o (Comb s d p) t)",
        "(Comb (Bin o s (Part t d p)) d p)",
        (has("s", "d"), has("t", "d")),
        mirror=("Bin o",),
    )


def _matmul_combs() -> Iterator[Axiom]:
    for name, guards in (
        ("leading", (has("s", "d"), has("t", "d"))),
        ("fresh leading", (lacks("s", "d"), lacks("t", "d"))),
    ):
        yield Axiom(
            f"matmul and comb commute ({name})",
            "matmul(comb(s, d, p), comb(t, d, p)) = comb(matmul(s, t), d, p)",
            "(Mat (Comb s d p) (Comb t d p) k)",
            "(Comb (Mat s t k) d p)",
            (differ("d", "k"), *guards),
        )
    yield Axiom(
        "matmul and comb commute (row)",
        "matmul(comb(s, d, p), t) = comb(matmul(s, repl(t, p)), d, p) where t lacks d",
        "(Mat (Comb s d p) t k)",
        "(Comb (Mat s (Repl t p) k) d p)",
        (differ("d", "k"), lacks("t", "d")),
        mirror=("Mat",),
    )
    yield Axiom(
        "matmul of combs along the contracted axis",
        "matmul(comb(s, k, p), comb(t, k, p), k) = red(matmul(s, t, k), p) where both have k",
        "(Mat (Comb s k p) (Comb t k p) k)",
        '(Merge "sum" (Mat s t k) p)',
        (has("s", "k"), has("t", "k")),
    )
    yield Axiom(
        "matmul over a fresh axis",
        "matmul(comb(s, k, p), comb(t, k, p), k) = red(mul(s, t), p) where both lack k",
        "(Mat (Comb s k p) (Comb t k p) k)",
        '(Merge "sum" (Bin "mul" s t) p)',
        (lacks("s", "k"), lacks("t", "k")),
    )
    yield Axiom(
        "matmul of comb along the contracted axis",
        "matmul(comb(s, k, p), t, k) = red(matmul(s, part(t, k, p), k), p) where s has k",
        "(Mat (Comb s k p) t k)",
        '(Merge "sum" (Mat s (Part t k p) k) p)',
        (has("s", "k"),),
        mirror=("Mat",),
    )


COMBS: tuple[Axiom, ...] = tuple(
    with_mirrors(
        (
            Axiom(
                "part cancels comb",
                "part(comb(t, d, p), d, p) = t where t has d",
                "(Part (Comb t d p) d p)",
                "t",
                (has("t", "d"),),
            ),
            *_binary_combs(),
            *_matmul_combs(),
        )
    )
)
