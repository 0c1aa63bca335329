"""Write the tables and figures of the replays."""

from pathlib import Path

from joulecast.campaign.scripts import run_script
from joulecast.files.columns import read_frame
from joulecast.files.reading import read_json_object
from joulecast.report.figures.policies import cumulative_cost
from joulecast.report.figures.policy_maps import configuration_maps
from joulecast.report.tables.tuning import Replays, write_tuning_tables
from joulecast.report.tables.tuning_published import read_published_tuning
from joulecast.tuning.comparison import HELD_OUT
from joulecast.tuning.policy_experiment import read_settings


def main(
    traces_folder: Path,
    replays: list[Path],
    held_out: Path,
    choices: Path,
    paper: Path,
    reproduction: Path,
    published: Path,
    eta: float,
    tables_folder: Path,
    figures_folder: Path,
) -> None:
    numbers = read_published_tuning(published)
    by_policy = {path.stem: read_frame(path, "replay") for path in replays}
    by_policy[HELD_OUT] = read_frame(held_out, "replay")
    chosen = read_json_object(choices, "choices of settings held out")
    settings = read_settings(traces_folder)
    replayed = Replays(settings, by_policy, read_frame(paper, "replay"), chosen, eta)
    reproduced = dict(list(read_frame(reproduction, "replay").groupby("policy", sort=False)))
    theirs = read_settings(traces_folder, ["cifar100"], target=numbers.reproduction.target)
    write_tuning_tables(tables_folder, replayed, reproduced, theirs, numbers)
    cumulative_cost(by_policy, settings, eta, figures_folder / "tuning_cumulative_cost")
    v100 = [setting for setting in settings if setting.name[1] == "v100"]
    configuration_maps(by_policy, v100, eta, figures_folder / "tuning_maps")


if __name__ == "__main__":
    run_script(snakemake, main)
