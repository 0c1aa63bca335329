"""The lines at the end of a campaign: what to open, what was left out, and what to repeat."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from joulecast.campaign.progress import disturbed_pipelines, progress_of
from joulecast.errors import JoulecastError
from joulecast.files.columns import Column, read_csv, read_frame
from joulecast.quantities import counted

_ATTEMPTS = {"run": Column("text"), "now": Column("text")}


def _left_out(results: Path) -> str:
    observations = results / "fits" / "observations.parquet"
    try:
        runs = read_frame(observations, "observations", ["run", "polluted", "left_out_for"])
    except JoulecastError:
        return ""
    marked = runs[runs["polluted"] != ""]
    if marked.empty:
        return f"left out: none of {counted(len(runs), 'run')}"
    kinds = marked["left_out_for"].value_counts()
    why = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
    return f"left out: {len(marked):,} of {counted(len(runs), 'run')} ({why})"


def ending(results: Path, configfiles: Sequence[str]) -> list[str]:
    """One line with the results of a campaign, and another if other programs disturbed runs.

    Args:
        results: folder of the campaign's results.
        configfiles: its configuration files, for the command that repeats runs.
    """
    parts = []
    if (results / "index.html").is_file():
        parts.append(f"page: {results / 'index.html'}")
    if (results / "tables").is_dir():
        parts.append(f"tables: {results / 'tables'}")
    failed = results / "tables" / "failed_runs.csv"
    attempts = pd.DataFrame(columns=list(_ATTEMPTS))
    if failed.is_file():
        attempts = read_csv(failed, "table of failed runs", _ATTEMPTS)
    unmeasured = attempts.loc[attempts["now"] != "done", "run"].nunique()
    if unmeasured:
        parts.append(f"failed: {counted(unmeasured, 'run')} ({failed.with_suffix('.md')})")
    parts += [left] if (left := _left_out(results)) else []
    lines = [f"{results}: {'; '.join(parts)}"] if parts else []
    if (results / "attempts").is_dir():
        disturbed = len(progress_of(results).disturbed) + len(disturbed_pipelines(results))
        if disturbed:
            flags = "".join(f" --configfile {file}" for file in configfiles)
            lines.append(
                f"{counted(disturbed, 'run')} disturbed by other programs; to repeat only these: "
                f"./run joulecast remeasure {results} && ./run snakemake --cores all{flags}"
            )
    return lines
