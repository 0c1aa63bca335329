"""The papers' numbers beside ours: verdicts by stated tolerances, and what is missing is said."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT
from hypothesis import given
from hypothesis import strategies as st

from joulecast.errors import JoulecastError
from joulecast.report.papers.antichain import antichain
from joulecast.report.papers.mc2 import mc2
from joulecast.report.papers.proteus import proteus
from joulecast.report.papers.rows import COLUMNS, Paper, Row, Verdict, paper_table, verdict_counts
from joulecast.report.papers.write import write_papers
from joulecast.report.papers.zeus import zeus
from joulecast.report.tables.partition import PublishedPartitioning
from joulecast.report.tables.published import PublishedErrors, PublishedTuning, Tolerance
from joulecast.report.tables.simulator import PublishedSimulators
from joulecast.report.tables.tuning import PAPER_ZEUS

PUBLISHED = ROOT / "config/published"
ROW = Row("t", "s", "q", "%", 10.0, 10.4, "measured", Tolerance(absolute=0.5, because="b"))
README = (ROOT / "README.md").read_text()
OF_CODE = {
    Verdict.REPRODUCED: Verdict.SAME_AS_CODE,
    Verdict.BETTER: Verdict.BETTER_THAN_CODE,
    Verdict.WORSE: Verdict.WORSE_THAN_CODE,
}
NUMBERS = st.floats(-1e6, 1e6)


@given(
    published=NUMBERS,
    ours=NUMBERS,
    absolute=st.floats(0, 10),
    relative=st.floats(0, 100),
    improves=st.sampled_from(["down", "up", "neither"]),
)
def test_a_comparable_number_is_reproduced_better_or_worse(
    published, ours, absolute, relative, improves
):
    tolerance = Tolerance(absolute=absolute, relative_percent=relative, because="b")
    row = replace(ROW, published=published, ours=ours, tolerance=tolerance, improves=improves)
    off, allowed = abs(ours - published), max(absolute, relative / 100 * abs(published))
    if off > allowed * 1.001:
        better = {"down": ours < published, "up": ours > published, "neither": False}[improves]
        assert row.verdict == (Verdict.BETTER if better else Verdict.WORSE)
    elif off < allowed * 0.999:
        assert row.verdict == Verdict.REPRODUCED
    # What no paper prints is not reproduced: its verdicts are their own.
    of_code = replace(row, published=None, reference=published, reference_is="code").verdict
    assert of_code == OF_CODE[row.verdict]
    # Whatever the numbers are, another setting allows no verdict on them.
    assert replace(row, why_not_comparable="other").verdict == Verdict.NOT_COMPARABLE


def test_without_a_number_on_one_side_there_is_nothing_to_judge():
    assert replace(ROW, published=">60").verdict == Verdict.NOT_COMPARABLE
    assert replace(ROW, ours=None).verdict == Verdict.NOT_COMPARABLE
    assert replace(ROW, ours=None).difference is None
    assert replace(ROW, ours=float("nan")).verdict == Verdict.NOT_COMPARABLE


def _numbers(*published):
    """All numbers (and texts like `>60`) in what a file says."""
    found = set()
    for part in published:
        if isinstance(part, dict | list | tuple):
            found |= _numbers(*(part.values() if isinstance(part, dict) else part))
        else:
            found.add(part)
    return found


def test_every_published_number_has_a_row_though_nothing_of_ours_stands_next_to_it(tmp_path):
    errors = PublishedErrors.read(PUBLISHED / "mc2.yaml")
    partitioning = PublishedPartitioning.read(PUBLISHED / "antichain.yaml")
    tuning = PublishedTuning.read(PUBLISHED / "zeus.yaml")
    for name, column in (("summary", "model"), ("improvement", "rival")):
        none = pd.DataFrame(
            columns=[
                "split",
                "judges",
                column,
                "best_rival",
                "best_rival_percent",
                "better_by_points",
            ]
        )
        none.to_parquet(tmp_path / f"energy_{name}.parquet")
    write_zeus_tables(tmp_path, tuning)
    papers = [
        mc2(errors, tmp_path),
        antichain(partitioning, [], [], tmp_path),
        zeus(tuning, tmp_path),
    ]
    table = paper_table(papers, tmp_path)
    left = table[table["paper"] == "antichain"]
    assert left["ours"].isna().all() and left["source"].isna().all()
    assert set(left["verdict"]) == {"not comparable"}
    for why in ("there is no profile of the network", "into 4 stages", "into 8 stages"):
        assert left["why_not_comparable"].str.contains(why).any()
    printed = set(table["published"])
    assert _numbers(errors.error_percent, errors.percentage_points_over_mc2) <= printed
    assert _numbers(partitioning.partition_s, partitioning.pipeline_speedup) <= printed
    assert _numbers(tuning.model_dump(include={"potential", "energy_saving_percent"})) <= printed
    of_reproduction = tuning.reproduction
    assert _numbers(of_reproduction.energy_saving_percent) <= printed
    assert {2.84, 69.12} <= printed, "MC2's error and gains"
    assert {6.76, 12.25, 3.73, "30", ">60", 3.4, 3.76} <= printed, "Table 1 and speedups"
    assert {0.572, 15.3, 75.8, 60.1, 32, 100} <= printed, "figure 1, savings"
    # What no paper prints stands in another column, with what it is.
    unprinted = table[table["published"].isna()]
    assert unprinted["reference_is"].str.len().gt(0).all()
    assert _numbers(of_reproduction.simulator) | {71.96} <= set(unprinted["reference"])
    assert table[table["published"].notna()]["reference"].isna().all()
    assert len(table[table["paper"] == "antichain"]) == 20 * 5 + 2 * 2
    assert len(table[table["paper"] == "Zeus"]) == 6 * 5 + 3 + 4 * 3 * 2 + 2


def test_only_what_a_meter_read_and_no_fit_saw_stands_beside_mc2(tmp_path):
    published = PublishedErrors.read(PUBLISHED / "mc2.yaml")
    head = {"time": "given", "model": "MC2", "settings": 4, "published_percent": 2.84}
    head |= {"best_rival": None, "best_rival_percent": None, "better_by_points": None}
    summary = [
        head
        | {"source": "imported", "split": "extrapolation", "mape_percent": 1.5, "judges": "models"},
        head
        | {"source": "imported", "split": "in-sample", "mape_percent": 0.1, "judges": "models"},
        head
        | {
            "source": "estimated",
            "split": "extrapolation",
            "mape_percent": 9,
            "judges": "no model",
        },
    ]
    gain = {"source": "imported", "split": "extrapolation", "time": "given", "rival": "LP1"}
    gain |= {"settings": 4, "better_by_points": 60.0, "published_points": 69.12, "judges": "models"}
    pd.DataFrame(summary).to_parquet(tmp_path / "energy_summary.parquet")
    pd.DataFrame([gain]).to_parquet(tmp_path / "energy_improvement.parquet")
    paper = mc2(published, tmp_path)
    rows = paper.rows
    assert _numbers(published.error_percent, published.percentage_points_over_mc2) == {
        row.published for row in rows if row.published is not None
    }
    assert list(paper_table([paper], tmp_path)["ours_from"].dropna())[:1] == ["energy_summary.html"]
    error, over = (row for row in rows if row.ours is not None)
    assert len(rows) == 8 + 7, "a model that was not judged has its row, and the reason"
    others = [row for row in rows if row.ours is None]
    assert all("first part of a run" in row.why_not_comparable for row in others)
    assert {row.verdict for row in others} == {Verdict.NOT_COMPARABLE}
    assert (error.ours, error.published, error.source) == (1.5, 2.84, "imported")
    assert error.verdict == over.verdict == Verdict.NOT_COMPARABLE, "another platform"
    assert replace(error, why_not_comparable="").verdict == Verdict.BETTER
    assert replace(over, why_not_comparable="").verdict == Verdict.WORSE


def write_zeus_tables(folder, published):
    """Tables of replays: figure 1 as published but for its power limits, ratios that are off."""
    row = {"policy": PAPER_ZEUS, "gpu": "v100", "stretch": "steady", "time_saving_percent": -2.0}
    other = row | {"gpu": "p100", "energy_saving_percent": 99.0, "time_saving_percent": 99.0}
    savings = [row | {"energy_saving_percent": saved} for saved in (17.0, 30.0, 90.0)]
    pd.DataFrame([*savings, other]).to_parquet(folder / "tuning_savings.parquet")
    cells = [
        {"workload": w, "gpu": "v100", "tuned": t.replace("_", " "), "ours": getattr(p, t)}
        | {"batch_size": p.batch_size, "power_limit_w": p.power_limit_w + 25}
        for w, p in published.potential.items()
        for t in ("batch_size_only", "power_limit_only", "both")
    ]
    pd.DataFrame(cells).to_parquet(folder / "tuning_potential.parquet")
    names = {
        "power_limit_only": ("power-limit-only", "last five"),
        "last_five": ("zeus", "last five"),
    }
    names |= {"all": ("zeus", "all")}
    ratios = [
        {
            "gpu": gpu,
            "policy": names[e][0],
            "recurrences": names[e][1],
            "energy_ratio": r[0] + 0.015,
        }
        | {"time_ratio": r[1] + 0.03}
        for gpu, of_gpu in published.reproduction.simulator.items()
        for e, r in of_gpu.items()
    ]
    saved = [row | {"energy_saving_percent": 100 * (1 - row["energy_ratio"])} for row in ratios]
    pd.DataFrame(saved).to_parquet(folder / "tuning_reproduction.parquet")


def test_zeus_savings_go_from_the_workload_that_saves_least_to_the_one_that_saves_most(tmp_path):
    published = PublishedTuning.read(PUBLISHED / "zeus.yaml")
    write_zeus_tables(tmp_path, published)
    paper = zeus(published, tmp_path)
    rows = paper.rows
    saved = [row for row in rows if row.table.startswith("abstract")]
    assert [row.ours for row in saved] == [17.0, 90.0, -2.0]
    assert [row.verdict for row in saved] == [Verdict.REPRODUCED, Verdict.BETTER, Verdict.WORSE]
    figure = [row for row in rows if row.table == "figure 1"]
    assert {r.verdict for r in figure if r.unit != "W"} == {Verdict.REPRODUCED}
    assert {r.verdict for r in figure if r.unit == "W"} == {Verdict.WORSE}, "another power limit"
    reproduced = [row for row in rows if row.table == "reproduction"]
    own = [row for row in reproduced if "own range" in row.quantity]
    assert [row.published for row in own] == [5, 40]
    assert own[0].ours < own[1].ours and own[0].verdict == Verdict.NOT_COMPARABLE
    assert {r.verdict for r in reproduced if r.quantity == "energy"} == {Verdict.SAME_AS_CODE}
    assert {r.verdict for r in reproduced if r.quantity == "time"} == {Verdict.WORSE_THAN_CODE}
    counts = verdict_counts(paper_table([paper], tmp_path)).loc["Zeus"]
    assert counts["reproduced"] == 24 + 1 and counts["same as the code"] == 12


def test_speed_is_comparable_and_errors_on_other_machines_are_not(tmp_path):
    published = PublishedSimulators.read(PUBLISHED / "proteus.yaml")
    tables = {
        "error": [
            {"experiment": "e", "configuration": "(mean of 3: all)", "source": "recorded"}
            | {"predicted_error_percent": 0.8, "published_percent": 3.0},
            {"experiment": "e", "configuration": "dp=2", "source": "recorded"}
            | {"predicted_error_percent": 0.1, "published_percent": None},
        ],
        "order": [
            {"experiment": "e", "strategies": "all", "count": 3, "kendall_tau": 0.9},
            {"experiment": "e", "strategies": "ranks: 2", "count": 2, "kendall_tau": 1.0},
        ],
        "ablation": [
            {"experiment": "e", "model": "full", "mape_percent": 0.8, "published_percent": 2.4},
            {
                "experiment": "e",
                "model": "no sharing",
                "mape_percent": 4,
                "published_percent": None,
            },
        ],
        "speed": [
            {"devices": 8, "folded": folded, "seconds": 0.01, "original_s": 1.0}
            for folded in (False, True)
        ],
    }
    for name, rows in tables.items():
        pd.DataFrame(rows).to_parquet(tmp_path / f"simulator_{name}.parquet")
    table = paper_table([proteus(published, tmp_path)], tmp_path).set_index("table")
    assert list(table.loc["speed", "verdict"]) == ["better than the code", "not comparable"]
    assert table.loc["speed", "published"].isna().all(), "no paper prints these seconds"
    assert list(table.loc["speed", "reference"]) == [1.0, 1.0]
    others = table.drop(index="speed")
    assert set(others["verdict"]) == {"not comparable"} and others["why_not_comparable"].all()
    assert list(table.loc["order", ["published", "ours"]]) == [published.order, 0.9]
    assert len(table.loc[["error"]]) == 1 + 2, "one average, and two simulators that are not ours"


@pytest.fixture
def written(tmp_path):
    rows = [
        ROW,
        replace(
            ROW,
            published=">60",
            quantity="m",
            unit="min",
            setting="a_b & 50 %",
            ours=None,
            source=None,
        ),
        replace(
            ROW,
            published=None,
            quantity="r",
            reference=10.0,
            reference_is="code",
            ours_from=tmp_path / "a.html",
        ),
    ]
    of_q = [
        replace(ROW, ours=0.123456789),
        replace(ROW, why_not_comparable="another <machine>"),
    ]
    published = PublishedErrors.read(PUBLISHED / "mc2.yaml")
    rivals = "A rival is better in 1 of 2 settings."
    papers = [
        Paper("P", published, "what is here", {"q, in short": ["q"]}, rows, rivals),
        Paper("Q", published, "two <things>", {}, of_q),
    ]
    write_papers(tmp_path / "papers", papers)
    return tmp_path


def test_the_table_is_written_in_every_form(written):
    table = pd.read_parquet(written / "papers.parquet")
    assert tuple(table.columns) == COLUMNS
    assert list(table["verdict"][[0, 1, 3]]) == ["reproduced", "not comparable", "worse"]
    assert (
        table["ours"].iloc[3] == 0.123456789 and ",0.1235," in (written / "papers.csv").read_text()
    )
    text = (written / "papers.md").read_text()
    assert "## P" in text and "## Q" in text and "| 10.4 " in text and "| — " in text
    assert text.count("0.5: b") == 2, "a reason is spelled out once a paper"


def test_the_page_begins_with_a_line_a_paper_that_is_counted_from_the_rows(written):
    html = (written / "papers.html").read_text()
    first, tables = html.split("<h2>P</h2>")
    assert "1 of 2 printed numbers reproduced; 1 of 1 other numbers same as the code" in first
    assert "2.84 % off" in first
    assert "A rival is better in 1 of 2 settings." in first
    claim = ("P", "q, in short", "10 %", "10.4 %", "what is here", "reproduced")
    (row,) = (line for line in (written / "papers.md").read_text().splitlines() if claim[1] in line)
    assert tuple(cell.strip() for cell in row.strip("|").split("|")) == claim
    assert "Not reproduced: q (s)" in first and "1 row: another &lt;machine&gt;" in first
    assert '<a href="a.html">same as the code</a>' in tables
    assert not re.search(r'(src|href)="(https?:)?//', html) and "@import" not in html
    assert "two <things>" not in html, "what is named is escaped"


def test_what_is_claimed_is_a_number_of_the_file(tmp_path):
    text = (PUBLISHED / "mc2.yaml").read_text()
    (tmp_path / "mc2.yaml").write_text(text.replace("{error_percent[MC2]}", "{error_percent[MC3]}"))
    with pytest.raises(JoulecastError, match=r"claims.*MC3"):
        PublishedErrors.read(tmp_path / "mc2.yaml")


def test_the_readme_counts_the_numbers_that_the_paper_prints(tmp_path):
    published = PublishedTuning.read(PUBLISHED / "zeus.yaml")
    write_zeus_tables(tmp_path, published)
    table = paper_table([zeus(published, tmp_path)], tmp_path)
    printed = table["published"].notna().sum()
    (row,) = (line for line in README.splitlines() if "Zeus: saves" in line)
    assert re.search(rf"\d+ of {printed} printed numbers", row), row


def test_a_rival_that_is_better_is_named_with_its_split_and_settings(tmp_path):
    head = {"source": "imported", "judges": "models", "time": "predicted"}
    rows = [
        head | {"split": split, "model": model, "settings": 3, "mape_percent": error}
        for split, errors in {
            "extrapolation": (1.93, 1.77),
            "leave-one-node-count-out": (1.78, 7.1),
        }.items()
        for model, error in zip(("MC2", "Fan"), errors, strict=True)
    ]
    for ours, rival in zip(rows[::2], rows[1::2], strict=True):
        theirs = rival["mape_percent"]
        ours |= {"best_rival": "Fan", "best_rival_percent": theirs}
        ours |= {"better_by_points": theirs - ours["mape_percent"]}
    pd.DataFrame(rows).to_parquet(tmp_path / "energy_summary.parquet")
    published = PublishedErrors.read(PUBLISHED / "mc2.yaml")
    gains = pd.DataFrame(columns=["split", "judges", "rival"])
    gains.to_parquet(tmp_path / "energy_improvement.parquet")
    said = mc2(published, tmp_path).rivals
    assert said == (
        "On the settings that both predict, a rival is better in 1 of 2 judgements: Fan is off by "
        "1.77 %, MC2 by 1.93 % (extrapolation, time predicted)."
    )
    pd.DataFrame(rows[2:]).to_parquet(tmp_path / "energy_summary.parquet")
    said = mc2(published, tmp_path).rivals
    assert said == "No rival is better in any of 1 judgements."


def test_verdicts_are_counted_by_paper():
    published = PublishedErrors.read(PUBLISHED / "mc2.yaml")
    of_p, of_q = [ROW, replace(ROW, ours=11.0)], [replace(ROW, why_not_comparable="x")]
    papers = [Paper("P", published, "", {}, of_p), Paper("Q", published, "", {}, of_q)]
    counts = verdict_counts(paper_table(papers, Path()))
    assert counts.loc["P"].to_dict() == {
        "reproduced": 1,
        "better": 0,
        "worse": 1,
        "same as the code": 0,
        "better than the code": 0,
        "worse than the code": 0,
        "not comparable": 0,
    }
    assert counts.loc["Q", "not comparable"] == 1
