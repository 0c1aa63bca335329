"""Inputs of a simulation: a platform by name or file, and the costs of ops on it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from joulecast.errors import JoulecastError
from joulecast.graphs.costs import Costs, roofline_of, roofline_or_refusal
from joulecast.graphs.database import MeasuredCosts, read_database
from joulecast.graphs.kernel_costs import kernel_costs_of
from joulecast.runs.platforms import Platform, simulated_platform
from joulecast.simulate.measured_step import corrected, read_steps
from joulecast.simulate.network_calibration import calibrated, read_calibration
from joulecast.simulate.proteus import proteus_costs
from joulecast.simulate.topology import with_links


def costs_on(platform: Platform, precision: str) -> Costs:
    """What ops cost on a platform: by its kernels where its device is described for them, else its roofline.

    Raises:
        JoulecastError: a rate that is not known.
    """
    return kernel_costs_of(platform, precision) or roofline_of(platform, precision)


def platform_and_costs(
    platform: str | Platform,
    precision: str,
    *,
    links: Mapping[str, float] | None = None,
    calibration: Path | None = None,
    database: Path | None = None,
    measured_steps: Path | None = None,
    mode: Literal["default", "proteus"] = "default",
) -> tuple[Platform, Costs]:
    """A platform with the rates that are given in place of its file's, and what ops cost on it.

    Args:
        precision: peak rate to compute at.
        links: bytes per second of links by name.
        calibration: network calibration, for the outermost link.
        database: of ops that were measured on the platform; its file's rates by default.
        measured_steps: steps that were measured on the platform, to correct the costs by.
        mode: ``proteus``: costs as that paper takes them.

    Raises:
        JoulecastError: no such platform or link, a file that is not sound, or a rate that is not known.
    """
    found = platform if isinstance(platform, Platform) else simulated_platform(platform)
    if calibration is not None:
        found = calibrated(found, read_calibration(calibration))
    found = with_links(found, dict(links or {}))
    if mode == "proteus":
        return found, proteus_costs(found, precision)
    costs: Costs
    if database is None:
        costs = costs_on(found, precision)
    else:
        fallback = kernel_costs_of(found, precision) or roofline_or_refusal(found, precision)
        costs = MeasuredCosts(read_database(database), fallback, precision)
    if measured_steps is None:
        return found, costs
    steps = read_steps(measured_steps)
    for step in steps:
        if step.precision != precision:
            raise JoulecastError(
                f"{measured_steps}: a step at {step.precision} cannot correct costs at {precision}; "
                "measure one at that precision"
            )
    return corrected(found, costs, steps)
