"""The builder: tensor programs made from Python, checked at construction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from prism.errors import PrismError
from prism.program import constant
from prism.program.mask import Causal
from prism.program.node import Node, Op
from prism.program.program import DTYPES, Program, check_size

_UNARY = {op.value: op for op in (Op.EXP, Op.SQUARE, Op.SQRT, Op.SILU, Op.GELU, Op.RELU)}
_BINARY = {op.value: op for op in (Op.ADD, Op.SUB, Op.MUL, Op.DIV)}
_REDUCE = {op.value: op for op in (Op.SUM, Op.MAX)}


class Builder:
    """Builds a Program.

    >>> b = Builder("scores", sizes={"s": 4, "d": 8, "h": 16})
    >>> q, k = b.input("Q", "s d"), b.input("K", "h d")
    >>> b.build(O=b.softmax(b.matmul(q, k, "d"), "h")).outputs[0][1].axes
    ('s', 'h')
    """

    def __init__(
        self,
        name: str,
        sizes: Mapping[str, int | str],
        dtype: str = "bf16",
        params: Mapping[str, float] | None = None,
    ):
        self.name = name
        if dtype not in DTYPES:
            raise PrismError(f"program {name}: dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        self.dtype = dtype
        self.sizes = {axis: check_size(name, axis, size) for axis, size in sizes.items()}
        self.params = {k: self._number(k, v) for k, v in (params or {}).items()}
        self._inputs: dict[str, Node] = {}
        self._generated: dict[str, Causal] = {}

    # Leaves -------------------------------------------------------------------------------

    def input(self, name: str, axes: str | Iterable[str], dtype: str | None = None) -> Node:
        """Declares an input; `axes` as "n d" or a list. Every axis must have a size."""
        axes = axes.replace(",", " ").split() if isinstance(axes, str) else list(axes)
        if not str(name).isidentifier():
            raise PrismError(f"program {self.name}: input name {name!r} is not an identifier")
        if name in self._inputs:
            raise PrismError(f"program {self.name}: input {name!r} is declared twice")
        for axis in axes:
            if axis not in self.sizes:
                raise PrismError(
                    f"program {self.name}: input {name!r} has axis {axis!r}, which has no size; "
                    f"sizes are {sorted(self.sizes)}"
                )
        if dtype not in (None, self.dtype):
            raise PrismError(
                f"program {self.name}: input {name!r} has dtype {dtype!r}, the program {self.dtype}"
            )
        self._inputs[name] = Node(Op.INPUT, arg=name, axes=axes)
        return self._inputs[name]

    def causal(self, query: str, key: str, align: str = "last") -> Node:
        """The mask with axes (query, key) that is added to logits: 0 where a query sees a key,
        -infinity elsewhere. The last query sees the last key and all before it, each one before it
        one key less: key j is seen by query i where j <= i + (keys - queries). With align="first"
        the first query sees the first key alone: j <= i.
        """
        for axis in (query, key):
            if axis not in self.sizes:
                raise PrismError(
                    f"program {self.name}: causal: axis {axis!r} has no size; "
                    f"sizes are {sorted(self.sizes)}"
                )
        if query == key:
            raise PrismError(f"program {self.name}: causal: both axes are {query!r}")
        try:
            rule = Causal(query, key, align)
        except PrismError as error:
            raise PrismError(f"program {self.name}: {error}") from None
        name = f"causal_{query}_{key}" + ("" if align == "last" else f"_{align}")
        while self._generated.get(name, rule) != rule:  # axes a_b, c and a, b_c
            name += "_"
        if name not in self._generated:
            node = self.input(name, rule.axes)  # search and proofs know nothing else of it
            self._generated[name] = rule
            return node
        return self._inputs[name]

    # Operators ----------------------------------------------------------------------------

    def matmul(self, a: Node, b: Node, axis: str | None = None) -> Node:
        """Contracts `axis`; further shared axes are batch axes. May be left out when unique."""
        if axis is None:
            shared = [x for x in a.axes if x in b.axes]
            if len(shared) != 1:
                raise PrismError(
                    f"program {self.name}: matmul of {list(a.axes)} and {list(b.axes)} shares "
                    f"axes {shared}; name the one to contract"
                )
            axis = shared[0]
        return self._node(Op.MATMUL, (a, b), axis)

    def sum(self, x: Node, axis: str) -> Node:
        """Sum over `axis`."""
        return self._node(Op.SUM, (x,), axis)

    def max(self, x: Node, axis: str) -> Node:
        """Maximum over `axis`; NaN propagates."""
        return self._node(Op.MAX, (x,), axis)

    def exp(self, x: Node) -> Node:
        """Natural exponential."""
        return self._node(Op.EXP, (x,))

    def square(self, x: Node) -> Node:
        """x * x."""
        return self._node(Op.SQUARE, (x,))

    def sqrt(self, x: Node) -> Node:
        """Square root."""
        return self._node(Op.SQRT, (x,))

    def silu(self, x: Node) -> Node:
        """x / (1 + exp(-x))."""
        return self._node(Op.SILU, (x,))

    def gelu(self, x: Node) -> Node:
        """x * Phi(x) with the error function, not the tanh form."""
        return self._node(Op.GELU, (x,))

    def relu(self, x: Node) -> Node:
        """max(x, 0)."""
        return self._node(Op.RELU, (x,))

    def add(self, a: Node | float, b: Node | float) -> Node:
        """a + b, broadcast by axis names; a constant operand is allowed."""
        if not isinstance(a, Node):
            a, b = b, a
        return self.shift(a, b) if not isinstance(b, Node) else self._node(Op.ADD, (a, b))

    def sub(self, a: Node | float, b: Node | float) -> Node:
        """a - b."""
        if not isinstance(a, Node):
            return self.shift(self.scale(b, -1), a)
        if not isinstance(b, Node):
            return self.shift(a, f"-({b})")
        return self._node(Op.SUB, (a, b))

    def mul(self, a: Node | float, b: Node | float) -> Node:
        """a * b."""
        if not isinstance(a, Node):
            a, b = b, a
        return self.scale(a, b) if not isinstance(b, Node) else self._node(Op.MUL, (a, b))

    def div(self, a: Node, b: Node | float) -> Node:
        """a / b."""
        if not isinstance(a, Node):
            raise PrismError(f"program {self.name}: div of a constant by a tensor is not supported")
        return self.scale(a, f"1/({b})") if not isinstance(b, Node) else self._node(Op.DIV, (a, b))

    def scale(self, x: Node, factor: str | float) -> Node:
        """x * factor, a constant expression over sizes and parameters such as "1/d"."""
        return self._node(Op.SCALE, (x,), self._constant(factor))

    def shift(self, x: Node, term: str | float) -> Node:
        """x + term, a constant expression."""
        return self._node(Op.SHIFT, (x,), self._constant(term))

    def rms_norm(self, x: Node, axis: str, eps: str | float = "eps") -> Node:
        """x / sqrt(mean(x^2 over axis) + eps)."""
        mean = self.scale(self.sum(self.square(x), axis), f"1/{axis}")
        return self.div(x, self.sqrt(self.shift(mean, eps)))

    def softmax(self, x: Node, axis: str) -> Node:
        """exp(x) / sum(exp(x) over axis). The shift by a row maximum is a numeric concern."""
        if isinstance(x, Node) and axis not in x.axes:
            raise PrismError(
                f"program {self.name}: softmax over {axis!r}: the operand has axes {list(x.axes)}"
            )
        e = self.exp(x)
        return self.div(e, self.sum(e, axis))

    # Result -------------------------------------------------------------------------------

    def build(self, **outputs: Node) -> Program:
        """The finished program. Raises PrismError for an unused input, naming it."""
        if not outputs:
            raise PrismError(f"program {self.name}: has no output")
        for name, node in outputs.items():
            if not isinstance(node, Node):
                raise PrismError(f"program {self.name}: output {name!r} is not a tensor")
            if name in self._inputs:
                raise PrismError(f"program {self.name}: output {name!r} is also an input")
        program = Program(
            self.name,
            tuple(outputs.items()),
            self.sizes,
            self.dtype,
            self.params,
        )
        used = {n.arg for n in program.nodes if n.op is Op.INPUT}
        unused = [name for name in self._inputs if name not in used]
        if unused:
            raise PrismError(f"program {self.name}: input {unused[0]!r} is not used by any output")
        self._check_masks(program)
        axes = {axis for node in self._inputs.values() for axis in node.axes}
        sizes = {k: v for k, v in self.sizes.items() if k in axes}
        return replace(
            program, sizes=sizes, input_order=tuple(self._inputs), generated=self._generated
        )

    def _check_masks(self, program: Program) -> None:
        """A mask is added to what has both of its axes, and is used in no other way."""
        masks = {self._inputs[name]: rule for name, rule in self._generated.items()}
        used = [(n, s, rule) for n in program.nodes for s, rule in masks.items() if s in n.src]
        used += [(None, node, masks[node]) for _, node in program.outputs if node in masks]
        for user, mask, rule in used:
            added = user is not None and user.op is Op.ADD
            others = [s for s in user.src if s is not mask] if added else []
            if not others or not set(mask.axes) <= set(others[0].axes):
                how = "added" if added else user.op.value if user is not None else "an output"
                raise PrismError(
                    f"program {self.name}: {rule.text} is a mask, to be added to logits with axes "
                    f"{rule.query!r} and {rule.key!r}; here it is {how}"
                    + (f" to axes {list(others[0].axes)}" if others else "")
                )

    # Checks -------------------------------------------------------------------------------

    def _node(self, op: Op, src: tuple[Node, ...], arg: str | None = None) -> Node:
        for operand in src:
            if not isinstance(operand, Node):
                raise PrismError(
                    f"program {self.name}: {op.value}: operand {operand!r} is not a tensor"
                )
        try:
            return Node(op, src, arg)
        except PrismError as error:
            raise PrismError(f"program {self.name}: {error}") from None

    def _constant(self, value: str | float) -> str:
        text = constant.canonical(value)
        unknown = constant.names(text) - set(self.sizes) - set(self.params)
        if unknown:
            raise PrismError(
                f"program {self.name}: constant {text!r} reads {sorted(unknown)[0]!r}, which is "
                f"neither a size nor a parameter"
            )
        known = {k: v for k, v in self.sizes.items() if isinstance(v, int)} | self.params
        if constant.names(text) <= known.keys():  # else it is checked when its sizes are bound
            constant.evaluate(text, known)
        return text

    def _number(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise PrismError(f"program {self.name}: parameter {name}={value!r} must be a number")
        if not math.isfinite(value):
            raise PrismError(f"program {self.name}: parameter {name}={value!r} must be finite")
        return float(value)
