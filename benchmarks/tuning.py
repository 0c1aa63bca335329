"""Replaying policies over 24 settings: CPU time and memory, beside a plain NumPy version of Zeus.

A row is a policy, replayed over all settings (six workloads on four GPUs), seeds and recurrences, with the
table of recurrences that is made of it; the traces have been read before. CPU time is the best of
``--repeat``; ``ratio_to_numpy`` is that over the peer's in the same run. ``peak_mib`` is what the replay
allocated at most at a time, by tracemalloc, in a run of its own that is not timed; ``rss_mib`` is the most
that the process had resident by then, with all that it imported.

The peer, ``plain NumPy``, is Zeus as a script would have it, arrays and a loop: the same pruning, sampling,
early stops and retries, nothing else, and no table. That it is the same algorithm is seen in
``last_five``, the mean cost of the last five recurrences relative to the default's, over all settings.
"""

import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from _output import parser, show
from numpy.typing import NDArray

from joulecast.errors import JoulecastError
from joulecast.tune.expectation import expected_default
from joulecast.tune.policy_experiment import COMPARED, Setting, read_settings, replayed
from joulecast.tune.traces import Trace

_LIMIT_S = 2.0
"""CPU seconds that Zeus may take for 24 settings, 20 seeds and 50 recurrences."""
_TRACES = Path(__file__).resolve().parents[1] / "recorded/zeus-trace"
_TRIES, _BETA, _ETA, _PENALTY = 20, 2.0, 0.5, 100.0
Costs = Callable[[], dict[tuple[str, str], NDArray[np.float64]]]


class _PlainZeus:
    """One setting and seed."""

    def __init__(self, trace: Trace, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.sizes = np.array(list(trace.epochs))
        self.default = int(np.flatnonzero(self.sizes == trace.default)[0])
        self.max_epochs = trace.max_epochs
        self.runs = [
            np.array([np.inf if epochs is None else epochs for epochs in runs])
            for runs in trace.epochs.values()
        ]
        epochs = [
            np.array(
                [
                    _ETA * (e.energy_j or 0.0) + (1 - _ETA) * trace.max_power_w * e.time_s
                    for e in trace.at_limit[batch].values()
                ]
            )
            for batch in trace.epochs
        ]
        self.profiled = np.array([costs.mean() for costs in epochs])
        self.chosen = np.array([costs.min() for costs in epochs])
        self.is_profiled = np.zeros(len(self.sizes), bool)
        self.seen: list[list[float]] = [[] for _ in self.sizes]
        self.least = np.inf
        self.pruning = self._prune()
        self.survivors: NDArray[np.int64] | None = None
        self.asked = next(self.pruning)

    def _prune(self) -> Any:
        sizes, start = np.arange(len(self.sizes)), self.default
        for _ in range(2):
            costs: dict[int, float] = {}
            for way in (sizes[sizes <= start][::-1], sizes[sizes > start]):
                for size in way:
                    cost, reached = yield int(size)
                    if not reached:
                        break
                    costs[int(size)] = cost
            sizes = np.array(sorted(costs), int)
            if len(sizes) == 0:
                break
            start = min(costs, key=lambda size: costs[size])
        self.survivors = sizes

    def _sample(self) -> int:
        assert self.survivors is not None
        if len(self.survivors) == 0:
            return self.default
        means = np.array([np.mean(self.seen[size]) for size in self.survivors])
        sds = np.array(
            [np.std(self.seen[size]) / np.sqrt(len(self.seen[size])) for size in self.survivors]
        )
        return int(self.survivors[np.argmin(self.rng.normal(means, sds))])

    def _try(self, size: int, bound: float) -> tuple[float, bool]:
        later = self.chosen[size]
        first = later if self.is_profiled[size] else self.profiled[size]
        allowed = self.max_epochs
        if bound < np.inf:
            allowed = 0 if first > bound else 1 + int((bound - first) / later + 1e-12)
        last = min(self.max_epochs, allowed)
        epochs = self.rng.choice(self.runs[size])
        reached = bool(epochs <= last)
        done = epochs if reached else last
        if done == 0:
            self.seen[size].append(_PENALTY * bound)
            return 0.0, False
        self.is_profiled[size] = True
        cost = float(first + (done - 1) * later)
        self.seen[size].append(cost)
        return cost, reached

    def run_recurrences(self) -> float:
        total, failed_best = 0.0, False
        for _ in range(_TRIES):
            size = self.asked if self.survivors is None else self._sample()
            cost, reached = self._try(size, np.inf if failed_best else _BETA * self.least)
            total += cost
            if self.survivors is None:
                with suppress(StopIteration):
                    self.asked = self.pruning.send((cost, reached))
            if reached:
                self.least = min(self.least, total)
                break
            known = [np.mean(costs) if costs else np.inf for costs in self.seen]
            failed_best = self.survivors is not None and size == int(np.argmin(known))
        return total


def _numpy(settings: list[Setting], seeds: int, recurrences: int) -> Costs:
    def costs() -> dict[tuple[str, str], NDArray[np.float64]]:
        found = {}
        for setting in settings:
            rows = []
            for seed in range(seeds):
                zeus = _PlainZeus(setting.trace, seed)
                rows.append([zeus.run_recurrences() for _ in range(recurrences)])
            found[setting.name] = np.array(rows)
        return found

    return costs


def _ours(name: str, settings: list[Setting], seeds: int, recurrences: int) -> Costs:
    def costs() -> dict[tuple[str, str], NDArray[np.float64]]:
        table = replayed(settings, name, seeds, recurrences)
        each = table["cost"].to_numpy().reshape(len(settings), seeds, recurrences)
        return {setting.name: each[i] for i, setting in enumerate(settings)}

    return costs


def _row(
    name: str, costs: Costs, settings: list[Setting], replays: int, repeat: int
) -> dict[str, Any]:
    best_s, found = np.inf, {}
    for _ in range(repeat):
        began_s = time.process_time()
        found = costs()
        best_s = min(best_s, time.process_time() - began_s)
    tracemalloc.start()
    costs()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    ratios = [
        found[setting.name][:, -5:].mean() / expected_default(setting.trace).cost
        for setting in settings
    ]
    return {
        "policy": name,
        "cpu_s": best_s,
        "ms_per_replay": 1e3 * best_s / replays,
        "peak_mib": peak / 2**20,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "last_five": float(np.mean(ratios)),
    }


def main() -> None:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--traces", type=Path, default=_TRACES, help="folder of the traces of Zeus")
    made.add_argument("--seeds", type=int, default=20)
    made.add_argument("--recurrences", type=int, default=50)
    made.add_argument("--repeat", type=int, default=3, help="the best of so many counts")
    asked = made.parse_args()
    began_s = time.process_time()
    try:
        settings = read_settings(asked.traces)
    except JoulecastError as error:
        sys.exit(f"benchmarks/tuning.py: {error}")
    read_s = time.process_time() - began_s
    size = asked.seeds, asked.recurrences
    todo = {name: _ours(name, settings, *size) for name in COMPARED}
    todo = {"plain NumPy": _numpy(settings, *size)} | todo
    replays = len(settings) * asked.seeds
    rows = [_row(name, costs, settings, replays, asked.repeat) for name, costs in todo.items()]
    for row in rows:
        row["ratio_to_numpy"] = row["cpu_s"] / rows[0]["cpu_s"]
    show(rows, asked)
    if asked.json:
        return
    zeus = next(row for row in rows if row["policy"] == "zeus")
    print(
        f"\n{len(settings)} settings, {asked.seeds} seeds, {asked.recurrences} recurrences; reading the "
        f"traces took {read_s:.2f} s of CPU time"
    )
    if size == (20, 50):
        verdict = "within" if zeus["cpu_s"] < _LIMIT_S else "BEYOND"
        print(f"zeus: {zeus['cpu_s']:.2f} s, {verdict} the {_LIMIT_S:g} s that it may take")


if __name__ == "__main__":
    main()
