"""Predict the steps that others measured on GPUs, and keep both."""

from pathlib import Path

from joulecast.campaign.scripts import run_script
from joulecast.files.writing import written_aside
from joulecast.ground_truth.gpu_steps import predicted, read_gpu_steps


def main(steps: Path, judged: Path) -> None:
    frame = predicted(read_gpu_steps(steps))
    with written_aside(judged) as partial:
        frame.to_parquet(partial, index=False)


if __name__ == "__main__":
    run_script(snakemake, main)
