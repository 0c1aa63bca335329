"""Facts about measured runs: hosts, nodes, meters, dates, versions, and which runs were left out."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from joulecast.energy.measured_settings import metered_parts
from joulecast.quantities import NONE, counted, digits, listed
from joulecast.report.page_table import Table
from joulecast.report.results_folder import CHECKS, Results
from joulecast.runs.meter_choice import host_of, kind_of
from joulecast.runs.observations import is_training
from joulecast.runs.provenance import gpus_in_words
from joulecast.runs.record import RunInfo

NODES_ARE = {
    "hosts": "each node is a machine",
    "ranks of one host": "the nodes are processes on one machine, and share its cores and memory",
    "emulated": "emulated on one machine: each node is slower than a core",
}
"""What counts as a node of a run, by ``nodes_are``."""
_ENERGY_IS = {
    "measured": "Energy was measured by meters of the nodes",
    "recorded": "Energy was measured elsewhere and kept as data",
    "imported": "Energy was measured by others and imported",
    "simulated": "Energy was simulated, not measured",
    "estimated": "Energy was estimated from utilisation and the watts in the platform's file; no meter "
    "measured it",
}
_KINDS = {
    "training": "trainings",
    "imported": "trainings of others, imported",
    "idle": "idling",
    "allreduce": "exchanging gradients alone",
    "sleeping_rank": "waiting for a sleeping node",
}
_MOST_ROWS, _MOST_WARNINGS = 200, 12


def source_in_words(source: str, runs: pd.DataFrame) -> str:
    """What the source of the energies of some runs means, and which part of the nodes had meters."""
    parts = metered_parts(runs[runs["energy_source"] == source])
    return _ENERGY_IS[source] + (f"; only the {parts} had meters" if parts else "")


def facts_of(infos: Sequence[RunInfo], results: Results) -> dict[str, Any]:
    """Facts about the runs, in words.

    Returns:
        ``campaigns``; ``replayed``, the recorded campaigns among them, and the ``notes`` in these;
        ``nodes_are``; ``sources``, sentences about the sources of energies; ``measured`` and ``provenance``,
        two lists of pairs of a term and a text about it.
    """
    kinds = Counter(info.spec.kind for info in infos)
    counts = [f"{count} {_KINDS[kind]}" for kind, count in kinds.most_common()]
    counted_in = {
        "GPUs" if info.outcome.device == "cuda" else "ranks" for info in infos if info.spec.observed
    }
    scales = f"{listed(sorted(counted_in))}, as the trainings were observed; a node has several"
    measured = {
        "Runs": f"{counted(len(infos), 'record')}: {listed(counts)}",
        "Platform": listed(_distinct(info.spec.platform.name for info in infos)),
        "Hosts": listed(_distinct(_host(host) for info in infos for host in info.hosts), 4),
        "Nodes": _nodes(infos),
        "Scales count": scales if counted_in else "",
        "Energy comes from": _meters(infos),
        "Meters without a figure": _absent(infos),
        "Dates": _dates(infos),
    }
    sources = [info.source for info in infos]
    versions: dict[str, set[str]] = {}
    for info in infos:
        for name, version in info.versions.items():
            if version:
                versions.setdefault(name, set()).add(version)
    provenance = {
        "Commit": listed(_distinct(map(_commit, sources)), 4),
        "Locked versions": listed(_distinct(source.get("lock_sha256") for source in sources), 3),
        "Versions": ", ".join(f"{n} {' or '.join(sorted(found))}" for n, found in versions.items()),
        "MPI": listed(_distinct(" ".join((i.mpi_library or "").split()) for i in infos)),
        "Prices": results.prices.in_words(),
    }
    return {
        "campaigns": _distinct(info.spec.campaign for info in infos),
        "replayed": _distinct(source.get("recorded_campaign") for source in sources),
        "notes": _distinct(
            source.get("recorded_note")
            and f"{source['recorded_campaign']}: {source['recorded_note']}"
            for source in sources
        ),
        "nodes_are": _distinct(info.nodes_are for info in infos),
        "sources": source_sentences(results),
        "measured": [(term, text) for term, text in measured.items() if text],
        "provenance": [(term, text) for term, text in provenance.items() if text],
    }


def _distinct(found: Iterable[Any]) -> list[str]:
    return sorted({str(each) for each in found if each})


def _commit(source: dict[str, Any]) -> str:
    dirty = " with changes that were not committed" if source.get("git_dirty") else ""
    return f"{source['git_commit']}{dirty}" if source.get("git_commit") else ""


def _host(host: dict[str, Any]) -> str:
    memory = host.get("memory_bytes")
    size = f", {digits(memory / 2**30)} GiB" if isinstance(memory, (int, float)) else ""
    name = str(host.get("host", "unnamed")).split(":")[0]
    cores, system = host.get("cores", NONE), host.get("system", "system not recorded")
    cpu = host.get("cpu", "processor not recorded")
    return f"{name}: {cpu}, {cores} cores{size}{gpus_in_words(host)}, {system}"


def _nodes(infos: Sequence[RunInfo]) -> str:
    counts: dict[str, set[int]] = {}
    for info in infos:
        counts.setdefault(info.nodes_are, set()).add(info.spec.nodes)
    emulation = sorted({i.spec.emulation.nodes_per_core for i in infos if i.spec.emulation})
    texts = []
    for kind, nodes in sorted(counts.items()):
        is_slower = kind == "emulated" and emulation
        factor = f" (by a factor of {listed(emulation)})" if is_slower else ""
        unit = "node" if nodes == {1} else "nodes"
        are = NODES_ARE.get(kind, kind)
        texts.append(f"runs on {listed(sorted(nodes))} {unit}: {are}{factor}")
    return "; ".join(texts)


def _meters(infos: Sequence[RunInfo]) -> str:
    used: Counter[tuple[str, str]] = Counter()
    for info in infos:
        used.update({(kind_of(m.meter), str(m.source)) for m in info.metering.meters})
    texts = [
        f"{kind} ({'' if kind == source else f'{source}, '}{counted(n, 'record')})"
        for (kind, source), n in used.most_common()
    ]
    return listed(texts) or "nothing: no run has an energy"


def _absent(infos: Sequence[RunInfo]) -> str:
    where: dict[str, set[str]] = {}
    for info in infos:
        for meter in info.meters:
            if not meter.available:
                kind, reason = kind_of(meter.meter), str(meter.reason)
                if not reason.lower().startswith(f"{kind}: "):
                    reason = f"{kind}: {reason}"
                where.setdefault(reason, set()).add(host_of(meter.node))
    return "; ".join(f"{why} (on {listed(sorted(on), 3)})" for why, on in sorted(where.items()))


def _dates(infos: Sequence[RunInfo]) -> str:
    days = sorted(info.started_utc[:16].replace("T", " ") for info in infos)
    return f"{days[0]} UTC" if days[0] == days[-1] else f"{days[0]} to {days[-1]} UTC"


def source_sentences(results: Results) -> list[str]:
    """Sentences that say how many runs have measured energies, and how many have estimated ones."""
    trained = results.observations[is_training(results.observations)]
    counts = trained["energy_source"].value_counts()
    sentences = [
        f"{source_in_words(str(s), trained)} ({counted(int(n), 'training')})."
        for s, n in counts.items()
    ]
    by_others = int((trained["kind"] == "imported").sum())
    for number, whose in ((by_others, " by others and imported"), (len(trained) - by_others, "")):
        if number:
            sentences.insert(0, f"Times were measured{whose} ({counted(number, 'training')}).")
    dark = int(trained["energy_source"].isna().sum())
    if dark:
        why = listed(sorted(set(map(str, trained["why_no_energy"].dropna()))), 3)
        sentences.append(
            f"{counted(dark, 'training')} without any energy" + (f": {why}." if why else ".")
        )
    return sentences or ["There is no training run."]


def left_out_table(results: Results) -> Table | None:
    """A table of the measured runs that no fit and no figure uses, with the reasons; ``None`` if there are
    none."""
    runs = results.observations
    marked = runs[runs["left_out"] != ""]
    if marked.empty:
        return None
    rows = [(str(row.run), str(row.kind), str(row.left_out)) for row in marked.itertuples()]
    caption = f"Measured, but left out of fits and figures: {len(rows):,} of {counted(len(runs), 'record')}"
    if len(rows) > _MOST_ROWS:
        caption = f"{caption}. These are the first {_MOST_ROWS}"
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
    return lines[:_MOST_WARNINGS] + [f"{more} more warnings in the table `checks`"] * (more > 0)
