"""What the plots show of small tables: a missing value is neither a zero nor a bar."""

import pandas as pd
from matplotlib.container import BarContainer

from prism.report import extra_plots, plots

CASES = [("rmsnorm", "d=4096,n=8"), ("mine", "n=4")]


def kernel_table(ratios: dict[str, list]) -> pd.DataFrame:
    """Rows of systems so many times as fast as a baseline of 90 us; `read` has no ratio."""
    records = [
        {"workload": w, "config": c, "dtype": "bf16", "system": system}
        | {"ratio_to_best_baseline": None if system == "read" else value}
        | {"median_us": None if value is None else 90 / value}
        | {"noise": "", "without_baselines": "", "status": "failed" if value is None else "ok"}
        | {"published_prism_vs_mirage": 1.2 if (system, w) == ("prism", "rmsnorm") else None}
        for system, values in ratios.items()
        for (w, c), value in zip(CASES, values, strict=True)
    ]
    frame = pd.DataFrame(records)
    numbers = ("ratio_to_best_baseline", "median_us", "published_prism_vs_mirage")
    return frame.astype(dict.fromkeys(numbers, float))


def labels(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_failed_cell_is_a_cross_and_not_a_bar():
    table = kernel_table({"prism": [1.5, None], "eager": [1.0, 1.0], "read": [2.0, None]})
    figure = plots._relative(table)
    (ax,) = figure.axes
    bars = [c for c in ax.containers if isinstance(c, BarContainer)]
    assert [[bar.get_height() for bar in c] for c in bars] == [[1.5], [1.0, 1.0]]
    crosses = [line for line in ax.lines if line.get_marker() == "x"]
    assert len(crosses) == 1 and len(crosses[0].get_xdata()) == 1
    (hollow,) = [line for line in ax.lines if line.get_marker() == "D"]
    assert list(hollow.get_ydata()) == [1.2] and hollow.get_markerfacecolor() == "white"
    assert "published: Prism over Mirage, on A100" in labels(figure)
    assert "only reading the inputs" in labels(figure)


def test_reading_far_above_the_bars_is_clipped_with_its_number():
    table = kernel_table({"prism": [1.5, 1.2], "eager": [1.0, 1.0], "read": [30.0, 2.0]})
    (ax,) = plots._relative(table).axes
    assert ax.get_ylim()[1] <= 1.6 * 1.5 + 1e-9
    (arrow,) = [line for line in ax.lines if line.get_marker() == "^"]
    assert list(arrow.get_xdata()) == [0] and "30x" in [t.get_text() for t in ax.texts]
    bars = [c for c in ax.containers if isinstance(c, BarContainer)]
    assert all(bar.get_alpha() is None for c in bars for bar in c)


def test_noisy_bars_are_pale():
    table = kernel_table({"prism": [1.5, 1.2], "eager": [1.0, 1.0]})
    table.loc[0, "noise"] = "noisy: p80 is 27 times p20"
    (ax,) = plots._relative(table).axes
    ours = next(c for c in ax.containers if isinstance(c, BarContainer))
    assert [bar.get_alpha() for bar in ours] == [0.35, None]


def test_a_ratio_without_a_baseline_has_a_star():
    table = kernel_table({"prism": [1.5, 1.2], "eager": [1.0, 1.0]})
    table.loc[0, "without_baselines"] = "compiled (failed)"
    (ax,) = plots._relative(table).axes
    assert [text.get_text() for text in ax.texts] == ["1.50x*", "1.20x"]


def test_stages_are_stacked_on_each_other():
    records = [
        {"workload": w, "config": c, "system": "prism", "search_s": 1.0, "compile_s": 2.0}
        | {"tune_s": tune, "other_s": 0.5, "total_s": 3.5 + tune, "published_prism_s": published}
        | {"ended": "exhausted"}
        for (w, c), tune, published in zip(CASES, [4.0, 5.0], ["135", ""], strict=True)
    ]
    (ax,) = plots._optimization(pd.DataFrame(records)).axes
    tops = {round(bar.get_y() + bar.get_height(), 6) for c in ax.containers for bar in c}
    assert tops == {1.0, 3.0, 7.0, 8.0, 7.5, 8.5}
    assert [t.get_text() for t in ax.get_xticklabels()] == [
        "rmsnorm\nd=4096,n=8\npublished:\n135 s",
        "mine\nn=4",
    ]


def test_published_marks_keep_limits_apart_from_values():
    table = pd.DataFrame(
        {
            "workload": ["rmsnorm", "rmsnorm_mlp", "mine"],
            "seconds_total": [0.5, None, 2.0],
            "published_prism_s": [0.3, 871.0, None],
            "published_mirage_s": ["11.6; 13.0", ">3600; >3600", ""],
            "limit_s": None,
            "ended": ["exhausted", "", "exhausted"],
        }
    )
    figure = plots._search(table)
    (ax,) = figure.axes
    marks = {line.get_marker(): list(line.get_ydata()) for line in ax.lines}
    assert marks["s"] == [0.5, 2.0]
    assert marks["D"] == [0.3, 871.0] and marks["o"] == [11.6, 13.0] and marks["^"] == [3600, 3600]
    assert len(marks["x"]) == 1 and "not measured" in labels(figure)


def test_a_plot_without_measured_values_is_left_out():
    assert plots._relative(kernel_table({"prism": [None, None]})) is None
    empty = pd.DataFrame(
        {"workload": ["a"], "graphs_single_kernel": [None], "graphs_log10": [None]}
    )
    empty = empty.assign(published_prism=[9], published_mirage=["1; 8"], ended="")
    assert plots._graphs(empty) is None


def test_all_graphs_stand_beside_those_of_one_kernel():
    table = pd.DataFrame({"workload": ["a", "b"], "graphs_single_kernel": [140, 0]})
    table = table.assign(graphs_log10=[4.0, 400.0], published_prism=[9, None], published_mirage="")
    table = table.assign(ended=["p_1: interrupted", "exhausted"])
    figure = plots._graphs(table)
    texts = [t.get_text() for t in figure.axes[0].texts]
    assert texts == ["≥ 140", "0", "≥ 10,000", "1e+200"], "what a stopped search found is a bound"
    marks = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert marks["measured: Prism, of one kernel"] == [140, 0]
    assert marks["measured: Prism, all"] == [1e4, 1e200], (
        "a count beyond a float's range is clipped"
    )


def bars_of(figure) -> tuple[list[float], list[float]]:
    """Heights of filled bars and of open ones."""
    bars = [b for c in figure.axes[0].containers if isinstance(c, BarContainer) for b in c]
    whole = [b.get_height() for b in bars if b.get_facecolor()[3]]
    return whole, [b.get_height() for b in bars if not b.get_facecolor()[3]]


def test_a_limit_is_an_open_bar_with_an_arrow():
    table = pd.DataFrame(
        {
            **{"imap": ["S", "C", "C"], "fmap": ["S", "C", "C"], "omap": ["S", "C", "C"]},
            **{"sizes": ["S", "S", "C"], "seconds": [0.05, 8.0, None]},
            **{"limit_s": [None, None, 120.0], "published_s": [0.3, 312.0, None]},
            "ended": ["exhausted", "exhausted", "limit"],
        }
    )
    figure = extra_plots.ablation(table)
    (ax,) = figure.axes
    assert ax.get_yscale() == "log"
    assert bars_of(figure) == ([0.05, 8.0], [120.0])
    texts = [t.get_text() for t in ax.texts]
    assert (
        texts == ["0.05 s", "8 s", "", "> 120 s\n(limit)"] and ax.texts[2].arrow_patch is not None
    )
    (paper,) = ax.lines
    assert list(paper.get_ydata()) == [0.3, 312] and paper.get_markerfacecolor() == "white"
    assert [t.get_text() for t in ax.get_xticklabels()] == ["SSS", "CCC", "CCC\n+ sizes"]
    assert "stopped there: at least so long" in labels(figure)
    table[["seconds", "limit_s"]] = None
    assert extra_plots.ablation(table) is None


def test_growth_shows_operators_and_limits():
    table = pd.DataFrame(
        {"program": ["norm", "all of the layers"], "operators": [7, 90], "pieces": [1, 9]}
    )
    table = table.assign(seconds=[0.2, None], limit_s=[None, 60.0])
    figure = extra_plots.growth(table.assign(ended=["exhausted", "its process died"]))
    assert "> 60 s\n(stopped)" in [t.get_text() for t in figure.axes[0].texts]
    assert bars_of(figure) == ([0.2], [60.0])
    ticks = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert ticks == ["7 operators\n1 piece\nnorm", "90 operators\n9 pieces\nall of the\nlayers"]


def test_a_stopped_search_is_an_open_bar_beside_the_times_of_others():
    table = pd.DataFrame({"workload": ["a", "b"], "seconds_total": [0.5, None]})
    table = table.assign(limit_s=[None, 60.0], published_prism_s=[0.3, 871.0])
    ended = ["exhausted", "time limit of 60 s, in stage map"]
    figure = plots._search(table.assign(ended=ended, published_mirage_s=""))
    (ax,) = figure.axes
    assert bars_of(figure) == ([], [60.0])
    marks = {line.get_marker(): list(line.get_ydata()) for line in ax.lines}
    assert marks == {"s": [0.5], "D": [0.3, 871.0]}, "stopped is neither a time nor missing"
    assert "> 60 s\n(limit)" in [t.get_text() for t in ax.texts]
    assert "stopped there: at least so long" in labels(figure)


def test_the_part_of_a_stopped_search_is_open():
    table = pd.DataFrame(CASES, columns=["workload", "config"]).assign(system="prism")
    table = table.assign(search_s=[60.0, 0.2], compile_s=2.0, tune_s=4.0, other_s=1.0)
    table = table.assign(total_s=[67.0, 7.2], ended=["time limit of 60 s", "exhausted"])
    figure = plots._optimization(table.assign(published_prism_s=""))
    assert bars_of(figure) == ([0.2, 2, 2, 4, 4, 1, 1], [60.0])
    assert {"search", "search, stopped: at least so long"} <= set(labels(figure))
