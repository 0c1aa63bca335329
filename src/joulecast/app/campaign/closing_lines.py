"""The lines at the end of a campaign: what to open, what was left out, and what to repeat."""

from collections.abc import Container
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.quantities import counted
from joulecast.runs.files.columns import read_frame
from joulecast.runs.progress import how_to_repeat, progress_of


def _left_out(results: Path) -> str:
    observations = results / "fits" / "observations.parquet"
    try:
        runs = read_frame(observations, "observations", ["run", "left_out", "left_out_for"])
    except JoulecastError:
        return ""
    marked = runs[runs["left_out"] != ""]
    if marked.empty:
        return f"left out: none of {counted(len(runs), 'run')}"
    kinds = marked["left_out_for"].value_counts()
    why = ", ".join(f"{kind} {count:,}" for kind, count in kinds.items())
    return f"left out: {len(marked):,} of {counted(len(runs), 'run')} ({why})"


def closing_lines(results: Path, measures: Container[str]) -> list[str]:
    """One line with the results of a campaign, and another if other programs disturbed runs.

    Args:
        results: folder of the campaign's results.
        measures: the runs that the campaign measures. The folder may have those of another campaign. A replay
            measures none.
    """
    parts = []
    if (results / "index.html").is_file():
        parts.append(f"page: {results / 'index.html'}")
    if (results / "tables").is_dir():
        parts.append(f"tables: {results / 'tables'}")
    parts += [left] if (left := _left_out(results)) else []
    lines = [f"{results}: {'; '.join(parts)}"] if parts else []
    disturbed = [each.run for each in progress_of(results).disturbed if each.run in measures]
    if disturbed:
        lines.append(
            f"{counted(len(disturbed), 'run')} disturbed by other programs; to repeat only these: "
            f"{how_to_repeat(disturbed, str(results))}"
        )
    return lines
