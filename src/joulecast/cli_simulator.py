"""The commands of the simulator: simulate a strategy, search for the best one."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.cli_errors import failed
from joulecast.errors import JoulecastError
from joulecast.platforms import Platform, read_platform

_PLATFORMS = Path("config/platforms")

Network = Annotated[str, typer.Option(help="Shipped op graph by name, or a JSON file of one.")]
OnPlatform = Annotated[str, typer.Option(help="Of config/platforms, or a YAML file.")]
Precision = Annotated[str, typer.Option(help="Peak rate to compute at: fp32, bf16, fp64.")]
Links = Annotated[
    list[str] | None, typer.Option("--link", help="Rate of a link, as nic=12.5e9 (bytes/s).")
]
Calibration = Annotated[
    Path | None,
    typer.Option("--calibration", help="Network calibration, for the outermost link."),
]
DatabaseFile = Annotated[
    Path | None, typer.Option("--database", help="Op database measured on this platform.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]


def _graph(name: str) -> Any:
    from joulecast.graphs.opgraph import read_graph
    from joulecast.graphs.shipped import load

    return read_graph(Path(name)) if name.endswith(".json") else load(name)


def _pairs(texts: list[str] | None, option: str) -> dict[str, float]:
    found = {}
    for text in texts or []:
        key, _, value = text.partition("=")
        try:
            found[key] = float(value)
        except ValueError:
            raise JoulecastError(f"{option} {text}: give it as name=number") from None
    return found


def _stragglers(texts: list[str] | None) -> dict[int, float]:
    slow = {}
    for device, factor in _pairs(texts, "--straggler").items():
        if not device.isdigit() or not math.isfinite(factor):
            raise JoulecastError(
                f"--straggler {device}={factor:g}: give it as DEVICE=TIMES, as 3=1.5"
            )
        slow[int(device)] = factor
    return slow


def _platform(name: str, links: list[str] | None, calibration: Path | None) -> Platform:
    from joulecast.simulator.calibration import calibrated, read_calibration
    from joulecast.simulator.topology import with_links

    path = Path(name) if name.endswith((".yaml", ".yml")) else _PLATFORMS / f"{name}.yaml"
    platform = read_platform(path)
    if calibration is not None:
        platform = calibrated(platform, read_calibration(calibration))
    return with_links(platform, _pairs(links, "--link"))


def _costs(platform: Platform, precision: str, database: Path | None, mode: str) -> Any:
    from joulecast.graphs.costs import roofline_of, roofline_or_refusal
    from joulecast.graphs.database import MeasuredCosts, read_database
    from joulecast.simulator.proteus import proteus_costs

    if mode == "proteus":
        return proteus_costs(platform, precision)
    if database is None:
        return roofline_of(platform, precision)
    return MeasuredCosts(
        read_database(database), roofline_or_refusal(platform, precision), precision
    )


def simulate(
    network: Network,
    platform: OnPlatform,
    strategy: Annotated[
        str, typer.Option(help="As dp=8,tp=2,pp=4,micro=16,zero=1,recompute; or a YAML file.")
    ],
    batch: Annotated[int, typer.Option(min=1, help="Samples of one replica's step.")] = 32,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Check that the strategy takes so many.")
    ] = None,
    precision: Precision = "fp32",
    mode: Annotated[str, typer.Option(help="default, or proteus: the paper's own model.")] = (
        "default"
    ),
    straggler: Annotated[
        list[str] | None, typer.Option(help="A slow device, as 3=1.5 (times as long).")
    ] = None,
    gamma: Annotated[
        float | None, typer.Option(min=0, help="Overlap slowdown in place of the platform's.")
    ] = None,
    link: Links = None,
    calibration: Calibration = None,
    database: DatabaseFile = None,
    fits: Annotated[
        Path | None, typer.Option(help="Fits of a campaign on this platform, for the joules.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace here.")] = None,
    explain: Annotated[bool, typer.Option(help="Say where the time goes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate one training step of a parallel strategy: its time, memory and, with fits, energy."""
    from joulecast.simulator.explain import explain as in_words
    from joulecast.simulator.simulate import Assumptions
    from joulecast.simulator.simulate import simulate as run
    from joulecast.simulator.strategy import parse_strategy
    from joulecast.simulator.trace import write_trace
    from joulecast.tables.strategies import priced

    try:
        if mode not in ("default", "proteus"):
            raise JoulecastError(f"--mode {mode}: default or proteus")
        on = _platform(platform, link, calibration)
        slow = _stragglers(straggler)
        simulation = run(
            _graph(network),
            on,
            parse_strategy(strategy).check(devices),
            batch,
            _costs(on, precision, database, mode),
            Assumptions(mode=mode, overlap_slowdown=gamma, stragglers=slow),  # type: ignore[arg-type]
        )
        energy = priced(simulation, fits)
        if trace is not None:
            write_trace(simulation, trace)
    except JoulecastError as error:
        raise failed(error) from None
    told = simulation.as_json() | energy
    if as_json:
        typer.echo(json.dumps(told, indent=1))
    elif explain:
        typer.echo(in_words(simulation))
    else:
        typer.echo(
            f"{told['step_s'] * 1e3:.2f} ms a step, {told['samples_per_s']:.1f} samples/s (simulated); "
            f"{told['verdict']}"
        )
    if fits is not None and not as_json:
        joules = energy["step_j"]
        typer.echo(
            f"{joules:.2f} J a step (powers fitted to {energy['energy_source']} energies)"
            if joules is not None
            else f"energy: {energy['why_no_energy']}"
        )


def search(
    network: Network,
    platform: OnPlatform,
    devices: Annotated[int, typer.Option(min=1, help="Devices to use.")],
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of a step over all devices (32 each).")
    ] = None,
    precision: Precision = "fp32",
    link: Links = None,
    calibration: Calibration = None,
    database: DatabaseFile = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Rank all parallel strategies of some devices that fit in memory, by the time of a step."""
    from joulecast.simulator.search import search as run

    try:
        on = _platform(platform, link, calibration)
        ranking = run(
            _graph(network),
            on,
            devices,
            global_batch or 32 * devices,
            _costs(on, precision, database, "default"),
        )
    except JoulecastError as error:
        raise failed(error) from None
    rows = [simulation.as_json() for simulation in ranking.feasible]
    if as_json:
        left_out = {"out_of_memory": ranking.out_of_memory, "impossible": ranking.impossible}
        typer.echo(json.dumps({"feasible": rows, **left_out}, indent=1))
        return
    if not rows:
        typer.echo("no strategy fits in memory")
    typer.echo(f"{'step, ms':>10} {'samples/s':>10} {'memory, GB':>10}  strategy (simulated)")
    for row in rows[:top]:
        typer.echo(
            f"{row['step_s'] * 1e3:10.2f} {row['samples_per_s']:10.1f} "
            f"{row['peak_memory_bytes'] / 1e9:10.2f}  {row['strategy']}"
        )
    typer.echo(
        f"{len(rows)} fit, {len(ranking.out_of_memory)} are out of memory, "
        f"{len(ranking.impossible)} cannot be run"
    )
