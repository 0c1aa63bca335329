"""The page of the run record: every file, every column and field, with type, unit and meaning."""

from joulecast.runs import record, spec
from joulecast.runs.files.columns import Column
from joulecast.runs.frames import FRAME_MEANINGS, FRAMES, STAGE_MEANINGS
from joulecast.runs.judging import COLUMNS as PREDICTIONS
from joulecast.runs.meter_choice import MeterInfo
from joulecast.runs.runs_table import COLUMNS
from reference_pages.words import anchor, fields, markdown, table

MODELS: dict[type, str] = {
    record.RunInfo: "run.json",
    record.Outcome: "run.json: outcome",
    record.Checks: "run.json: checks",
    MeterInfo: "run.json: meters",
    spec.RunSpec: "run.json: spec",
    spec.Observed: "run.json: spec.observed",
    spec.Imported: "run.json: spec.imported",
}
_HEAD = f"""# The run record

Each run leaves one folder, the run record. A measurement, an importer or a recorded campaign makes it. A
record is always complete: it is written under another name, and then renamed.

* Units are in the names (`_s`, `_w`, `_j`, `_bytes`). Times are on the run clock, which is the same for all
  ranks.
* A value that was not measured is missing (`null`, NaN). It is never 0.
* The format is {record.FORMAT}.
* Most keys of the maps in `spec` are keys of the [configuration](configuration.md).

[What is measured](../explanation/what-is-measured.md) explains stages, phases and meters.
`joulecast.read_records(folder)` reads all of it ([example](../how-to/use-from-python.md#read_records)).

"""


_RUNS_TABLE = """## The runs table

Each row is a run. You get the table as `joulecast.fit(records).observations`; a campaign writes it to
`fits/observations.parquet`. `t_STAGE_s` is the time of a stage in a step (mean over ranks), `e_STAGE_j` its
part of `energy_j`.

"""

_PREDICTIONS = """## Predictions

Each row is one run, split and model. You get the table as `joulecast.fit(records).predictions`; a campaign
writes it to `fits/predictions.parquet`. The column `folder` joins it with the runs table.

"""


def _links() -> dict[str, str]:
    found = {model.__name__: f"[map](#{anchor(heading)})" for model, heading in MODELS.items()}
    return found | {"Platform": "[map](platforms.md)"}


def _column(name: str, column: Column) -> list[str]:
    assert column.meaning, f"{name} has no meaning"
    kind = {"text": "text", "whole": "whole number", "number": "number"}[column.kind]
    if column.choices:
        kind = ", ".join(f"`{choice}`" for choice in column.choices)
    optional = "; may be missing" if column.optional else ""
    return [f"`{name}`", kind + optional, column.meaning]


def _model(model: type, heading: str) -> str:
    about = markdown(" ".join((model.__doc__ or "").split()))
    head = ["field", "type", "meaning"]
    return f"### {heading}\n\n{about}\n\n{table(head, fields(model, _links()))}\n"


def page() -> str:
    """The page, from the frames and the models."""
    parts = [_HEAD, "## Frames\n\n"]
    for frame, columns in FRAMES.items():
        parts.append(f"### {frame}.parquet\n\n{FRAME_MEANINGS[frame]}\n\n")
        rows = [_column(name, column) for name, column in columns.items()]
        parts.append(table(["column", "type", "meaning"], rows) + "\n")
        if frame == "stages":
            stages = [[f"`{name}`", meaning] for name, meaning in STAGE_MEANINGS.items()]
            parts.append(table(["stage", "what a rank does"], stages) + "\n")
    parts.append(_RUNS_TABLE)
    of_stages = [name for stage in STAGE_MEANINGS for name in (f"t_{stage}_s", f"e_{stage}_j")]
    runs = [
        [f"`{name}`", column.meaning, column.of]
        for name, column in COLUMNS.items()
        if name not in of_stages
    ]
    parts.append(table(["column", "meaning", "of runs"], runs) + "\n")
    parts.append(_PREDICTIONS)
    rows = [[f"`{name}`", meaning] for name, meaning in PREDICTIONS.items()]
    parts.append(table(["column", "meaning"], rows) + "\n")
    parts += ["## Facts\n\n", *(_model(model, heading) for model, heading in MODELS.items())]
    return "".join(parts).rstrip() + "\n"
