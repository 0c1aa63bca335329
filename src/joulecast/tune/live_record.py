"""The record of a live tuning: its recurrences, and their provenance."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from joulecast.tune.history import BEGUN, read_history_file
from joulecast.tune.live import LiveTraining
from joulecast.tune.live_job import live_provenance
from joulecast.tune.recurrences import Recurrence


def live_record(
    environment: LiveTraining,
    policy: str,
    recurrences: Sequence[Recurrence],
    history_file: Path,
) -> dict[str, Any]:
    """Record of a live tuning as plain data. Times are in s; energies are in J, or ``None`` with the reason.

    ``begun`` is the provenance of the first trials. Another version of joulecast may have made the later
    trials.
    """
    job = environment.job
    first_line, history = read_history_file(history_file)
    trials = history.trials
    without = [trial.why_no_energy for trial in trials if trial.energy_j is None and trial.epochs]
    sources = {trial.energy_source for trial in trials if trial.energy_source is not None}
    return {
        "label": "measured",
        "network": job.workload.network,
        "dataset": job.workload.dataset,
        "target_accuracy": job.target_accuracy,
        "policy": policy,
        "cost_unit": environment.space.cost.unit,
        "energy_source": ", ".join(sorted(sources)) or None,
        "why_no_energy": without[0] if without else None,
        "notes": list(environment.notes),
        "training_s": sum(trial.time_s for trial in trials),
        "tries": len(trials),
        "recurrences": [asdict(recurrence) for recurrence in recurrences],
        "job": environment.described(),
        "begun": first_line[BEGUN],
        "now": live_provenance(),
    }
