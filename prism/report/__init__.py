"""Result tables, plots and the self-contained HTML report of one run."""

from __future__ import annotations

from pathlib import Path

__all__ = ["build"]


def build(run_dir: Path) -> Path:
    """Writes tables/, plots/ and report.html into a run's folder; returns the report's path.

    The same results give the same files. A run that is not complete gives a report that says what
    is missing. Raises PrismError when the folder holds no results or cannot be written.
    """
    from prism.files import write_text
    from prism.report.claims import claims
    from prism.report.extras import KINDS
    from prism.report.page import page
    from prism.report.plots import draw
    from prism.report.published import load
    from prism.report.run import read
    from prism.report.tables import build_tables, rows_table, write_tables

    run = read(Path(run_dir))
    published = load()
    if not published.whole:
        run.problems.append("the paper's numbers (results/paper) are not all there to compare with")
    tables = build_tables(run, published)
    write_tables(tables, run.path / "tables")
    if run.rows:
        write_tables({"rows": rows_table(run)}, run.path / "tables")
    plots = draw(tables)
    old = [] if run.rows else list(run.path.glob("tables/rows.*"))
    for name in KINDS:
        old += [] if name in tables else list(run.path.glob(f"tables/{name}.*"))
    old += [path for path in run.path.glob("plots/*.svg") if path.stem not in plots]
    for path in old:  # of an earlier report, from results that are not in this one
        path.unlink(missing_ok=True)
    for name, svg in plots.items():
        write_text(run.path / "plots" / f"{name}.svg", svg)
    shown = claims(run, tables, published) if published.whole else []
    return write_text(run.path / "report.html", page(run, tables, plots, shown))
