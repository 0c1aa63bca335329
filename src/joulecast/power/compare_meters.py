"""A comparison of a host's meters: idle and load in turn, all meters sampled, their figures, a record."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from joulecast.errors import JoulecastError
from joulecast.platforms import Platform
from joulecast.power.foreign_load import disturbances
from joulecast.power.load_course import LoadCourse
from joulecast.power.meter_figures import figures_of
from joulecast.power.meters import MeteredNodes
from joulecast.power.meters_agree import Compared, agreements_of
from joulecast.power.run_clock import ClockOffset, RunClock
from joulecast.power.sampled_hosts import SampledHost, frames, load_during, meter_infos
from joulecast.power.sampler import Sampler, SamplerOrder, open_all
from joulecast.power.samples import SAMPLES, Samples
from joulecast.power.switched_load import SwitchedLoad
from joulecast.records import provenance
from joulecast.records.meter_comparison import (
    ComparedMeter,
    ComparisonRecord,
    MeterComparison,
    Span,
)
from joulecast.records.meter_settings import AS_USUAL, MeterSettings
from joulecast.records.metering import MeterInfo
from joulecast.records.record import Outcome

LEAST_S, MOST_S = 2.0, 86400.0


@dataclass(frozen=True)
class MetersAsked:
    """What is to be compared: kinds of meters, their settings, the period, the platform's watts."""

    meters: tuple[str, ...]
    settings: MeterSettings = AS_USUAL
    period_s: float = 0.1
    platform: Platform | None = None

    def order(self, host: str, pids: tuple[int, ...] = ()) -> SamplerOrder:
        """The order of a sampler on this host."""
        watts = self.platform
        nodes = MeteredNodes(
            host,
            {},
            float(provenance.usable_cores()),
            None if watts is None else watts.idle_w,
            None if watts is None else watts.full_w,
            self.settings.if_any,
        )
        return SamplerOrder(self.meters, self.period_s, nodes, pids)


def compare_meters(
    asked: MetersAsked, seconds: float, tell: Callable[[str], None]
) -> ComparisonRecord | None:
    """Compare the meters of this host.

    Args:
        asked: which meters.
        seconds: that it lasts, half of it idle and half under a load.
        tell: gets a line before it begins.

    Returns:
        The record; ``None`` where there is no meter to compare.

    Raises:
        JoulecastError: a time that says nothing, or the load cannot run.
    """
    if not LEAST_S <= seconds <= MOST_S:
        raise JoulecastError(f"--compare {seconds:g}: give {LEAST_S:g} to {MOST_S:g} s")
    host = provenance.physical_host().partition(":")[0]
    opened, _ = open_all(asked.order(host))
    measured = [meter.name for meter in opened if meter.source == "measured"]
    if not measured:
        return None
    course = LoadCourse.planned(seconds)
    tell(f"comparing {', '.join(measured)} for {seconds:g} s, half of it under load")
    started = datetime.now(UTC).isoformat(timespec="seconds")
    with SwitchedLoad() as load:
        samples, spans, begin_s = _sampled(asked.order(host, load.pids), course, load)
        loaded, remarks = load.loaded, load.remarks
    end = ClockOffset(0.0, 0.0, begin_s + seconds)
    clock = RunClock(begin_s, ClockOffset(0.0, 0.0, begin_s), end)
    sampled = SampledHost(provenance.physical_host(), host, clock, samples)
    info, power, activity = _judged(asked, sampled, LoadCourse(tuple(spans)), loaded)
    kept = info.model_copy(update={"started_utc": started, "seconds": seconds, "remarks": remarks})
    return ComparisonRecord(kept, power, activity)


def _sampled(
    order: SamplerOrder, course: LoadCourse, load: SwitchedLoad
) -> tuple[Samples, list[Span], float]:
    """What a sampler read while the load was switched, the spans as they were, and when they began."""
    with TemporaryDirectory(prefix="joulecast-") as folder:
        return _sampled_into(Path(folder) / f"host{SAMPLES}", order, course, load)


def _sampled_into(
    file: Path, order: SamplerOrder, course: LoadCourse, load: SwitchedLoad
) -> tuple[Samples, list[Span], float]:
    sampler = Sampler(order, file)
    try:
        sampler.wait_until_begun()
        begin_s = time.monotonic()
        spans, since_s = [], 0.0
        for span in course.spans:
            time.sleep(max(0.0, begin_s + span.stop_s - time.monotonic()))
            if span is not course.spans[-1]:
                load.switch(on=not span.load)
            until_s = time.monotonic() - begin_s
            spans.append(Span(start_s=since_s, stop_s=until_s, load=span.load))
            since_s = until_s
        load.check()
    finally:
        left = sampler.stop()
    return left.samples(), spans, begin_s


def _judged(
    asked: MetersAsked, sampled: SampledHost, course: LoadCourse, loaded: list[str]
) -> tuple[MeterComparison, pd.DataFrame, pd.DataFrame]:
    power, activity = frames([sampled])
    outcome = Outcome(start_s=0.0, stop_s=course.spans[-1].stop_s)
    infos = meter_infos([sampled], power, outcome, asked.period_s)
    identities = {m["meter"]: m["identity"] for m in sampled.samples.meters}
    others = disturbances(None, load_during([sampled], outcome))
    compared = compared_meters(infos, power, course, loaded, disturbed=bool(others))
    meters = [
        meter.model_copy(update={"identity": identities.get(meter.info.meter)})
        for meter, _ in compared
    ]
    info = MeterComparison(
        host=sampled.node,
        started_utc="",
        seconds=outcome.stop_s,
        sample_period_s=asked.period_s,
        metering=asked.settings,
        spans=list(course.spans),
        loaded=loaded,
        meters=meters,
        agreements=agreements_of(compared, course),
        disturbed=others,
        versions=provenance.versions(),
    )
    return info, power, activity


def compared_meters(
    infos: list[MeterInfo],
    power: pd.DataFrame,
    course: LoadCourse,
    loaded: list[str],
    *,
    disturbed: bool = False,
) -> list[Compared]:
    """The figures of the meters that there were, each with its levels by span.

    Args:
        infos: of all meters.
        power: their readings.
        course: when the load ran.
        loaded: what it worked on: ``cpu``, ``gpu``.
        disturbed: whether other programs were at work.
    """
    found = []
    for info in infos:
        if info.source is None:  # absent
            continue
        figures, levels = figures_of(info, power, course, loaded, disturbed=disturbed)
        found.append((ComparedMeter(info=info, figures=figures), levels))
    return found
