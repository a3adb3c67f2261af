"""The paper's claims about the time of kernels, beside what a run measured on its device."""

from __future__ import annotations

import pandas as pd

from prism.report.claim import FAILS, HOLDS, NOT_MEASURED, PARTLY, TOO_NOISY, Claim, part
from prism.report.published import Published, numbers
from prism.report.run import EXPERT, INTERPRETER, PRISM, REFERENCE
from prism.report.tables import NOISY

_NONE = "none of the paper's configurations was measured"
_OTHERS = {  # name in the published tables -> name in a run, and in words
    "torch_compile": ("compiled", "torch.compile"),
    "tvm": ("tvm", "TVM (Ansor)"),
    "mirage": ("mirage", "the best superoptimizer (Mirage)"),
}


def kernel_claims(kernel: pd.DataFrame, published: Published) -> list[Claim]:
    """Claims are about the paper's own configurations; a workload of one's own is not in them.

    The paper measured on an A100 in half precision. Ratios are compared on other devices as well,
    and what was measured names the device and the data type.
    """
    kernel = kernel[kernel.device != INTERPRETER]
    ours = kernel[(kernel.system == PRISM) & kernel.published_prism_vs_mirage.notna()]
    paper = _among(kernel, ours)
    best = {name: max(numbers(published.kernel, f"prism_vs_{name}")) for name in _OTHERS}
    return [
        _fastest(kernel, ours, len(published.kernel)),
        *(_faster(paper, *names, best[name]) for name, names in _OTHERS.items()),
    ]


def _fastest(kernel: pd.DataFrame, ours: pd.DataFrame, configs: int) -> Claim:
    """A win counts where every named baseline has a sound time in the same configuration."""
    text = f"Prism has the fastest kernel on all {configs} configurations"
    ours = ours[ours.status != "missing"]
    if ours.empty:
        return Claim("7.2", text, _NONE, NOT_MEASURED)
    rivals = kernel[~kernel.system.isin([PRISM, REFERENCE, EXPERT])]
    rivals = _among(rivals, ours)
    failed = rivals[rivals.status != "ok"]
    noisy = rivals[(rivals.status == "ok") & (rivals.p80_us > NOISY * rivals.p20_us)]
    unsound = {*_keys(failed), *_keys(noisy)}
    told = ours[ours.ratio_to_best_baseline.notna() & (ours.noise == "")]
    behind = int((told.ratio_to_best_baseline < 1).sum())
    won = [key in unsound for key in _keys(told[told.ratio_to_best_baseline >= 1])]
    ahead, ahead_of_part = won.count(False), won.count(True)
    unclear = int((ours.noise != "").sum())
    lost = ours[(ours.noise == "") & ours.status.isin(["failed", "suspect"])]
    others = _names(rivals)
    measured = f"{_where(ours)}fastest on {ahead} of {len(ours)} measured, "
    measured += f"against {others or 'no baseline'}"
    absent = [name for name in ("tvm", "mirage") if name not in set(kernel.system)]
    if absent:
        measured += f" (not run: {', '.join(absent)})"
    if ahead_of_part:
        measured += f"; on {ahead_of_part} more only against those with a sound time"
    for what, rows in (("failed", failed), ("noisy", noisy)):
        counts = rows.system.value_counts(sort=False).items()
        measured += "".join(f"; {system} {what} in {n}" for system, n in counts)
    if unclear:
        measured += f"; {unclear} too noisy to tell"
    if without := len(ours) - len(told) - unclear:
        measured += f"; {without} without a comparable time"
    measured += _expert(kernel, ours) + part(len(ours), configs, "configurations")
    if behind or len(lost):  # no kernel is not a fast kernel
        return Claim("7.2", text, measured, FAILS)
    if not ahead:
        noise = unclear or len(noisy)
        return Claim("7.2", text, measured, TOO_NOISY if noise else NOT_MEASURED)
    return Claim("7.2", text, measured, HOLDS if ahead == configs and not absent else PARTLY)


def _where(ours: pd.DataFrame) -> str:
    """`on h200, fp16: `, from the rows of Prism."""
    measured = ours[ours.device != ""]
    found = [*dict.fromkeys(measured.device), *dict.fromkeys(measured["dtype"])]
    return f"on {', '.join(found)}: " if found else ""


def _expert(kernel: pd.DataFrame, ours: pd.DataFrame) -> str:
    """How Prism stands to the expert's kernel, which is none of the paper's baselines."""
    ratio = _ratios(_among(kernel, ours), EXPERT)
    if ratio.empty:
        return ""
    ahead = int((ratio >= 1).sum())
    return f"; beside them, no slower than the expert's {EXPERT} on {ahead} of {len(ratio)}"


def _ratios(kernel: pd.DataFrame, system: str) -> pd.Series:
    """How many times slower a system is than Prism, where both pass."""
    passing = kernel[(kernel.status == "ok") & kernel.median_us.notna()]
    times = passing.groupby(["workload", "config", "dtype", "system"]).median_us.min().unstack()
    if PRISM not in times or system not in times:
        return pd.Series(dtype=float)
    return (times[system] / times[PRISM]).dropna()


def _faster(kernel: pd.DataFrame, system: str, words: str, published: float) -> Claim:
    text = f"Up to {published}x faster than {words}"
    if kernel.empty or (kernel.system == PRISM).sum() == (kernel.status == "missing").sum():
        return Claim("7.2", text, _NONE, NOT_MEASURED)
    if system not in set(kernel.system):
        return Claim("7.2", text, f"{system} is not among the systems of this run", NOT_MEASURED)
    ratio = _ratios(kernel[~(kernel.p80_us > NOISY * kernel.p20_us)], system)
    unclear = len(_ratios(kernel, system)) - len(ratio)
    if ratio.empty and unclear:
        return Claim("7.2", text, f"all {unclear} pairs are too noisy to tell", TOO_NOISY)
    if ratio.empty:
        why = f"no passing pair of Prism and {system} in the paper's configurations"
        return Claim("7.2", text, why, NOT_MEASURED)
    workload, config, _ = ratio.idxmax()
    measured = f"{_where(kernel[kernel.system == PRISM])}up to {ratio.max():.2f}x "
    measured += f"({workload} {config}), median {ratio.median():.2f}x"
    measured += f"; {unclear} too noisy to tell" if unclear else ""
    return Claim("7.2", text, measured, HOLDS if round(ratio.max(), 1) >= published else FAILS)


def _names(rivals: pd.DataFrame) -> str:
    return ", ".join(dict.fromkeys(rivals[rivals.status == "ok"].system))


def _keys(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    return list(zip(frame.workload, frame.config, frame.dtype, strict=True))


def _among(frame: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The rows whose workload, configuration and dtype stand in `others`."""
    wanted = set(_keys(others))
    return frame[pd.Series([key in wanted for key in _keys(frame)], frame.index, dtype=bool)]
