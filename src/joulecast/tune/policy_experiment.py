"""Replays of policies over settings and seeds, as tables of recurrences.

A *setting* is a workload on a GPU. In one setting and seed, two policies that ask for the same configurations
see the same sequence of recorded runs. So policies can be compared in pairs.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from joulecast.tune.curve_policy import Curve, earlier_costs
from joulecast.tune.expectation import best_configuration, expected_default
from joulecast.tune.history import History
from joulecast.tune.policies import Fixed, Policy
from joulecast.tune.policy_registry import INFORMED, make_policy
from joulecast.tune.recurrences import Recurrence, run_recurrences
from joulecast.tune.replay import Replay
from joulecast.tune.traces import MAX_POWER_W, WORKLOADS, Trace, read_trace
from joulecast.tune.trial import PLAIN, Goal, Proposal

# The policies in the tables, in this order.
COMPARED = (
    *("default", "power-limit-only", "zeus", "grid-search", "curve", "warm-start"),
    "oracle",
)
COLUMNS = (
    *("workload", "gpu", "policy", "seed", "recurrence", "tries", "reached", "cost", "energy_j"),
    *("time_s", "batch_size", "power_limit_w", "phase"),
)


@dataclass(frozen=True)
class Setting:
    """A workload on a GPU (``trace``).

    ``elsewhere`` is the same workload on another GPU. A warm start has seen the runs on that GPU."""

    trace: Trace
    elsewhere: Trace

    @property
    def name(self) -> tuple[str, str]:
        """Name of the setting: its workload and its GPU."""
        return self.trace.workload, self.trace.gpu


def read_settings(
    folder: Path,
    workloads: Iterable[str] = tuple(WORKLOADS),
    target: float | None = None,
) -> list[Setting]:
    """All pairs of workloads and GPUs."""
    settings = []
    for workload in workloads:
        traces = [read_trace(folder, workload, gpu, target=target) for gpu in MAX_POWER_W]
        others = [*traces[1:], traces[0]]
        settings += [Setting(*pair) for pair in zip(traces, others, strict=True)]
    return settings


def paper_recurrences(trace: Trace) -> int:
    """Number of recurrences in the paper: twice the number of configurations."""
    return 2 * len(trace.epochs) * len(trace.at_limit[trace.default])


def policy_for(
    setting: Setting, name: str, seed: int, goal: Goal, options: Mapping[str, Any]
) -> Policy:
    """A policy by its name, also a policy that needs more than the search space.

    Raises:
        JoulecastError: there is no such policy, or it does not have an option.
    """
    space = setting.trace.space(goal)
    if options or name not in INFORMED:
        return make_policy(name, space, **options)
    if name == "oracle":
        return Fixed(*best_configuration(setting.trace, goal.eta))
    # The warm start has seen one run of every batch size elsewhere, each under its best power limit.
    swept, history = Replay(setting.elsewhere, random.Random(f"swept {seed}"), goal=goal), History()
    for number, batch in enumerate(setting.elsewhere.epochs):
        proposal = Proposal(batch, swept.space.limits(batch), phase="sweep")
        history.append(swept.run(proposal, number))
    return Curve(space, earlier=earlier_costs(history))


def replay(
    setting: Setting,
    policy: Policy,
    recurrences: int,
    seed: int,
    *,
    goal: Goal = PLAIN,
) -> list[Recurrence]:
    """Replay one policy in one setting. The policy must be made for the goal of this setting."""
    workload, gpu = setting.name
    drawn = random.Random(f"{workload} {gpu} {seed}")
    environment = Replay(setting.trace, drawn, goal=goal)
    return run_recurrences(environment, policy, recurrences, random.Random(seed))


def replayed(
    settings: Sequence[Setting],
    name: str,
    seeds: int,
    recurrences: int | None,
    *,
    goal: Goal = PLAIN,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> pd.DataFrame:
    """A row for each recurrence of a policy, over all settings and seeds.

    Args:
        recurrences: number of recurrences in every setting; ``None``: the number in the paper.
        options: options of the policy.

    Raises:
        JoulecastError: there is no such policy, it does not have an option, or no batch size reaches the
            target in a setting.
    """
    rows = []
    for setting in settings:
        expected_default(setting.trace, goal.eta)
        count = paper_recurrences(setting.trace) if recurrences is None else recurrences
        for seed in range(seeds):
            policy = policy_for(setting, name, seed, goal, options)
            rows += [
                (
                    *(*setting.name, name, seed, done.number, done.tries, done.reached, done.cost),
                    *(done.energy_j, done.time_s, done.batch_size, done.power_limit_w, done.phase),
                )
                for done in replay(setting, policy, count, seed, goal=goal)
            ]
    return pd.DataFrame(rows, columns=list(COLUMNS))
