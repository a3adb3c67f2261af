"""Measurement: correctness gate, tuning, and interleaved benchmarks in child processes.

Public functions, each in the module named:

- `tune.tune(program, graphs, device: Device, budget: TuneBudget(count, seconds, seed), out_dir,
  threads, progress=None, context=None, strategy="random", limits=None, proofs=None, ...) -> dict`:
  `strategy` names one of `strategy.STRATEGIES`, `limits` are the `race.Limits` of timing one
  candidate, `proofs` tells which graphs are not proved, and why. Writes `winner.json` and the
  kernel's source into `out_dir` and returns the content. `status` is "ok" or "failed" (with
  `reason` and `causes`, counts by cause).
- `winner.replay(winner_dir, device, threads, seed=None) -> dict`: recompiles the stored source,
  verifies its sha256 and runs the gate again; `status`, `reason`, `verdict`, `median_us`.
- `bench.bench(program, winner_dir, baselines: list[BaselineSpec(name, adapter, options)],
  settings: BenchSettings(device, rounds, seconds, repetitions, threads, seed, ...), out, context,
  progress=None, ...) -> list[dict]`: one row a system, also written to `out` as JSON lines.
  `context` may hold `workload`, `config`, `search_seconds`, `search`, `config_hash`.
- `bench.failures(rows) -> list[str]`: what a user must be told of rows, a line each; empty when
  Prism's kernel has a time.
- `environment.environment(threads) -> dict`: machine, compiler, versions, commit, dirty flag.
- `rows.Row`: the schema of a result row; `rows.read_rows(path) -> list[dict]`.
- `baseline.Unavailable(reason)`: what an adapter raises when its system is not there.

`progress(stage, done, total)` is called from the caller's thread. Errors a user can cause are
PrismError. Nothing here imports more than numpy, torch, triton and the standard library, and torch
and triton only where something runs in them: in child processes.

How a device is measured is in few places: `executor` (where candidates run), `timers` and
`cuda_timer` (what a sample is), `systems` (what a benchmark's child holds), `tensors` and
`triton_kernel` (memory and calls on a device), `gpu` (what its driver tells).
"""
