"""The page of the run record: every file, every column and field, with type, unit and meaning."""

import re

from joulecast.runs import record
from joulecast.runs.files.columns import Column
from joulecast.runs.frames import FRAME_MEANINGS, FRAMES, STAGE_MEANINGS
from joulecast.runs.judging import COLUMNS as PREDICTIONS
from joulecast.runs.meter_choice import MeterInfo
from joulecast.runs.runs_table import COLUMNS
from reference_pages.words import anchor, fields, markdown, table

MODELS: dict[type, str] = {
    record.RunInfo: "run.json",
    record.Outcome: "run.json: outcome",
    MeterInfo: "run.json: meters",
}
_HEAD = f"""# The run record

Each run leaves one folder, the run record. A measurement, an importer or a recorded campaign makes it. A
record is always complete: it is written under another name, and then renamed.

* Units are in the names (`_s`, `_w`, `_j`, `_bytes`). Times are on the run clock, which is the same for all
  ranks.
* A value that was not measured is missing (`null`, NaN). It is never 0.
* The format is {record.FORMAT}.
* The keys of `spec` are those of the [configuration](configuration.md), and of a [platform](platforms.md).
* [What is measured](../explanation/what-is-measured.md) explains stages, phases and meters.

`joulecast.read_records(folder)` reads all of it ([example](../how-to/use-from-python.md#read_records)).

"""


_RUNS_TABLE = """## The runs table

Each row is a run. You get the table as `joulecast.fit(records).observations`; a campaign writes it to
`fits/observations.parquet`. `t_STAGE_s` is the time of a stage in a step (mean over ranks), `e_STAGE_j` its
part of `energy_j`.

"""

_OF = {
    "of all runs": ("all",),
    "of some runs": ("observed", "on GPUs", "staged"),
    "of imported runs": ("imported",),
}

_PREDICTIONS = """## Predictions

Each row is for one run, one split and one model. You get the table as
`joulecast.fit(records).predictions`; a campaign writes it to `fits/predictions.parquet`. The column
`folder` joins it with the runs table.

"""


def _links() -> dict[str, str]:
    return {model.__name__: f"[map](#{anchor(heading)})" for model, heading in MODELS.items()}


def _column(name: str, column: Column) -> list[str]:
    assert column.meaning, f"{name} has no meaning"
    choices = ", ".join(f"`{choice}`" for choice in column.choices)
    return [f"`{name}`", f"{column.meaning}: {choices}" if choices else column.meaning]


def _model(model: type, heading: str) -> str:
    about = markdown(" ".join((model.__doc__ or "").split()))
    rows = []
    for name, kind, meaning in fields(model, _links()):
        told = re.search(r"(list of )?\[map\].*|`.*`", kind.partition(";")[0])
        rows.append([name, f"{meaning.rstrip('.')} ({told[0]})." if told else meaning])
    return f"### {heading}\n\n{about}\n\n{table(['field', 'meaning'], rows)}\n"


def page() -> str:
    """The page, from the frames and the models."""
    parts = [_HEAD, "## Frames\n\n"]
    for frame, columns in FRAMES.items():
        parts.append(f"### {frame}.parquet\n\n{FRAME_MEANINGS[frame]}\n\n")
        rows = [_column(name, column) for name, column in columns.items()]
        parts.append(table(["column", "meaning"], rows) + "\n")
    parts.append(_RUNS_TABLE)
    of_stages = [name for stage in STAGE_MEANINGS for name in (f"t_{stage}_s", f"e_{stage}_j")]
    for head, kinds in _OF.items():
        runs = [
            [f"`{name}`", column.meaning]
            for name, column in COLUMNS.items()
            if column.of in kinds and name not in of_stages
        ]
        parts.append(table([f"column ({head})", "meaning"], runs) + "\n")
    parts.append(_PREDICTIONS)
    rows = [[f"`{name}`", meaning] for name, meaning in PREDICTIONS.items()]
    parts.append(table(["column", "meaning"], rows) + "\n")
    parts += ["## Facts\n\n", *(_model(model, heading) for model, heading in MODELS.items())]
    return "".join(parts).rstrip() + "\n"
