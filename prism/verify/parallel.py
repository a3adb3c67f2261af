"""Parallel operators as data: part, comb, red and repl against each other and every operator.

Rules only ever introduce variables of their left side, so parallel operators are pushed *outward*,
as section 6 of the paper prescribes: until comb meets its part, and red the reduction it completes.
Laws of the paper's Table 1 that follow from these are in `derived`.
"""

from __future__ import annotations

from collections.abc import Iterator

from prism.verify.axiom import Axiom, differ, has, lacks, monotone, with_mirrors


def _contractions() -> Iterator[Axiom]:
    yield Axiom(
        "parallel matmul (leading partition)",
        "matmul(part(s, d, p), part(t, d, p)) = part(matmul(s, t), d, p)",
        "(Mat (Part s d p) (Part t d p) k)",
        "(Part (Mat s t k) d p)",
        (differ("d", "k"),),
    )
    yield Axiom(
        "parallel matmul (row partition)",
        "matmul(part(s, d, p), repl(t, p)) = part(matmul(s, t), d, p) where t lacks d",
        "(Mat (Part s d p) (Repl t p) k)",
        "(Part (Mat s t k) d p)",
        (differ("d", "k"), lacks("t", "d")),
        mirror=("Mat",),
    )
    yield Axiom(
        "parallel matmul (replicated)",
        "matmul(repl(s, p), repl(t, p)) = repl(matmul(s, t), p)",
        "(Mat (Repl s p) (Repl t p) k)",
        "(Repl (Mat s t k) p)",
    )
    yield Axiom(
        "parallel matmul (reduction)",
        "red(matmul(part(s, k, p), part(t, k, p)), p) = matmul(s, t)",
        '(Merge "sum" (Mat (Part s k p) (Part t k p) k) p)',
        "(Mat s t k)",
    )


def _folds() -> Iterator[Axiom]:
    yield Axiom(
        "reduction and part commute",
        "sum(part(t, d, p), k) = part(sum(t, k), d, p)",
        "(Fold o (Part t d p) k)",
        "(Part (Fold o t k) d p)",
        (differ("d", "k"),),
    )
    yield Axiom(
        "reduction and repl commute",
        "sum(repl(t, p), k) = repl(sum(t, k), p)",
        "(Fold o (Repl t p) k)",
        "(Repl (Fold o t k) p)",
    )
    yield Axiom(
        "compound parallel reduction",
        "red(sum(part(t, k, p), k), p) = sum(t, k)",
        "(Merge o (Fold o (Part t k p) k) p)",
        "(Fold o t k)",
    )
    yield Axiom(
        "compound parallel reduction (accumulate, then reduce)",
        "sum(red(part(t, k, p), p), k) = sum(t, k)",
        "(Fold o (Merge o (Part t k p) p) k)",
        "(Fold o t k)",
    )
    yield Axiom(
        "reduction over a fresh axis",
        "sum(comb(t, k, p), k) = red(t, p) where t lacks k",
        "(Fold o (Comb t k p) k)",
        "(Merge o t p)",
        (lacks("t", "k"),),
    )
    yield Axiom(
        "reduction of a comb",
        "sum(comb(t, k, p), k) = red(sum(t, k), p) where t has k",
        "(Fold o (Comb t k p) k)",
        "(Merge o (Fold o t k) p)",
        (has("t", "k"),),
    )
    yield Axiom(
        "reduction and comb commute",
        "sum(comb(t, d, p), k) = comb(sum(t, k), d, p)",
        "(Fold o (Comb t d p) k)",
        "(Comb (Fold o t k) d p)",
        (differ("d", "k"),),
    )
    yield Axiom(
        "reductions commute",
        "sum(red(t, p), k) = red(sum(t, k), p)",
        "(Fold o (Merge o t p) k)",
        "(Merge o (Fold o t k) p)",
        both=True,
    )


def _elementwise() -> Iterator[Axiom]:
    for op in ("Un o", "Scale c"):
        yield Axiom(
            f"unary and part commute ({op})",
            "f(part(t, d, p)) = part(f(t), d, p)",
            f"({op} (Part t d p))",
            f"(Part ({op} t) d p)",
        )
        yield Axiom(
            f"unary and repl commute ({op})",
            "f(repl(t, p)) = repl(f(t), p)",
            f"({op} (Repl t p))",
            f"(Repl ({op} t) p)",
        )
        yield Axiom(
            f"unary and comb commute ({op})",
            "f(comb(t, d, p)) = comb(f(t), d, p)",
            f"({op} (Comb t d p))",
            f"(Comb ({op} t) d p)",
        )
    yield Axiom(
        "binary and part commute",
        "f(part(s, d, p), part(t, d, p)) = part(f(s, t), d, p)",
        "(Bin o (Part s d p) (Part t d p))",
        "(Part (Bin o s t) d p)",
    )
    yield Axiom(
        "binary of part and repl",
        "f(part(s, d, p), repl(t, p)) = part(f(s, t), d, p) where t lacks d",
        "(Bin o (Part s d p) (Repl t p))",
        "(Part (Bin o s t) d p)",
        (lacks("t", "d"),),
        mirror=("Bin o",),
    )
    yield Axiom(
        "binary and repl commute",
        "f(repl(s, p), repl(t, p)) = repl(f(s, t), p)",
        "(Bin o (Repl s p) (Repl t p))",
        "(Repl (Bin o s t) p)",
    )


def _maxima() -> Iterator[Axiom]:
    """What commutes with the maximum over a parallel dimension."""
    yield Axiom(
        "red max of copies",
        "max over p of repl(t, p) = t",
        '(Merge "max" (Repl t p) p)',
        "t",
    )
    yield Axiom(
        "red max and a monotone operator commute",
        "red_max(f(t), p) = f(red_max(t, p)) for f = exp, relu, shift",
        '(Merge "max" (Un o t) p)',
        '(Un o (Merge "max" t p))',
        (monotone("o"),),
        both=True,
    )
    for inner in ("exp", "relu", "square"):
        yield Axiom(
            f"red max and sqrt of {inner} commute",
            f"red_max(sqrt({inner}(t)), p) = sqrt(red_max({inner}(t), p))",
            f'(Merge "max" (Un "sqrt" (Un "{inner}" t)) p)',
            f'(Un "sqrt" (Merge "max" (Un "{inner}" t) p))',
            both=True,
        )
    for op in ("add", "sub"):
        yield Axiom(
            f"red max and {op} of a replicated term commute",
            f"red_max({op}(t, repl(v, p)), p) = {op}(red_max(t, p), v)",
            f'(Merge "max" (Bin "{op}" t (Repl v p)) p)',
            f'(Bin "{op}" (Merge "max" t p) v)',
            mirror=('Bin "add"',) if op == "add" else (),
        )


def _linear() -> Iterator[Axiom]:
    """What commutes with summing over a parallel dimension: maps linear in the summed operand."""
    for op in ("mul", "div"):
        yield Axiom(
            f"red and {op} by a replicated factor commute",
            f"red({op}(t, repl(v, p)), p) = {op}(red(t, p), v)",
            f'(Merge "sum" (Bin "{op}" t (Repl v p)) p)',
            f'(Bin "{op}" (Merge "sum" t p) v)',
            mirror=('Bin "mul"',) if op == "mul" else (),
        )
    for op in ("add", "sub"):
        yield Axiom(
            f"red distributes over {op}",
            f"red({op}(s, t), p) = {op}(red(s, p), red(t, p))",
            f'(Merge "sum" (Bin "{op}" s t) p)',
            f'(Bin "{op}" (Merge "sum" s p) (Merge "sum" t p))',
        )
    yield Axiom(
        "red and scale commute",
        "red(c*t, p) = c*red(t, p)",
        '(Merge "sum" (Scale c t) p)',
        '(Scale c (Merge "sum" t p))',
    )
    yield Axiom(
        "red and matmul by a replicated operand commute",
        "red(matmul(t, repl(s, p)), p) = matmul(red(t, p), s)",
        '(Merge "sum" (Mat t (Repl s p) k) p)',
        '(Mat (Merge "sum" t p) s k)',
        mirror=("Mat",),
    )
    yield Axiom(
        "red and part commute",
        "red(part(t, d, q), p) = part(red(t, p), d, q)",
        "(Merge o (Part t d q) p)",
        "(Part (Merge o t p) d q)",
        (differ("p", "q"),),
    )
    yield Axiom(
        "red and repl commute",
        "red(repl(t, q), p) = repl(red(t, p), q)",
        "(Merge o (Repl t q) p)",
        "(Repl (Merge o t p) q)",
        (differ("p", "q"),),
    )


_PARALLEL = (
    Axiom("comb cancels part", "comb(part(t, d, p), d, p) = t", "(Comb (Part t d p) d p)", "t"),
    *_contractions(),
    *_folds(),
    *_elementwise(),
    *_linear(),
    *_maxima(),
    Axiom(
        "comb and red commute",
        "comb(red(t, p), d, q) = red(comb(t, d, q), p)",
        "(Comb (Merge o t p) d q)",
        "(Merge o (Comb t d q) p)",
        (differ("p", "q"),),
        both=True,
    ),
    Axiom(
        "nested red commute",
        "red(red(t, p), q) = red(red(t, q), p)",
        "(Merge o (Merge o t p) q)",
        "(Merge o (Merge o t q) p)",
    ),
    Axiom(
        "part and repl commute",
        "repl(part(t, d, p), q) = part(repl(t, q), d, p)",
        "(Repl (Part t d p) q)",
        "(Part (Repl t q) d p)",
        (differ("p", "q"),),
        both=True,
    ),
    Axiom(
        "repl and repl commute",
        "repl(repl(t, p), q) = repl(repl(t, q), p)",
        "(Repl (Repl t p) q)",
        "(Repl (Repl t q) p)",
        (differ("p", "q"),),
    ),
    Axiom(
        "nested part commute",
        "part(part(t, d, p), e, q) = part(part(t, e, q), d, p)",
        "(Part (Part t d p) e q)",
        "(Part (Part t e q) d p)",
        (differ("d", "e"), differ("p", "q")),
    ),
    Axiom(
        "comb and part of different axes commute",
        "comb(part(t, e, q), d, p) = part(comb(t, d, p), e, q)",
        "(Comb (Part t e q) d p)",
        "(Part (Comb t d p) e q)",
        (differ("d", "e"), differ("p", "q")),
    ),
    Axiom(
        "comb and repl commute",
        "comb(repl(t, q), d, p) = repl(comb(t, d, p), q)",
        "(Comb (Repl t q) d p)",
        "(Repl (Comb t d p) q)",
        (differ("p", "q"),),
    ),
    Axiom(
        "nested comb commute",
        "comb(comb(t, d, p), e, q) = comb(comb(t, e, q), d, p)",
        "(Comb (Comb t d p) e q)",
        "(Comb (Comb t e q) d p)",
        (differ("d", "e"), differ("p", "q")),
    ),
)

PARALLEL: tuple[Axiom, ...] = tuple(with_mirrors(_PARALLEL))
