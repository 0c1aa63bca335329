"""Strategies simulated as people ask for them: networks and platforms by name or file.

What the commands ``simulate`` and ``search`` print, and the public functions of these names return.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs, roofline_of, roofline_or_refusal
from joulecast.graphs.database import MeasuredCosts, read_database
from joulecast.graphs.shipped import op_graph
from joulecast.platforms import Platform, find_platform
from joulecast.simulator.calibration import calibrated, read_calibration
from joulecast.simulator.proteus import proteus_costs
from joulecast.simulator.search import search
from joulecast.simulator.simulate import Assumptions, Simulation, simulate
from joulecast.simulator.strategy import parse_strategy
from joulecast.simulator.topology import with_links
from joulecast.simulator.trace import write_trace
from joulecast.simulator.transfers import Mode
from joulecast.tables.strategies import priced

BATCH_PER_DEVICE = 32
"""Samples of a device's step when nobody says how many."""


def simulated_platform(
    platform: str, links: Mapping[str, float] | None = None, calibration: Path | None = None
) -> Platform:
    """A platform by name or file, with the rates that are given in place of its file's.

    Args:
        links: bytes per second of links by name.
        calibration: network calibration, for the outermost link.

    Raises:
        JoulecastError: no such platform, link or calibration.
    """
    found = find_platform(platform)
    if calibration is not None:
        found = calibrated(found, read_calibration(calibration))
    return with_links(found, dict(links or {}))


def _costs(platform: Platform, precision: str, database: Path | None, mode: Mode) -> Costs:
    if mode == "proteus":
        return proteus_costs(platform, precision)
    if database is None:
        return roofline_of(platform, precision)
    measured = read_database(database)
    return MeasuredCosts(measured, roofline_or_refusal(platform, precision), precision)


def simulate_strategy(
    network: str,
    platform: str,
    strategy: str,
    *,
    batch: int = BATCH_PER_DEVICE,
    devices: int | None = None,
    precision: str = "fp32",
    mode: Mode = "default",
    stragglers: Mapping[int, float] | None = None,
    gamma: float | None = None,
    links: Mapping[str, float] | None = None,
    calibration: Path | None = None,
    database: Path | None = None,
    fits: Path | None = None,
    trace: Path | None = None,
) -> tuple[Simulation, dict[str, Any]]:
    """A simulated training step, and what is told of it; :func:`joulecast.simulate` says of what.

    Raises:
        JoulecastError: an unknown network, platform, strategy or mode, or a file that is not sound.
    """
    if mode not in ("default", "proteus"):
        raise JoulecastError(f"--mode {mode}: default or proteus")
    on = simulated_platform(platform, links, calibration)
    simulation = simulate(
        op_graph(network),
        on,
        parse_strategy(strategy).check(devices),
        batch,
        _costs(on, precision, database, mode),
        Assumptions(mode=mode, overlap_slowdown=gamma, stragglers=dict(stragglers or {})),
    )
    told = simulation.as_json() | priced(simulation, fits)
    if trace is not None:
        write_trace(simulation, trace)
    return simulation, told


def search_strategies(
    network: str,
    platform: str,
    devices: int,
    *,
    global_batch: int | None = None,
    precision: str = "fp32",
    links: Mapping[str, float] | None = None,
    calibration: Path | None = None,
    database: Path | None = None,
) -> dict[str, Any]:
    """All strategies of some devices, ranked; :func:`joulecast.search` says what is returned.

    Raises:
        JoulecastError: an unknown network or platform, or no strategy divides this batch.
    """
    on = simulated_platform(platform, links, calibration)
    ranking = search(
        op_graph(network),
        on,
        devices,
        global_batch or BATCH_PER_DEVICE * devices,
        _costs(on, precision, database, "default"),
    )
    return {
        "feasible": [simulation.as_json() for simulation in ranking.feasible],
        "out_of_memory": ranking.out_of_memory,
        "impossible": ranking.impossible,
    }
