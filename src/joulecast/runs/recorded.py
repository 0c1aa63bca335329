"""Recorded campaigns: the records of many runs in one archive, kept with their provenance.

A campaign was measured once, on a machine that not everybody has. It is kept as data: a folder with
``campaign.json`` (where it comes from, and the SHA-256 of the archive) and ``records.zip`` (a folder for each
run, as it was measured). Figures that were ``measured`` are called ``recorded`` when they are unpacked.
"""

import json
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile

from pydantic import TypeAdapter

from joulecast.errors import JoulecastError
from joulecast.runs.files.reading import FrozenContent, read_json_object, validated
from joulecast.runs.files.shipped import recorded_folder
from joulecast.runs.files.writing import directory_added_to, directory_written_aside, sha256_of
from joulecast.runs.folders import record_folders
from joulecast.runs.meter_choice import EnergySource
from joulecast.runs.provenance import source_state
from joulecast.runs.record import RunInfo, read_info, read_record, write_info

FORMAT = 2
MAX_BYTES = 20_000_000
"""The most bytes of a campaign by default. A campaign is kept in a repository."""
_MOST_UNPACKED = 10_000_000_000
"""The most bytes of an unpacked archive, which may come from others."""

RUN_NAME = re.compile(r"[a-z0-9_-]+")
"""Allowed names of a run. The name becomes a folder, and a wildcard of the workflow."""

CAMPAIGN_FILE = "campaign.json"
RECORDS_FILE = "records.zip"


class MeterSummary(FrozenContent):
    """A meter of the campaign: its ``source`` at the time of the measurement, and the number of runs in which
    it was used."""

    meter: str
    source: EnergySource | None
    reason: str | None
    runs: int


class CampaignInfo(FrozenContent):
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
    records_sha256: str


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

    Args:
        note: what a reader should know before using the figures.

    Raises:
        JoulecastError: there is no record, two records have the same name, a record cannot be read, or the
            campaign is larger than ``max_bytes``.
    """
    runs = _in_order(record_folders)
    infos = [info for info, _ in runs]
    with directory_written_aside(target) as partial:
        packed = partial / RECORDS_FILE
        with ZipFile(
            packed, "w", ZIP_DEFLATED, compresslevel=9, strict_timestamps=False
        ) as archive:
            for info, folder in runs:
                read_record(folder)
                for file in sorted(folder.iterdir()):
                    archive.write(file, f"{info.spec.run}/{file.name}")
        size = packed.stat().st_size
        if size > max_bytes:
            raise JoulecastError(
                f"{target}: the campaign takes {size / 1e6:.1f} MB, {max_bytes / 1e6:.1f} are "
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
            records_sha256=sha256_of(packed),
        )
        (partial / CAMPAIGN_FILE).write_text(campaign.model_dump_json(indent=1) + "\n")
    return campaign


def read_campaign(folder: Path) -> CampaignInfo:
    """Read ``campaign.json``, and check the archive against it.

    Raises:
        JoulecastError: the folder is no campaign, has another format, or the archive is missing or was
            changed. The error names the file.
    """
    path, packed = folder / CAMPAIGN_FILE, folder / RECORDS_FILE
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
    info = validated(TypeAdapter(CampaignInfo), content, str(path))
    if not packed.is_file():
        raise JoulecastError(f"{packed}: missing; restore it, or fetch the campaign again")
    found = sha256_of(packed)
    if found != info.records_sha256:
        raise JoulecastError(
            f"{packed}: is not what was recorded (sha256 {found}, {CAMPAIGN_FILE} says "
            f"{info.records_sha256}); restore it, or fetch the campaign again"
        )
    return info


def _unpacked(folder: Path, out: Path, ending: str = "") -> list[tuple[Path, RunInfo]]:
    """Unpack the archive of a campaign: the files whose names end with ``ending``. Returns the folder and the
    facts of each run. The measured meters of a run are now called ``recorded``."""
    campaign, packed = read_campaign(folder), folder / RECORDS_FILE
    try:
        with ZipFile(packed) as archive:
            wanted = [file for file in archive.infolist() if file.filename.endswith(ending)]
            if sum(file.file_size for file in wanted) > _MOST_UNPACKED:
                raise JoulecastError(
                    f"{packed}: would unfold to more than {_MOST_UNPACKED / 1e9:g} GB"
                )
            # A name that leads out of the folder loses its dots here.
            archive.extractall(out, wanted)
    except (BadZipFile, RuntimeError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise JoulecastError(f"{packed}: cannot be unpacked ({error})") from None
    try:
        runs = [(each, read_info(each)) for each in sorted(out.iterdir()) if each.is_dir()]
    except JoulecastError as error:
        # The message advises to repeat the run. A reader of the archive cannot do that.
        said = str(error).partition("; delete ")[0].replace(f"{out}/", "")
        raise JoulecastError(f"{packed}: {said}") from None
    if len(runs) != campaign.runs:
        raise JoulecastError(
            f"{packed}: has {len(runs)} runs, {CAMPAIGN_FILE} says {campaign.runs}"
        )
    for each, info in runs:
        # The data may come from others. Their names become folders and wildcards.
        if info.spec.run != each.name or not RUN_NAME.fullmatch(each.name):
            raise JoulecastError(f"{packed}: `{info.spec.run}` is no name of a run")
    sha256 = sha256_of(folder / CAMPAIGN_FILE)
    return [(each, _as_recorded(info, campaign, sha256)) for each, info in runs]


def _as_recorded(info: RunInfo, campaign: CampaignInfo, sha256: str) -> RunInfo:
    """The facts of a run of a campaign. It gets the campaign's name. Its ``measured`` meters are called
    ``recorded``. Estimates and imports keep their labels.

    The hash of the specification is computed again: keys that were added after the recording now have their
    defaults in the specification. Whether the archive is the recorded one was checked before.
    """
    meters = [
        meter.model_copy(update={"source": "recorded"}) if meter.source == "measured" else meter
        for meter in info.meters
    ]
    origin = {"recorded_campaign": campaign.name, "recorded_sha256": sha256}
    if campaign.note:
        origin["recorded_note"] = plain_note(campaign.note)
    return info.model_copy(
        update={
            "meters": meters,
            "spec": info.spec.model_copy(update={"campaign": campaign.name}),
            "spec_sha256": info.spec.digest(),
            "source": {**info.source, **origin},
        }
    )


def recorded_infos(folder: Path) -> list[RunInfo]:
    """The runs of a recorded campaign by name, without their frames.

    Raises:
        JoulecastError: an error of :func:`read_campaign`.
    """
    with TemporaryDirectory(prefix="joulecast-replay-") as scratch:
        return [info for _, info in _unpacked(folder, Path(scratch), "/run.json")]


def plain_note(note: str) -> str:
    """The note of a recorded campaign as one line of at most 1,000 characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in note).split())[:1000]


def unpack_all(folder: Path, out: Path) -> list[Path]:
    """Write every run of the recorded campaign in ``folder`` to ``out/RUN``. Returns the new folders.

    A new folder ``out`` appears with all runs, or not at all.
    """
    with directory_added_to(out) as partial:
        runs = _unpacked(folder, partial)
        for each, info in runs:
            write_info(each, info)
    return [out / each.name for each, _ in runs]


@contextmanager
def run_records(above: Iterable[Path]) -> Iterator[list[Path]]:
    """All run records in some folders and their subfolders, each once. The runs of a recorded campaign are
    unpacked temporarily.

    Raises:
        JoulecastError: a folder has no records, or a campaign cannot be read.
    """
    folders: list[Path] = []
    with ExitStack() as stack:
        for path in dict.fromkeys(above):
            campaign = recorded_folder(path)
            if (campaign / CAMPAIGN_FILE).is_file():
                scratch = stack.enter_context(TemporaryDirectory(prefix="joulecast-replay-"))
                folders += unpack_all(campaign, Path(scratch))
            else:
                folders += record_folders(path)
        yield list({folder.resolve(): folder for folder in folders}.values())
