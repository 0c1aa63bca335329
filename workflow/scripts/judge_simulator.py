"""Predict what was measured, and keep both."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.writing import written_aside
from joulecast.report.tables.simulator import judged_experiments


def main(emulated: Path, judged: Path, training: Path | None = None) -> None:
    steps = judged_experiments(emulated=emulated, training=training)
    with written_aside(judged) as partial:
        steps.to_parquet(partial, index=False)


if __name__ == "__main__":
    run_script(snakemake, main)
