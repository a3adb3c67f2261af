"""What the compiler is told of every generated file, and every file says of itself."""

from __future__ import annotations

# Never -ffast-math: NaN and infinity must survive. FMA contraction is allowed, as accumulation is
# fp32 whatever the order.
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"),
)
