"""Energy of several hosts: complete or not there, each device once."""

from dataclasses import replace

import pandas as pd
import pytest
from conftest import make_record, make_spec

from joulecast.energy.campaign_fit import CampaignFit
from joulecast.report.tables.checks import check_results
from joulecast.runs.frames import POWER_COLUMNS
from joulecast.runs.judging import COLUMNS as PREDICTIONS
from joulecast.runs.meter_choice import MeterInfo, metered
from joulecast.runs.metered_power import counted_power
from joulecast.runs.observations import observe, observe_all
from joulecast.runs.record import write_record
from joulecast.runs.runs_table import COLUMNS

RUN_S = 3.0
DENIED = "RAPL: energy_uj may be read by root only"

NO_FIT = CampaignFit(
    pd.DataFrame(columns=[*COLUMNS]), pd.DataFrame(columns=[*PREDICTIONS]), pd.DataFrame(), {}
)


def hosts_with(meters, nodes=("node00", "node01", "node02", "node03"), sharers=None, until_s=5.0):
    """A record of a run of 3 s on ``nodes``, read every 0.1 s by ``meters``: node, meter, watts (a
    counter from 20 W on, else plain watts), ``None`` where it could not be opened."""
    record = make_record(make_spec(nodes=len(nodes)))
    times = [k / 10 for k in range(-2, 51) if k / 10 <= until_s]
    rows, infos = [], []
    for node, meter, watts in meters:
        if watts is None:
            infos.append(MeterInfo(node=node, meter=meter, available=False, reason=DENIED))
            continue
        counts = watts >= 20
        rows += [(node, meter, t, watts, watts * (t + 0.2) if counts else None) for t in times]
        infos.append(
            MeterInfo(
                node=node,
                meter=meter,
                available=True,
                source="measured",
                counter=counts,
                shared_with=(sharers or {}).get((node, meter), []),
            )
        )
    changes = {"nodes": list(nodes), "node_of_rank": list(nodes), "meters": infos}
    info = record.info.model_copy(update=changes)
    power = pd.DataFrame(rows, columns=list(POWER_COLUMNS)).astype({"joules": float})
    return replace(record, info=info, power=power)


def test_a_host_without_a_meter_is_named_and_nothing_is_filled_in():
    meters = [(f"node0{n}", "rapl:package-0", 50.0) for n in (0, 1, 3)]
    record = hosts_with([*meters, ("node02", "rapl", None)])
    row = observe(record)
    assert pd.isna(row["energy_j"]) and pd.isna(row["e_computing_j"])
    assert row["energy_source"] is None and record.info.energy_source is None
    assert row["why_no_energy"] == f"node02: rapl: {DENIED}; 3 of 4 hosts are metered"
    assert row["why_no_energy"] == record.info.metering.why_not
    whole = hosts_with([*meters, ("node02", "rapl:package-0", 50.0)])
    assert observe(whole)["energy_j"] == pytest.approx(4 * 50 * RUN_S)


def test_a_kind_of_meter_counts_on_all_hosts_or_on_none():
    gpus = [(f"node0{n}", f"nvml:{g}", 100.0) for n in range(4) for g in range(2)]
    cpus = [("node00", "rapl:package-0", 50.0), ("node01", "rapl", None), ("node03", "rapl", None)]
    row = observe(hosts_with(gpus + cpus))
    assert row["energy_j"] == pytest.approx(8 * 100 * RUN_S), "the GPUs alone"
    assert row["energy_source"] == "measured" and row["why_no_energy"] is None


def test_estimates_do_not_stand_in_for_the_meters_of_some_hosts():
    record = hosts_with([("node00", "rapl:package-0", 50.0), ("node01", "estimated", 30.0)])
    for meter in record.info.meters[1:]:
        meter.source = "estimated"
    assert observe(record)["energy_source"] is None
    said = observe(record)["why_no_energy"]
    assert said.startswith("node01: rapl: there is none; node02") and "1 of 4 hosts" in said


def test_an_estimate_from_the_processors_load_is_no_energy_of_a_training_on_gpus():
    record = make_record(make_spec())
    assert observe(record)["energy_source"] == "estimated"
    record.info.outcome.device = "cuda"
    row = observe(record)
    assert pd.isna(row["energy_j"]) and row["energy_source"] is None
    assert "ran on cuda" in row["why_no_energy"]


def test_many_hosts_without_a_meter_are_counted():
    nodes = [f"n{k:04}" for k in range(1000)]
    record = hosts_with([(node, "rapl:package-0", 50.0) for node in nodes[:100]], nodes)
    said = record.info.metering.why_not
    assert "895 more without rapl; 100 of 1000 hosts are metered" in said and len(said) < 500


@pytest.mark.parametrize(
    ("watts", "until_s", "said"),
    [
        (10.0, 2.4, "rapl:a was read over 80 % of the run, 90 are needed"),
        (50.0, 2.4, "rapl:a was read over 80 % of the run, 90 are needed"),
        (50.0, -0.2, "rapl:a gave fewer than two readings"),
    ],
)
def test_a_meter_that_fell_silent_gives_no_energy(watts, until_s, said):
    record = hosts_with([("node00", "rapl:a", watts)], ["node00"], until_s=until_s)
    row = observe(record)
    assert pd.isna(row["energy_j"])
    assert row["why_no_energy"] == f"node00: rapl: {said}; 0 of 1 hosts are metered"


def test_gaps_are_unknown_to_watts_and_known_to_a_counter():
    for watts, known in ((10.0, False), (50.0, True)):
        record = hosts_with([("node00", "rapl:a", watts)], ["node00"])
        record.info.meters[0].coverage = 0.4
        holed = record.power[~record.power["t_s"].between(0.5, 2.3)]
        energy = observe(replace(record, power=holed))["energy_j"]
        assert energy == pytest.approx(50 * RUN_S) if known else pd.isna(energy)


def test_a_meter_of_the_host_counts_once_for_all_its_nodes():
    nodes = ["node00/0", "node00/1", "node01/2", "node01/3"]
    wide = [(host, "rapl:package-0", 50.0) for host in ("node00", "node01")]
    row = observe(hosts_with(wide, nodes))
    assert row["energy_j"] == pytest.approx(2 * 50 * RUN_S) and row["metered_units"] == 2
    said = observe(hosts_with(wide[:1], nodes))["why_no_energy"]
    assert said == "node01: rapl: there is none; 1 of 2 hosts are metered"


def test_containers_that_read_one_device_count_it_once():
    both = [(node, "rapl:package-0", 50.0) for node in ("node00", "node01")]
    sharers = {
        ("node00", "rapl:package-0"): ["node01"],
        ("node01", "rapl:package-0"): ["node00"],
    }
    record = hosts_with(both, ["node00", "node01"], sharers)
    row = observe(record)
    assert row["energy_j"] == pytest.approx(50 * RUN_S) and row["metered_units"] == 1
    stages = [row[f"e_{s}_j"] for s in ("materials", "computing", "update", "other")]
    assert sum(stages) == pytest.approx(row["energy_j"])


def test_checks_name_run_host_meter_and_reason(tmp_path):
    record = hosts_with([("node00", "rapl:package-0", 50.0), ("node01", "rapl", None)])
    write_record(tmp_path / "r", record)
    found = check_results([tmp_path / "r"], NO_FIT)
    missing = found[found["check"] == "missing meter"]
    assert set(missing["verdict"]) == {"warning"} and set(missing["run"]) == {"r"}
    assert missing["found"].tolist() == [
        f"node01: rapl is left out: {DENIED}; 1 of 4 hosts are metered",
        "node02: rapl is left out: there is none; 1 of 4 hosts are metered",
        "node03: rapl is left out: there is none; 1 of 4 hosts are metered",
    ]


PARTS = {
    "pm_counters:node": "node",
    "pm_counters:accel0": "gpu",
    "pm_counters:cpu": "cpu",
    "hwmon:module-0": "module",
    "hwmon:socket-0": "socket",
    "hwmon:amdgpu-0": "gpu",
    "ipmi": "node",
    "nvml:0": "gpu",
    "nvml:1": "gpu",
    "amdsmi:0": "gpu",
    "rapl:package-0": "cpu",
    "rapl:dram-0": "memory",
    "perf:pkg-0": "cpu",
}


@pytest.mark.parametrize(
    ("there", "counted", "covers"),
    [
        (["pm_counters:accel0", "pm_counters:node", "nvml:0"], ["pm_counters:node"], "node"),
        (["hwmon:module-0", "hwmon:socket-0", "nvml:0"], ["hwmon:module-0"], "module"),
        (["nvml:0", "nvml:1", "hwmon:socket-0"], None, "socket+gpu"),
        (["nvml:0", "rapl:package-0", "rapl:dram-0"], None, "gpu+cpu+memory"),
        (["rapl:package-0", "perf:pkg-0"], ["rapl:package-0"], "cpu"),
        (["amdsmi:0", "hwmon:amdgpu-0"], ["amdsmi:0"], "gpu"),
        (["pm_counters:node", "ipmi"], ["pm_counters:node"], "node"),
        (["nvml:0", "ipmi"], ["ipmi"], "node"),
        (["nvml:0", "pm_counters:accel0", "pm_counters:cpu"], ["nvml:0", "pm_counters:cpu"], None),
    ],
)
def test_a_node_has_one_total_and_nothing_is_counted_twice(there, counted, covers):
    record = hosts_with([("node00", name, 50.0) for name in there], ["node00"])
    for meter in record.info.meters:
        meter.covers = PARTS[meter.meter]
    metering = record.info.metering
    assert [m.meter for m in metering.meters] == (counted or there)
    assert metering.gaps == () and covers in (None, metering.covers)
    row = observe(record)
    assert row["energy_j"] == pytest.approx(len(counted or there) * 50 * RUN_S)
    assert row["energy_covers"] == metering.covers


def test_what_one_host_lacks_of_a_kind_is_named_and_its_parts_do_not_matter():
    names = ["pm_counters:node", "rapl:package-0"]
    meters = [(node, name, 50.0) for node in ("node00", "node01") for name in names]
    record = hosts_with([*meters, ("node00", "rapl:dram-0", 20.0)], ["node00", "node01"])
    for meter in record.info.meters:
        meter.covers = PARTS[meter.meter]
    assert record.info.metering.gaps == (), "what is inside of the node's total leaves no gap"
    record.info.meters[0].available, record.info.meters[0].reason = False, "it restarted"
    metering = record.info.metering
    assert [m.meter for m in metering.meters] == ["rapl:package-0"] * 2
    assert {(g.node, g.kind, g.reason) for g in metering.gaps} == {
        ("node00", "pm_counters", "pm_counters:node failed: it restarted"),
        ("node01", "rapl (memory)", "there is none"),
    }


def test_checks_warn_where_runs_have_energies_of_different_parts(tmp_path):
    for name, meter in (("a", "ipmi"), ("b", "nvml:0")):
        record = hosts_with([("node00", meter, 50.0)], ["node00"])
        record.info.meters[0].covers = PARTS[meter]
        write_record(tmp_path / name, record)
    found = check_results([tmp_path / "a", tmp_path / "b"], NO_FIT)
    (warned,) = found[found["check"] == "energy covers"]["found"]
    assert "of different parts: gpu (1 run), node (1 run)" in warned


def test_energies_of_other_parts_than_most_runs_have_are_not_compared(tmp_path):
    folders = []
    for number, meter in enumerate(["ipmi", "ipmi", "nvml:0", None]):
        record = hosts_with([("node00", meter or "nvml:0", 50.0)], ["node00"])
        if meter is not None:
            record.info.meters[0].covers = PARTS[meter]
        folders.append(tmp_path / str(number))
        write_record(folders[-1], record)
    rows = observe_all(folders)
    assert rows["energy_j"].notna().tolist() == [True, True, False, True]
    assert all(part in rows["why_no_energy"][2] for part in ("gpu", "node"))
    assert rows["energy_source"].isna().tolist() == [False, False, True, False]
    one_each = observe_all(folders[1:3])
    assert one_each["energy_j"].notna().tolist() == [True, False]


@pytest.mark.parametrize(("stops_at_s", "known"), [(99.0, True), (6.0, False)])
def test_a_slow_counter_may_stand_as_long_as_it_is_not_renewed(stops_at_s, known):
    record = hosts_with([("node00", "command", 50.0)], ["node00"])
    meter = record.info.meters[0]
    meter.covers, meter.renewed_s = "node", 1.0
    lasts_s = 12.0
    times = [k / 10 for k in range(-12, 133)]
    joules = [50.0 * int(min(t, stops_at_s) + 2) for t in times]
    power = record.power.iloc[[0] * len(times)].assign(t_s=times, joules=joules, watts=None)
    outcome = record.info.outcome.model_copy(update={"stop_s": lasts_s})
    info = record.info.model_copy(update={"outcome": outcome})
    row = observe(replace(record, info=info, power=power.astype({"watts": float})))
    assert (row["why_no_energy"] is None) is known
    assert known or "stood still for" in row["why_no_energy"]


@pytest.mark.parametrize(("unit_j", "known"), [(60.0, True), (3600.0, False)])
def test_a_counter_of_a_run_that_took_few_of_its_units_does_not_count(unit_j, known):
    record = hosts_with([("node00", "command", 50.0)], ["node00"])
    meter = record.info.meters[0]
    meter.covers, meter.renewed_s = "node", 1.0
    times = [k / 10 for k in range(-12, 133)]
    joules = [unit_j * int(250 * (t + 2) / unit_j) for t in times]
    power = record.power.iloc[[0] * len(times)].assign(t_s=times, joules=joules, watts=None)
    outcome = record.info.outcome.model_copy(update={"stop_s": 12.0})
    info = record.info.model_copy(update={"outcome": outcome})
    row = observe(replace(record, info=info, power=power.astype({"watts": float})))
    assert known or "counts by 3.6e+03 J" in row["why_no_energy"]
    assert not known or row["energy_j"] == pytest.approx(3000, rel=0.03)


@pytest.mark.parametrize(
    ("renewed_s", "period_s", "counted"),
    [(0.3, 0.1, ["hwmon"]), (0.31, 0.1, ["nvml:0"]), (None, 1.0, ["nvml:0"])],
)
def test_watts_that_are_averages_over_much_of_a_run_do_not_count(renewed_s, period_s, counted):
    record = hosts_with([("node00", "hwmon", 10.0), ("node00", "nvml:0", 50.0)], ["node00"])
    for meter, covers in zip(record.info.meters, ("node", "gpu"), strict=True):
        meter.covers = covers
    record.info.meters[0].renewed_s = renewed_s
    record.info.spec = record.info.spec.model_copy(update={"sample_period_s": period_s})
    metering, _ = counted_power(record)
    assert metering == record.info.metering
    assert [meter.meter for meter in metering.meters] == counted
    said = [gap.reason for gap in metering.gaps]
    assert ("shorter than 10 times this" in "".join(said)) is (counted == ["nvml:0"])


@pytest.mark.parametrize(
    ("imported", "counted", "source"),
    [
        ("node", ["csv:outlet"], "imported"),  # the widest, whichever tool read it
        ("gpu", ["rapl:package-0", "csv:outlet"], "imported"),
        ("cpu", ["rapl:package-0"], "measured"),  # of equally wide ones the run's own
    ],
)
def test_a_meter_that_another_tool_read_is_chosen_as_all_are(imported, counted, source):
    own = MeterInfo(
        node="n", meter="rapl:package-0", available=True, source="measured", covers="cpu"
    )
    other = MeterInfo(
        node="n", meter="csv:outlet", available=True, source="imported", covers=imported
    )
    guess = MeterInfo(
        node="n", meter="estimated", available=True, source="estimated", covers="node"
    )
    found = metered(["n"], [own, other, guess])
    assert [meter.meter for meter in found.meters] == counted
    assert found.source == source


@pytest.mark.parametrize(("lasts_s", "known"), [(0.5, False), (9.0, False), (10.5, True)])
def test_a_counter_that_was_read_less_than_ten_times_in_a_run_does_not_count(lasts_s, known):
    record = hosts_with([("node00", "command", 50.0)], ["node00"])
    meter = record.info.meters[0]
    meter.covers, meter.renewed_s = "node", 1.0
    # The node draws 220 W in the run, and 20 W before and after it.
    times = [k - 0.75 for k in range(13)]
    joules = [20 * t + 200 * min(max(t, 0.0), lasts_s) + 50 for t in times]
    power = record.power.iloc[[0] * len(times)].assign(t_s=times, joules=joules, watts=None)
    outcome = record.info.outcome.model_copy(update={"stop_s": lasts_s})
    info = record.info.model_copy(update={"outcome": outcome})
    row = observe(replace(record, info=info, power=power.astype({"watts": float})))
    assert known or "shorter than 10 times this" in row["why_no_energy"]
    assert not known or row["energy_j"] == pytest.approx(220 * lasts_s, rel=0.05)
