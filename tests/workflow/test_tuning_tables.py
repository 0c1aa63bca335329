"""The tuning experiments as their user runs them: traces from a folder, tables, no campaign."""

import re

import pandas as pd
import pytest
from conftest import MINIMAL, ROOT, copy_workflow, snakemake

TRACES = ROOT.parent / "shared/data/zeus_trace"
EXTERNAL = ("--config", f"external_data={TRACES.parent}")
SETTINGS = 24


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES}: the Zeus traces are not here")
def test_tuning_tables(tmp_path):
    copy_workflow(tmp_path)
    one = "results/minimal/tables/tuning_potential.csv"
    done = snakemake(tmp_path, *MINIMAL, *EXTERNAL, "--", one)
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert not re.search(r"^(train|train_single|calibrate) ", text, re.M), "needs no campaign"
    results = tmp_path / "results/minimal"
    tables = {
        path.stem.removeprefix("tuning_"): pd.read_csv(path)
        for path in results.glob("tables/tuning_*.csv")
    }
    assert tables["potential"]["difference"].dropna().abs().max() < 0.001
    assert tables["potential"]["difference"].notna().sum() == 18
    for name in ("savings", "reproduction", "break_even", "comparison"):
        assert set(tables[name]["source"]) == {"recorded"}, name
    savings = tables["savings"]
    assert set(savings["stretch"]) == {"steady", "all"}
    assert set(savings.groupby("policy").size()) == {2 * SETTINGS}
    drawn = savings[savings["seeds"].notna()]
    assert (drawn["energy_low"] <= drawn["energy_saving_percent"]).all()
    assert (drawn["energy_saving_percent"] <= drawn["energy_high"]).all()
    exact = savings[savings["policy"].isin(["oracle", "power-limit-only"])]
    assert exact["seeds"].isna().all() and exact["energy_low"].isna().all()
    limits = tables["reproduction"].query("policy == 'power-limit-only'")
    assert limits["energy_difference"].dropna().abs().max() < 0.001
    paid = tables["break_even"]
    assert set(paid[paid["break_even_recurrence"].isna()]["pays_back"]) == {"does not within 10"}
    for figure in ("cumulative_cost", "maps"):
        assert (results / f"figures/tuning_{figure}.svg").stat().st_size > 5000
