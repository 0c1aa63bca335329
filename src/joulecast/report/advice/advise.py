"""Choice of the setting to train a network in, within a limit, and what that choice rests on.

Settings that were run, those that MC2 forecasts from them, and for a platform that nothing was run on those
that the simulator times, are candidates alike; each says which of the three it is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.errors import JoulecastError
from joulecast.quantities import MOST_NODES, MOST_SAMPLES, check_counts, counted
from joulecast.report.advice.candidate import Candidate, dominates
from joulecast.report.advice.choice import Choice, Limit, choose
from joulecast.report.advice.next_steps import measure_next
from joulecast.report.advice.power_limit import NO_HISTORY, PowerLimit, power_limit_of
from joulecast.report.advice.simulated_training import USUAL, SimulatedTraining
from joulecast.report.advice.verdict import verdict_on
from joulecast.runs.files.shipped import PLATFORMS, find, is_path
from joulecast.runs.platforms import Platform, find_platform, is_gpu_platform, simulated_platform
from joulecast.runs.record import RunInfo, read_info
from joulecast.runs.scale import BEYOND, scale_in_words, scales_are, unit_of, whole_nodes

if TYPE_CHECKING:
    # Loads pandas and the models, which a simulated platform does not need.
    from joulecast.energy.fitting import KnownRuns

_LONG = 10.0
"""Times the work of the longest recorded run from which that is worth a warning."""

_BATCHES = (
    "candidates differ in batch size: training to an accuracy may need more samples with a larger batch of "
    "all nodes, which is not known without a tuning history; hold the batch with --batch"
)


@dataclass(frozen=True)
class _Found:
    """What there is to choose from, and where it comes from."""

    platform: str
    nodes_are: str
    samples: float
    unit: str
    why_samples: str
    candidates: list[Candidate]
    refused: list[dict[str, str]]
    rests_on: list[str]
    warnings: list[str]
    left_out: list[dict[str, str]]
    most_nodes: int | None


def advise(
    records: Sequence[Path],
    network: str,
    limit: Limit | None = None,
    *,
    platform: str | None = None,
    samples: float | None = None,
    nodes: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    history: Path | None = None,
    platforms: Path = PLATFORMS,
    fits: Path | None = None,
    trained: SimulatedTraining = USUAL,
    prices: Prices = NO_PRICES,
    gpus: Sequence[int] = (),
    known_runs: "KnownRuns | None" = None,
) -> dict[str, Any]:
    """Choose node count, batch size and strategy of a training.

    Args:
        records: folders of run records; may be empty where ``platform`` can be simulated.
        network: as the records name it.
        limit: a deadline and budgets of energy, money and CO2, each or none, and what is least within them.
        platform: as the records name it; or one to simulate, by name or the path of its FILE.yaml, whose
            ``name`` is then what the records may call it. By default the one of the records.
        samples: work in the records' unit; by default a million samples (1 epoch).
        nodes: node counts; by default those that were run, and the powers of two up to four times the most
            of them.
        batches: batches of all nodes; by default those that were run.
        history: of ``joulecast tune``, for the power limit.
        platforms: folder of the user's own platform files, which go before the shipped ones.
        fits: of a campaign on a simulated platform, for its joules.
        trained: how it computes on a simulated platform.
        prices: of energy and time, and the intensity of CO2.
        gpus: counts of GPUs, in place of node counts.
        known_runs: the runs of ``records``, where they have been read already.

    Returns:
        plain data: ``network``, ``platform``, ``nodes_are``, ``limit``, ``prices``, ``work``, ``weighed``
        (the ``counts`` of nodes, GPUs or ranks, and ``why`` these), ``best`` (``None`` with ``why_none``),
        ``by_energy`` (what estimated energy would choose, where time chooses in its place), ``verdict``
        (whether that is clearly the best), ``candidates`` (the best first, with ``within_limit`` and
        ``on_front``), ``refused``, ``rests_on``, ``warnings``, ``measure_next``, ``left_out``. Times in s,
        energies in J and kWh, CO2 in kg, for the whole work.

    Raises:
        JoulecastError: an unknown network or platform, no records, a node count or batch below 1, a
            history of another network, or a limit that needs a price that is not given.
    """
    asked = limit or Limit()
    asked.check(prices.check())
    if nodes and gpus:
        raise JoulecastError("nodes and gpus say the scale in different ways; give one")
    check_counts("gpus", gpus, MOST_NODES)
    check_counts("nodes", nodes or (), MOST_NODES)
    check_counts("batch", batches or (), MOST_SAMPLES)
    if samples is not None and not (math.isfinite(samples) and samples > 0):
        raise JoulecastError(f"--samples {samples:g}: give a number above 0")
    facts, called = None, platform
    # What imported systems are called may look like a path, too.
    if platform and is_path(platform, (".yaml", ".yml")) and Path(platform).is_file():
        facts = find_platform(platform)
        called = facts.name
    simulated = facts is not None or (
        platform is not None
        and (
            find(PLATFORMS, f"{platform}.yaml", platforms) is not None or is_gpu_platform(platform)
        )
    )
    found = _from_records(
        records, network, called, samples, nodes, gpus, batches, simulated, known_runs
    )
    if found is None:
        facts = facts or simulated_platform(str(platform), platforms)
        filled = nodes or _filled(facts, gpus)
        found = _from_simulator(
            network, str(called), facts, samples, filled, batches, fits, trained
        )
    powers = NO_HISTORY if history is None else power_limit_of(history, network)
    candidates = [powers.applied(candidate).priced(prices) for candidate in found.candidates]
    choice = choose(candidates, asked, prices.currency)
    why_counts = "as asked"
    if not nodes and not gpus:
        up_to = "" if found.most_nodes is None else f"up to {BEYOND} times the most that were run; "
        why_counts = f"{up_to}--nodes or --gpus asks for others"
    return _told(network, asked, found, candidates, choice, powers, why_counts) | {
        "prices": prices.as_json(),
        "verdict": verdict_on(candidates, choice, prices.currency),
    }


def _filled(facts: Platform, gpus: Sequence[int]) -> list[int]:
    """Nodes of a platform that so many GPUs fill."""
    per_node = facts.require_cluster().devices_per_node
    return whole_nodes(gpus, per_node)


def _from_records(
    records: Sequence[Path],
    network: str,
    platform: str | None,
    samples: float | None,
    nodes: Sequence[int] | None,
    gpus: Sequence[int],
    batches: Sequence[int] | None,
    simulated: bool,
    known_runs: "KnownRuns | None",
) -> _Found | None:
    """Candidates of the records; ``None`` where the platform has none of the network.

    Args:
        simulated: whether the platform can be simulated instead.
    """
    # Loads pandas and the models, which a simulated platform does not need.
    from joulecast.report.advice import from_records

    if platform is not None and not _recorded_on(records, network, platform, simulated):
        return None
    campaign = from_records.read_campaign(records, network, platform, known_runs)
    work, why = from_records.usual_work(campaign), "--samples asks for another amount"
    if samples is not None:
        work, why = samples, "as asked"
    candidates, refused = from_records.campaign_candidates(
        campaign, work, from_records.asked_nodes(campaign, nodes or (), gpus), batches
    )
    runs, fitted = campaign.runs, campaign.evidence.training
    most = int(runs["nodes"].max())
    units, are = scales_are(fitted["nodes_are"]), runs["nodes_are"].iloc[-1]
    # What one node is does not tell what several are.
    several = runs[runs["nodes"] == most]
    rests = [
        f"measured: {counted(len(runs), 'run')} of {network} on {campaign.platform}, on up to "
        f"{scale_in_words(most, are)}",
        f"fitted: MC2 on {counted(len(fitted), 'run')} of "
        f"{counted(fitted['workload'].nunique(), 'workload')}, on up to "
        f"{int(fitted['nodes'].max())} {units}",
    ]
    warnings = _settings_differ(records, network, campaign.platform)
    warnings += campaign.notes
    if samples is not None and work > _LONG * float(runs["samples"].max()):
        times = work / float(runs["samples"].max())
        warnings.append(
            f"the work is {times:.3g} times that of the longest recorded run; a step is taken to last as "
            "long as it did there"
        )
    if fitted["nodes"].nunique() == 1 and not campaign.imported:
        warnings.append(
            f"all runs have one {unit_of(are)} count: how far forecasts of others may be off is assumed "
            "(5 %), not measured"
        )
    if (runs["energy_source"] == "estimated").any():
        warnings.append("energies are estimated from utilisation and assumed watts, not measured")
    return _Found(
        campaign.platform,
        ", ".join(sorted(several["nodes_are"].unique())),
        work,
        campaign.unit,
        why,
        candidates,
        refused,
        rests,
        warnings,
        campaign.left_out,
        most,
    )


def _recorded_on(records: Sequence[Path], network: str, platform: str, simulated: bool) -> bool:
    """Whether any record is of this network on this platform; of a platform that cannot be simulated
    imported ones count, too, so that their reader names the systems that there are."""
    for folder in records:
        info = read_info(folder)
        spec = info.spec
        if spec.foreign is not None and spec.foreign.benchmark == network:
            if not simulated or _imported_platform(info) == platform:
                return True
            continue
        named = spec.network == network
        if named and spec.platform.name == platform:
            return True
    return False


def _imported_platform(info: RunInfo) -> str:
    """What an imported system is called once it is read."""
    # Loads pandas, which a simulated platform does not need.
    from joulecast.runs.observations import UNNAMED, platform_family

    spec = info.spec
    family = platform_family(spec.platform.name)
    return family if spec.campaign == UNNAMED else f"{family} ({spec.campaign})"


def _settings_differ(records: Sequence[Path], network: str, platform: str) -> list[str]:
    """A warning where runs that count as repeats were not of the same training."""
    seen: dict[str, set[str]] = {}
    for folder in records:
        spec = read_info(folder).spec
        if spec.workload is None or spec.training is None or spec.workload.network != network:
            continue
        if spec.platform.name != platform:
            continue
        fields = {
            "image_size": spec.workload.image_size,
            "dataset": spec.workload.dataset,
            "precision": spec.training.precision,
            "threads_per_rank": spec.threads_per_rank,
            "emulation": spec.emulation,
        }
        for key, value in fields.items():
            seen.setdefault(key, set()).add(str(value))
    mixed = [key for key, values in seen.items() if len(values) > 1]
    if not mixed:
        return []
    return [f"the runs differ in {', '.join(mixed)}, which the candidates do not tell apart"]


def _from_simulator(
    network: str,
    platform: str,
    facts: Platform,
    samples: float | None,
    nodes: Sequence[int] | None,
    batches: Sequence[int] | None,
    fits: Path | None,
    trained: SimulatedTraining,
) -> _Found:
    # Loads scipy and the simulator, which records do not need.
    from joulecast.report.advice import from_simulator

    facts.require_cluster()
    if samples is None:
        raise JoulecastError(
            f"--samples: nothing of {network} was run on {platform}, so say how many samples to train on"
        )
    candidates, refused = from_simulator.simulated_candidates(
        network,
        facts,
        samples,
        nodes or from_simulator.usual_nodes(facts),
        batches,
        fits=fits,
        trained=trained,
    )
    bare = "" if any(c.time_low_s for c in candidates) else " and have no interval"
    rests = [f"simulated: {len(candidates)} strategies on {platform}, by {_rates(trained)}"]
    return _Found(
        platform,
        "simulated",
        samples,
        "samples",
        "as asked",
        candidates,
        refused,
        rests,
        [f"nothing was run on this platform: times are simulated{bare}"],
        [],
        None,
    )


def _rates(trained: SimulatedTraining) -> str:
    if trained.calibrate is not None:
        return f"the rates of its description, corrected by {trained.calibrate}"
    return "the rates of its description"


def _told(
    network: str,
    limit: Limit,
    found: _Found,
    candidates: list[Candidate],
    choice: Choice,
    powers: PowerLimit,
    why_counts: str,
) -> dict[str, Any]:
    best = None if choice.best is None else candidates[choice.best]
    batches = {candidate.batch_size for candidate in candidates}
    warnings = [*found.warnings, *powers.notes]
    if len(batches) > 1:
        warnings.append(_BATCHES)
    rows = [
        candidate.as_json()
        | {
            "within_limit": within,
            "on_front": candidate.energy_j is not None
            and not any(dominates(other, candidate) for other in candidates),
        }
        for candidate, within in zip(candidates, choice.within, strict=True)
    ]
    chosen = None if choice.best is None else rows[choice.best]
    return {
        "network": network,
        "platform": found.platform,
        "nodes_are": found.nodes_are,
        "limit": choice.as_json(limit),
        "work": {"samples": found.samples, "unit": found.unit, "why": found.why_samples},
        "weighed": {
            "counts": sorted({candidate.nodes for candidate in candidates}),
            "why": why_counts,
        },
        "by_energy": None if choice.by_energy is None else candidates[choice.by_energy].setting,
        "best": chosen,
        "why_none": choice.why_none,
        "candidates": [rows[place] for place in choice.order],
        "refused": found.refused,
        "rests_on": "; ".join([_choice_rests_on(best), *found.rests_on]),
        "warnings": warnings,
        "measure_next": measure_next(
            candidates,
            best,
            most_nodes=found.most_nodes,
            knows_batches=powers.knows_batches,
            least=choice.least,
        ),
        "left_out": found.left_out,
    }


def _choice_rests_on(best: Candidate | None) -> str:
    if best is None:
        return "there is no choice"
    if best.rests_on == "measured":
        runs = f"the mean of {best.runs} runs" if best.runs > 1 else "one run"
        return f"the choice is {runs} of exactly this setting"
    if best.rests_on == "fitted":
        where = f", outside of what was run ({'; '.join(best.extrapolation)})"
        return f"the choice is a forecast of MC2{where if best.extrapolation else ''}"
    return "the choice is simulated"
