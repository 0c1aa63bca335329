"""Tables of wattmeters and of nvidia-smi become run records; a fault is a line with a way out."""

import gzip

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_fixtures import (
    BUSY_W,
    WHAT,
    ZERO_S,
    between,
    expected_j,
    imported,
    info,
    iso,
    load,
    refused,
    row,
    run,
)

from joulecast.logs import log_table
from joulecast.logs.log import expanded
from joulecast.logs.log_table import scale_of
from joulecast.logs.log_times import Clock, zone_named
from joulecast.runs.record import read_record

MAP = ("--map", "time=t,watts=w")
BERLIN = ("--timezone", "Europe/Berlin")
SECONDS = np.arange(0, 300)


def table(path, rows=None, head="t,w", end="\n"):
    rows = rows or [
        f"{ZERO_S + t:.1f},{w:.1f}" for t, w in zip(SECONDS, load(SECONDS), strict=True)
    ]
    text = end.join([head, *rows]) + end
    path.write_bytes(text.encode())
    return path


def test_several_runs_of_one_log_are_cut_out_and_can_be_forecast(tmp_path):
    rows = [
        f"{iso(t)}Z;{w / 1000:.5f};{node}"
        for node in ("n1", "n2")
        for t, w in zip(
            range(900), load(range(900), 100, 400) + load(range(900), 520, 800), strict=True
        )
    ]
    log = table(tmp_path / "pdu.csv", rows, "Time;Power [kW];Rack node")
    runs = tmp_path / "runs.csv"
    # An editor may leave out the last end of a line.
    runs.write_text(
        "run,network,platform,nodes,batch,start,stop,epochs\n"
        f"a,net,box,2,256,{iso(100)}Z,{iso(400)}Z,10\n"
        f"b,net,box,2,512,{iso(520)}Z,{iso(800)}Z,9"
    )
    mapped = ("--map", "time=Time,watts=Power [kW],node=Rack node")
    done = run("import", "csv", log, tmp_path / "out", *mapped, "--runs", runs)
    assert done.exit_code == 0, done.output
    a, b = (row(tmp_path / "out" / name) for name in "ab")
    # Each trace holds the idle watts of the other.
    assert a["energy_j"] == pytest.approx(2 * 300 * (BUSY_W + 210), rel=0.01)
    assert (a["nodes"], a["batch"], b["batch"], a["samples"]) == (2, 256, 512, 10)
    assert (a["energy_covers"], a["energy_source"], a["left_out"]) == ("node", "imported", "")
    assert info(tmp_path / "out" / "a").started_utc == f"{iso(100, form='%Y-%m-%dT%H:%M:%S')}+00:00"
    done = run("forecast", "--records", tmp_path / "out", "--nodes", 4)
    assert done.exit_code == 0 and "imported" in done.output


@pytest.mark.parametrize(
    "form", ["crlf", "bom", "gz", "semicolon", "comma", "ms", "ns", "relative", "german"]
)
def test_the_form_of_a_table_changes_nothing(tmp_path, form):
    watts = load(SECONDS)
    rows = [f"{ZERO_S + t:.1f},{w:.1f}" for t, w in zip(SECONDS, watts, strict=True)]
    more, name, head, end = [], "log.csv", "t,w", "\n"
    if form == "crlf":
        end = "\r\n"
    elif form == "bom":
        head = "\ufeff" + head
    elif form in ("semicolon", "comma"):
        rows, head = [r.replace(",", ";") for r in rows], "t;w"
        if form == "comma":
            rows = [
                f"{int(ZERO_S + t)};{w:.1f}".replace(".", ",")
                for t, w in zip(SECONDS, watts, strict=True)
            ]
            more = ["--decimal", ","]
    elif form in ("ms", "ns"):
        rows = [
            f"{int(ZERO_S + t)}{'0' * (3 if form == 'ms' else 9)},{w:.1f}"
            for t, w in zip(SECONDS, watts, strict=True)
        ]
    elif form == "relative":
        rows = [f"{t},{w:.1f}" for t, w in zip(SECONDS, watts, strict=True)]
    elif form == "german":
        rows = [
            f"{iso(t, 1, '%d.%m.%Y %H:%M:%S')},{w:.1f}" for t, w in zip(SECONDS, watts, strict=True)
        ]
        more = ["--time-format", "%d.%m.%Y %H:%M:%S", "--timezone", "Europe/Berlin"]
    log = table(tmp_path / name, rows, head, end)
    if form == "gz":
        log = tmp_path / "log.csv.gz"
        log.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    when = ("--start", "60", "--stop", "240") if form == "relative" else between()
    imported("csv", log, tmp_path / "out", *MAP, *when, *more)
    found = row(tmp_path / "out" / "net")
    assert found["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    assert bool(info(tmp_path / "out" / "net").started_utc) == (form != "relative")


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("", (), "is empty"),
        ("t,w\n", (), "has a header and no reading"),
        ("a,b\n1,2\n", (), "line 1: has no column t, w; there are: a, b"),
        ("t,w,w\n1,2,3\n", (), "line 1: has the column w twice"),
        ("t;w\n1,5;200\n2,5;200\n", (), "say --decimal ,"),
        ("t;w\n1;200,5\n2;200,5\n", (), "say --decimal ,"),
        ("t;w\n1;1,200\n2;1,201\n", (), "between thousands"),
        ("t,w\n1,200\n2,200,7\n", (), "line 3: has more cells than the 2 columns"),
        ("t,w\n1,200\n2,abc\n", (), "line 3, column w: `abc` is no number"),
        ("t,w\n1,200\nnoon,200\n", (), "column t, line 3: `noon`"),
        ("t,w\n1,200\n2023-11-14T22:13:20,200\n", (), "the times before it are numbers"),
        ("t,w\n2023-11-14T22:13:20,2\n2023-11-14T22:13:20Z,2\n", (), "line 3"),
        ("t,w\n1,412000\n2,412000\n", (), "say --unit mW"),
        ("t,w\n1,200\n2,200\n", ("--unit", "kJ"), "map it as joules="),
        ("t,w\n1,200\n2,200\n", ("--unit", "hp"), "there are W, mW"),
        ("t,w\n1,200\n2,200\n", ("--timezone", "Europe/Berln"), "give a name as Europe/Berlin"),
        ("t,w\n1,200\n2,200\n", ("--hosts", "n9"), "has no readings of n9; there are: log"),
        ("t,w\n1,200\n2,200\n", ("--steps", "5"), "--batch-size"),
        ("t,w\n1,200\n2,200\n", ("--steps", 5, "--batch-size", 8, "--samples", 80), "are not 80"),
        ("t,w\n1,200\n2,200\n", ("--map", "time=t"), "either watts=COLUMN or joules=COLUMN"),
        ("t,w\n1,200\n2,200\n", ("--start", "2", "--stop", "1"), "stops before it starts"),
        ("t,w\n1,200\n", (), "readings of one moment; give --start and --stop"),
        ("t,w\n1,200\n2,200\n", between(), "seconds since a start"),
        ("t,w\n1,200\n2,200\n", ("--covers", "rack"), "give one of node"),
        ("t,w\n2026-03-29T02:30:00,2\n2026-03-29T02:31:00,2\n", BERLIN, "is there twice or not at all"),
        ("t,w\n2026-10-25T02:30:00,2\n2026-10-25T02:31:00,2\n", BERLIN, "is there twice"),
        # A line that is there twice does not say that the clock was put back.
        ("t,w\n" + "2026-10-25T02:30:00,2\n" * 2 + "2026-10-25T02:31:00,2\n", BERLIN, "is there twice"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_with_the_way_out(tmp_path, text, options, says):
    log = tmp_path / "log.csv"
    log.write_text(text)
    line = refused("csv", log, tmp_path / "out", *(MAP if "--map" not in options else ()), *options)
    assert says in line and ("log.csv" in line or "--" in line), line
    assert not (tmp_path / "out").exists()


def test_files_that_are_no_text_or_are_cut_short(tmp_path):
    whole = table(tmp_path / "log.csv").read_bytes()
    for name, content, says in (
        ("wide.csv", whole.decode().encode("utf-16"), "save it as UTF-8"),
        ("latin.csv", whole + b"1,\xb5\n", "not UTF-8"),
        ("cut.csv.gz", gzip.compress(whole)[:-30], "cannot be unpacked"),
        ("none.csv.gz", whole, "cannot be unpacked"),
    ):
        (tmp_path / name).write_bytes(content)
        assert says in refused("csv", tmp_path / name, tmp_path / "out", *MAP)
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf")
    assert "is empty" in refused("nvidia-smi", tmp_path / "bom.csv", tmp_path / "out")
    (tmp_path / "killed.csv").write_bytes(whole + f"{ZERO_S + 300}".encode())
    imported("csv", tmp_path / "killed.csv", tmp_path / "out", *MAP)
    assert any("truncated line" in remark for remark in info(tmp_path / "out" / "net").remarks)
    assert "no such table" in refused("csv", tmp_path / "absent.csv", tmp_path / "out", *MAP)
    # Another log would replace the run of this one.
    (tmp_path / "second.csv").write_bytes(whole)
    assert "--run" in refused("csv", tmp_path / "second.csv", tmp_path / "out", *MAP)
    imported("csv", tmp_path / "second.csv", tmp_path / "out", *MAP, "--run", "second")


@pytest.mark.parametrize(
    ("hz", "hours", "watts"),
    [(10, 12, (416, 417, 418)), (1, 30, (417,))],
)
def test_a_long_log_in_whole_watts_can_be_read_again(tmp_path, hz, hours, watts):
    t_s, end_s = np.arange(hours * 3600 * hz) / hz, 3600.0 * hours - 60
    drawn = np.where((t_s >= 60) & (t_s < end_s), np.resize(watts, len(t_s)), 105)
    rows = [f"{ZERO_S + t:.1f},{w}" for t, w in zip(t_s.tolist(), drawn.tolist(), strict=True)]
    table(tmp_path / "log.csv", rows)
    times = ("--start", str(ZERO_S + 60), "--stop", str(ZERO_S + end_s), "--epochs", 9)
    # A meter that says the same for hours is frozen; its record is there all the same.
    run("import", "csv", tmp_path / "log.csv", tmp_path / "out", *MAP, *WHAT, *times)
    power = read_record(tmp_path / "out" / "net").power
    assert len(power) >= (end_s - 60) * hz
    assert set(watts) <= set(power["watts"].unique()) <= {105, *watts}
    if len(watts) > 1:
        done = run("forecast", "--records", tmp_path / "out", "--nodes", 1)
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("name", ["long.csv", "long.csv.gz"])
def test_a_table_with_too_many_rows_is_refused_with_the_way_out(tmp_path, monkeypatch, name):
    monkeypatch.setattr(log_table, "MAX_LOG_ROWS", 299)
    whole = table(tmp_path / "log.csv").read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(whole) if name.endswith("gz") else whole)
    said = refused("csv", tmp_path / name, tmp_path / "out", *MAP)
    assert f"{name}: has more than 299 rows; divide it" in said
    monkeypatch.setattr(log_table, "MAX_LOG_ROWS", 300)
    imported("csv", tmp_path / name, tmp_path / "out", *MAP)


def test_a_clock_that_runs_backwards_and_nodes_of_one_name(tmp_path):
    rows = [f"{ZERO_S + t:.1f},{w:.1f}" for t, w in zip(SECONDS, load(SECONDS), strict=True)]
    table(tmp_path / "log.csv", rows[150:] + rows[:150])
    refused("csv", tmp_path / "log.csv", tmp_path / "out", *MAP)
    assert "non-monotonic stamps" in row(tmp_path / "out" / "net")["left_out"]
    # The newest reading may be the first.
    table(tmp_path / "log.csv", rows[::-1])
    imported("csv", tmp_path / "log.csv", tmp_path / "out", *MAP)
    folder = tmp_path / "both"
    folder.mkdir()
    table(folder / "n1.csv", rows)
    (folder / "n1.csv.gz").write_bytes(gzip.compress((folder / "n1.csv").read_bytes()))
    assert "two nodes of one name" in refused("csv", folder, tmp_path / "other", *MAP)
    # Files that continue each other are one meter, whatever their order, and with a reading twice.
    (folder / "n1.csv.gz").unlink()
    for name, part in (("n1.csv", rows[:101]), ("n10.csv", rows[200:]), ("n2.csv", rows[100:201])):
        table(folder / name, part[::-1])
    imported("csv", folder, tmp_path / "joined", *MAP, "--node", "n1", *between())
    assert row(tmp_path / "joined" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)


@pytest.mark.parametrize("joined", [False, True])
def test_columns_of_watts_are_nodes_or_the_supplies_of_one(tmp_path, joined):
    # Grafana and W&B join series by their times, with empty cells at the times of the others.
    row_of = "{0},{1},\n{2},,{1}" if joined else "{0},{1},{1}"
    rows = [
        row_of.format(ZERO_S + t, round(w / 2, 1), ZERO_S + t + 0.2)
        for t, w in zip(SECONDS, load(SECONDS), strict=True)
    ]
    log = table(tmp_path / "log.csv", rows, "t,left,right")
    mapped = ("--map", "time=t,watts=left,watts=right")
    joules = []
    for name, more, nodes in (("two", (), 2), ("one", ("--node", "n1"), 1)):
        # The run begins and ends between two readings.
        said = imported("csv", log, tmp_path / name, *mapped, *between(59.5, 239.5), *more)
        assert f"on {nodes} node" in said
        # Two nodes that read alike may be one, two supplies of a node are not.
        assert ("remark shared meters" in said) == (nodes == 2)
        found = row(tmp_path / name / "net")
        assert found["energy_j"] == pytest.approx(expected_j(), rel=0.01)
        assert found["nodes"] == nodes
        joules.append(found["energy_j"])
    assert joules[0] == pytest.approx(joules[1], rel=1e-9)


def test_several_meters_in_one_column_need_the_column_that_tells_them_apart(tmp_path):
    rows = [
        f"{ZERO_S + t},{gpu},{w / 2:.1f}"
        for t, w in zip(SECONDS, load(SECONDS), strict=True)
        for gpu in "ab"
    ]
    log = table(tmp_path / "log.csv", rows, "t,gpu,w")
    assert "device=gpu" in refused("csv", log, tmp_path / "no", *MAP, *between())
    imported("csv", log, tmp_path / "out", "--map", "time=t,watts=w,device=gpu", *between())
    assert row(tmp_path / "out" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    mapped = ("--map", "time=t,watts=w,node=host")
    for name in ("{host}-{gpu}", "{gpu}"):
        rows = [
            f"{ZERO_S + t},{name.format(host=host, gpu=gpu)},{w / 2:.1f},{host}"
            for t, w in zip(SECONDS, load(SECONDS), strict=True)
            for host in ("n1", "n2")
            for gpu in "ab"
        ]
        log = table(tmp_path / "nodes.csv", rows, "t,gpu,w,host")
        assert "device=gpu" in refused("csv", log, tmp_path / "no", *MAP, *between())
        assert "device=gpu" in refused("csv", log, tmp_path / "no", *mapped, *between())
    mapped = ("--map", "time=t,watts=w,device=gpu")
    assert "node=host" in refused("csv", log, tmp_path / "no", *mapped, *between())


def test_parts_of_a_node_need_not_draw_alike(tmp_path):
    rows = [
        f"{ZERO_S + t},{w:.1f},{w / 20:.2f}" for t, w in zip(SECONDS, load(SECONDS), strict=True)
    ]
    log = table(tmp_path / "log.csv", rows, "t,socket,memory")
    mapped = ("--map", "time=t,watts=socket,watts=memory")
    imported("csv", log, tmp_path / "out", *mapped, *between(), "--node", "n1")
    found = row(tmp_path / "out" / "net")
    assert found["energy_j"] == pytest.approx(1.05 * expected_j(), rel=0.01)
    assert "marked" in refused("csv", log, tmp_path / "no", *mapped, *between())


def test_watts_that_rise_in_a_saw_tooth_are_watts(tmp_path):
    rows = [f"{ZERO_S + t:.1f},{100 + 200 * (t % 50) / 49:.1f}" for t in SECONDS]
    log = table(tmp_path / "log.csv", rows)
    imported("csv", log, tmp_path / "out", *MAP, *between())
    assert "counter" not in row(tmp_path / "out" / "net")["left_out"]


@pytest.mark.parametrize(
    ("column", "unit_w"),
    [
        *((name, 1e3) for name in ("power_kW", "P kw", "Power [kW]", "kW", "power_kw_avg")),
        ("power_mw", 1e-3),
        ("power_uw", 1e-6),
    ],
)
def test_the_unit_in_the_name_of_a_column_counts(tmp_path, column, unit_w):
    watts = 20 * load(SECONDS) + SECONDS % 7
    rows = [f"{ZERO_S + t},{w / unit_w:.4f}" for t, w in zip(SECONDS, watts, strict=True)]
    log = table(tmp_path / "log.csv", rows, f"t,{column}")
    imported("csv", log, tmp_path / "out", "--map", f"time=t,watts={column}", *between())
    assert row(tmp_path / "out" / "net")["energy_j"] == pytest.approx(20 * expected_j(), rel=0.01)


@pytest.mark.parametrize(
    ("column", "of_s", "since_s"),
    [("elapsed_ms", 1e3, 0), ("timeNs", 1e9, 2e6), ("t [min]", 1 / 60, 0), ("ms", 1e3, ZERO_S)],
)
def test_the_unit_in_the_name_of_the_times_counts(tmp_path, column, of_s, since_s):
    watts = load(SECONDS, 0, 300)
    rows = [f"{(since_s + t) * of_s:.6f},{w:.1f}" for t, w in zip(SECONDS, watts, strict=True)]
    log = table(tmp_path / "log.csv", rows, f"{column},w")
    imported("csv", log, tmp_path / "out", "--map", f"time={column},watts=w")
    assert row(tmp_path / "out" / "net")["energy_j"] == pytest.approx(expected_j(299), rel=0.01)


def test_a_counter_of_a_small_node_in_millijoules_is_one(tmp_path):
    counts = np.cumsum(load(SECONDS)) / 15 * 1e3
    rows = [f"{ZERO_S + t},{c:.0f}" for t, c in zip(SECONDS, counts, strict=True)]
    log = table(tmp_path / "log.csv", rows, "t,energy_mj")
    imported("csv", log, tmp_path / "out", "--map", "time=t,joules=energy_mj", *between())
    assert row(tmp_path / "out" / "net")["energy_j"] == pytest.approx(expected_j() / 15, rel=0.01)


def test_kw_without_a_unit_and_three_readings_are_no_measurement(tmp_path):
    watts = 20 * load(SECONDS) + SECONDS % 7
    rows = [f"{ZERO_S + t},{w / 1000:.4f}" for t, w in zip(SECONDS, watts, strict=True)]
    log = table(tmp_path / "kw.csv", rows)
    assert (
        "say --unit" in run("import", "csv", log, tmp_path / "kw", *MAP, *between(), *WHAT).output
    )
    rows = [f"{ZERO_S + t},{w:.1f}" for t, w in zip(SECONDS, watts, strict=True)][::60]
    log = table(tmp_path / "few.csv", rows)
    done = run("import", "csv", log, tmp_path / "few", *MAP, *between(), *WHAT)
    assert done.exit_code == 2 and "too few readings" in done.output


@pytest.mark.parametrize("form", ["seldom", "repeated", "counted"])
def test_few_values_in_a_run_are_said(tmp_path, form):
    # A reading each 20 s; or one each second, of a meter that has a new value each 20 s.
    at_s = SECONDS - SECONDS % 20 + 7
    values, what = load(SECONDS)[at_s // 20 * 20], "watts"
    if form == "counted":
        values, what = np.cumsum(load(SECONDS)), "joules"
    each = slice(None) if form == "repeated" else slice(7, None, 20)
    pairs = zip(SECONDS[each], values[each], strict=True)
    log = table(tmp_path / "slow.csv", [f"{ZERO_S + t},{v:.1f}" for t, v in pairs])
    out = tmp_path / "out"
    said = imported("csv", log, out, "--map", f"time=t,{what}=w", *between(), "--samples", 1e4)
    assert "remark few readings: 1" in said and "be off by" in " ".join(info(out / "net").remarks)


def test_a_coarse_counter_is_left_out(tmp_path):
    counts = np.floor(np.cumsum(load(SECONDS)) / 36_000) * 0.01
    rows = [f"{ZERO_S + t},{c:.2f}" for t, c in zip(SECONDS, counts, strict=True)]
    log = table(tmp_path / "log.csv", rows, "t,E [kWh]")
    mapped = ("--map", "time=t,joules=E [kWh]")
    done = run("import", "csv", log, tmp_path / "out", *mapped, *between(), *WHAT)
    assert done.exit_code == 2 and "coarse counter" in done.output


def test_a_counter_that_begins_anew_counts_on(tmp_path):
    counts = np.cumsum(load(SECONDS)) / 3600
    counts[100:] -= counts[100]
    rows = [f"{ZERO_S + t},{c:.6f}" for t, c in zip(SECONDS, counts, strict=True)]
    log = table(tmp_path / "log.csv", rows, "t,energy (Wh)")
    imported("csv", log, tmp_path / "out", "--map", "time=t,joules=energy (Wh)", *between())
    # What it counted while it began anew, a reading, is missing.
    assert row(tmp_path / "out" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    (meter,) = info(tmp_path / "out" / "net").meters
    assert meter.counter
    assert any("counter began anew" in remark for remark in info(tmp_path / "out" / "net").remarks)
    # What it had counted in the gap is not known.
    log = table(tmp_path / "gap.csv", rows[:80] + rows[130:], "t,energy (Wh)")
    asked = ("--map", "time=t,joules=energy (Wh)", *between())
    assert "error" in refused("csv", log, tmp_path / "gap", *asked)
    assert "counter began anew" in info(tmp_path / "gap" / "net").left_out[0]


def test_a_small_node_that_draws_nothing_was_not_read(tmp_path):
    watts = load(SECONDS)
    watts[100:120] = 0.0
    log = table(tmp_path / "log.csv", [f"{ZERO_S + t},{w:.1f}" for t, w in enumerate(watts)])
    imported("csv", log, tmp_path / "out", *MAP, *between())
    assert row(tmp_path / "out" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    assert any("failed readings" in remark for remark in info(tmp_path / "out" / "net").remarks)


def test_the_lag_of_a_clock_is_reported_and_the_user_says_the_shift(tmp_path):
    late = [f"{ZERO_S + t + 25:.1f},{w:.1f}" for t, w in zip(SECONDS, load(SECONDS), strict=True)]
    log = table(tmp_path / "log.csv", late)
    done = run("import", "csv", log, tmp_path / "out", *MAP, *between(), *WHAT)
    (why,) = info(tmp_path / "out" / "net").left_out
    assert done.exit_code == 2 and why in done.output and "say --shift -2" in why
    assert float(why.split()[2]) == pytest.approx(25, abs=1.5)
    said = imported("csv", log, tmp_path / "right", *MAP, *between(), "--shift", "-25")
    assert "clock lag: " in said and "nothing was applied" in said
    assert row(tmp_path / "right" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    inside = range(55, 246)
    flat = [f"{ZERO_S + t},{w:.1f}" for t, w in zip(inside, load(inside, 0, 999), strict=True)]
    said = imported("csv", table(tmp_path / "flat.csv", flat), tmp_path / "flat", *MAP, *between())
    assert "clock lag not known: " in said


@pytest.mark.parametrize("first_s", [(60.0, 240.0), (0.0, 999.0)], ids=["known", "flat"])
def test_nodes_of_several_clocks_have_no_one_shift(tmp_path, first_s):
    (tmp_path / "in").mkdir()
    for node, late_s, busy_s in (("n1", 0, first_s), ("n2", 40, (60.0, 240.0))):
        watts = zip(SECONDS + late_s, load(SECONDS, *busy_s), strict=True)
        table(tmp_path / f"in/{node}.csv", [f"{ZERO_S + t:.1f},{w:.1f}" for t, w in watts])
    run("import", "csv", tmp_path / "in", tmp_path / "out", *MAP, *between(), *WHAT)
    why = next(w for w in info(tmp_path / "out" / "net").left_out if w.startswith("clock lag"))
    assert "n2 " in why and "each node" in why and "say --shift" not in why


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_wrong_time_zone_is_known_in_a_long_run(tmp_path, hours):
    at_s = np.arange(0, 18_000, 30)
    watts = load(at_s, 3600, 14_400)
    log = tmp_path / "log.csv"
    table(log, [f"{iso(t, 1)},{w:.1f}" for t, w in zip(at_s, watts, strict=True)])
    zone = ("--timezone", f"+0{1 + hours}:00")
    run("import", "csv", log, tmp_path / "out", *MAP, *between(3600, 14_400), *WHAT, *zone)
    left_out = info(tmp_path / "out" / "net").left_out
    assert [why.split(":")[0] for why in left_out] == ["clock lag"] * bool(hours)
    assert all("--timezone" in why for why in left_out)


def test_times_without_a_zone_are_placed_or_remarked(tmp_path):
    rows = [f"{iso(t, 1)},{w:.1f}" for t, w in zip(SECONDS, load(SECONDS), strict=True)]
    log = table(tmp_path / "log.csv", rows)
    assert "give --timezone" in refused("csv", log, tmp_path / "out", *MAP, *between())
    local = ("--start", iso(60, 1), "--stop", iso(240, 1))
    imported("csv", log, tmp_path / "local", *MAP, *local)
    assert "no time zone" in " ".join(info(tmp_path / "local" / "net").remarks)
    imported("csv", log, tmp_path / "placed", *MAP, *between(), "--timezone", "Europe/Berlin")
    energies = [row(tmp_path / name / "net")["energy_j"] for name in ("local", "placed")]
    assert energies[0] == pytest.approx(energies[1], rel=1e-6)


def test_an_import_that_fails_leaves_what_was_there(tmp_path):
    log = table(tmp_path / "log.csv")
    imported("csv", log, tmp_path / "out", *MAP, *between(), "--run", "one")
    imported("csv", log, tmp_path / "out", *MAP, *between(70, 200), "--run", "two")
    before = {f.name: (f / "run.json").read_bytes() for f in (tmp_path / "out").iterdir()}
    refused("csv", log, tmp_path / "out", "--map", "time=t,watts=absent")
    assert {f.name: (f / "run.json").read_bytes() for f in (tmp_path / "out").iterdir()} == before
    assert sorted(before) == ["one", "two"]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("run,network,speed\na,b,1\n", "`speed` is no column of a table of runs; there are: run, network"),
        ("run,nodes\na,some\n", "line 2: nodes: Input should be a valid integer"),
        ("run,nodes\na,1.5\n", "line 2: nodes: Input"),
        ("run,start\na,noon\n", "line 2, column start: `noon` is no time; write it as 2026-"),
        ("run\na\na\n", "`a` is there twice"),
        ("run,nodes\n", "has 0 runs"),
    ],
)  # fmt: skip
def test_a_table_of_runs_that_is_wrong(tmp_path, rows, says):
    (tmp_path / "runs.csv").write_text(rows)
    line = refused(
        "csv", table(tmp_path / "log.csv"), tmp_path / "o", *MAP, "--runs", tmp_path / "runs.csv"
    )
    assert says in line and "runs.csv" in line


NVIDIA = "timestamp, name, index, power.draw [W], utilization.gpu [%]"


def nvidia(path, head=NVIDIA, row_of=None, gpus=2, units=True):
    row_of = row_of or (
        lambda t, gpu, w: f"{t}, NVIDIA H100, {gpu}, {w:.2f}{' W' if units else ''}, 99 %"
    )
    lines = [] if head is None else [head]
    watts = load(SECONDS)
    for t, w in zip(SECONDS, watts, strict=True):
        lines += [
            row_of(iso(t + gpu / 500, form="%Y/%m/%d %H:%M:%S.%f")[:-3], gpu, w / 2)
            for gpu in range(gpus)
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_nvidia_smi_in_any_order_with_and_without_units_and_header(tmp_path):
    log = nvidia(tmp_path / "n1.csv")
    imported(
        "nvidia-smi", log, tmp_path / "out", *between(), "--timezone", "UTC", "--accelerators", 2
    )
    found = row(tmp_path / "out" / "net")
    assert found["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    assert (found["energy_covers"], found["nodes"]) == ("gpu", 1)
    assert [m.meter for m in info(tmp_path / "out" / "net").meters] == [
        "nvidia-smi:0",
        "nvidia-smi:1",
    ]
    bare = nvidia(tmp_path / "n2.csv", None, lambda t, gpu, w: f"{w:.2f}, GPU-{gpu:08x}, {t}")
    for other in (1, 4):
        wrong = ("--timezone", "UTC", "--accelerators", other)
        line = refused("nvidia-smi", log, tmp_path / "no", *between(), *wrong)
        assert "readings of 2 GPUs" in line and f"a node has {other}" in line
    assert "--columns timestamp,index,power.draw" in refused("nvidia-smi", bare, tmp_path / "no")
    columns = ("--columns", "power.draw,uuid,timestamp")
    imported("nvidia-smi", bare, tmp_path / "bare", *columns, *between(), "--timezone", "UTC")
    assert row(tmp_path / "bare" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)


def test_a_copy_of_a_log_is_no_other_node(tmp_path):
    power = tmp_path / "power"
    power.mkdir()
    log = nvidia(power / "n1.csv")
    nvidia(power / "n2.csv", row_of=lambda t, gpu, w: f"{t}, NVIDIA H100, {gpu}, {w + 1:.2f}, 99 %")
    imported("nvidia-smi", power, tmp_path / "out", *between(), "--timezone", "UTC")
    (power / "n3.csv").write_text(log.read_text())
    line = refused("nvidia-smi", power, tmp_path / "no", *between(), "--timezone", "UTC")
    assert "n1.csv" in line and "n3.csv" in line and "copy" in line
    # Two logs of one GPU, at other moments.
    head = NVIDIA.replace("index", "uuid")
    for number in (1, 2, 3):
        nvidia(
            power / f"n{number}.csv",
            head,
            lambda t, gpu, w, n=number: f"{t[:-1]}{n}, H100, GPU-{gpu + n % 2}, {w + n:.2f}, 99 %",
        )
    line = refused("nvidia-smi", power, tmp_path / "no", *between(), "--timezone", "UTC")
    assert "n2.csv" in line and "copy" in line


def test_a_node_with_fewer_gpus_in_its_log_leaves_the_run_out(tmp_path):
    power = tmp_path / "power"
    power.mkdir()
    nvidia(power / "n1.csv")
    log = nvidia(power / "n2.csv", row_of=lambda t, g, w: f"{t}, H100, {g}, {w + 1:.2f}, 99 %")
    lines = log.read_text().splitlines()
    log.write_text("\n".join(line for line in lines if ", H100, 1," not in line) + "\n")
    out = tmp_path / "out"
    assert "no run is left" in refused("nvidia-smi", power, out, *between(), "--timezone", "UTC")
    (why,) = info(out / "net").left_out
    assert why.startswith("node without readings: n2 has 1")


def test_gpus_that_the_run_may_not_have_used_are_named(tmp_path):
    def line(t, gpu, watts):
        return f"{t}, H100, {gpu}, {watts / (1 + 4 * int(gpu)):.2f}, 99 %"

    log = nvidia(tmp_path / "n1.csv", row_of=line)
    imported("nvidia-smi", log, tmp_path / "out", *between(), "--timezone", "UTC")
    assert any("idle GPUs: n1: 1 of 2" in text for text in info(tmp_path / "out/net").remarks)


def test_the_table_of_dmon_is_read_too(tmp_path):
    head = "#Date       Time        gpu    pwr  gtemp\n#YYYYMMDD   HH:MM:SS    Idx      W      C\n"
    log = tmp_path / "dmon.log"
    text = ""
    for t, w in zip(SECONDS, load(SECONDS), strict=True):
        text += head if t % 20 == 0 else ""
        text += "".join(
            f" {iso(t, form='%Y%m%d   %H:%M:%S')}      {g}   {w / 2:.0f}     -\n" for g in (0, 1)
        )
    log.write_text(text + " 2026")
    imported("nvidia-smi", log, tmp_path / "out", *between(), "--timezone", "UTC")
    found = row(tmp_path / "out" / "net")
    assert found["energy_j"] == pytest.approx(expected_j(), rel=0.02)
    # As dmon --format csv writes it.
    log.write_text("\n".join(", ".join(line.split()) for line in text.splitlines()))
    imported("nvidia-smi", log, tmp_path / "csv", *between(), "--timezone", "UTC")
    assert row(tmp_path / "csv" / "net")["energy_j"] == found["energy_j"]
    log.write_text("# gpu    pwr\n# Idx      W\n    0     99\n")
    assert "-o DT" in refused("nvidia-smi", log, tmp_path / "no", *between())


def test_nvidia_smi_says_what_is_missing_or_has_no_figure(tmp_path):
    no_id = nvidia(
        tmp_path / "n1.csv", "timestamp, power.draw [W]", lambda t, gpu, w: f"{t}, {w:.2f} W"
    )
    assert "no column that tells them apart" in refused("nvidia-smi", no_id, tmp_path / "no")
    no_power = nvidia(tmp_path / "n2.csv", "timestamp, index", lambda t, gpu, w: f"{t}, {gpu}")
    line = refused("nvidia-smi", no_power, tmp_path / "no")
    assert "power.draw; there are: timestamp, index" in line
    text = nvidia(tmp_path / "n3.csv").read_text().splitlines()
    text[101] = text[101].replace(text[101].split(", ")[3], "[N/A]")
    text.insert(200, "Unable to determine the device handle for GPU 0000:17:00.0: Unknown Error")
    text.insert(300, NVIDIA)
    (tmp_path / "n3.csv").write_text("\n".join(text) + "\n")
    imported("nvidia-smi", tmp_path / "n3.csv", tmp_path / "odd", *between(), "--timezone", "UTC")
    found = info(tmp_path / "odd" / "net")
    assert "lines without a reading: 1 in n3.csv" in found.remarks
    assert row(tmp_path / "odd" / "net")["energy_j"] == pytest.approx(expected_j(), rel=0.01)
    sliced = nvidia(
        tmp_path / "n4.csv",
        "timestamp, uuid, mig.mode.current, power.draw [W]",
        lambda t, gpu, w: f"{t}, GPU-{gpu}, Enabled, {w:.2f} W",
    )
    imported("nvidia-smi", sliced, tmp_path / "mig", *between(), "--timezone", "UTC")
    assert all("MIG" in m.remark for m in info(tmp_path / "mig" / "net").meters)


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e8, 4e9, allow_nan=False),
    st.sampled_from(["s", "ms", "us", "ns"]),
    st.sampled_from(
        ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "+05:30", "-03:00"]
    ),
)
def test_a_moment_is_the_same_in_every_form(at_s, unit, zone):
    at_s = round(at_s, 3)
    factor = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    texts = [f"{round(at_s * 1000) * factor // 1000}"] if unit != "s" else [f"{at_s}"]
    clock = Clock(zone_named(zone), unit)
    found = clock.seconds(pd.Series(texts, index=[1]), "here")
    assert found.form == "placed" and found.t_s[0] == pytest.approx(at_s, abs=2e-3)
    written = iso(at_s - ZERO_S)
    assert Clock().moment(f"{written}+00:00", "here").t_s[0] == pytest.approx(at_s, abs=2e-6)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 1e6), st.sampled_from(["W", "mW", "uW", "kW", "J", "mJ", "kJ", "Wh", "kWh"]))
def test_a_unit_there_and_back(value, unit):
    what, factor = scale_of(unit, "here")
    assert what == ("watts" if unit.endswith("W") else "joules")
    in_plain = scale_of("W" if what == "watts" else "J", "here")[1]
    assert value / factor * factor / in_plain == pytest.approx(value)


def test_hosts_as_slurm_lists_them():
    assert expanded("n[01-03,7],login1 gpu[1-2]-ib") == (
        "n01",
        "n02",
        "n03",
        "n7",
        "login1",
        "gpu1-ib",
        "gpu2-ib",
    )
    assert expanded("") == ()


def test_the_commands_are_listed_with_what_they_read():
    done = run("import", "--help")
    for kind in (
        "csv",
        "nvidia-smi",
        "perun",
        "codecarbon",
        "zeus",
        "jpwr",
        "slurm",
        "prometheus",
        "mlperf",
    ):
        assert kind in done.output
    assert WHAT[0] in run("import", "csv", "--help").output


def test_cells_of_several_units_are_refused_and_the_user_may_say_one(tmp_path):
    watts = load(SECONDS)
    rows = [f"{ZERO_S + t:.1f},{w / 1000:.5f} kW" for t, w in zip(SECONDS, watts, strict=True)]
    imported("csv", table(tmp_path / "a.csv", rows), tmp_path / "out", *MAP)
    found = row(tmp_path / "out" / "net")["energy_j"]
    assert found == pytest.approx(np.trapezoid(watts, SECONDS), rel=1e-3)
    rows[7] = rows[7].rpartition(" ")[0]
    mixed = table(tmp_path / "b.csv", rows)
    assert "is in another unit than those before" in refused("csv", mixed, tmp_path / "no", *MAP)
    bare = table(tmp_path / "c.csv", [each.removesuffix(" kW") for each in rows])
    refused("csv", bare, tmp_path / "wrong", *MAP)
    assert "say --unit" in row(tmp_path / "wrong" / "net")["left_out"]
    imported("csv", bare, tmp_path / "said", *MAP, "--unit", "kW")
    assert row(tmp_path / "said" / "net")["energy_j"] == pytest.approx(found)


def test_a_last_number_that_was_cut_in_two_is_left_out(tmp_path):
    log = table(tmp_path / "a.csv")
    log.write_bytes(log.read_bytes()[:-4])
    imported("csv", log, tmp_path / "out", *MAP)
    (meter,) = info(tmp_path / "out" / "net").meters
    assert meter.readings == len(SECONDS) - 1


@pytest.mark.parametrize(
    ("cells", "more", "said"),
    [
        (lambda t: ("46144.4166666667", f"{300 + t % 7}"), (), "days since 1900"),
        (lambda t: (f"{ZERO_S + t:.0f}", f"{1000 * t}"), (), "map it as joules="),
        (
            lambda t: (f"{ZERO_S + t:.0f}", f"1.{200 + t % 7}"),
            ("--decimal", ","),
            "between thousands",
        ),
    ],
)
def test_what_looks_like_something_else_is_refused(tmp_path, cells, more, said):
    rows = [";".join(cells(t)) for t in range(60)]
    log = table(tmp_path / "a.csv", rows, "t;w")
    assert said in refused("csv", log, tmp_path / "no", *MAP, *more)


@pytest.mark.parametrize(
    ("hours", "period_s", "noise"), [(24, 1.0, 0), (30, 1.0, 0), (24, 1.0, 7), (4, 0.1, 7)]
)
def test_what_an_import_writes_is_read_again_however_long_the_log(tmp_path, hours, period_s, noise):
    t_s = np.arange(0, 3600 * hours, period_s)
    watts = 300 + np.random.default_rng(1).integers(0, noise + 1, len(t_s))
    pd.DataFrame({"t": ZERO_S + t_s, "w": watts}).to_csv(tmp_path / "log.csv", index=False)
    imported("csv", tmp_path / "log.csv", tmp_path / "out", *MAP, "--covers", "gpu", "--epochs", 1)
    found = row(tmp_path / "out" / "net")
    assert found["energy_j"] == pytest.approx(watts.mean() * 3600 * hours, rel=1e-4)


@pytest.mark.parametrize("more", [(), ("--batch-size", 8), ("--batch-size", 256)])
def test_epochs_that_are_said_are_epochs_whatever_the_batch(tmp_path, more):
    log = table(tmp_path / "log.csv")
    imported("csv", log, tmp_path / "out", *MAP, "--covers", "gpu", "--epochs", 10, *more)
    found = row(tmp_path / "out" / "net")
    assert (found["work_unit"], found["samples"]) == ("epochs", 10)
