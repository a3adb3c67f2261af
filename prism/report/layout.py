"""What the page shows of each table: columns with headings, and sections with their texts."""

from __future__ import annotations

STAGES = ("generate", "map", "refute", "prove")
# Per table: column -> (heading, how a cell is shown).
COLUMNS: dict[str, dict[str, tuple[str, str]]] = {
    "kernel_time": {
        "workload": ("workload", "word"),
        "config": ("configuration", "word"),
        "dtype": ("dtype", "word"),
        "system": ("system", "word"),
        "numerics": ("numerics", "word"),
        "median_us": ("median µs", "us"),
        "p20_p80": ("p20–p80 µs", "range"),
        "ratio_to_best_baseline": ("ratio to best baseline", "x"),
        "read_speed_fraction": ("share of read speed", "%"),
        "modelled_roofline_us": ("modelled bound µs", "us"),
        "of_modelled_roofline": ("share of modelled bound", "%"),
        "modelled_us": ("modelled µs", "us"),
        "least_replay_us": ("least replay µs", "us"),
        "published_ratio": ("published ratio (A100)", "words"),
        "warm_median_us": ("warm median µs", "us"),
        "error_max": ("error", "e"),
        "bound_max": ("bound", "e"),
        "timer": ("timer", "word"),
        "registers": ("registers", "int"),
        "spill_bytes": ("spilled bytes", "int"),
        "shared_bytes": ("shared bytes", "int"),
    },
    "optimization_time": {
        "workload": ("workload", "word"),
        "config": ("configuration", "word"),
        "system": ("system", "word"),
        "status": ("status", "word"),
        "search_s": ("search s", "s"),
        "compile_s": ("compile s", "s"),
        "tune_s": ("tune s", "s"),
        "other_s": ("other s", "s"),
        "total_s": ("total s", "s"),
        "ended": ("search ended", "word"),
        "published_prism_s": ("published Prism s", "published"),
        "published_mirage_s": ("published Mirage s", "published"),
        "published_tvm_s": ("published TVM s", "published"),
    },
    "search_time": {
        "workload": ("workload", "word"),
        "spent": ("total s", "limit"),
        "published_prism_s": ("published Prism s", "published"),
        "published_mirage_s": ("published Mirage s (config. 1; 2)", "published"),
        **{f"seconds_{s}": (f"{s} s", "s") for s in STAGES},
        **{f"{s}_in_out": (f"{s} in→out", "range") for s in STAGES},
        "peak_mib": ("peak MiB", "int"),
        "gaps_told": ("gaps", "words"),
        "rules": ("rules", "int"),
        "ended": ("ended", "word"),
        "reason": ("reason", "reason"),
    },
    "graph_diversity": {
        "workload": ("workload", "word"),
        "graphs_single_kernel": ("graphs of one kernel", "int"),
        "published_prism": ("published Prism", "published"),
        "published_mirage": ("published Mirage (config. 1; 2)", "published"),
        "graphs_all": ("all proved graphs", "words"),
        "gaps_told": ("not proved, unused", "words"),
        "ended": ("search ended", "word"),
        "reason": ("reason", "reason"),
    },
    "rules": {
        "rule": ("rule", "word"),
        "matches": ("matches", "int"),
        "milliseconds": ("ms", "s"),
    },
    "ablation": {
        "imap": ("imap", "word"),
        "fmap": ("fmap", "word"),
        "omap": ("omap", "word"),
        "sizes": ("sizes", "word"),
        "spent": ("seconds", "limit"),
        "speedup": ("symbolic is faster by", "limit"),
        "published_s": ("published s", "published"),
        "graphs": ("graphs", "int"),
        "tried": ("assignments tried", "limit"),
    },
    "growth": {
        "program": ("program", "word"),
        "operators": ("operators", "int"),
        "pieces": ("pieces", "int"),
        "spent": ("seconds", "limit"),
        **{f"seconds_{s}": (f"{s} s", "s") for s in STAGES},
        "graphs_log10": ("log10 of graphs", "s"),
        "kernels": ("kernels", "int"),
        "peak_mib": ("peak MiB", "int"),
        "ended": ("ended", "word"),
    },
    "offline": {
        "workload": ("workload", "word"),
        "config": ("configuration", "word"),
        "dtype": ("dtype", "word"),
        "device": ("device", "word"),
        "arch": ("sm_", "plain"),
        "compiled_of": ("compiled of tried", "limit"),
        "failed": ("not compiled", "words"),
        "registers_told": ("registers, median; most", "limit"),
        "spilled": ("spilling; most bytes", "limit"),
        "shared_told": ("shared KiB, median; most", "limit"),
        "modelled_shared": ("modelled less compiler's shared KiB", "range"),
        "modelled_best_us": ("best modelled µs", "us"),
        "modelled_best_bound": ("its modelled bound", "words"),
        "reason": ("reason", "reason"),
    },
}
GPU_ONLY = {  # columns of rows of a GPU, left out where no row has them
    "modelled_roofline_us",
    "of_modelled_roofline",
    "modelled_us",
    "least_replay_us",
    "registers",
    "spill_bytes",
    "shared_bytes",
}
SECTIONS = (
    (
        "kernels",
        "Kernel time",
        "kernel_time",
        "relative_performance",
        "Cold-cache medians and quantiles over interleaved rounds. The ratio is the best passing "
        "baseline's median over this median within this run: above 1 is faster. The system named "
        "read only reads the inputs: what any kernel could reach at best, and never a baseline. "
        "Published ratios are Prism's over the system named; the CSV holds every column. A "
        "ratio in grey is noisy: its row, or the baseline it is taken against, has a p80 above 3 "
        "times its p20, and no claim rests on it; or a baseline named beside it has no sound time "
        "there, and the ratio is to the others alone. "
        "The system named sdpa is an expert's kernel, PyTorch's scaled_dot_product_attention, for "
        "attention alone: it is compared, and the best baseline is taken without it. "
        "Modelled figures are of no clock: the bound is the least time that the device's bandwidth "
        "and rates allow, and a measured time below it would be wrong. The least "
        "replay is no model's: it is what the replay of a CUDA graph took whose one kernel does "
        "nothing. Every time of a GPU holds about that much, so that of times near it neither "
        "ratios nor shares of the bound say much of the kernel. Registers (of a thread), "
        "spilled and shared bytes are what the compiler reports of the largest kernel. "
        "Numerics stable: exponentials are shifted by the maximum of their row, as in PyTorch's "
        "softmax; paper: softmax is exp(x) / sum without the maximum, as in the paper; own: as the "
        "system itself does it.",
        "As Figure 6, upper: the best passing baseline of each configuration is 1. Bars are "
        "measured here, pale ones are noisy; a ratio with * is taken without a baseline that has "
        "no sound time there. Hollow marks are the paper's ratio of Prism to Mirage on an A100, "
        "another machine against another system, and are only there to compare with.",
    ),
    (
        "optimization",
        "Optimization time",
        "optimization_time",
        "optimization_time",
        "Seconds before a kernel is ready. A workload's search is shared by its configurations and "
        "stands in each of them, as in the paper. Prism's total is search and tuning as measured "
        "from end to end; other is what no stage holds: inputs, reference outputs, eager's error. "
        "Where a search was stopped, its column says so, and the seconds are those spent.",
        "As Figure 6, lower: seconds by stage, stacked. The paper's total for Prism stands under "
        "each configuration. Eager needs none.",
    ),
    (
        "search",
        "Search time",
        "search_time",
        "search_time",
        "The symbolic search alone, with the candidates that went into and came out of each stage. "
        "A search that a limit or the user ended was stopped: what it ran is no time. Refuted "
        "candidates are not kept, only counted by cause (rejected in search/*.json). Gaps are what "
        "was not proved, so that no graph uses it, by reason: axiom gap is equal on numbers but "
        "beyond the rules; a limit and not tried are budget that was spent before the proof. "
        "Rules are those of the prover that matched. Stages of a program in pieces are summed over "
        "the processes that search them, and may exceed the total.",
        "As Table 2, on a logarithmic axis. An open bar with an arrow was stopped there.",
    ),
    (
        "graphs",
        "Unique graphs",
        "graph_diversity",
        "graph_diversity",
        "Proved graphs that differ in operators, kernels or mapping; parameter values do not "
        "count. Those of one generated kernel are set beside the paper's; all have up to two "
        "generated kernels, and calls of library operators. In are the operator orders that "
        "factors and scales moving through contractions give, and distribution and associativity "
        "of matmul (not those of add and mul alone), with all accumulator placements and "
        "mappings: a wider space than the paper's, so the numbers compare the spaces as well. "
        "What a stopped search found is a lower bound. What was not proved is counted by reason.",
        "As Table 3, on a logarithmic axis.",
    ),
    (
        "ablation",
        "Symbolic maps",
        "ablation",
        "ablation",
        "The search of graphs of one kernel with each kind of map symbolic (S) or enumerated (C), "
        "and with grid and loop sizes enumerated as well, as Mirage does. Concrete maps are "
        "enumerated up front, grid dimensions up to their order, and the whole search runs again "
        "for each assignment. All assignments share one e-graph and its proved lemmas, which "
        "favours the concrete side. A search that hit the limit was stopped: the limit is no time, "
        "and what it gives is a bound.",
        "As Table 4, on a logarithmic axis. An open bar with an arrow was stopped there.",
    ),
    (
        "growth",
        "Ever larger programs",
        "growth",
        "growth",
        "The search of programs with ever more operators; large ones are cut into pieces. Each "
        "piece has its own graphs, so that the number of graphs is a product. Stages of a program "
        "in pieces are summed over the processes that search them, and may exceed the total.",
        "Seconds on a logarithmic axis. An open bar with an arrow was stopped there.",
    ),
    (
        "offline",
        "Compiled for GPUs",
        "offline",
        "",
        "Kernels for GPUs, compiled with no GPU at hand: nothing here was run or timed. Of each "
        "configuration's proved graphs, some sizes and options at random and some that the model "
        "of the device ranks first; each graph was proved as a whole before. A configuration that "
        "by the estimate does not fit the device is not tried (fit). Registers are of a thread and "
        "shared memory of a block, as the compiler reports them of a configuration's largest "
        "kernel. Modelled figures, on a hatched ground, are estimates made before compiling: "
        "shared memory less what the compiler then took, and the least time by the model.",
        "",
    ),
    (
        "rules",
        "Rules of the prover",
        "rules",
        "",
        "How often each rule matched while the lemmas of a workload were proved, and what it took. "
        "Rules that derive the axes of results are taken together.",
        "",
    ),
)
