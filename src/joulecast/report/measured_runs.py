"""Facts about measured runs: hosts, nodes, meters, dates, versions, and which runs were left out."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from joulecast.energy.measured_settings import metered_parts
from joulecast.energy.prices import Prices
from joulecast.quantities import NONE, counted, digits, listed
from joulecast.report.page_table import Table
from joulecast.report.results_folder import CHECKS, Results
from joulecast.runs.meter_choice import host_of, kind_of
from joulecast.runs.observations import is_training
from joulecast.runs.provenance import gpus_in_words
from joulecast.runs.record import RunInfo

NODES_ARE = {
    "hosts": "each is a machine",
    "ranks of one host": "processes that share one machine, so they share its cores and memory",
    "emulated": "emulated on one machine: each node is slower than the machine",
}
"""What the nodes of runs are, by ``nodes_are``."""
_ENERGY_IS = {
    "measured": "Energy was measured by meters of the nodes",
    "recorded": "Energy was measured elsewhere and kept as data",
    "imported": "Energy was measured by others and imported",
    "simulated": "Energy was simulated, not measured",
    "estimated": "Energy was estimated from utilisation and the watts in the platform's file; no meter "
    "measured it",
}
"""What the source of an energy means."""


def energy_is(source: str, runs: pd.DataFrame) -> str:
    """What the source of the energies of some runs means, and which part of the nodes had meters."""
    parts = metered_parts(runs[runs["energy_source"] == source])
    return _ENERGY_IS[source] + (f"; only the {parts} had meters" if parts else "")


_KINDS = {
    "training": "trainings",
    "imported": "trainings of others, imported",
    "idle": "idling",
    "allreduce": "exchanging gradients alone",
    "sleeping_rank": "waiting for a sleeping node",
}
_MOST_ROWS, _MOST_WARNINGS = 200, 12


def facts_of(infos: Sequence[RunInfo], results: Results) -> dict[str, Any]:
    """Facts about the runs, in words.

    Returns:
        ``campaigns``; ``replayed``, the recorded campaigns among them, and the ``notes`` in these;
        ``nodes_are``; ``sources``, sentences about the sources of energies; ``measured`` and ``provenance``,
        two lists of pairs of a term and a text about it.
    """
    notes = {
        (str(info.source["recorded_campaign"]), str(info.source["recorded_note"]))
        for info in infos
        if {"recorded_campaign", "recorded_note"} <= info.source.keys()
    }
    replayed = {info.source.get("recorded_campaign") for info in infos} - {None}
    return {
        "campaigns": sorted({info.spec.campaign for info in infos}),
        "replayed": sorted(map(str, replayed)),
        "notes": [f"{campaign}: {note}" for campaign, note in sorted(notes)],
        "nodes_are": sorted({info.nodes_are for info in infos}),
        "sources": source_sentences(results),
        "measured": _what_was_measured(infos),
        "provenance": _provenance(infos, results.prices),
    }


def _what_was_measured(infos: Sequence[RunInfo]) -> list[tuple[str, str]]:
    """Hosts, nodes, meters, dates and versions of the runs, one sentence for each."""
    kinds = Counter(info.spec.kind for info in infos)
    counts = [f"{count} {_KINDS.get(kind, kind)}" for kind, count in kinds.most_common()]
    rows = [
        ("Runs", f"{counted(len(infos), 'record')}: {listed(counts)}"),
        ("Campaign", listed(sorted({info.spec.campaign for info in infos}))),
        ("Platform", listed(sorted({info.spec.platform.name for info in infos}))),
        ("Hosts", _hosts(infos)),
        ("Nodes", _nodes(infos)),
        ("Scales count", _counted(infos)),
        ("Energy comes from", _meters(infos)),
        ("Meters without a figure", _absent(infos)),
        ("Dates", _dates(infos)),
    ]
    return [(term, values) for term, values in rows if values]


def _provenance(infos: Sequence[RunInfo], prices: Prices) -> list[tuple[str, str]]:
    """Commit, versions and libraries that the runs were made with, and the prices of what they cost."""
    rows = [("Commit", _commits(infos)), ("Locked versions", _distinct(infos, "lock_sha256"))]
    names: dict[str, set[str]] = {}
    for info in infos:
        for name, version in info.versions.items():
            if version:
                names.setdefault(name, set()).add(version)
    values = [f"{name} {' or '.join(sorted(found))}" for name, found in names.items()]
    libraries = sorted({info.mpi_library.strip() for info in infos if info.mpi_library})
    rows.append(("Versions", ", ".join(values)))
    rows.append(("MPI", listed([" ".join(library.split()) for library in libraries])))
    rows.append(("Prices", prices.in_words()))
    return [(term, values) for term, values in rows if values] or [("Source", "not recorded")]


def _hosts(infos: Sequence[RunInfo]) -> str:
    hosts: dict[str, str] = {}
    for info in infos:
        for host in info.hosts:
            memory = host.get("memory_bytes")
            size = f", {digits(memory / 2**30)} GiB" if isinstance(memory, (int, float)) else ""
            name = str(host.get("host", "unnamed")).split(":")[0]
            cores = host.get("cores", NONE)
            system = host.get("system", "system not recorded")
            size += gpus_in_words(host)
            hosts[
                f"{name}: {host.get('cpu', 'processor not recorded')}, {cores} cores{size}, {system}"
            ] = name
    return listed(sorted(hosts), 4) or "not in the records"


def _nodes(infos: Sequence[RunInfo]) -> str:
    counts: dict[str, set[int]] = {}
    for info in infos:
        counts.setdefault(info.nodes_are, set()).add(info.spec.nodes)
    values = []
    for kind, nodes in sorted(counts.items()):
        emulation = {i.spec.emulation.nodes_per_core for i in infos if i.spec.emulation}
        factor = (
            f" (by a factor of {listed(sorted(emulation))})"
            if kind == "emulated" and emulation
            else ""
        )
        unit = "node" if nodes == {1} else "nodes"
        values.append(
            f"runs on {listed(sorted(nodes))} {unit}: {NODES_ARE.get(kind, kind)}{factor}"
        )
    return "; ".join(values)


def _counted(infos: Sequence[RunInfo]) -> str:
    """What scales count, if it is not nodes. This happens for observed trainings."""
    kinds = {
        "GPUs" if info.outcome.device == "cuda" else "ranks"
        for info in infos
        if info.spec.observed is not None
    }
    return (
        f"{listed(sorted(kinds))}, as the trainings were observed; a node has several"
        if kinds
        else ""
    )


def _meters(infos: Sequence[RunInfo]) -> str:
    used: Counter[tuple[str, str]] = Counter()
    for info in infos:
        used.update({(kind_of(m.meter), str(m.source)) for m in info.metering.meters})
    values = [
        f"{kind} ({'' if kind == source else f'{source}, '}{counted(n, 'run')})"
        for (kind, source), n in used.most_common()
    ]
    return listed(values) or "nothing: no run has an energy"


def _absent(infos: Sequence[RunInfo]) -> str:
    reasons: dict[str, set[str]] = {}
    for info in infos:
        for meter in info.meters:
            if not meter.available:
                where = reasons.setdefault(_named(kind_of(meter.meter), str(meter.reason)), set())
                where.add(host_of(meter.node))
    return "; ".join(
        f"{why} (on {listed(sorted(where), 3)})" for why, where in sorted(reasons.items())
    )


def _named(kind: str, reason: str) -> str:
    """A reason with the name of its meter. The name appears once."""
    name, _, rest = reason.partition(": ")
    if name.lower() != kind.lower():
        return f"{kind}: {reason}"
    return rest if rest.lower().startswith(name.lower()) else reason


def _dates(infos: Sequence[RunInfo]) -> str:
    days = sorted(info.started_utc for info in infos)
    first, last = days[0][:16].replace("T", " "), days[-1][:16].replace("T", " ")
    return f"{first} UTC" if first == last else f"{first} to {last} UTC"


def _commits(infos: Sequence[RunInfo]) -> str:
    commits = []
    for info in infos:
        commit = info.source.get("git_commit")
        if commit:
            changed = (
                " with changes that were not committed" if info.source.get("git_dirty") else ""
            )
            commits.append(f"{commit}{changed}")
    return listed(list(dict.fromkeys(commits)), 4)


def _distinct(infos: Sequence[RunInfo], key: str) -> str:
    found = sorted({str(info.source[key]) for info in infos if info.source.get(key)})
    return f"requirements.lock, sha256 {listed(found, 3)}" if found else ""


def source_sentences(results: Results) -> list[str]:
    """Sentences that say how many runs have measured energies, and how many have estimated ones."""
    trained = results.observations[is_training(results.observations)]
    counts = trained["energy_source"].value_counts()
    sentences = [
        f"{energy_is(str(s), trained)} ({counted(int(n), 'run')})." for s, n in counts.items()
    ]
    by_others = int((trained["kind"] == "imported").sum())
    for number, whose in ((by_others, " by others and imported"), (len(trained) - by_others, "")):
        if number:
            sentences.insert(0, f"Times were measured{whose} ({counted(number, 'run')}).")
    dark = int(trained["energy_source"].isna().sum())
    if dark:
        why = listed(sorted(set(map(str, trained["why_no_energy"].dropna()))), 3)
        sentences.append(
            f"{counted(dark, 'run')} without any energy" + (f": {why}." if why else ".")
        )
    return sentences or ["There is no training run."]


def left_out_sentence(results: Results) -> str:
    """A sentence that says how many training runs were left out of all figures; empty if none was."""
    runs = results.observations
    trained = runs[is_training(runs)]
    without = int((trained["left_out"] != "").sum())
    if not without:
        return ""
    return f"{without} of {counted(len(trained), 'training run')} are left out of all numbers."


def left_out_table(results: Results) -> Table | None:
    """A table of the measured runs that no fit and no figure uses, with the reasons; ``None`` if there are
    none."""
    marked = results.observations[results.observations["left_out"] != ""]
    if marked.empty:
        return None
    rows = [(str(row.run), str(row.kind), str(row.left_out)) for row in marked.itertuples()]
    caption = "Measured, but left out of fits and figures"
    if len(rows) > _MOST_ROWS:
        caption = f"{caption}: the first {_MOST_ROWS} of {len(rows):,}"
    return Table(caption, ("run", "kind", "why"), rows[:_MOST_ROWS], file=CHECKS)


def check_warnings(results: Results) -> list[str]:
    """Warnings from the checks of runs, except those about disturbances, which the page explains in more
    detail."""
    checks = results.tables[CHECKS]
    warned = checks[(checks["verdict"] == "warning") & (checks["check"] != "disturbed")]
    lines = [
        f"{check}: {found} ({listed(sorted(set(map(str, of_check['run'].dropna()))), 4)})"
        for (check, found), of_check in warned.groupby(["check", "found"], sort=False)
    ]
    more = len(lines) - _MOST_WARNINGS
    return [
        *lines[:_MOST_WARNINGS],
        *([f"{more} more warnings in the table `checks`"] if more > 0 else []),
    ]
