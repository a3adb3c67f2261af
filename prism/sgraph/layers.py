"""A small layered layout for directed acyclic graphs, top to bottom (Sugiyama's method).

Nodes stand in given layers; edges that skip layers get a lane of their own in each, so no edge can
run through a box. Orders come from barycentre sweeps, positions from exact least squares under the
wanted gaps. All of it is deterministic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

Key = Hashable
_GAP, _LANE, _SWEEPS = 22.0, 14.0, 12


@dataclass(frozen=True)
class Layout:
    """`x`: every node's centre in pixels; `lanes`: per edge, its centre in each layer it skips."""

    x: Mapping[Key, float]
    lanes: Mapping[tuple[Key, Key], tuple[float, ...]]


def place(
    layer: Mapping[Key, int], width: Mapping[Key, float], edges: Sequence[tuple[Key, Key]]
) -> Layout:
    """Horizontal positions for nodes of the given layers and widths; the leftmost edge is at 0.

    Every edge must lead to a later layer. The order of `layer` breaks ties.
    """
    rows: dict[int, list[Key]] = defaultdict(list)
    for key, level in layer.items():
        rows[level].append(key)
    width = dict(width)
    up: dict[Key, list[Key]] = defaultdict(list)
    down: dict[Key, list[Key]] = defaultdict(list)
    chains: dict[tuple[Key, Key], list[Key]] = {}
    for source, target in dict.fromkeys(edges):
        if layer[source] >= layer[target]:
            raise ValueError(f"edge {source!r} -> {target!r} does not lead to a later layer")
        chain = [("lane", source, target, n) for n in range(layer[source] + 1, layer[target])]
        for lane in chain:
            rows[lane[3]].append(lane)
            width[lane] = _LANE
        chains[source, target] = chain
        path = [source, *chain, target]
        for a, b in zip(path, path[1:], strict=False):
            down[a].append(b)
            up[b].append(a)
    table = [rows[level] for level in sorted(rows)]
    table = _ordered(table, up, down)
    x = _positions(table, width, up, down)
    left = min((x[k] - width[k] / 2 for k in x), default=0.0)
    x = {k: round(v - left, 1) for k, v in x.items()}
    return Layout(
        {k: x[k] for k in layer},
        {edge: tuple(x[n] for n in chain) for edge, chain in chains.items()},
    )


def _ordered(table, up, down) -> list[list[Key]]:
    best, fewest = table, _crossings(table, down)
    for sweep in range(_SWEEPS):
        table = [list(row) for row in table]
        neighbours, indices = (
            (up, range(1, len(table)))
            if sweep % 2 == 0
            else (
                down,
                range(len(table) - 2, -1, -1),
            )
        )
        for i in indices:
            other = table[i - 1] if neighbours is up else table[i + 1]
            at = {key: n for n, key in enumerate(other)}
            own = {key: n for n, key in enumerate(table[i])}
            table[i].sort(
                key=lambda k, at=at, own=own, near=neighbours: _mean(
                    [at[n] for n in near[k]], own[k]
                )
            )
        count = _crossings(table, down)
        if count < fewest:
            best, fewest = table, count
    return best


def _crossings(table, down) -> int:
    total = 0
    for upper, lower in zip(table, table[1:], strict=False):
        at = {key: n for n, key in enumerate(lower)}
        pairs = [(i, at[b]) for i, a in enumerate(upper) for b in down[a]]
        total += sum((a - c) * (b - d) < 0 for (a, b), (c, d) in combinations(pairs, 2))
    return total


def _positions(table, width, up, down) -> dict[Key, float]:
    x: dict[Key, float] = {}
    for row in table:
        offset = _offsets(row, width)
        x |= {k: o - offset[-1] / 2 for k, o in zip(row, offset, strict=True)}
    for sweep in range(2 * _SWEEPS):
        near = up if sweep % 2 == 0 else down
        for row in table if near is up else reversed(table):
            wanted = [_mean([x[n] for n in near[k]], x[k]) for k in row]
            weight = [4.0 if width[k] == _LANE else 1.0 for k in row]
            offset = _offsets(row, width)
            fitted = _increasing([w - o for w, o in zip(wanted, offset, strict=True)], weight)
            x |= {k: f + o for k, f, o in zip(row, fitted, offset, strict=True)}
    return x


def _offsets(row, width) -> list[float]:
    """The centre of each node of a row when it is packed as tightly as the gaps allow."""
    offsets = [0.0]
    for a, b in zip(row, row[1:], strict=False):
        offsets.append(offsets[-1] + (width[a] + width[b]) / 2 + _GAP)
    return offsets


def _increasing(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The nearest non-decreasing sequence in weighted least squares (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (v2, w2, n2), (v1, w1, n1) = pools.pop(), pools.pop()
            pools.append(((v1 * w1 + v2 * w2) / (w1 + w2), w1 + w2, n1 + n2))
    return [value for value, _, count in pools for _ in range(count)]


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default
