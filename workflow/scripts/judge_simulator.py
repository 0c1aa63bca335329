"""Predict measured steps. Write predictions and measurements."""

from pathlib import Path

import pandas as pd

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.writing import written_aside
from joulecast.simulate.judged import emulated_network as emulated_network, two_core_training


def main(emulated: Path, judged: Path, training: Path | None = None) -> None:
    parts = [emulated_network.judge(emulated_network.read_results(emulated))]
    if training is not None:
        parts.append(two_core_training.judge(two_core_training.read_results(training)))
    with written_aside(judged) as partial:
        pd.concat(parts, ignore_index=True).to_parquet(partial, index=False)


if __name__ == "__main__":
    run_script(snakemake, main)
