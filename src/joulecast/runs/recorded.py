"""Recorded campaigns: the records of many runs in a few compact files, kept with their provenance.

A campaign was measured once, on a machine that not everybody has. It is kept as data: a folder with
``campaign.json`` (where it comes from, and the SHA-256 of everything else), ``runs.jsonl`` (the ``run.json``
of every run, one a line), and the four frames of all runs. Each frame is one Parquet file with a leading
column ``run``. A run has its own row groups. So one run can be read without the others. Unpacking gives
ordinary run records. Figures that were ``measured`` are then called ``recorded``.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.runs.files.columns import MAX_TABLE_BYTES
from joulecast.runs.files.reading import json_of, read_json_object, read_text, validated
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.files.writing import directory_added_to, directory_written_aside, sha256_of
from joulecast.runs.folders import record_folders
from joulecast.runs.frames import FRAMES
from joulecast.runs.metering import EnergySource
from joulecast.runs.provenance import source_state
from joulecast.runs.record import FORMAT as RECORD_FORMAT
from joulecast.runs.record import RunInfo, RunRecord, read_info, read_record, write_record
from joulecast.runs.recorded_frames import FrameFile, frame_writer, rows_of

FORMAT = 1
MAX_BYTES = 20_000_000
"""What a campaign may weigh unless more is asked for: it is kept in a repository."""

RUN_NAME = re.compile(r"[a-z0-9_-]+")
"""What a run may be called: its name becomes a folder and a wildcard of the workflow."""

CAMPAIGN_FILE = "campaign.json"
RUNS_FILE = "runs.jsonl"
FILES = (CAMPAIGN_FILE, RUNS_FILE, *(f"{frame}.parquet" for frame in FRAMES))
"""All files of a recorded campaign; the first names the content of the others."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class KeptFile(_Part):
    """One file of the campaign."""

    sha256: str
    bytes: NonNegativeInt


class MeterSummary(_Part):
    """A meter of the campaign: its ``source`` at the time of the measurement, and the number of runs in which
    it was used."""

    meter: str
    source: EnergySource | None
    reason: str | None
    runs: int


class CampaignInfo(_Part):
    """``campaign.json``.

    ``first_run_utc`` and ``last_run_utc`` say when the runs began. ``recorded_utc`` says when they were
    packed. ``source`` names the checkout that packed them. ``left_out`` has the runs that fits leave out,
    with the reasons. They are in the campaign, too.
    """

    format: int = FORMAT
    name: str
    note: str
    recorded_utc: str
    first_run_utc: str
    last_run_utc: str
    joulecast: str
    source: dict[str, Any]
    hosts: list[dict[str, Any]]
    configurations: list[dict[str, Any]]
    runs: int
    left_out: dict[str, list[str]]
    meters: list[MeterSummary]
    files: dict[str, KeptFile]


@dataclass(frozen=True)
class RecordedCampaign:
    """A recorded campaign. Its files were checked against ``campaign.json``.

    ``sha256`` is the hash of ``campaign.json``. This file has the hashes of all others, so ``sha256``
    identifies the whole campaign.
    """

    folder: Path
    info: CampaignInfo
    sha256: str
    runs: dict[str, RunInfo]

    @cached_property
    def frames(self) -> dict[str, FrameFile]:
        """The Parquet files. Their footers list all row groups. So a footer is read only once, and not for
        every run."""
        files = self.info.files
        return {
            frame: FrameFile(self.folder, frame, files[f"{frame}.parquet"].sha256)
            for frame in FRAMES
        }


def _in_order(folders: Iterable[Path]) -> list[tuple[RunInfo, Path]]:
    """The infos of the records, ordered by name. No two runs of a campaign have the same name."""
    by_run: dict[str, tuple[RunInfo, Path]] = {}
    for folder in map(Path, folders):
        info = read_info(folder)
        run = info.spec.run
        if not RUN_NAME.fullmatch(run):
            raise JoulecastError(
                f"{folder}: the run is called `{run}`; a recorded run's name has the letters a-z, "
                "digits, `_` and `-` only"
            )
        if run in by_run:
            raise JoulecastError(
                f"{folder} and {by_run[run][1]} both hold a run `{run}`; rename one of them"
            )
        by_run[run] = (info, folder)
    if not by_run:
        raise JoulecastError("no run record to keep")
    return [by_run[run] for run in sorted(by_run)]


def _meters(infos: Sequence[RunInfo]) -> list[MeterSummary]:
    runs: dict[tuple[str, EnergySource | None, str | None], set[str]] = {}
    for info in infos:
        for meter in info.meters:
            key = (meter.meter, meter.source, meter.reason)
            runs.setdefault(key, set()).add(info.spec.run)
    return [
        MeterSummary(
            meter=meter, source=source, reason=reason, runs=len(runs[meter, source, reason])
        )
        for meter, source, reason in sorted(runs, key=lambda key: [part or "" for part in key])
    ]


def pack(
    record_folders: Iterable[Path],
    target: Path,
    *,
    name: str,
    configurations: Sequence[dict[str, Any]],
    note: str = "",
    max_bytes: int = MAX_BYTES,
) -> CampaignInfo:
    """Keep run records as the recorded campaign ``target``, whole or not at all.

    One record is in memory at a time.

    Args:
        configurations: the configurations of the runs, as plain data.
        note: what a reader should know before using the figures.

    Raises:
        JoulecastError: there is no record, two records have the same name, a record cannot be read or has
            additional columns, or the campaign is larger than ``max_bytes``.
    """
    runs = _in_order(record_folders)
    infos = [info for info, _ in runs]
    with directory_written_aside(target) as partial:
        writers = {frame: frame_writer(partial, frame) for frame in FRAMES}
        try:
            for _, folder in runs:
                record = read_record(folder)
                for frame, writer in writers.items():
                    # A run has row groups of its own, so that it can be read alone.
                    writer.write_table(rows_of(record, frame))
        finally:
            for writer in writers.values():
                writer.close()
        lines = "".join(info.model_dump_json() + "\n" for info in infos)
        (partial / RUNS_FILE).write_text(lines)
        files = {
            path.name: KeptFile(sha256=sha256_of(path), bytes=path.stat().st_size)
            for path in sorted(partial.iterdir())
        }
        total = sum(file.bytes for file in files.values())
        if total > max_bytes:
            raise JoulecastError(
                f"{target}: the campaign takes {total / 1e6:.1f} MB, {max_bytes / 1e6:.1f} are "
                "allowed; keep fewer runs, or sample more slowly"
            )
        begun = sorted(info.started_utc for info in infos)
        hosts = {json.dumps(host, sort_keys=True): host for info in infos for host in info.hosts}
        campaign = CampaignInfo(
            name=name,
            note=note,
            recorded_utc=datetime.now(UTC).isoformat(timespec="seconds"),
            first_run_utc=begun[0],
            last_run_utc=begun[-1],
            joulecast=metadata.version("joulecast"),
            source=source_state(),
            hosts=[hosts[key] for key in sorted(hosts)],
            configurations=list(configurations),
            runs=len(infos),
            left_out={
                info.spec.run: [*info.disturbed, *info.left_out]
                for info in infos
                if info.disturbed or info.left_out
            },
            meters=_meters(infos),
            files=files,
        )
        (partial / CAMPAIGN_FILE).write_text(campaign.model_dump_json(indent=1) + "\n")
    return campaign


def _read_campaign_file(folder: Path) -> CampaignInfo:
    path = folder / CAMPAIGN_FILE
    if not path.exists():
        raise JoulecastError(
            f"{path}: missing; {folder} is no recorded campaign (the target `record` makes one)"
        )
    content = read_json_object(path, "recorded campaign")
    if content.get("format") != FORMAT:
        raise JoulecastError(
            f"{path}: campaign format {content.get('format')}, this joulecast reads {FORMAT}; replay it "
            "with the version that recorded it, or record it again"
        )
    return validated(TypeAdapter(CampaignInfo), content, str(path))


def _verify(folder: Path, info: CampaignInfo, names: Iterable[str]) -> None:
    for name in names:
        path, kept = folder / name, info.files.get(name)
        if kept is None:
            raise JoulecastError(f"{folder / CAMPAIGN_FILE}: does not name {name}; restore it")
        if not path.is_file():
            raise JoulecastError(f"{path}: missing; restore it, or fetch the campaign again")
        found = sha256_of(path)
        if found != kept.sha256:
            raise JoulecastError(
                f"{path}: is not what was recorded (sha256 {found}, {CAMPAIGN_FILE} says "
                f"{kept.sha256}); restore it, or fetch the campaign again"
            )


def _read_runs(folder: Path, info: CampaignInfo) -> dict[str, RunInfo]:
    path = folder / RUNS_FILE
    runs = {}
    text = read_text(path, "list of runs", MAX_TABLE_BYTES)
    for number, line in enumerate(text.splitlines(), 1):
        origin = f"{path}:{number}"
        content = json_of(line, origin)
        if not isinstance(content, dict) or content.get("format") != RECORD_FORMAT:
            found = content.get("format") if isinstance(content, dict) else None
            raise JoulecastError(
                f"{origin}: record format {found}, this joulecast reads {RECORD_FORMAT}; replay the "
                "campaign with the version that recorded it"
            )
        run = validated(TypeAdapter(RunInfo), content, origin)
        name = run.spec.run
        # Someone else's data: its names become folders here.
        if not RUN_NAME.fullmatch(name) or name in runs:
            raise JoulecastError(f"{path}:{number}: `{name}` is no name of a run, or comes twice")
        runs[name] = _as_recorded(run)
    if len(runs) != info.runs:
        raise JoulecastError(f"{path}: has {len(runs)} runs, {CAMPAIGN_FILE} says {info.runs}")
    return runs


def _as_recorded(info: RunInfo) -> RunInfo:
    """Change the label of what was measured there to recorded. Estimates and imports keep their labels.

    The hash of the specification is made again, because a key that only later versions know has its
    default in it. Whether the file is the recorded one was checked before.
    """
    meters = [
        meter.model_copy(update={"source": "recorded"}) if meter.source == "measured" else meter
        for meter in info.meters
    ]
    return info.model_copy(update={"meters": meters, "spec_sha256": info.spec.digest()})


def recorded_infos(folder: Path) -> list[RunInfo]:
    """The runs of a recorded campaign by name, without reading its frames.

    Raises:
        JoulecastError: the folder is no campaign, has another format, or ``runs.jsonl`` was changed.
    """
    info = _read_campaign_file(folder)
    _verify(folder, info, [RUNS_FILE])
    return list(_read_runs(folder, info).values())


def read_campaign(folder: Path) -> RecordedCampaign:
    """Read a recorded campaign, and check every file of it against ``campaign.json``.

    Raises:
        JoulecastError: the folder is no campaign, has another format, or a file is missing or was changed.
            The error names the file.
    """
    info = _read_campaign_file(folder)
    _verify(folder, info, FILES[1:])
    sha256 = sha256_of(folder / CAMPAIGN_FILE)
    return RecordedCampaign(folder, info, sha256, _read_runs(folder, info))


def plain_note(note: str) -> str:
    """The note of a recorded campaign as one line of at most 1,000 characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in note).split())[:1000]


def recorded_run(campaign: RecordedCampaign, run: str) -> RunRecord:
    """The facts of one run of a campaign. It gets the campaign's name. Its ``measured`` meters are called
    ``recorded``."""
    info = campaign.runs[run]
    origin = {"recorded_campaign": campaign.info.name, "recorded_sha256": campaign.sha256}
    if campaign.info.note:
        origin["recorded_note"] = plain_note(campaign.info.note)
    frames = {frame: campaign.frames[frame].read_run(run) for frame in FRAMES}
    renamed = {
        "spec": info.spec.model_copy(update={"campaign": campaign.info.name}),
        "source": {**info.source, **origin},
    }
    return RunRecord(info.model_copy(update=renamed), **frames)


def unpack_all(folder: Path, out: Path) -> list[Path]:
    """Write every run of the recorded campaign in ``folder`` to ``out/RUN``. Returns the new folders.

    A new folder ``out`` appears with all runs, or not at all.
    """
    campaign = read_campaign(folder)
    with directory_added_to(out) as partial:
        for run in campaign.runs:
            record = recorded_run(campaign, run)
            try:
                write_record(partial / run, record)
            except JoulecastError as error:
                raise JoulecastError(f"{folder}: {error}") from None
    return [out / run for run in campaign.runs]


@contextmanager
def run_records(above: Iterable[Path]) -> Iterator[list[Path]]:
    """All run records in some folders and their subfolders. The runs of a recorded campaign are unpacked
    temporarily.

    Raises:
        JoulecastError: a folder has no records, or a campaign cannot be read.
    """
    folders: list[Path] = []
    with ExitStack() as stack:
        for path in above:
            campaign = recorded_folder(path)
            if (campaign / CAMPAIGN_FILE).is_file():
                scratch = stack.enter_context(TemporaryDirectory(prefix="joulecast-replay-"))
                folders += unpack_all(campaign, Path(scratch))
            else:
                folders += record_folders(path)
        yield folders
