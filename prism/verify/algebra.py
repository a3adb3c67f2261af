"""Ordinary algebra as data: what holds at d = 1, where parallel operators are identities.

`ALGEBRA` spans the space that is searched. `AC` and `MORE` only serve proofs that it leaves open:
they make e-graphs grow fast.
"""

from __future__ import annotations

from collections.abc import Iterator

from prism.verify.axiom import Axiom, differ, has, lacks, monotone, with_mirrors, within


def _row_scalings() -> Iterator[Axiom]:
    """A factor that lacks the contracted axis moves through a contraction."""
    for op in ("mul", "div"):
        own = ('Bin "mul"',) if op == "mul" else ()
        yield Axiom(
            f"matmul commutes with {op}",
            f"matmul({op}(s, v), t) = {op}(matmul(s, t), v)",
            f'(Mat (Bin "{op}" s v) t k)',
            f'(Bin "{op}" (Mat s t k) v)',
            (lacks("v", "k"), within("v", "s")),
            both=True,
            mirror=("Mat", *own),
        )
        yield Axiom(
            f"sum commutes with {op}",
            f"sum({op}(t, v), k) = {op}(sum(t, k), v)",
            f'(Fold "sum" (Bin "{op}" t v) k)',
            f'(Bin "{op}" (Fold "sum" t k) v)',
            (lacks("v", "k"), within("v", "t")),
            both=True,
            mirror=own,
        )
    for op in ("add", "sub"):
        yield Axiom(
            f"matmul distributes over {op}",
            f"matmul({op}(s, t), u) = {op}(matmul(s, u), matmul(t, u))",
            f'(Mat (Bin "{op}" s t) u k)',
            f'(Bin "{op}" (Mat s u k) (Mat t u k))',
            (within("s", "t"), within("t", "s")),
            both=True,
            mirror=("Mat",),
        )
        yield Axiom(
            f"sum distributes over {op}",
            f"sum({op}(s, t), k) = {op}(sum(s, k), sum(t, k)) where both have k",
            f'(Fold "sum" (Bin "{op}" s t) k)',
            f'(Bin "{op}" (Fold "sum" s k) (Fold "sum" t k))',
            (has("s", "k"), has("t", "k")),
        )
        yield Axiom(
            f"{op} of sums",
            f"{op}(sum(s, k), sum(t, k)) = sum({op}(s, t), k)",
            f'(Bin "{op}" (Fold "sum" s k) (Fold "sum" t k))',
            f'(Fold "sum" (Bin "{op}" s t) k)',
            (within("s", "t"), within("t", "s")),
        )


def _maxima() -> Iterator[Axiom]:
    """What never decreases commutes with the maximum."""
    yield Axiom(
        "max commutes with a monotone operator",
        "max(f(t), k) = f(max(t, k)) for f = exp, relu, shift",
        '(Fold "max" (Un o t) k)',
        '(Un o (Fold "max" t k))',
        (monotone("o"),),
        both=True,
    )
    for inner in ("exp", "relu", "square"):
        yield Axiom(
            f"max commutes with sqrt of {inner}",
            f"max(sqrt({inner}(t)), k) = sqrt(max({inner}(t), k)): the root of what has one",
            f'(Fold "max" (Un "sqrt" (Un "{inner}" t)) k)',
            f'(Un "sqrt" (Fold "max" (Un "{inner}" t) k))',
            both=True,
        )
    for op in ("add", "sub"):
        yield Axiom(
            f"max commutes with {op}",
            f"max({op}(t, v), k) = {op}(max(t, k), v)",
            f'(Fold "max" (Bin "{op}" t v) k)',
            f'(Bin "{op}" (Fold "max" t k) v)',
            (lacks("v", "k"), within("v", "t")),
            both=True,
            mirror=('Bin "add"',) if op == "add" else (),
        )


_ALGEBRA = (
    *_row_scalings(),
    *_maxima(),
    Axiom(
        "reductions over two axes commute",
        "sum(sum(t, k), e) = sum(sum(t, e), k)",
        "(Fold o (Fold o t k) e)",
        "(Fold o (Fold o t e) k)",
    ),
    Axiom(
        "matmul is associative",
        "matmul(s, matmul(t, u, e), k) = matmul(matmul(s, t, k), u, e)",
        "(Mat s (Mat t u e) k)",
        "(Mat (Mat s t k) u e)",
        (lacks("s", "e"), lacks("u", "k"), differ("k", "e")),
        both=True,
    ),
    Axiom(
        "scale moves through sum",
        "sum(c*t, k) = c*sum(t, k)",
        '(Fold "sum" (Scale c t) k)',
        '(Scale c (Fold "sum" t k))',
        both=True,
    ),
    Axiom(
        "scale moves through matmul",
        "matmul(c*s, t) = c*matmul(s, t)",
        "(Mat (Scale c s) t k)",
        "(Scale c (Mat s t k))",
        both=True,
        mirror=("Mat",),
    ),
    Axiom(
        "mul of a quotient",
        "(s/v)*t = (s*t)/v",
        '(Bin "mul" (Bin "div" s v) t)',
        '(Bin "div" (Bin "mul" s t) v)',
        (within("v", "s"),),
        both=True,
        mirror=('Bin "mul"',),
    ),
    Axiom(
        "quotient of a quotient",
        "(t/v)/w = t/(v*w)",
        '(Bin "div" (Bin "div" t v) w)',
        '(Bin "div" t (Bin "mul" v w))',
        (within("v", "t"), within("w", "t")),
        both=True,
    ),
)

ALGEBRA: tuple[Axiom, ...] = tuple(with_mirrors(_ALGEBRA))


# Associativity and commutativity ------------------------------------------------------------------


def _commutative() -> Iterator[Axiom]:
    for op in ("add", "mul"):
        yield Axiom(
            f"{op} is commutative",
            f"{op}(s, t) = {op}(t, s)",
            f'(Bin "{op}" s t)',
            f'(Bin "{op}" t s)',
        )
        yield Axiom(
            f"{op} is associative",
            f"{op}({op}(s, t), u) = {op}(s, {op}(t, u))",
            f'(Bin "{op}" (Bin "{op}" s t) u)',
            f'(Bin "{op}" s (Bin "{op}" t u))',
            both=True,
        )
    yield Axiom(
        "matmul is commutative",
        "matmul(s, t) = matmul(t, s): axes have names",
        "(Mat s t k)",
        "(Mat t s k)",
    )


AC: tuple[Axiom, ...] = tuple(_commutative())

# More, for proofs alone ---------------------------------------------------------------------------


def _broadcasts() -> Iterator[Axiom]:
    """Laws of `ALGEBRA` where they may grow a tensor, which is no use to the search."""
    for fold, op in (("sum", "mul"), ("sum", "div"), ("max", "add"), ("max", "sub")):
        yield Axiom(
            f"{fold} commutes with {op}, broadcast",
            f"{fold}({op}(t, v), k) = {op}({fold}(t, k), v)",
            f'(Fold "{fold}" (Bin "{op}" t v) k)',
            f'(Bin "{op}" (Fold "{fold}" t k) v)',
            (lacks("v", "k"),),
            mirror=() if op in ("div", "sub") else (f'Bin "{op}"',),
        )


def _more_scalings() -> Iterator[Axiom]:
    for op in ("mul", "div"):
        yield Axiom(
            f"scale moves through {op}",
            f"{op}(c*s, t) = c*{op}(s, t)",
            f'(Bin "{op}" (Scale c s) t)',
            f'(Scale c (Bin "{op}" s t))',
            both=True,
            mirror=('Bin "mul"',) if op == "mul" else (),
        )
        for outer in ("add", "sub"):
            yield Axiom(
                f"{op} distributes over {outer}",
                f"{op}({outer}(s, t), v) = {outer}({op}(s, v), {op}(t, v))",
                f'(Bin "{op}" (Bin "{outer}" s t) v)',
                f'(Bin "{outer}" (Bin "{op}" s v) (Bin "{op}" t v))',
                both=True,
                mirror=('Bin "mul"',) if op == "mul" else (),
            )
        yield Axiom(
            f"square of {op}",
            f"square({op}(s, t)) = {op}(square(s), square(t))",
            f'(Un "square" (Bin "{op}" s t))',
            f'(Bin "{op}" (Un "square" s) (Un "square" t))',
            both=True,
        )
    for op, image in (("add", "mul"), ("sub", "div")):
        yield Axiom(
            f"scale distributes over {op}",
            f"c*{op}(s, t) = {op}(c*s, c*t)",
            f'(Scale c (Bin "{op}" s t))',
            f'(Bin "{op}" (Scale c s) (Scale c t))',
            both=True,
        )
        yield Axiom(
            f"exp of {op}",
            f"exp({op}(s, t)) = {image}(exp(s), exp(t))",
            f'(Un "exp" (Bin "{op}" s t))',
            f'(Bin "{image}" (Un "exp" s) (Un "exp" t))',
            both=True,
        )


_MORE = (
    *_broadcasts(),
    *_more_scalings(),
    Axiom(
        "two scales commute",
        "c*(b*t) = b*(c*t)",
        "(Scale c (Scale b t))",
        "(Scale b (Scale c t))",
    ),
    Axiom(
        "square is a product",
        "square(t) = t*t",
        '(Un "square" t)',
        '(Bin "mul" t t)',
        both=True,
    ),
    Axiom(
        "add and sub associate",
        "(s+t)-u = s+(t-u)",
        '(Bin "sub" (Bin "add" s t) u)',
        '(Bin "add" s (Bin "sub" t u))',
        both=True,
    ),
    Axiom(
        "sub of a sum",
        "(s-t)-u = s-(t+u)",
        '(Bin "sub" (Bin "sub" s t) u)',
        '(Bin "sub" s (Bin "add" t u))',
        both=True,
    ),
    Axiom(
        "relu twice",
        "relu(relu(t)) = relu(t)",
        '(Un "relu" (Un "relu" t))',
        '(Un "relu" t)',
    ),
    Axiom(
        "matmul is a sum of products",
        "sum(mul(s, t), k) = matmul(s, t, k) where both have k",
        '(Fold "sum" (Bin "mul" s t) k)',
        "(Mat s t k)",
        (has("s", "k"), has("t", "k")),
        both=True,
    ),
    Axiom(
        "sum of a matmul",
        "sum(matmul(s, t, k), e) = matmul(sum(s, e), t, k) where t lacks e",
        '(Fold "sum" (Mat s t k) e)',
        '(Mat (Fold "sum" s e) t k)',
        (lacks("t", "e"), differ("e", "k")),
        both=True,
        mirror=("Mat",),
    ),
)

MORE: tuple[Axiom, ...] = tuple(with_mirrors(_MORE))
