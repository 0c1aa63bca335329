"""The loop of recurrences: propose, try, and try again if the target was not reached."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from joulecast.tune.history import History
from joulecast.tune.policies import Policy
from joulecast.tune.trial import Environment, Trial

TRIES = 20


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One training to its target, with all its tries.

    Attributes:
        cost, energy_j: ``None`` if the cost or energy of a try is not known.
        energy_source: source of the known energies of the tries; ``None`` if none is known.
        why_no_energy: why the energy of a try is not known.
        batch_size, power_limit_w, phase: values of the last try.
    """

    number: int
    tries: int
    reached: bool
    cost: float | None
    time_s: float
    energy_j: float | None
    energy_source: str | None
    why_no_energy: str | None
    batch_size: int
    power_limit_w: int | None
    phase: str

    @classmethod
    def of(cls, number: int, trials: list[Trial]) -> "Recurrence":
        """The recurrence that consists of these tries."""
        costs = [trial.cost for trial in trials if trial.cost is not None]
        joules = [trial.energy_j for trial in trials if trial.energy_j is not None]
        last = trials[-1]
        return cls(
            number,
            len(trials),
            last.reached,
            sum(costs) if len(costs) == len(trials) else None,
            sum([trial.time_s for trial in trials]),
            sum(joules) if len(joules) == len(trials) else None,
            next((t.energy_source for t in trials if t.energy_source is not None), None),
            next((t.why_no_energy for t in trials if t.why_no_energy is not None), None),
            last.proposal.batch_size,
            last.power_limit_w,
            last.proposal.phase,
        )


def run_recurrences(
    environment: Environment,
    policy: Policy,
    recurrences: int,
    rng: random.Random,
    *,
    history: History | None = None,
    tries: int = TRIES,
    ended: Callable[[Trial], None] | None = None,
) -> list[Recurrence]:
    """Run recurrences one after the other. It continues where a history ends.

    Args:
        recurrences: number of all recurrences. Recurrences in the history count.
        rng: random generator for the policy.
        tries: largest number of tries in a recurrence. After this many failed tries, the recurrence is given
            up.
        ended: is called with every trial, before the next one is proposed.

    Returns:
        All recurrences, also the ones in the history.
    """
    history = History() if history is None else history
    tried: dict[int, list[Trial]] = {}
    for trial in history.trials:
        tried.setdefault(trial.recurrence, []).append(trial)
    for recurrence in range(max(tried, default=0), recurrences):
        trials = tried.setdefault(recurrence, [])
        while not (trials and trials[-1].reached) and len(trials) < tries:
            trial = environment.run(policy.propose(history, rng), recurrence)
            history.append(trial)
            trials.append(trial)
            if ended is not None:
                ended(trial)
    return [Recurrence.of(number, trials) for number, trials in tried.items()]
