"""Small results folders that pages are made from."""

from pathlib import Path

import pandas as pd
from conftest import make_record, make_spec

from joulecast.energy.campaign_fit import CampaignFit, fit_campaign
from joulecast.energy.prices import NO_PRICES, Prices
from joulecast.report.campaign import ADVICE, campaign_answers, write_answers
from joulecast.report.results_folder import read_results
from joulecast.report.tables.checks import check_results, write_checks
from joulecast.report.tables.errors import scaling
from joulecast.report.tables.output import write_table
from joulecast.runs.folders import record_folders
from joulecast.runs.left_out import used
from joulecast.runs.observations import is_training
from joulecast.runs.record import write_record

STEP = {"materials": 0.1, "computing": 0.6, "update": 0.3}
NETWORKS = {"vit_ti": 1.0, "resnet18": 1.5}
"""Networks by what their computing takes, relative to the step above."""


def write_records(
    results: Path, nodes: tuple[int, ...] = (1, 2, 4), repeats: int = 2
) -> list[Path]:
    """Records of two networks; more nodes exchange and wait longer."""
    folders = []
    for network, factor in NETWORKS.items():
        for count in nodes:
            for repeat in range(1, repeats + 1):
                run = f"{network}-n{count}-r{repeat}"
                spec = make_spec(run, count, repeat=repeat, workload={"network": network})
                step = dict(STEP, computing=factor * 0.6 + 0.002 * repeat)
                if count > 1:
                    step |= {"communicating_wait": 0.02 * count, "communicating_copy": 0.05 * count}
                write_record(results / "records" / run, make_record(spec, step))
                folders.append(results / "records" / run)
    return folders


def write_fits(results: Path, folders: list[Path]) -> None:
    """Fits of the records."""
    fit = fit_campaign(folders, series_splits=0, series_period_s=0.5)
    fit.save(results / "fits")


def write_answered(
    results: Path, prices: Prices = NO_PRICES, configfile: str | None = None
) -> Path:
    """What is made of the records: fits, as they are if they are there, checks, scaling and the answers."""
    records = record_folders(results)
    if not (results / "fits").is_dir():
        write_fits(results, records)
    fit = CampaignFit.load(results / "fits")
    write_checks(results / "tables/checks", check_results(records, fit))
    trained = used(fit.observations)
    table = scaling(trained[is_training(trained)])
    (results / "tables/energy").mkdir(exist_ok=True)
    write_table(results / "tables/energy/scaling", "", [], table)
    answers = campaign_answers(read_results(results, prices), configfile)
    write_answers(answers, results / ADVICE, prices)
    return results


def papers_table() -> pd.DataFrame:
    """A table of the papers with two verdicts."""
    rows = [("MC2", "not comparable"), ("Zeus", "reproduced")]
    return pd.DataFrame(rows, columns=["paper", "verdict"])


def metered_table() -> pd.DataFrame:
    """Errors on metered clusters: MC2 and a rival on two questions, and what judges nothing."""
    rows = []
    for split, ours, fan in (
        ("in-sample", 0.1, 1.0),
        ("extrapolation", 1.25, 3.0),
        ("by time", 2.5, 4.0),
    ):
        rows.append((split, "MC2", 3, ours, 4.5, 2.84))
        rows.append((split, "Fan", 3, fan, 5.5, None))
    rows.append(("end of the run's own trace", "AR", 35, 1.16, 7.8, None))
    columns = ["split", "model", "settings", "mape_percent", "max_percent", "published_percent"]
    table = pd.DataFrame(rows, columns=columns)
    beside = table["split"].map({"in-sample": 1.0, "extrapolation": 3.0, "by time": 4.0})
    is_ours = table["model"] == "MC2"
    return table.assign(
        source="imported",
        time="given",
        judges="models",
        best_rival=is_ours.map({True: "Fan", False: None}),
        best_rival_percent=beside.where(is_ours),
        better_by_points=(beside - table["mape_percent"]).where(is_ours),
    )


def write_campaign(results: Path) -> None:
    """Everything that the page shows, of a small synthetic campaign."""
    write_records(results)
    write_answered(results)
    for stem, table in (
        ("tables/papers/papers", papers_table()),
        ("metered/tables/energy_summary", metered_table()),
    ):
        (results / stem).parent.mkdir(parents=True)
        write_table(results / stem, "", [], table)
