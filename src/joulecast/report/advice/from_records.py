"""Candidates from run records: settings that were run, and settings that MC2, fitted to these, forecasts.

They are the rows of a forecast (:func:`joulecast.energy.forecast.answer_settings`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from joulecast.energy.campaign_fit import KnownRuns
from joulecast.energy.forecast import (
    answer_settings,
    asked_counts,
    outside_notes,
    setting_of,
    usual_batch,
)
from joulecast.energy.measured_settings import notes_on
from joulecast.energy.models import EnergyModel, Evidence, fit_groups, mc2_for
from joulecast.errors import JoulecastError
from joulecast.report.advice.candidate import Candidate
from joulecast.report.advice.request import AdviceRequest
from joulecast.runs.json_values import json_value
from joulecast.runs.judging import ANSWER
from joulecast.runs.scale import (
    scale_in_words,
    unit_of,
)

_AS_FORECAST = (
    *("basis", "energy_source", "runs", "runs_with_energy", "width_is_assumed"),
    *("extrapolation", "times_beyond", "beyond_one_count"),
)
"""Attributes that a candidate takes from the forecast of its setting."""


@dataclass(frozen=True)
class Campaign:
    """The records of one network on one platform, and all records that were fitted together with them."""

    platform: str
    runs: pd.DataFrame
    """The training runs of this network on this platform."""
    evidence: Evidence
    imported: bool
    left_out: list[dict[str, str]]
    notes: list[str]
    """Notes on the runs, for readers."""

    @property
    def unit(self) -> str:
        """What the runs' ``samples`` count."""
        return str(self.runs["work_unit"].iloc[0])

    @property
    def why_no_energy(self) -> str:
        """Reason why there is no energy, from the records."""
        reasons = self.runs["why_no_energy"].dropna()
        return str(reasons.iloc[0]) if len(reasons) else "the runs carry no energy"


def campaign_of(known_runs: KnownRuns, network: str, platform: str | None) -> Campaign:
    """The records of a network.

    Raises:
        JoulecastError: the network is not in the records, or not on this platform; or it is on several
            platforms, and none was named. The error lists the networks and platforms.
    """
    trained = known_runs.trained
    found = sorted(set(trained.loc[trained["network"] == network, "platform"]))
    if not found:
        known = ", ".join(sorted(set(trained["network"].dropna().astype(str))))
        way_out = "; a folder is given with --records" if Path(network).is_dir() else ""
        raise JoulecastError(f"no record is of the network {network} (there are: {known}){way_out}")
    if platform is None and len(found) > 1:
        raise JoulecastError(
            f"{network} was run on several platforms: {', '.join(found)}; name one with --platform"
        )
    name = found[0] if platform is None else platform
    if name not in found:
        raise JoulecastError(
            f"no record of {network} is of the platform {name} (there are: {', '.join(found)})"
        )
    fitted = fit_groups(known_runs.clean, known_runs.allreduce, known_runs.watts)
    for evidence, imported in fitted:
        training = evidence.training
        own = training[(training["network"] == network) & (training["platform"] == name)]
        if len(own):
            return Campaign(name, own, evidence, imported, known_runs.left_out, known_runs.notes)
    raise JoulecastError(f"the runs of {network} on {name} carry no energy, so nothing is fitted")


def _batches(campaign: Campaign, nodes: int, ranks: float) -> list[float]:
    """The batches of all nodes that are compared.

    For imported runs, and for runs that count only steps, they are the batches that were run, and the batch
    that a forecast takes. For other runs, they are the batches that were run, and the batches in which a rank
    has as many samples as a rank in any run. Then the samples of a rank must lie between the fewest and the
    most samples that a rank had in the runs.
    """
    if campaign.imported or campaign.unit == "steps":
        usual = usual_batch(campaign.runs, nodes)
        known = {*campaign.runs["batch"].dropna(), *([] if np.isnan(usual) else [usual])}
        return sorted(known) or [np.nan]
    of_a_rank = campaign.runs["batch_per_rank"]
    known = {float(batch) for batch in campaign.runs["batch"]}
    known |= {float(each) * ranks for each in of_a_rank}
    low, high = of_a_rank.min() * ranks, of_a_rank.max() * ranks
    return sorted(batch for batch in known if low <= batch <= high and batch == int(batch))


def _candidate(campaign: Campaign, row: dict[str, Any]) -> Candidate | None:
    """A setting as it was run, or as MC2 forecasts it; ``None`` if MC2 cannot."""
    answer = {name: json_value(row[name]) for name in ANSWER if name != "work"}
    if answer["time_s"] is None:
        return None
    nodes, are = int(row["nodes"]), str(row["nodes_are"])
    # An imported log has the number of nodes, but does not say how the devices divide the network.
    strategy = f"{nodes} nodes" if campaign.imported else f"dp={row['ranks']:.0f}"
    if nodes == 1 and (campaign.imported or row["ranks"] == 1):
        strategy = f"one {unit_of(are)}"
    # If runs count only steps, the samples in a step are not known.
    has_batch = campaign.unit != "steps" and not pd.isna(row["batch"])
    return Candidate(
        nodes=nodes,
        nodes_are=are,
        hosts=json_value(row["hosts"]),
        gpus=json_value(row["gpus"]),
        batch_size=int(row["batch"]) if has_batch else None,
        strategy=strategy,
        **answer,
        **{name: row[name] for name in _AS_FORECAST},
        supply=json_value(row.get("supply")),
        conversion_eff=json_value(row.get("conversion_eff")),
        why_no_energy=campaign.why_no_energy if answer["energy_j"] is None else None,
        why_no_interval=None if answer["time_high_s"] is not None else "the model has no width",
    )


def campaign_candidates(
    campaign: Campaign, work: float, asked: AdviceRequest
) -> tuple[list[Candidate], list[dict[str, str]], list[str]]:
    """All settings with these node counts and batches about which something is known.

    Args:
        work: samples (or epochs) to train on. If a batch does not divide it, the last step is whole, too.
        asked: the scales and batches. By default, :func:`joulecast.energy.forecast.asked_counts` gives the
            scales, and the batches are those that were run, of all nodes and of a rank.

    Returns:
        Three lists: the candidates; other settings, each with ``setting`` and ``why`` it is no candidate; and
        notes if the model and the runs differ.
    """
    runs = campaign.runs
    ranks_per_node = float(runs["ranks"].iloc[-1] / runs["nodes"].iloc[-1])
    # Imported runs of others on more nodes show what an exchange costs.
    knows_exchange = campaign.imported or campaign.evidence.shows_exchange
    settings = [
        setting_of(runs, count, float(batch), work, asked.gpus_per_node)
        for count in asked_counts(runs, asked, knows_exchange)
        for batch in asked.batch or _batches(campaign, count, count * ranks_per_node)
    ]
    model: EnergyModel = mc2_for(campaign.imported).fit(campaign.evidence)
    rows, refused = answer_settings(model, campaign.evidence.training, runs, settings)
    found = [_candidate(campaign, row) for row in rows.to_dict("records")]
    why_none = [
        {"setting": f"{scale_in_words(row['nodes'], row['nodes_are'])}, batch {row['batch']:,.10g}"}
        | {"why": why}
        for row, why in refused
    ]
    notes = []
    if not rows.empty:
        notes = outside_notes(rows)
        notes += notes_on(runs, rows, model.remarks, campaign.evidence.times, are="compared")
    return [each for each in found if each is not None], why_none, notes
