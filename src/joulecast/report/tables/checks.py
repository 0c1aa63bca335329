"""Checks of results: facts that must be true, and warnings for the reader."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from joulecast.energy.campaign_fit import CampaignFit
from joulecast.quantities import counted
from joulecast.report.tables.output import write_table
from joulecast.runs.judging import OURS
from joulecast.runs.metered_power import counted_power
from joulecast.runs.observations import TIMED
from joulecast.runs.record import RunRecord, read_record

_MOST_OVERRUNS = 0.1


def _of_record(record: RunRecord) -> Iterator[tuple[str, str, str]]:
    """``(verdict, check, what was found)`` for one record."""
    info = record.info
    for meter in info.meters:
        if meter.available and meter.failed_reads:
            yield "warning", "failed reads", f"{meter.node} {meter.meter}: {meter.failed_reads}"
        # The configuration asks for this meter by its command. So an estimate must not replace it unseen.
        if meter.meter == "command" and not meter.available and meter.source is None:
            yield "warning", "missing meter", f"{meter.node}: {meter.reason}"
    metering, _ = counted_power(record)
    for gap in metering.gaps:
        found = (
            f"{gap.node}: {gap.kind} is left out: {gap.reason}; {gap.metered} of {gap.hosts} hosts "
            "are metered"
        )
        yield "warning", "missing meter", found
    overran = info.checks.overrun_fraction
    if overran is not None and overran > _MOST_OVERRUNS:
        share = f"{100 * overran:.0f} % of the stages"
        found = f"{share} took longer than planned for the emulated node"
        yield "warning", "emulation", found
    for reason in info.disturbed:
        yield "warning", "disturbed", reason
    for reason in info.left_out:
        yield "warning", "left out", reason
    # An observed training may log no loss.
    is_ours = info.spec.kind == "training" and info.spec.observed is None
    if is_ours and info.outcome.final_loss is None:
        yield "warning", "loss", "is not finite at the end"


def _of_fit(fit: CampaignFit) -> Iterator[tuple[str, str, str]]:
    for row in fit.observations.itertuples():
        if row.kind != "training":
            continue
        steps_s = sum(float(getattr(row, f"t_{stage}_s")) for stage in TIMED) * float(row.steps)
        if steps_s > float(row.total_s) * 1.001:
            yield "error", "stages", f"{row.run}: {steps_s:.3f} s of {row.total_s:.3f} s"
        split_j = sum(float(getattr(row, f"e_{stage}_j")) for stage in (*TIMED, "other"))
        if row.energy_source is not None and abs(split_j - row.energy_j) > 1e-6 * row.energy_j:
            yield "error", "energy split", f"{row.run}: {split_j} J of {row.energy_j} J"
    times = fit.judged("time")
    missing = times[(times["model"] == OURS) & times["predicted"].isna()]
    if len(missing):
        yield "error", "prediction", f"MC2 has none for {counted(len(missing), 'run')}"


def check_results(folders: Sequence[Path], fit: CampaignFit) -> pd.DataFrame:
    """All findings: ``verdict`` (error, warning, passed), ``run``, ``check``, ``found``."""
    rows = []
    covers: Counter[str] = Counter()
    for folder in folders:
        record = read_record(folder)
        part = counted_power(record)[0].covers
        if record.info.spec.kind != "imported" and part is not None:
            covers[part] += 1
        rows += [(v, record.info.spec.run, c, f) for v, c, f in _of_record(record)]
    if len(covers) > 1:
        # Energies of different parts cannot be compared.
        each = ", ".join(f"{part} ({counted(n, 'run')})" for part, n in sorted(covers.items()))
        found = (
            f"energies are of different parts: {each}; the rarer ones are left out; ask for the meters that "
            "all runs have"
        )
        rows.append(("warning", "", "energy covers", found))
    rows += [(verdict, "", check, found) for verdict, check, found in _of_fit(fit)]
    if not any(verdict == "error" for verdict, *_ in rows):
        rows.append(("passed", "", "all", f"{len(folders)} records and the fits to them"))
    return pd.DataFrame(rows, columns=["verdict", "run", "check", "found"])


def write_checks(folder: Path, findings: pd.DataFrame) -> None:
    """Write the findings of :func:`check_results` as the table ``checks``."""
    write_table(
        folder / "checks",
        "What checks found in the records",
        ["Checks of the records and of the fits to them, and warnings for a reader."],
        findings,
    )
