"""The page of the run record: every file, every column and field, with type, unit and meaning."""

from joulecast.runs import record, spec
from joulecast.runs.files.columns import Column
from joulecast.runs.frames import FRAME_MEANINGS, FRAMES, STAGE_MEANINGS
from joulecast.runs.judging import COLUMNS as PREDICTIONS
from joulecast.runs.meter_choice import MeterInfo
from joulecast.runs.runs_table import COLUMNS
from joulecast.runs.spec import MeterSettings
from reference_pages.words import anchor, fields, markdown, table, unit_of

MODELS: dict[type, str] = {
    record.RunInfo: "run.json",
    record.Outcome: "run.json: outcome",
    record.Checks: "run.json: checks",
    MeterInfo: "run.json: meters",
    spec.RunSpec: "run.json: spec",
    spec.Workload: "run.json: spec.workload",
    spec.Training: "run.json: spec.training",
    spec.Calibration: "run.json: spec.calibration",
    spec.Emulation: "run.json: spec.emulation",
    spec.Observed: "run.json: spec.observed",
    spec.Imported: "run.json: spec.imported",
    MeterSettings: "run.json: spec.metering",
}
_HEAD = f"""# The run record

Each run leaves one folder, the run record. A measurement, an importer or a recorded campaign makes it. All
other parts of joulecast read only such folders. A record is always complete: it is written under
another name, brought to the disk (`fsync`), and then renamed.

* Times are in seconds on the run clock, which is the same for all ranks.
* A value that was not measured is missing (`null`, NaN). It is never 0.
* The format is {record.FORMAT} (`joulecast.runs.record`).

[What is measured](../explanation/what-is-measured.md) explains stages, phases and meters.
`joulecast.read_records(folder)` reads all of it ([example](../how-to/use-from-python.md#read_records)).

"""


_RUNS_TABLE = """## The runs table

Each row is a run. You get the table as `joulecast.fit(records).observations`; a campaign writes it to
`fits/observations.parquet`. Models, tables and figures read it.

"""

_PREDICTIONS = """## Predictions

Each row is one run, split and model. You get the table as `joulecast.fit(records).predictions`; a campaign
writes it to `fits/predictions.parquet`. All models answer with these columns. Error tables join them
with the runs table by `folder`.

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
    return [f"`{name}`", kind + optional, unit_of(name), column.meaning]


def _model(model: type, heading: str) -> str:
    about = markdown(" ".join((model.__doc__ or "").split()))
    head = ["field", "type", "unit", "meaning"]
    return f"### {heading}\n\n{about}\n\n{table(head, fields(model, _links()))}\n"


def page() -> str:
    """The page, from the frames and the models."""
    parts = [_HEAD, "## Frames\n\n"]
    for frame, columns in FRAMES.items():
        parts.append(f"### {frame}.parquet\n\n{FRAME_MEANINGS[frame]}\n\n")
        rows = [_column(name, column) for name, column in columns.items()]
        parts.append(table(["column", "type", "unit", "meaning"], rows) + "\n")
        if frame == "stages":
            stages = [[f"`{name}`", meaning] for name, meaning in STAGE_MEANINGS.items()]
            parts.append(table(["stage", "what a rank does"], stages) + "\n")
    parts.append(_RUNS_TABLE)
    kinds = {"whole": "whole number", "flag": "yes or no"}
    runs = [
        [f"`{name}`", kinds.get(column.kind, column.kind), unit_of(name), column.meaning, column.of]
        for name, column in COLUMNS.items()
    ]
    parts.append(table(["column", "type", "unit", "meaning", "of runs"], runs) + "\n")
    parts.append(_PREDICTIONS)
    rows = [[f"`{name}`", unit_of(name), meaning] for name, meaning in PREDICTIONS.items()]
    parts.append(table(["column", "unit", "meaning"], rows) + "\n")
    parts += ["## Facts\n\n", *(_model(model, heading) for model, heading in MODELS.items())]
    return "".join(parts).rstrip() + "\n"
