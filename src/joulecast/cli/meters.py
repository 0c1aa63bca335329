"""The command that shows the meters of this machine."""

import time
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter

from joulecast.campaign.config import PowerSection, read_config
from joulecast.cli.options import AsJson, MeteredPlatform, PowerConfig, echo_json
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
    compare: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Compare the meters for this time, half of it under a load on all cores and GPUs.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="With --compare: folder of its record; by default `meters` in the results."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which meters this machine has, what they cover, what is missing, and how to get it."""
    if compare is not None:
        _compare(compare, platform, config, out, as_json=as_json)
        return
    if out is not None or as_json:
        raise JoulecastError(
            f"{'--out' if out is not None else '--json'} is of a comparison: give --compare SECONDS too"
        )
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


def _compare(
    seconds: float, platform: str, config: Path | None, out: Path | None, *, as_json: bool
) -> None:
    """Compare the meters of this machine, and keep what was found."""
    # Loaded here: the list of meters is quick.
    from joulecast.power.compare_meters import MetersAsked, compare_meters
    from joulecast.records.meter_comparison import COMPARED, next_folder, write_comparison
    from joulecast.report.compared_meters import comparison_lines

    whole = None if config is None else read_config(config)
    power = PowerSection() if whole is None else whole.power
    facts: Platform | None = None
    settings = MeterSettings(power.sysfs_root, tuple(power.command))
    try:
        facts = find_platform(platform, PLATFORMS)
        settings = MeterSettings.on(facts, power.sysfs_root, power.command)
    except JoulecastError as error:
        typer.echo(f"note: {error}", err=True)
    asked = MetersAsked(tuple(power.meters), settings, power.sample_period_s, facts)
    record = compare_meters(asked, seconds, lambda line: typer.echo(line, err=True))
    if record is None:
        typer.echo(
            "no meter to compare: this machine has none that this user may read; `joulecast meters` says why "
            "of each kind, and how to get it"
        )
        return
    above = out or (COMPARED if whole is None else Path(whole.results) / COMPARED.name)
    folder = next_folder(above, record.info.host)
    write_comparison(folder, record)
    if as_json:
        echo_json({"folder": str(folder), **record.info.model_dump(mode="json")})
        return
    for line in comparison_lines(record.info):
        typer.echo(line)
    typer.echo(f"kept in {folder}")
