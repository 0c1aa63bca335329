"""The command that shows the meters of this machine."""

import time
from pathlib import Path

import typer
from pydantic import TypeAdapter

from joulecast.campaign.config import PowerSection, read_config
from joulecast.cli.options import MeteredPlatform, PowerConfig
from joulecast.errors import JoulecastError
from joulecast.files.shipped import PLATFORMS
from joulecast.platforms import Platform, find_platform
from joulecast.power.meter_registry import METERS
from joulecast.power.meters import About, Meter, MeteredNodes, MeterUnavailable, ReadFailed
from joulecast.records.meter_settings import MeterSettings
from joulecast.records.metering import EnergySource, MeterInfo, metered
from joulecast.records.provenance import physical_host, usable_cores

_WIDTH = 18
_BETWEEN_S = 0.02


def power_section(file: Path | None) -> PowerSection:
    """The section ``power`` of a configuration; the defaults without one.

    Raises:
        JoulecastError: the file cannot be read, or is wrong.
    """
    return PowerSection() if file is None else read_config(file).power


def _state(meter: Meter) -> str:
    try:
        meter.read()
        return "reads"
    except ReadFailed as error:
        return f"fails: {error}"


def _line(meter: Meter, watts_source: str | None) -> str:
    about = About.of(meter)
    what = "energy counter" if meter.counter else "power"
    covers = "" if about.covers is None else f" of the {about.covers}"
    notes = [f"watts: {watts_source}"] if meter.source == "estimated" else []
    if about.renewed_s:
        notes.append(f"renewed every {about.renewed_s:.3g} s")
    if about.remark:
        notes.append(about.remark)
    note = f" ({'; '.join(notes)})" if notes else ""
    return f"{meter.name:{_WIDTH}} {meter.source:9} {what}{covers}, {_state(meter)}{note}"


def _total(host: str, found: list[Meter]) -> str:
    """Which of the meters a run's energy is made of."""
    infos = [
        MeterInfo(
            node=host,
            meter=meter.name,
            available=True,
            source=TypeAdapter(EnergySource).validate_python(meter.source),
            counter=meter.counter,
            covers=About.of(meter).covers,
        )
        for meter in found
    ]
    chosen = metered([host], infos)
    if chosen.source is None:
        return "a run's energy here: none"
    names = ", ".join(meter.meter for meter in chosen.meters)
    covers = "" if chosen.covers is None else f" of {chosen.covers.replace('+', ', ')}"
    return f"a run's energy here: {names} ({chosen.source}{covers})"


def meters(
    platform: MeteredPlatform = "this-machine",
    config: PowerConfig = None,
) -> None:
    """Show which meters this machine has, what they cover, what is missing, and how to get it."""
    power = power_section(config)
    facts: Platform | None = None
    try:
        facts = find_platform(platform, PLATFORMS)
    except JoulecastError as error:
        typer.echo(f"note: {error}", err=True)
    host = physical_host().split(":")[0]
    typer.echo(f"host {host}, {usable_cores()} usable cores")
    settings = MeterSettings(power.sysfs_root, tuple(power.command))
    idle_w = full_w = source = None
    if facts is not None:
        settings = MeterSettings.on(facts, power.sysfs_root, power.command)
        idle_w, full_w, source = facts.idle_w, facts.full_w, facts.watts_source
    nodes = MeteredNodes(host, {}, float(usable_cores()), idle_w, full_w, settings)
    found: list[Meter] = []
    for name, opener in METERS.items():
        try:
            opened = opener(nodes)
        except MeterUnavailable as missing:
            indent = f"\n{'':{_WIDTH + 11}}to get it: "
            typer.echo(f"{name:{_WIDTH}} missing   {missing.reason}{indent}{missing.remedy}")
            continue
        # A counter that was opened this moment may have nothing to say yet.
        time.sleep(_BETWEEN_S)
        for meter in opened:
            typer.echo(_line(meter, source))
        found += opened
    typer.echo(_total(host, found))
