"""The command that shows the meters of this machine."""

import time
from pathlib import Path

import typer

from joulecast.app.campaign.config import PowerSection, read_config
from joulecast.app.cli.options import MeteredPlatform, PowerConfig
from joulecast.errors import JoulecastError
from joulecast.measure.power.meter_registry import METERS
from joulecast.measure.power.meters import (
    Believed,
    Meter,
    MeteredNodes,
    MeterUnavailable,
    ReadFailed,
    described,
    opened_in_time,
)
from joulecast.quantities import digits
from joulecast.runs.files.shipped import PLATFORMS
from joulecast.runs.meter_choice import metered
from joulecast.runs.platforms import Platform, find_platform
from joulecast.runs.provenance import physical_host, usable_cores
from joulecast.runs.spec import THIS_MACHINE

_WIDTH = 20
_BETWEEN_S = 0.5


def power_section(file: Path | None) -> PowerSection:
    """The section ``power`` of a configuration; the defaults without one.

    Raises:
        JoulecastError: the file cannot be read, or is wrong.
    """
    return PowerSection() if file is None else read_config(file).power


def _watts_now(found: list[Meter]) -> dict[str, float | str]:
    """Mean watts of each meter over half a second, by the name of the meter; or the reason why there are
    none. If there is a slow counter, the watts are the mean over two of its readings."""
    renewed_s = [described(meter).renewed_s or 0.0 for meter in found if meter.counter]
    first: dict[str, tuple[float, float]] = {}
    watts: dict[str, float | str] = {}
    all_believed = [Believed(meter) for meter in found]
    for is_last in (False, True):
        for believed in all_believed:
            meter, before_s = believed.meter, time.monotonic()
            try:
                reading = believed.read()
            except ReadFailed as error:
                watts.setdefault(meter.name, f"fails: {error}")
                continue
            at_s = reading.at_s or (before_s + time.monotonic()) / 2
            if reading.watts is not None:
                watts[meter.name] = reading.watts
            elif reading.joules is not None and not is_last:
                first[meter.name] = at_s, reading.joules
            elif reading.joules is not None and at_s > first.get(meter.name, (at_s,))[0]:
                begin_s, joules = first[meter.name]
                watts[meter.name] = (reading.joules - joules) / (at_s - begin_s)
        if not is_last:
            time.sleep(max([_BETWEEN_S, *(2 * each for each in renewed_s)]))
    return {meter.name: watts.get(meter.name, "no new reading yet") for meter in found}


def _line(meter: Meter, now: float | str, watts_source: str | None) -> str:
    about = described(meter)
    covers = "" if about.covers is None else f" of the {about.covers}"
    kind = "energy counter" if meter.counter else "power"
    notes = [f"watts: {watts_source}" if meter.source == "estimated" else kind]
    if about.renewed_s:
        notes.append(f"renewed every {about.renewed_s:.3g} s")
    if about.remark:
        notes.append(about.remark)
    shown = now if isinstance(now, str) else f"{digits(now)} W"
    return f"{meter.name:{_WIDTH}}{shown}{covers}, {meter.source} ({'; '.join(notes)})"


def _total(host: str, found: list[Meter], watts: dict[str, float | str]) -> str:
    """The meters that make a run's energy, and the sum of their watts now."""
    chosen = metered([host], [described(meter) for meter in found])
    if chosen.source is None:
        return "a run's energy here: none"
    names = " + ".join(meter.meter for meter in chosen.meters)
    covers = "" if chosen.covers is None else f"of {chosen.covers.replace('+', ', ')}, "
    numbers = [watts[meter.meter] for meter in chosen.meters]
    known = [number for number in numbers if isinstance(number, float)]
    now = f"{digits(sum(known))} W " if len(known) == len(numbers) else ""
    return f"a run's energy here: {names} ({now}{covers}{chosen.source})"


def meters(
    platform: MeteredPlatform = THIS_MACHINE,
    config: PowerConfig = None,
) -> None:
    """Show what each meter reads now, which meters are missing, and which of them give a run's energy."""
    power = power_section(config)
    facts: Platform | None = None
    try:
        facts = find_platform(platform, PLATFORMS)
    except JoulecastError as error:
        typer.echo(f"note: {error}", err=True)
    host = physical_host().split(":")[0]
    typer.echo(f"host {host}, {usable_cores()} usable cores")
    idle_w = full_w = source = None
    if facts is not None:
        idle_w, full_w, source = facts.idle_w, facts.full_w, facts.watts_source
    nodes = MeteredNodes(
        host, {}, float(usable_cores()), idle_w, full_w, power.sysfs_root, tuple(power.command)
    )
    found: list[Meter] = []
    missing: list[str] = []
    for name, opener in METERS.items():
        try:
            found += opened_in_time(name, opener, nodes)
        except MeterUnavailable as absent:
            indent = f"\n{'':{_WIDTH}}to get it: "
            missing.append(f"{name:{_WIDTH}}missing: {absent.reason}{indent}{absent.remedy}")
    watts = _watts_now(found)
    for meter in found:
        typer.echo(_line(meter, watts[meter.name], source))
    for line in missing:
        typer.echo(line)
    typer.echo(_total(host, found, watts))
