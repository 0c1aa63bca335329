"""What both judgements of the simulator share: calibrated platforms, and predictions joined with steps."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd

from joulecast.runs.judging import join_references
from joulecast.runs.platforms import Cluster, Device, Link, Platform
from joulecast.simulate.judged.results import Results
from joulecast.simulate.network_calibration import NetworkCalibration

ROLES = {"simulator": "model", "sum": "rival", "max": "rival", "measured again": "repeat"}
"""Of the simulator, two rules of thumb, and the A/A repeat. Other models are the simulator without a part."""


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


def judge_steps(
    results: Results[Any],
    experiment: str,
    seconds: Mapping[str, Mapping[str, float]],
    basis: str,
    fitted: Collection[str] = (),
) -> pd.DataFrame:
    """Join what models say of an experiment's steps with what was measured.

    Args:
        results: of the experiment.
        experiment: its name.
        seconds: of each configuration, by model.
        basis: what the models saw.
        fitted: configurations that they also saw, whose ``split`` is ``in-sample``.

    Returns:
        a row a configuration and model, as of :func:`joulecast.runs.judging.join_references`; the A/A
        repeat is a model too. Facts of a configuration are ``experiment``, ``family``, ``ranks``, ``network``
        (of real training), ``source`` and ``spread_s``.
    """
    wide = pd.DataFrame.from_dict(seconds, orient="index").rename_axis("configuration")
    wide["measured again"] = results.steps["again_s"]
    rows = wide.reset_index().melt("configuration", var_name="model", value_name="time_s")
    predictions = rows.assign(
        split=np.where(rows["configuration"].isin(fitted), "in-sample", "held out"),
        time="predicted",
        role=rows["model"].map(ROLES).fillna("ablation"),
        basis=basis,
    )
    known = [
        (each.name, each.family, each.ranks, getattr(each, "network", None))
        for each in results.configurations
    ]
    references = pd.DataFrame(known, columns=["configuration", "family", "ranks", "network"])
    references = references.assign(experiment=experiment, source="recorded")
    measured = results.steps[["seconds", "spread_s"]].rename(columns={"seconds": "time_s"})
    references = references.join(measured, on="configuration")
    return join_references(predictions, references, "configuration", "time_s")
