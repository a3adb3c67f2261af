# The paper's evaluation, from search to report. `snakemake --cores N` runs the suite `paper` on the
# machine's GPU, else its CPU; choose otherwise with `--config overrides="suite=smoke device=cpu"`.
# Results: results/SUITE-DEVICE/.
import sys
from prism.workflow import start, workflow_plan

PLAN = workflow_plan(workflow)
RUN = PLAN["run"]
CORES = PLAN["cores"]
# A suite's own extras, which a run that chooses its workloads does not have.
EXTRAS = {"ablate": "ablation", "growth": "growth"}
EXTRAS = [name for stage, name in EXTRAS.items() if PLAN[stage]]
SECONDS = [f"{RUN}/{name}.json" for name in EXTRAS]
TABLES = ["kernel_time", "optimization_time", "search_time", "graph_diversity"]
TABLES += ["rules", "rows", "offline", *EXTRAS]
# The other plots need a kernel that passed.
PLOTS = ["search_time", "graph_diversity", *EXTRAS]
SEARCHES = expand(f"{RUN}/search/{{workload}}.json", workload=PLAN["workloads"])
WINNERS = expand(f"{RUN}/tune/{{case}}/winner.json", case=PLAN["cases"])
TIMES = expand(f"{RUN}/bench/{{case}}.jsonl", case=PLAN["cases"])
OFFLINE = f"{RUN}/offline.json"
PACKED = [f"{RUN}/pack/manifest.json"]
PACKED += expand(
    f"{RUN}/pack/{{kind}}/{{workload}}.json",
    kind=["graphs", "search"],
    workload=PLAN["workloads"],
)
PAGE = f"{RUN}/report.html"
SHOWN = [
    *(f"{RUN}/tables/{name}.{kind}" for name in TABLES for kind in ("csv", "parquet")),
    *(f"{RUN}/plots/{name}.svg" for name in PLOTS),
]
PRISM = f"{sys.executable} -m prism"


onstart:
    start(workflow, PLAN)


wildcard_constraints:
    workload=r"[^/@]+",
    sizes=r"[^/@]+",


localrules:
    all,
    settings,


rule all:
    input:
        # All of them, so that one that was deleted is made again.
        SEARCHES,
        WINNERS,
        TIMES,
        SECONDS,
        OFFLINE,
        PACKED,
        PAGE,
        SHOWN,


rule settings:
    output:
        f"{RUN}/config.yaml",
    log:
        f"{RUN}/logs/settings.log",
    conda:
        "containers/conda.yaml"
    params:
        text=PLAN["resolved"],
    shell:
        "printf %s {params.text:q} > {output:q}.partial 2> {log:q}"
        " && mv {output:q}.partial {output:q}"


# Seconds are results here, of the search as well: each of these jobs takes all cores, so nothing
# runs beside it, and given a slice the search neither asks nor fills its cache. Snakemake sets
# OMP_NUM_THREADS to a job's threads.
rule search:
    output:
        f"{RUN}/search/{{workload}}.json",
    log:
        f"{RUN}/logs/search/{{workload}}.log",
    conda:
        "containers/conda.yaml"
    threads: CORES
    params:
        prism=PRISM,
        slice=lookup(dpath="search/{workload}", within=PLAN),
    shell:
        "{params.prism} search slice={params.slice:q} out={output:q} log={log:q}"


rule ablate:
    output:
        f"{RUN}/ablation.json",
    log:
        f"{RUN}/logs/ablation.log",
    conda:
        "containers/conda.yaml"
    threads: CORES
    params:
        prism=PRISM,
        slice=PLAN["ablate"],
    shell:
        "{params.prism} ablate slice={params.slice:q} out={output:q} log={log:q}"


rule growth:
    output:
        f"{RUN}/growth.json",
    log:
        f"{RUN}/logs/growth.log",
    conda:
        "containers/conda.yaml"
    threads: CORES
    params:
        prism=PRISM,
        slice=PLAN["growth"],
    shell:
        "{params.prism} growth slice={params.slice:q} out={output:q} log={log:q}"


# Kernels for GPUs, compiled without one; its seconds are results too.
rule offline:
    input:
        SEARCHES,
    output:
        OFFLINE,
    log:
        f"{RUN}/logs/offline.log",
    conda:
        "containers/conda.yaml"
    threads: CORES
    params:
        prism=PRISM,
        slice=PLAN["offline"],
    shell:
        "{params.prism} offline slice={params.slice:q} graphs=$(dirname {input:q} | uniq) out={output:q}"
        " log={log:q}"


# What a machine with a GPU measures with `python -m prism.measure`; what was measured in it stays.
rule pack:
    input:
        SEARCHES,
    output:
        *PACKED[1:],
        manifest=PACKED[0],
    log:
        f"{RUN}/logs/pack.log",
    conda:
        "containers/conda.yaml"
    params:
        prism=PRISM,
        slice=PLAN["pack"],
    shell:
        "{params.prism} pack slice={params.slice:q} graphs=$(dirname {input:q} | uniq)"
        " out=$(dirname {output.manifest:q}) log={log:q}"


if PLAN["gpu"]:

    # On a GPU one job tunes and times all configurations, so that its context and its caches stay
    # and a time limit is shared. What it has done is in profile/ and survives its end.
    rule profile:
        input:
            *PACKED[1:],
            manifest=PACKED[0],
        output:
            WINNERS,
            TIMES,
        log:
            f"{RUN}/logs/profile.log",
        conda:
            "containers/conda.yaml"
        threads: CORES
        resources:
            gpu=1,
        params:
            measure=f"{PRISM}.measure",
            device=PLAN["device"],
            seconds=f" seconds={PLAN['limit']}" if PLAN["limit"] else "",
        shell:
            "pack=$(dirname {input.manifest:q}); run=$(dirname $pack);"
            " {params.measure} $pack device={params.device}{params.seconds}"
            " out=$run/profile threads={threads} 2>&1 | tee {log:q}"
            " && cp -R $run/profile/tune $run/profile/bench $run/"

else:

    # Beside winner.json is kernel.cpp, unless no candidate passed: so it is no output that must
    # appear. Where it was deleted, `bench` gives that as the reason of its row; without winner.json
    # both are made again.
    rule tune:
        input:
            graphs=f"{RUN}/search/{{workload}}.json",
        output:
            winner=f"{RUN}/tune/{{workload}}@{{sizes}}/winner.json",
        log:
            f"{RUN}/logs/tune/{{workload}}@{{sizes}}.log",
        conda:
            "containers/conda.yaml"
        threads: CORES
        params:
            prism=PRISM,
            slice=lookup(dpath="tune/{workload}@{sizes}", within=PLAN),
        shell:
            "{params.prism} tune slice={params.slice:q} graphs={input.graphs:q}"
            " out=$(dirname {output.winner:q}) threads={threads} log={log:q}"

    rule bench:
        input:
            graphs=f"{RUN}/search/{{workload}}.json",
            winner=f"{RUN}/tune/{{workload}}@{{sizes}}/winner.json",
        output:
            f"{RUN}/bench/{{workload}}@{{sizes}}.jsonl",
        log:
            f"{RUN}/logs/bench/{{workload}}@{{sizes}}.log",
        conda:
            "containers/conda.yaml"
        threads: CORES
        params:
            prism=PRISM,
            slice=lookup(dpath="bench/{workload}@{sizes}", within=PLAN),
        shell:
            "{params.prism} bench slice={params.slice:q} graphs={input.graphs:q}"
            " winner=$(dirname {input.winner:q}) out={output:q} threads={threads} log={log:q}"


rule report:
    input:
        f"{RUN}/config.yaml",
        SEARCHES,
        TIMES,
        SECONDS,
        OFFLINE,
    output:
        SHOWN,
        page=PAGE,
    log:
        f"{RUN}/logs/report.log",
    conda:
        "containers/conda.yaml"
    params:
        prism=PRISM,
    shell:
        "{params.prism} report run=$(dirname {output.page:q}) log={log:q}"
