"""Runs in progress: what they draw now, have drawn so far, and will have drawn at their end."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from joulecast.campaign.progress import Progress, expected
from joulecast.energy.observations import observe_all
from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.errors import JoulecastError
from joulecast.files.blocks import BlockReader
from joulecast.files.reading import read_json_object
from joulecast.observer.job_folder import PREFIX, JobFiles
from joulecast.observer.steps import Steps
from joulecast.power.live import Drawn, LiveHost
from joulecast.power.samples import SAMPLES
from joulecast.quantities import digits, joules, lasting
from joulecast.records.metering import EnergySource
from joulecast.training.left_files import SPEC
from joulecast.training.stage_clock import ENDING

_SILENT_S = 30.0
"""A sampler that writes every few seconds and has not for so long is at an end."""


@dataclass(frozen=True)
class InProgress:
    """One run in progress.

    Attributes:
        run: its name.
        hosts: number of hosts with a sampler.
        watts: of all hosts now; ``None`` if it is not known.
        joules: of all hosts so far; ``None`` if it is not known, for the reason ``why_no_energy``.
        source: of both, as of a record.
        lasted_s: time since its first sample.
        steps, steps_in_all: steps made, and those of the whole run; ``None`` if not known.
        left_s, whole_j: time to its end, and joules of the whole run, if the rest is like the last steps
            and draws what it draws now; ``None`` if the steps or the watts are not known.
    """

    run: str
    hosts: int
    watts: float | None
    joules: float | None
    source: EnergySource | None
    why_no_energy: str | None
    lasted_s: float
    steps: int | None
    steps_in_all: int | None
    left_s: float | None
    whole_j: float | None

    def as_json(self, prices: Prices = NO_PRICES) -> dict[str, Any]:
        """All of it as plain data, with the money of the whole run where it has a price."""
        return asdict(self) | {"whole_money": self.money(prices), "currency": prices.currency}

    def money(self, prices: Prices) -> float | None:
        """Money of the whole run; ``None`` without a price of energy or of a node, or if it is not known."""
        if self.left_s is None:
            return None
        return prices.money(self.lasted_s + self.left_s, self.whole_j, self.hosts, None)

    def line(self, prices: Prices = NO_PRICES) -> str:
        """It in one line for the terminal."""
        if self.joules is None:
            drawn = f"no energy: {self.why_no_energy}"
        else:
            now = "" if self.watts is None else f"{digits(self.watts)} W now, "
            drawn = f"{now}{joules(self.joules)} so far ({self.source})"
        parts = [f"{self.run}: {drawn} in {lasting(self.lasted_s)}"]
        if self.steps is not None:
            of = "" if self.steps_in_all is None else f" of {self.steps_in_all:,}"
            parts.append(f"step {self.steps:,}{of}")
        if self.left_s is not None:
            whole = "" if self.whole_j is None else f"{joules(self.whole_j)} for the whole, "
            money = self.money(prices)
            paid = "" if money is None else f"{prices.currency} {digits(money)}, "
            parts.append(f"{whole}{paid}about {lasting(self.left_s)} left")
        elif self.steps_in_all is None:
            parts.append("how long it lasts is not known (give --steps)")
        return "; ".join(parts)


class _Steps:
    """Steps of a run, and when each of some was ended, as its first rank writes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._readers: dict[Path, BlockReader] = {}
        self._ends: list[tuple[int, float]] = []

    def look(self) -> tuple[int | None, float | None]:
        """Steps made, and seconds of a step over the newer half of them; ``None`` if not known."""
        ends = self._of_marks() if self._folder.name.startswith(PREFIX) else self._of_stages()
        if not ends:
            return None, None
        (count, end_s), (before, begin_s) = ends[-1], ends[len(ends) // 2 - 1]
        if len(ends) < 2 or count <= before or end_s <= begin_s:
            return count, None
        return count, (end_s - begin_s) / (count - before)

    def _of_marks(self) -> list[tuple[int, float]]:
        processes = JobFiles(self._folder).marks_of(0)
        if not processes:
            return []
        ends = Steps.of(processes[0].marks).ends
        return list(enumerate(ends.tolist(), 1))

    def _of_stages(self) -> list[tuple[int, float]]:
        for path in sorted(self._folder.glob(f"*-rank0{ENDING}")):
            reader = self._readers.setdefault(path, BlockReader(path))
            for _, columns in reader.new():
                steps = columns.get("step", np.empty(0))
                if len(steps) and (last := int(steps.max())) >= 1:
                    # The last one may not have ended yet.
                    ended = columns["stop_s"][steps < last]
                    self._ends += [(last, float(ended.max()))] if len(ended) else []
        return self._ends


class Watch:
    """The runs in progress below a folder of records, or of a campaign's results, seen again and again."""

    def __init__(self, folder: Path, steps_in_all: int | None = None) -> None:
        """Watch a folder.

        Args:
            folder: as ``--out`` of ``joulecast measure``, or a campaign's results.
            steps_in_all: of a run that does not say so itself: an observed training.
        """
        self._folder, self._steps_in_all = folder, steps_in_all
        self._hosts: dict[Path, LiveHost] = {}
        self._steps: dict[Path, _Steps] = {}

    def _runs(self) -> Iterable[tuple[str, Path, int | None]]:
        """Name, folder and steps of each run that has one."""
        for job in sorted(self._folder.glob(f"{PREFIX}*/asked.json")):
            with suppress(JoulecastError, KeyError):
                yield read_json_object(job, "training")["name"], job.parent, self._steps_in_all
        for spec in sorted(self._folder.glob(f"attempts/.*/{SPEC}")):
            with suppress(JoulecastError, KeyError):
                content = read_json_object(spec, "specification of a run")
                steps = (content.get("training") or {}).get("steps", self._steps_in_all)
                inner = next(iter(spec.parent.glob(f"{PREFIX}*")), spec.parent)
                yield content["run"], inner, steps

    def look(self) -> list[InProgress]:
        """The runs in progress now."""
        found = []
        for run, folder, steps_in_all in self._runs():
            drawn = []
            for path in sorted(folder.glob(f"*{SAMPLES}")):
                with suppress(JoulecastError, OSError):
                    host = self._hosts.setdefault(path, LiveHost(path)).look()
                    drawn += [] if host is None or host.silent_s > _SILENT_S else [host]
            if drawn:
                steps, step_s = self._steps.setdefault(folder, _Steps(folder)).look()
                found.append(_in_progress(run, drawn, steps, step_s, steps_in_all))
        return found


def _in_progress(
    run: str,
    hosts: Sequence[Drawn],
    steps: int | None,
    step_s: float | None,
    steps_in_all: int | None,
) -> InProgress:
    why = next((host.why_not for host in hosts if host.joules is None), None)
    watts = [host.watts for host in hosts if host.watts is not None]
    now_w = sum(watts) if len(watts) == len(hosts) else None
    so_far = None if why is not None else sum(host.joules or 0.0 for host in hosts)
    left_s = None
    if steps is not None and step_s is not None and steps_in_all is not None:
        left_s = max(0, steps_in_all - steps) * step_s
    whole_j = None
    if left_s is not None and now_w is not None and so_far is not None:
        whole_j = so_far + now_w * left_s
    return InProgress(
        run,
        len(hosts),
        now_w,
        so_far,
        hosts[0].source if why is None else None,
        why,
        max(host.lasted_s for host in hosts),
        steps,
        steps_in_all,
        left_s,
        whole_j,
    )


@dataclass(frozen=True)
class WholeCampaign:
    """Energy of a campaign: of its ended runs, and of all of them as far as they are foreseen.

    What a run without an energy draws is taken from the runs that are most like it: those that have ended,
    and those in progress whose end is foreseen. ``done_j`` is ``None`` where no ended run has an energy;
    ``whole_j`` also where a training is left and no training is known, for the reason ``why_no_whole``.
    """

    done_j: float | None
    whole_j: float | None
    why_no_whole: str | None = None

    def line(self, prices: Prices = NO_PRICES) -> str:
        """It in one line for the terminal."""
        if self.done_j is None:
            return "campaign: no ended run has an energy"
        if self.whole_j is None:
            return f"campaign: {joules(self.done_j)} in ended runs, unknown for all: {self.why_no_whole}"
        # Of a campaign's time only that of its runs is known, so that hours of nodes have no sum.
        energy_alone = Prices(price=prices.price, pue=prices.pue, currency=prices.currency)
        money = energy_alone.money(None, self.whole_j, None, None)
        paid = "" if money is None else f", {prices.currency} {digits(money)} for energy"
        done, whole = joules(self.done_j), joules(self.whole_j)
        return f"campaign: {done} in ended runs, about {whole} for all{paid}"


class CampaignEnergy:
    """Energy of a campaign's runs; each record is read once."""

    def __init__(self, results: Path) -> None:
        self._records = results / "records"
        self._known: dict[str, float | None] = {}

    def look(self, progress: Progress, live: Sequence[InProgress]) -> WholeCampaign:
        """The energy so far, and of the whole."""
        done = progress.of("done")
        for run in done:
            if run.run not in self._known:
                self._known[run.run] = _joules_of(self._records / run.run)
        ended = [value for run in done if (value := self._known[run.run]) is not None]
        done_j = sum(ended) if ended else None
        known = self._known | {run.run: run.whole_j for run in live if run.whole_j is not None}
        like = [run for run in progress.runs if known.get(run.run) is not None]
        whole_j = sum(value for run in like if (value := known[run.run]) is not None)
        for run in progress.runs:
            if run in like:
                continue
            # A calibration of seconds says nothing of a training.
            alike = [other for other in like if run.kind != "training" or other.kind == run.kind]
            foreseen = expected(run, alike, known)
            if foreseen is None:
                why = "no training has ended that has an energy"
                return WholeCampaign(done_j, None, why if ended else None)
            whole_j += foreseen
        return WholeCampaign(done_j, whole_j if like else None)


def _joules_of(folder: Path) -> float | None:
    try:
        energy_j = float(observe_all([folder]).iloc[0]["energy_j"])
    except JoulecastError:
        return None
    return energy_j if energy_j == energy_j else None
