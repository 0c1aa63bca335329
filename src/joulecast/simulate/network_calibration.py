"""Fits the rates of a network's links to stand-alone collectives and messages.

A collective takes a launch, a latency for each of its steps, and the time of its bytes. Each algorithm has a
formula for this. The fit finds the rates and the algorithm that explain the measurements best, by relative
error. It uses no measured training step.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, get_args

import numpy as np
import pandas as pd
from pydantic import Field, TypeAdapter
from scipy.optimize import nnls

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import read_json_object, validated
from joulecast.runs.files.writing import written_aside
from joulecast.runs.platforms import Platform
from joulecast.simulate.collectives import Algorithm, Kind, sent_share, steps_of

_Seconds = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]


@dataclass(frozen=True)
class NetworkCalibration:
    """Rates of one level of links, and how well they explain what was measured."""

    algorithm: Algorithm
    bytes_per_s: Annotated[float, Field(ge=1, le=1e18, allow_inf_nan=False)]
    latency_s: _Seconds
    """Seconds of latency of a step of a collective."""
    launch_s: _Seconds
    mape_percent: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    points: Annotated[int, Field(ge=1)]


def calibrate_network(points: pd.DataFrame) -> NetworkCalibration:
    """Fit launch, latency and rate. The algorithm whose formula fits best is chosen.

    Args:
        points: a row for each measurement: ``kind`` (all_reduce or send), ``ranks``, ``bytes``, ``seconds``.

    Raises:
        JoulecastError: there is nothing to fit, or the time does not grow with the bytes.
    """
    if not len(points):
        raise JoulecastError("network calibration: there are no measured collectives")
    seconds = points["seconds"].to_numpy(float)
    best: NetworkCalibration | None = None
    for algorithm in get_args(Algorithm):
        # Launch, steps and bytes of each measurement.
        terms = []
        for row in points.itertuples():
            kind: Kind = "send" if row.kind == "send" else "all_reduce"
            ranks = int(row.ranks)
            share = sent_share(kind, algorithm, ranks)
            terms.append((1.0, steps_of(kind, algorithm, ranks), share * row.bytes))
        # The errors are relative. So small messages, which show the latency, count as much as large ones.
        system = np.array(terms) / seconds[:, None]
        (launch, latency, per_byte), _ = nnls(system, np.ones(len(points)))
        error = float(100 * np.abs(system @ (launch, latency, per_byte) - 1).mean())
        if per_byte > 0 and (best is None or error < best.mape_percent):
            rate = float(1 / per_byte)
            best = NetworkCalibration(
                algorithm, rate, float(latency), float(launch), error, len(points)
            )
    if best is None:
        raise JoulecastError(
            "network calibration: larger messages took no longer; measure larger ones"
        )
    return best


def write_calibration(found: NetworkCalibration, path: Path) -> None:
    """Write a calibration as JSON."""
    with written_aside(path) as partial:
        partial.write_text(json.dumps(asdict(found), indent=1) + "\n")


def read_calibration(path: Path) -> NetworkCalibration:
    """Read what :func:`write_calibration` wrote.

    Raises:
        JoulecastError: the file is missing, or is no calibration.
    """
    content = read_json_object(
        path, "network calibration (`./run snakemake --cores all -- results/network.json` makes it)"
    )
    origin = f"{path}: is no network calibration"
    return validated(TypeAdapter(NetworkCalibration), content, origin)


def calibrated(platform: Platform, found: NetworkCalibration) -> Platform:
    """The platform, with the fitted rate, latency, launch and algorithm of its outermost link.

    Raises:
        JoulecastError: the platform has no links.
    """
    cluster = platform.require_cluster()
    if not cluster.links:
        raise JoulecastError(f"platform {platform.name}: cluster.links is empty; name one there")
    values = {"bytes_per_s": found.bytes_per_s, "latency_s": found.latency_s}
    *inner, outermost = cluster.links
    changed = {
        "links": (*inner, outermost.model_copy(update=values)),
        "collective_launch_s": found.launch_s,
        "collective_algorithm": found.algorithm,
    }
    return platform.model_copy(update={"cluster": cluster.model_copy(update=changed)})
