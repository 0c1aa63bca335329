"""Predict the steps and collectives that others measured on GPUs. Write predictions and measurements."""

from pathlib import Path

from joulecast.app.campaign.scripts import run_script
from joulecast.runs.files.writing import written_aside
from joulecast.simulate.judged.gpu_steps import judge_all_reduces
from joulecast.simulate.judged.gpu_steps import judge, read_gpu_steps


def main(steps: Path, judged: Path, collectives: Path) -> None:
    for frame, path in (
        (judge(read_gpu_steps(steps)), judged),
        (judge_all_reduces(steps), collectives),
    ):
        with written_aside(path) as partial:
            frame.to_parquet(partial, index=False)


if __name__ == "__main__":
    run_script(snakemake, main)
