"""Imported runs: their records written one by one, compared with each other, and what a person is shown."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.files.writing import written_aside
from joulecast.importers.foreign import ForeignRun, record_of
from joulecast.importers.repeats import Repeat, copied, outliers, there_twice, unlike_platform
from joulecast.power.integration import EnergyCurve
from joulecast.records.record import RunRecord, read_info, write_record


@dataclass
class ImportSummary:
    """What an import did: ``runs`` imported, ``without_power`` of them with their times only; the reasons
    for each
    run that is left out of fits; how many runs each kind of trap was found in; and ``passed_by``, folders of
    tables below the source that were not what was imported; and ``facts``, a line on each run where there is
    more to say."""

    out: Path
    runs: int = 0
    without_power: int = 0
    left_out: dict[str, list[str]] = field(default_factory=dict)
    passed_by: list[Path] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    traps: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> int:
        """Runs that fits may use."""
        return self.runs - len(self.left_out)

    def require_clean(self, source: Path) -> None:
        """Refuse an import that leaves no run for fits.

        Raises:
            JoulecastError: with the list of reasons.
        """
        if self.clean:
            return
        reasons = "".join(f"\n  {run}: {'; '.join(why)}" for run, why in self.left_out.items())
        raise JoulecastError(
            f"{source}: no run is left for fits; all {self.runs} are kept in {self.out} and marked:"
            f"{reasons}"
        )

    @property
    def reasons(self) -> Counter[str]:
        """Number of runs that each kind of reason leaves out; a run may have several."""
        return Counter(_kind(text) for texts in self.left_out.values() for text in texts)

    def text(self) -> str:
        """The summary as lines for a person."""
        lines = [f"{self.runs} runs imported to {self.out}, {self.clean} of them clean"]
        if self.without_power:
            lines.append(f"  {self.without_power} without power: their times are used")
        lines += [f"  {fact}" for fact in self.facts]
        lines += [
            f"  left out: {run}: {'; '.join(texts)}" for run, texts in sorted(self.left_out.items())
        ]
        lines += [f"  reason {kind}: {n}" for kind, n in sorted(self.reasons.items())]
        lines += [f"  found {kind}: {n}" for kind, n in sorted(self.traps.items())]
        lines += [
            f"  not read: {folder}, tables of runs; import that folder itself"
            for folder in self.passed_by
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Note:
    """What is remembered of a run once its record is written."""

    run: str
    polluted: list[str]
    remarks: list[str]
    repeat: Repeat | None
    is_metered: bool
    fact: str | None = None


def require_outside(out: Path, source: Path) -> None:
    """Refuse to write into what is read.

    Raises:
        JoulecastError: ``out`` lies inside ``source``.
    """
    if out.resolve().is_relative_to(source.resolve()):
        raise JoulecastError(
            f"{out}: lies inside {source}, which is only read; name a folder outside it"
        )


def written(runs: Iterable[ForeignRun], out: Path) -> list[Note]:
    """Write the record of each run to ``out/RUN``; what is remembered of them."""
    notes = []
    for run in runs:
        record, repeat = record_of(run)
        write_record(out / run.run, record)
        info = record.info
        fact = fact_of(record) if run.prints_fact else None
        is_metered = bool(run.meters or run.missing_nodes)
        notes.append(Note(run.run, info.polluted, info.remarks, repeat, is_metered, fact))
    return notes


def summarised(notes: list[Note], out: Path) -> ImportSummary:
    """Compare the runs that lie in ``out``, and mark those that read unlike the others."""
    repeats = [note.repeat for note in notes if note.repeat is not None]
    compared = [f(repeats) for f in (outliers, unlike_platform, there_twice, copied)]
    dark = sum(not note.is_metered for note in notes)
    summary = ImportSummary(out, runs=len(notes), without_power=dark)
    for note in sorted(notes, key=lambda note: note.run):
        polluted = list(note.polluted)
        reasons = [found[note.run] for found in compared if note.run in found]
        if reasons:
            polluted += reasons
            _mark(out / note.run, reasons)
        if note.fact is not None:
            summary.facts.append(note.fact)
        if polluted:
            summary.left_out[note.run] = polluted
        summary.traps.update({_kind(text) for text in note.remarks})
    return summary


def _mark(folder: Path, reasons: list[str]) -> None:
    info = read_info(folder)
    info.polluted += reasons
    with written_aside(folder / "run.json") as partial:
        partial.write_text(info.model_dump_json(indent=1) + "\n")


def _kind(text: str) -> str:
    return text.split(":", 1)[0]


def fact_of(record: RunRecord) -> str:
    """How long a run lasted, what it took, and what is known of its meters' clock, in a line."""
    info, outcome = record.info, record.info.outcome
    parts = [f"{outcome.stop_s - outcome.start_s:.6g} s"]
    metering = info.metering
    own = {(m.node, m.meter) for m in metering.meters}
    joules, ends = 0.0, np.array([[outcome.start_s], [outcome.stop_s]])
    for key, readings in record.power.groupby(["node", "meter"], sort=True):
        if key in own and len(readings) > 1:
            joules += float(EnergyCurve.of(readings).between(*ends).sum())
    if own:
        parts.append(f"{joules:.6g} J of {metering.covers} ({metering.source})")
    else:
        parts.append(f"no energy: {metering.why_not}")
    parts += [remark for remark in info.remarks if remark.startswith("clock lag")]
    return f"{info.spec.run}: {', '.join(parts)}"
