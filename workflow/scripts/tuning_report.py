"""Write the tables and figures of the replays."""

from pathlib import Path
from typing import TYPE_CHECKING

from joulecast.files.columns import read_frame
from joulecast.campaign.scripts import logged
from joulecast.files.reading import read_json_object
from joulecast.report.tables.tuning import Replays, write_tuning_tables
from joulecast.report.figures.policies import cumulative_cost
from joulecast.report.figures.policy_maps import configuration_maps
from joulecast.report.tables.tuning_published import read_published_tuning
from joulecast.tuning.comparison import HELD_OUT
from joulecast.tuning.policy_experiment import read_settings

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def main(traces: Path, eta: float) -> None:
    published = read_published_tuning(Path(snakemake.input.published))
    by_policy = {
        Path(path).stem: read_frame(Path(path), "replay") for path in snakemake.input.replays
    }
    by_policy[HELD_OUT] = read_frame(Path(snakemake.input.held_out[0]), "replay")
    published_replays = [Path(path) for path in snakemake.input.published_replays]
    paper, reproduction = (read_frame(path, "replay") for path in published_replays)
    choices = read_json_object(Path(snakemake.input.held_out[1]), "choices of settings held out")
    settings = read_settings(traces)
    write_tuning_tables(
        Path(snakemake.params.tables),
        Replays(settings, by_policy, paper, choices, eta),
        dict(list(reproduction.groupby("policy", sort=False))),
        read_settings(traces, ["cifar100"], target=published.reproduction.target),
        published,
    )
    figures = Path(snakemake.params.figures)
    cumulative_cost(by_policy, settings, eta, figures / "tuning_cumulative_cost")
    v100 = [setting for setting in settings if setting.name[1] == "v100"]
    configuration_maps(by_policy, v100, eta, figures / "tuning_maps")


if __name__ == "__main__":
    with logged(Path(snakemake.log[0])):
        main(Path(snakemake.input.traces[0]).parent, snakemake.params.eta)
