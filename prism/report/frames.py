"""Records as data frames whose column types do not change from run to run."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

MISSING = "missing"  # not a row's status: nothing was measured, which is not a failure


def frame_of(
    records: list[dict], template: dict, text: Iterable[str], whole: Iterable[str] = ()
) -> pd.DataFrame:
    """Text columns as strings, `whole` as integers that may be missing, all others as floats.

    `template` is any record; it gives the columns of a table without rows.
    """
    frame = pd.DataFrame.from_records(records or [template]).iloc[: len(records)]
    types = {c: object if c in text else "Int64" if c in whole else float for c in frame.columns}
    for column in frame.columns:
        if column in text:
            frame[column] = frame[column].map(lambda v: "" if pd.isna(v) else str(v))
        else:
            frame[column] = pd.to_numeric(frame[column], errors="coerce")
    return frame.astype(types)
