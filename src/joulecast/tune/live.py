"""Live tuning: every trial is a training of a real network to its target, here and now.

    environment = LiveTraining(LiveJob(target_accuracy=0.9))
    tune_live(environment, Zeus(environment.space), 50, seed=1, say=print, history_file=Path("h.jsonl"))

On a CPU, only the batch size can be chosen, and the cost is seconds. (Thread counts and CPU quotas do not
limit power.) On an NVIDIA GPU, the energy comes from its counter. Power limits are tried if the job allows
it, and if the driver lets this process set them.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.errors import JoulecastError
from joulecast.measure.power.energy_counter import (
    EnergyCounter,
    first_visible_gpu,
    open_energy_counter,
)
from joulecast.measure.power.other_load import LoadWatch, disturbances
from joulecast.measure.power.power_limit import Preflight, power_limit, preflight
from joulecast.measure.power.zeus_devices import gpu_identity
from joulecast.measure.training.machine import machine_lock, wait_for_quiet
from joulecast.measure.training.ranks import leave_mpi_job
from joulecast.runs import provenance
from joulecast.tune.history import (
    BEGUN,
    History,
    add_to_history_file,
    begin_history_file,
    read_history_file,
)
from joulecast.tune.limit_measurement import LimitProfile
from joulecast.tune.live_job import LiveJob, live_provenance
from joulecast.tune.policies import Policy, SeededByTrial
from joulecast.tune.policy_registry import make_policy
from joulecast.tune.recurrences import Recurrence, run_recurrences
from joulecast.tune.training_monitor import TrainingWatch
from joulecast.tune.trial import (
    CostModel,
    EpochAtLimit,
    Proposal,
    SearchSpace,
    StoppedBy,
    Trial,
)

if TYPE_CHECKING:
    from joulecast.measure.training.to_target import TrainedToTarget, TrainingToTarget

__all__ = ["LiveJob", "LiveTraining", "tune_live"]


def training_of(job: LiveJob) -> "TrainingToTarget":
    """The training of a job, in the campaign's own loop. It runs in this process, without MPI."""
    leave_mpi_job()
    # torch and MPI are only loaded when something is trained.
    from joulecast.measure.training.to_target import TrainingToTarget

    return TrainingToTarget(
        job.workload,
        target_accuracy=job.target_accuracy,
        max_epochs=job.max_epochs,
        default_batch_size=job.default_batch_size,
        learning_rate=job.learning_rate,
        momentum=job.momentum,
        max_learning_rate=job.max_learning_rate,
        device=job.device,
        threads=job.threads,
        prefetch_batches=job.prefetch_batches,
    )


class LiveTraining:
    """Trains as proposed, on this machine.

    If power limits may be set, the constructor waits until no other measurement holds the
    machine. Otherwise it could find the limit of another training that is being tuned. So do not call it
    while you hold the machine.

    Attributes:
        space: what can be chosen here.
        notes: notes for people (about a missing right or sensor), in order.

    Args:
        open_training: function that makes the training from the job; by default the campaign's own loop.
        counter: an energy counter; by default the counter of the device.
        seconds: a clock.

    Raises:
        JoulecastError: neither CUDA_VISIBLE_DEVICES nor the job says which GPU is meant.
    """

    def __init__(
        self,
        job: LiveJob,
        *,
        open_training: "Callable[[LiveJob], TrainingToTarget]" = training_of,
        counter: EnergyCounter | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job, self.notes = job, list[str]()
        self._open_training, self._seconds = open_training, seconds
        self._training: TrainingToTarget | None = None
        on_gpu = job.device == "cuda"
        self._gpu = (first_visible_gpu() if job.gpu is None else job.gpu) if on_gpu else 0
        self._counter = counter or open_energy_counter(job.device, self._gpu)
        if self._counter.why_not is not None:
            self.notes.append(f"no energy is measured: {self._counter.why_not}")
        limits_w: tuple[int, ...] = ()
        cost = CostModel(0.0, None)
        self._machine = provenance.cpu_model()
        if on_gpu:
            looked = self._check_limits()
            limits_w = looked.watts(job.limit_step_w)
            # The cost contains the highest limit that may be tried. An administrator may have lowered this
            # limit.
            cost = self._cost(limits_w[0] if limits_w else looked.highest_w)
            self._machine += "" if looked.name is None else f", {looked.name}"
        else:
            self._say_what_a_cpu_has_not()
        self.space = SearchSpace(
            tuple(job.batch_sizes),
            job.default_batch_size,
            {size: limits_w for size in job.batch_sizes} if limits_w else {},
            cost,
            job.criterion,
            job.max_slowdown,
        )
        self.continue_from(History())

    def _say_what_a_cpu_has_not(self) -> None:
        job = self.job
        without = "without a power limit there is no Pmax"
        if self._counter.why_not is None:
            self.notes.append(f"energy is measured and reported, the cost is time alone: {without}")
        if job.eta != LiveJob.model_fields["eta"].default:
            self.notes.append(
                f"eta {job.eta:g} has no effect on a CPU: the cost is seconds, {without}"
            )
        if job.allow_power_limit:
            self.notes.append("allow_power_limit has no effect on a CPU: none is set")

    def _check_limits(self) -> Preflight:
        may_set = self.job.allow_power_limit
        # If another training is being tuned, the limit found now would be one of its tries.
        with machine_lock(sys.stderr) if may_set else nullcontext():
            looked = preflight(self._gpu, may_set=may_set)
        if looked.why_not is not None:
            self.notes.append(
                f"the power limit is left alone ({looked.why_not}); batch sizes alone are tuned"
            )
        return looked

    def _cost(self, max_power_w: float | None) -> CostModel:
        if max_power_w is None:
            self.notes.append(
                "the cost is seconds: the driver does not say the highest power limit"
            )
            return CostModel(0.0, None)
        eta = self.job.eta
        if eta > 0 and self._counter.why_not is not None:
            self.notes.append("the cost is time alone (eta 0), because no energy is measured")
            eta = 0.0
        return CostModel(eta, max_power_w)

    def described(self) -> dict[str, Any]:
        """The description of what this environment trains, for the header of a history file."""
        return {
            "environment": "live",
            "machine": self._machine,
            "job": self.job.as_trained(),
            "power_limits_w": list(self.space.limits(self.job.default_batch_size)),
            "cost": asdict(self.space.cost),
        }

    def continue_from(self, history: History) -> None:
        """Continue where earlier trials ended. Seeds are not used twice. The costs of epochs and the measured
        limits are taken from these trials."""
        self._number = 0
        self._epoch_cost: dict[int, float] = {}
        self._measured: dict[int, dict[int, EpochAtLimit]] = {}
        self._profiles: dict[int, LimitProfile] = {}
        for trial in history.trials:
            self._learn(trial)

    def _learn(self, trial: Trial) -> None:
        self._number += 1
        size = trial.proposal.batch_size
        if trial.cost is not None and trial.epochs:
            self._epoch_cost[size] = trial.cost / trial.epochs
        if trial.limits:
            self._measured[size] = {**self._measured.get(size, {}), **trial.limits}

    def run(self, proposal: Proposal, recurrence: int) -> Trial:
        """Train once as proposed. At the end, also after an error, restore the power limit.

        The last try with a batch size shows what an epoch costs. If the first epoch would cost more than the
        bound, the try is not started. The first try with a batch size is always started.

        Raises:
            JoulecastError: a proposed power limit cannot be set here; or an error of
                :func:`~joulecast.measure.power.power_limit.power_limit`.
        """
        absent = set(proposal.power_limits_w) - set(self.space.limits(proposal.batch_size))
        if absent:
            raise JoulecastError(
                f"a power limit of {', '.join(map(str, sorted(absent)))} W is proposed, which is none of "
                f"those that can be set here ({self.space.limits(proposal.batch_size) or 'none can'})"
            )
        if self._epoch_cost.get(proposal.batch_size, 0.0) > proposal.cost_bound:
            trial = self._not_started(proposal, recurrence)
        else:
            held: AbstractContextManager[Callable[[int], None] | None] = (
                power_limit(self._gpu) if proposal.power_limits_w else nullcontext()
            )
            with held as set_limit:
                trial = self._train(proposal, recurrence, set_limit)
        self._learn(trial)
        return trial

    def _not_started(self, proposal: Proposal, recurrence: int) -> Trial:
        why = "the training was not started"
        return Trial(
            recurrence, proposal, False, "not_started", 0, 0.0, None, None, 0.0, why_no_energy=why
        )

    def _train(
        self, proposal: Proposal, recurrence: int, set_limit: Callable[[int], None] | None
    ) -> Trial:
        training = self._opened()
        size = proposal.batch_size
        steps = training.steps_per_epoch(size)
        profile_of = partial(self._profile, proposal, steps)
        watch = TrainingWatch(
            proposal, self.space.cost, self._counter, self._seconds, steps, set_limit, profile_of
        )
        trained = training.train(
            size,
            100_000 * self.job.seed + self._number,
            begun=watch.begun,
            stepped=watch.stepped,
            ended=watch.ended,
            may_continue=watch.may_continue,
        )
        energy_j, why_no_energy = watch.energy()
        cost = self.space.cost.of(trained.time_s, energy_j)
        if trained.failed is not None:
            self._note(f"a training of batch size {size} broke: {trained.failed}")
            # The training failed. Policies need at least a lower bound of its cost.
            cost = self.space.cost.of(trained.time_s, 0.0) if cost is None else cost
        profile = watch.profile
        if profile is not None and not profile.limits and trained.failed is None:
            self._note(
                "a training ended before a single power limit was measured "
                f"({self.job.window.measured_steps} steps and {self.job.window.least_s:g} s after "
                f"{self.job.window.warmup_steps} steps to settle); the next one of this size continues"
            )
        return Trial(
            recurrence,
            proposal,
            trained.reached,
            _stopped_by(trained),
            trained.epochs,
            trained.time_s,
            energy_j,
            None if energy_j is None else "measured",
            cost,
            watch.limit_w,
            {} if profile is None else dict(profile.limits),
            why_no_energy,
            trained.accuracy,
        )

    def _profile(
        self, proposal: Proposal, steps_per_epoch: int, set_limit: Callable[[int], None]
    ) -> LimitProfile:
        """Profile of a batch size over all of its trainings, because one training may be too short for a
        single limit."""
        size = proposal.batch_size
        known = self._profiles.get(size)
        if known is not None:
            known.again(proposal.power_limits_w, set_limit)
            return known
        self._profiles[size] = LimitProfile(
            proposal.power_limits_w,
            set_limit,
            self._seconds,
            self._counter.read,
            self.space.best_limit,
            steps_per_epoch,
            self.job.window,
            self._measured.get(size, {}),
        )
        return self._profiles[size]

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _opened(self) -> "TrainingToTarget":
        if self._training is None:
            if self.job.device == "cuda":
                # CUDA then numbers devices as NVML does.
                os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
                os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(self._gpu))
            self._training = self._open_training(self.job)
            self._check_gpu(self._training.device_uuid())
        return self._training

    def _check_gpu(self, trained_on: str | None) -> None:
        metered = None if trained_on is None else gpu_identity(self._gpu)
        # If the driver does not answer, nothing can be metered or limited.
        if metered is not None and metered != trained_on:
            raise JoulecastError(
                f"torch trains on {trained_on}, and GPU {self._gpu} of nvidia-smi is {metered}; set "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID and `gpu` to the number of the first device that "
                "CUDA_VISIBLE_DEVICES shows"
            )


def _stopped_by(trained: "TrainedToTarget") -> StoppedBy:
    """Reason why a training ended, in the terms of a trial."""
    if trained.failed is not None:
        return "interrupted"
    if trained.reached:
        return "target"
    return "cost_bound" if trained.stopped else "max_epochs"


def tune_live(
    environment: LiveTraining,
    policy: Policy,
    recurrences: int,
    *,
    seed: int,
    say: Callable[[str], None],
    history_file: Path | None = None,
    header: Mapping[str, Any] | None = None,
    ended: Callable[[Trial], None] | None = None,
    quiet_wait_s: float = 0.0,
) -> list[Recurrence]:
    """Let a policy tune real trainings. It continues where its history file ends.

    Waits until no other measurement holds the machine.

    Args:
        recurrences: number of all recurrences. Recurrences in the history file count.
        seed: seed of the policy's random choices.
        say: is called once with each of the environment's notes, and with each new reason why an energy is
            not known.
        history_file: file to which every trial is added when it has ended. A trial in the file is not
            repeated.
        header: more facts that describe the tuning (for example, the policy's name and options).
        ended: is called with every trial.
        quiet_wait_s: longest wait for other programs to end before the first trial.

    Returns:
        All recurrences, also the ones in the history file.

    Raises:
        JoulecastError: the history file belongs to another training; a GPU is asked for, but there is none;
            or a power limit could not be restored.
    """
    noted: set[str] = set()

    def say_once(note: str) -> None:
        if note not in noted:
            noted.add(note)
            say(note)

    def say_notes() -> None:
        for note in environment.notes:
            say_once(note)

    history = History()

    def keep(trial: Trial) -> None:
        if history_file is not None:
            add_to_history_file(history_file, trial)
        say_notes()
        lost = trial.why_no_energy
        if lost is not None and trial.stopped_by != "not_started":
            say_once(f"no energy is measured: {lost}")
        if ended is not None:
            ended(trial)

    say_notes()
    seeded = SeededByTrial(policy, seed)
    # The machine is held before the history is read. Otherwise, two loops on one file could both continue
    # from its end.
    with machine_lock(sys.stderr):
        load, watch = wait_for_quiet(sys.stderr, quiet_wait_s), LoadWatch()
        if history_file is not None:
            of = environment.described() | {"policy_seed": seed} | dict(header or {})
            history = begin_history_file(history_file, of, begun=live_provenance())
        environment.continue_from(history)
        done = run_recurrences(
            environment,
            seeded,
            recurrences,
            random.Random(seed),
            history=history,
            ended=keep,
        )
        environment.notes += [f"Disturbed: {why}." for why in disturbances(load, watch.load())]
    say_notes()
    return done


def tune_on_this_machine(
    job: LiveJob,
    policy: str,
    options: dict[str, Any],
    recurrences: int,
    history_file: Path | None,
    say: Callable[[str], None],
    *,
    quiet_wait_s: float = 0.0,
) -> tuple[LiveTraining, list[Recurrence], list[Trial]]:
    """Tune a training on this machine by a policy of this name, with these options (:func:`tune_live`).

    Returns:
        The environment; all recurrences, also the ones in the history; and the trials of this call.

    Raises:
        JoulecastError: an option is wrong, or there is no GPU although one is requested.
    """
    environment = LiveTraining(job)
    trials: list[Trial] = []
    done = tune_live(
        environment,
        make_policy(policy, environment.space, **options),
        recurrences,
        seed=job.seed,
        history_file=history_file,
        header={"policy": policy, **options},
        ended=trials.append,
        say=say,
        quiet_wait_s=quiet_wait_s,
    )
    return environment, done, trials


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
