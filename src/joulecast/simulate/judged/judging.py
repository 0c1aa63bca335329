"""Calibrated platforms, judged rows and their errors, for both judgements of the simulator."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from joulecast.runs.platforms import Cluster, Device, Link, Platform
from joulecast.simulate.judged.emulated_step import Configuration
from joulecast.simulate.judged.real_step import TrainingConfiguration
from joulecast.simulate.network_calibration import NetworkCalibration, calibrate_network

PREDICTIONS = ("predicted", "sum", "max")
"""Columns (with ``_s``) of what is judged: the simulator, and two rules of thumb."""


def calibrated(collectives: pd.DataFrame) -> NetworkCalibration:
    """The rates of links, from undisturbed collectives and messages over them.

    Args:
        collectives: ``kind``, ``ranks``, ``bytes``, ``seconds`` and ``clean``, how many were undisturbed.

    Raises:
        JoulecastError: there is nothing to fit.
    """
    clean = collectives[collectives.clean > 0]
    return calibrate_network(clean[["kind", "ranks", "bytes", "seconds"]])


def platform_of(
    name: str,
    device: str,
    links: Mapping[tuple[str, int | None], NetworkCalibration],
    devices_per_node: int,
    overlap_slowdown: float,
    nodes: int | None = None,
) -> Platform:
    """A platform with calibrated links.

    Args:
        name: of the platform.
        device: name of what computes.
        links: from the device outwards, by their name and the devices that they join (``None``: all). The
            outermost one's launch and algorithm are those of collectives.
        devices_per_node: how many.
        overlap_slowdown: gamma.
        nodes: how many there are; any number if ``None``.
    """
    outermost = list(links.values())[-1]
    return Platform(
        name=name,
        cluster=Cluster(
            nodes=nodes,
            devices_per_node=devices_per_node,
            device=Device(name=device),
            links=tuple(
                Link(name=link, joins=joins, bytes_per_s=of.bytes_per_s, latency_s=of.latency_s)
                for (link, joins), of in links.items()
            ),
            collective_launch_s=outermost.launch_s,
            collective_algorithm=outermost.algorithm,
            overlap_slowdown=overlap_slowdown,
        ),
    )


def judged_row(
    configuration: Configuration | TrainingConfiguration, steps: pd.DataFrame, predicted_s: float
) -> dict[str, Any]:
    """The row of a configuration that is judged.

    Args:
        configuration: that was predicted.
        steps: of the results.
        predicted_s: seconds of a step.

    Returns:
        ``configuration``, ``family``, ``ranks``, ``measured_s``, ``spread_s``, ``again_s`` (the A/A repeat,
        or NaN) and ``predicted_s``.
    """
    measured = steps.loc[configuration.name]
    return {
        "configuration": configuration.name,
        "family": configuration.family,
        "ranks": configuration.ranks,
        "measured_s": measured.seconds,
        "spread_s": measured.spread_s,
        "again_s": measured.again_s,
        "predicted_s": predicted_s,
    }


def with_errors(judged: pd.DataFrame) -> pd.DataFrame:
    """Judged rows with their signed errors.

    Returns:
        the rows with ``predicted_error_percent``, ``sum_error_percent`` and ``max_error_percent`` where there
        is such a prediction, and ``noise_percent``, the difference of the A/A repeat.
    """
    table = judged.copy()
    for name in PREDICTIONS:
        if f"{name}_s" in table:
            table[f"{name}_error_percent"] = 100 * (table[f"{name}_s"] / table["measured_s"] - 1)
    table["noise_percent"] = 100 * (table["again_s"] / table["measured_s"] - 1)
    return table
