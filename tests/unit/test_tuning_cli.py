"""`joulecast tune` and `advise --recurring` as they are used: what they print, and what they refuse."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.tune.expectation import expected, expected_default
from joulecast.tune.history import History, add_to_history_file, begin_history_file
from joulecast.tune.live import LiveTraining
from joulecast.tune.next_run import advise
from joulecast.tune.policy_experiment import read_settings
from joulecast.tune.policy_report import live_report, live_report_text, replayed_history
from joulecast.tune.recurrences import Recurrence
from joulecast.tune.request import TuneRequest
from joulecast.tune.trial import CostModel, EpochAtLimit, Proposal, SearchSpace, Trial

TRACES = Path(__file__).resolve().parents[2] / "recorded/zeus-trace"
EPOCHS = {256: (8, 8), 512: (8, 9), 1024: (12, 12), 2048: (30, 120)}
"""Of the made traces; 1024 is the workload's default, and 100 epochs are the most."""
EPOCH_S = {256: 14.0, 512: 10.0, 1024: 9.0, 2048: 9.0}
JOINED = {"dataset": "cifar100", "network": "shufflenetv2", "optimizer": "adadelta"}
WHOLE = ["--workload", "cifar100", "--gpu", "v100"]


def joulecast(*arguments: object) -> str:
    """The output of a command that succeeds."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: object) -> str:
    """What a command says that does not succeed."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines()[-1].startswith("error: ")
    return result.stderr


def made_traces(folder: Path, epochs: dict[int, tuple[float | None, ...]] = EPOCHS) -> Path:
    runs = [
        JOINED | {"batch_size": b, "run": i, "target_metric": 0.6, "target_epoch": e}
        for b, runs in epochs.items()
        for i, e in enumerate(runs)
    ]
    pd.DataFrame(runs).to_csv(folder / "summary_train.csv", index=False)
    for gpu, highest in (("v100", 250), ("a40", 300)):
        power = [
            JOINED
            | {
                "batch_size": b,
                "power_limit": w,
                "time_per_epoch": s * (1 + (highest - w) ** 2 / 6e4),
            }
            | {"average_power": 0.9 * w}
            for b, s in EPOCH_S.items()
            for w in range(100, highest + 1, 50)
        ]
        pd.DataFrame(power).to_csv(folder / f"summary_power_{gpu}.csv", index=False)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made_traces(tmp_path)


def edited(folder: Path, name: str, **drop: float) -> Path:
    """A trace file without some of its rows."""
    table = pd.read_csv(folder / name)
    rows = table[list(drop)].eq(pd.Series(drop)).all(axis=1)
    assert rows.any()
    table[~rows].to_csv(folder / name, index=False)
    return folder


# --- tune ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [
        "default",
        "power-limit-only",
        "zeus",
        "grid-search",
        "curve",
        "warm-start",
        "oracle",
    ],
)
def test_every_policy_is_replayed(folder: Path, policy: str) -> None:
    asked = ["--policy", policy, "--seeds", 3, "--recurrences", 12]
    report = json.loads(joulecast("tune", "--traces", folder, *WHOLE, *asked, "--json"))
    assert report["policy"] == policy
    assert report["energy_source"] == "recorded"
    setting = report["setting"]
    assert (setting["target"], setting["recurrences"], setting["seeds"]) == (0.6, 12, 3)
    assert (report["default"]["batch_size"], report["default"]["power_limit_w"]) == (1024, 250)
    for part in ("steady_state", "with_exploration"):
        for quantity in ("energy", "time", "cost"):
            ratio = report["ratio_to_default"][part][quantity]
            if policy in ("default", "power-limit-only", "oracle"):
                assert (ratio["low"], ratio["high"]) == (None, None), "nothing is drawn"
            else:
                assert ratio["low"] <= ratio["mean"] <= ratio["high"]
    cumulative = report["cumulative_ratio"]
    assert [row["recurrence"] for row in cumulative] == list(range(1, 13))
    for quantity in ("energy", "time", "cost"):
        whole = report["ratio_to_default"]["with_exploration"][quantity]["mean"]
        assert cumulative[-1][quantity] == pytest.approx(whole)
    at = report["break_even_recurrence"]
    above = [row["recurrence"] for row in cumulative if row["cost"] > 1]
    assert at == (None if above[-1:] == [12] else above[-1] + 1 if above else 1)
    assert ("does not pay back within 12" in report["break_even"]) == (at is None)
    assert report["reached_share"] == 1


def test_the_oracle_and_the_default_are_what_they_are_compared_with(folder: Path) -> None:
    command = ["tune", "--traces", folder, *WHOLE, "--seeds", 40, "--json", "--recurrences", 5]
    oracle = json.loads(joulecast(*command, "--policy", "oracle"))
    assert oracle["oracle"]["batch_size"] == 512
    assert oracle["regret"]["in_oracle_recurrences"]["mean"] == pytest.approx(0, abs=0.1)
    default = json.loads(joulecast(*command, "--policy", "default"))
    # Every run of the default has 12 epochs.
    assert default["ratio_to_default"]["with_exploration"]["cost"]["mean"] == pytest.approx(1)
    regret = 5 * (1 / default["ratio_to_default"]["oracle_cost"] - 1)
    assert default["regret"]["in_oracle_recurrences"]["mean"] == pytest.approx(regret)


def test_the_text_says_what_matters(folder: Path) -> None:
    text = joulecast("tune", "--traces", folder, *WHOLE, "--policy", "zeus", "--seeds", 4)
    for said in (
        "zeus on cifar100, v100, target 0.6: 50 recurrences, 4 seeds, eta 0.5",
        "batch size 1024 at 250 W",
        "recorded",
        "95 % intervals over seeds",
        "all, exploration included",
        "tries a recurrence",
        "an oracle (batch size 512",
    ):
        assert said in text
    one = joulecast("tune", "--traces", folder, *WHOLE, "--policy", "zeus", "--seeds", 1)
    assert "one seed: no intervals" in one


def test_a_trace_without_a_limit_that_is_not_the_defaults_is_fine(folder: Path) -> None:
    edited(folder, "summary_power_v100.csv", batch_size=512, power_limit=250)
    edited(folder, "summary_power_v100.csv", batch_size=1024, power_limit=150)
    report = json.loads(
        joulecast("tune", "--traces", folder, *WHOLE, "--policy", "zeus", "--json", "--seeds", 2)
    )
    assert report["reached_share"] == 1


@pytest.mark.parametrize("column", ["time_per_epoch", "average_power"])
@pytest.mark.parametrize("value", [0.0, 1e-300])
def test_an_epoch_without_time_or_power_is_refused(folder: Path, column: str, value: float) -> None:
    file = folder / "summary_power_v100.csv"
    table = pd.read_csv(file)
    table.loc[0, column] = value
    table.to_csv(file, index=False)
    said = refused("tune", "--traces", folder, *WHOLE)
    assert "summary_power_v100.csv: cifar100 with batch size" in said
    assert "an epoch without time or power" in said


def test_a_trace_without_the_defaults_highest_limit_is_refused(folder: Path) -> None:
    edited(folder, "summary_power_v100.csv", batch_size=1024, power_limit=250)
    said = refused("tune", "--traces", folder, *WHOLE)
    assert "summary_power_v100.csv: cifar100 with the default batch size 1024" in said
    assert "no power limit of 250 W" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload", "cifar", "--gpu", "v100"], "no workload `cifar`; there are librispeech"),
        (["--workload", "cifar100", "--gpu", "h100"], "no traces of `h100`; there are v100"),
        ([*WHOLE, "--target", "0.99"], "has no target 0.99; it has 0.6"),
        (["--workload", "squad", "--gpu", "v100"], "squad has no target 84.0; it has none"),
        (["--workload", "cifar100", "--gpu", "p100"], "summary_power_p100.csv"),
        ([*WHOLE, "--policy", "zoos"], "no policy `zoos`; there are default"),
        ([*WHOLE, "--policy", "zeus", "--beta", "1"], "beta is 1.0; it has to be above 1"),
        ([*WHOLE, "--policy", "oracle", "--beta", "2"], "oracle"),
        ([*WHOLE, "--policy", "default", "--beta", "2"], "beta"),
        ([*WHOLE, "--eta", "1.5"], "--eta '1.5': must be at most 1"),
        ([*WHOLE, "--history", "h.jsonl"], "give --seeds 1 too"),
        ([*WHOLE, "--device", "cpu"], "--device is for trainings on this machine; give --live"),
        ([*WHOLE, "--allow-power-limit"], "--allow-power-limit is for trainings on this machine"),
        (["--live"], "--traces is for replays; leave it out with --live"),
        (["--gpu", "v100"], "a replay needs --workload and --gpu"),
    ],
)
def test_what_cannot_be_replayed_is_refused(folder: Path, options: list[str], message: str) -> None:
    assert message in refused("tune", "--traces", folder, *options)


def test_files_and_columns_that_are_missing_are_named(folder: Path) -> None:
    power = folder / "summary_power_v100.csv"
    pd.read_csv(power).drop(columns="average_power").to_csv(power, index=False)
    said = refused("tune", "--traces", folder, *WHOLE)
    assert "summary_power_v100.csv" in said
    assert "average_power" in said
    (folder / "summary_train.csv").unlink()
    assert "summary_train.csv" in refused("tune", "--traces", folder, *WHOLE)


@pytest.mark.parametrize("epochs", [{512: (5,), 1024: (None, 101)}, {512: (None,), 1024: (None,)}])
def test_a_default_that_never_reaches_is_nothing_to_compare_with(
    tmp_path: Path, epochs: dict[int, tuple[float | None, ...]]
) -> None:
    said = refused("tune", "--traces", made_traces(tmp_path, epochs), *WHOLE)
    assert "no recorded run of the default batch size 1024 reaches the target in 100 epochs" in said


# --- advise -------------------------------------------------------------------------------------------------


def kept(folder: Path, policy: str, recurrences: int, **options: Any) -> Path:
    """The history file of a replay."""
    file = folder / f"{policy}-{recurrences}.jsonl"
    more = [part for name, value in options.items() for part in (f"--{name}", value)]
    asked = ["--policy", policy, "--recurrences", recurrences, "--seeds", 1, "--history", file]
    joulecast("tune", "--traces", folder, *WHOLE, *asked, *more)
    return file


@pytest.mark.parametrize("policy", ["zeus", "curve", "grid-search"])
def test_the_advice_after_a_long_history_is_the_oracles(folder: Path, policy: str) -> None:
    made_traces(folder, EPOCHS | {512: (8, 8)})
    oracle = json.loads(joulecast("tune", "--traces", folder, *WHOLE, "--json", "--seeds", 1))
    advice = json.loads(joulecast("advise", "--recurring", kept(folder, policy, 60), "--json"))
    best, default = oracle["oracle"], oracle["default"]
    assert advice["status"] == "advice"
    assert advice["use"]["batch_size"] == best["batch_size"]
    assert advice["use"]["power_limit_w"] == best["power_limit_w"]
    # These sizes have no noise: what is expected is what the trace says.
    for ours, theirs in (("cost_j", "cost_j"), ("energy_j", "energy_j"), ("time_s", "time_s")):
        assert advice["use"][ours] == pytest.approx(best[theirs])
        assert advice["default"][ours] == pytest.approx(default[theirs])
    saving = advice["saving_percent"]
    assert saving["energy"]["percent"] == pytest.approx(
        100 * (1 - best["energy_j"] / default["energy_j"])
    )
    assert advice["energy_source"] == "recorded"
    for quantity in saving.values():
        assert quantity["low"] < quantity["percent"] < quantity["high"]
    assert advice["exploration"]["spent_above_default"] < 0
    assert 1 <= advice["exploration"]["paid_at_recurrence"] <= 60
    assert advice["exploration"]["more_runs"] is None


def test_runs_that_are_still_to_pay_are_counted(folder: Path) -> None:
    advice = json.loads(joulecast("advise", "--recurring", kept(folder, "zeus", 5), "--json"))
    exploration = advice["exploration"]
    assert exploration["paid_at_recurrence"] is None
    spent = exploration["spent_above_default"]
    per_run = advice["default"]["cost_j"] - advice["use"]["cost_j"]
    assert (exploration["more_runs"] - 1) * per_run < spent <= exploration["more_runs"] * per_run
    text = joulecast("advise", "--recurring", folder / "zeus-5.jsonl")
    assert f"exploration pays after {exploration['more_runs']} more run" in text
    assert "use batch size 512" in text
    assert "energy (recorded); 95 % interval" in text


def test_a_history_of_the_default_alone_saves_nothing(folder: Path) -> None:
    advice = json.loads(joulecast("advise", "--recurring", kept(folder, "default", 3), "--json"))
    assert (advice["use"]["batch_size"], advice["use"]["power_limit_w"]) == (1024, 250)
    saving = {"percent": 0.0, "low": None, "high": None}
    assert advice["saving_percent"] == {"cost": saving, "time": saving, "energy": saving}
    assert "has cost nothing, and saved nothing" in advice["exploration"]["said"]
    following = advice["explore_next"]
    assert (following["policy"], following["batch_size"]) == ("curve", 512)


def test_a_history_that_is_there_is_not_written_over(folder: Path) -> None:
    file = kept(folder, "zeus", 3)
    before = file.read_bytes()
    asked = ["--policy", "zeus", "--seeds", 1, "--history", file]
    assert "is there already" in refused("tune", "--traces", folder, *WHOLE, *asked)
    assert file.read_bytes() == before
    assert not list(folder.glob(".*.partial"))


LIMITS = {b: (250, 200) for b in (16, 32, 64)}
SPACE = SearchSpace((16, 32, 64), 32, LIMITS, CostModel(0.5, 250))
TIMED = SearchSpace((16, 32, 64), 32, {}, CostModel(0.0, None))


def a_trial(recurrence: int, batch: int, epochs: float, reached: bool = True, **more: Any) -> Trial:
    """Ten seconds an epoch, 200 W."""
    time_s = 10.0 * epochs
    return Trial(
        **{
            "recurrence": recurrence,
            "proposal": Proposal(batch, (250,)),
            "reached": reached,
            "stopped_by": "target" if reached else "max_epochs",
            "epochs": epochs,
            "time_s": time_s,
            "energy_j": 200 * time_s,
            "energy_source": "recorded",
            "cost": CostModel(0.5, 250).of(time_s, 200 * time_s),
            "power_limit_w": 250,
        }
        | more
    )


def timed(recurrence: int, batch: int, epochs: float, reached: bool = True) -> Trial:
    """A trial without a meter, and without power limits."""
    return a_trial(
        recurrence, batch, epochs, reached, proposal=Proposal(batch), cost=10.0 * epochs,
        energy_j=None, energy_source=None, power_limit_w=None, why_no_energy="no sensor here",
    )  # fmt: skip


def a_file(folder: Path, trials: list[Trial], **said: Any) -> Path:
    header = {
        "environment": "replay",
        "batch_sizes": [16, 32, 64],
        "default_batch_size": 32,
        "power_limits_w": {"16": [250, 200], "32": [250, 200], "64": [250, 200]},
        "cost": {"eta": 0.5, "max_power_w": 250},
    }
    begin_history_file(folder / "h.jsonl", header | said)
    for trial in trials:
        add_to_history_file(folder / "h.jsonl", trial)
    return folder / "h.jsonl"


def test_an_empty_history_advises_the_default(tmp_path: Path) -> None:
    file = a_file(tmp_path, [])
    advice = json.loads(joulecast("advise", "--recurring", file, "--json"))
    assert advice["status"] == "nothing tried"
    assert advice["use"] == {"batch_size": 32, "power_limit_w": 250, "runs": 0}
    assert advice["saving_percent"] is None
    text = joulecast("advise", "--recurring", file)
    assert "use batch size 32 at 250 W" in text
    assert "no saving is known: nothing was tried yet" in text


def test_a_history_in_which_nothing_reached_advises_nothing_but_what_to_try(tmp_path: Path) -> None:
    file = a_file(tmp_path, [a_trial(0, 32, 20, False), a_trial(0, 16, 20, False)])
    advice = json.loads(joulecast("advise", "--recurring", file, "--json"))
    assert (advice["status"], advice["use"]) == ("nothing reached", None)
    assert advice["explore_next"]["batch_size"] == 64
    text = joulecast("advise", "--recurring", file)
    assert "use nothing of what was tried" in text
    assert "none of 2 trials reached the target" in text
    assert "to explore: batch size 64" in text


def test_a_size_that_was_tried_once_has_a_wide_interval() -> None:
    once = advise(SPACE, History([a_trial(0, 32, 12), a_trial(1, 16, 6)]))
    often = advise(
        SPACE, History([a_trial(n, b, e) for n, (b, e) in enumerate([(32, 12), (16, 6)] * 6)])
    )
    for advice in (once, often):
        assert advice["use"]["batch_size"] == 16
        assert advice["saving_percent"]["cost"]["percent"] == pytest.approx(50)
    low, high = (once["saving_percent"]["cost"][end] for end in ("low", "high"))
    narrow = often["saving_percent"]["cost"]
    assert low < 40 < narrow["low"] < 50 < narrow["high"] < 60 < high


def test_tries_that_fail_are_charged_to_their_size() -> None:
    # 6 epochs, but every other try is for nothing: 6 + 8 > 12.
    trials = [a_trial(0, 32, 12), a_trial(1, 16, 8, False), a_trial(1, 16, 6)]
    assert advise(SPACE, History(trials))["use"]["batch_size"] == 32
    trials[1] = a_trial(1, 16, 5, False)
    advice = advise(SPACE, History(trials))
    assert advice["use"]["batch_size"] == 16
    assert advice["use"]["time_s"] == pytest.approx(110)


def test_a_try_that_was_stopped_for_its_cost_is_no_failure() -> None:
    # It would have taken 12 epochs, as the one that was not stopped; and at least the 20 that it had.
    stopped = [a_trial(1, 32, 5, False, stopped_by="cost_bound"), a_trial(1, 16, 6)]
    advice = advise(SPACE, History([a_trial(0, 32, 12), *stopped]))
    assert advice["default"]["time_s"] == pytest.approx(120)
    later = a_trial(0, 32, 20, False, stopped_by="cost_bound")
    advice = advise(SPACE, History([a_trial(0, 32, 12), later, *stopped[1:]]))
    assert advice["default"]["time_s"] == pytest.approx(160)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    held, errors = [], []
    for setting in read_settings(TRACES):
        default = expected_default(setting.trace).cost
        workload, gpu = setting.name
        request = TuneRequest(workload=workload, gpu=gpu, policy="zeus", recurrences=20)
        for seed in range(4):
            advice = advise(setting.trace.space(), replayed_history(setting, request, seed))
            use, saving = advice["use"], advice["saving_percent"]["cost"]
            true = expected(setting.trace, use["batch_size"], use["power_limit_w"]).cost
            true_percent = 100 * (1 - true / default)
            errors.append(saving["percent"] - true_percent)
            if saving["low"] is not None:
                held.append(saving["low"] <= true_percent <= saving["high"])
    assert len(held) > 50
    assert sum(held) / len(held) > 0.88
    assert abs(sum(errors)) / len(errors) < 1.5


def test_a_default_that_never_reached_is_no_saving(tmp_path: Path) -> None:
    file = a_file(tmp_path, [a_trial(0, 32, 20, False), a_trial(0, 16, 6)])
    advice = json.loads(joulecast("advise", "--recurring", file, "--json"))
    assert advice["use"]["batch_size"] == 16
    assert (advice["saving_percent"], advice["exploration"]) == (None, None)
    assert "default batch size 32 never reached the target in 1 try" in advice["why_no_saving"]
    untried = advise(SPACE, History([a_trial(0, 16, 6)]))
    assert untried["why_no_saving"] == "the default batch size 32 was not tried"
    low = a_trial(0, 32, 12, proposal=Proposal(32, (200,)), power_limit_w=200)
    never = advise(SPACE, History([low]))
    assert "never run at its highest limit, 250 W" in never["why_no_saving"]


def test_exploration_that_found_nothing_does_not_pay() -> None:
    advice = advise(SPACE, History([a_trial(0, 32, 12), a_trial(1, 16, 20), a_trial(2, 64, 30)]))
    assert advice["use"]["batch_size"] == 32
    assert "does not pay" in advice["exploration"]["said"]
    assert advice["exploration"]["more_runs"] is None


def test_a_profile_gives_the_defaults_cost_at_its_highest_limit() -> None:
    limits = {250: EpochAtLimit(10.0, 2000.0), 200: EpochAtLimit(11.0, 1600.0)}
    first = a_trial(
        0, 32, 12, proposal=Proposal(32, (250, 200)), power_limit_w=200, limits=limits,
        time_s=131.5, energy_j=19400.0, cost=0.5 * 19400 + 125 * 131.5,
    )  # fmt: skip
    advice = advise(SPACE, History([first]))
    assert (advice["use"]["batch_size"], advice["use"]["power_limit_w"]) == (32, 200)
    assert advice["default"]["time_s"] == pytest.approx(120)
    assert advice["saving_percent"]["energy"]["percent"] == pytest.approx(20)
    assert advice["saving_percent"]["time"]["percent"] == pytest.approx(-10)
    # Runs that are twice as slow as the profile said: the highest limit is, too.
    twice = {"time_s": 264.0, "energy_j": 38_400.0, "cost": 52_200.0}
    slow = a_trial(1, 32, 12, proposal=Proposal(32, (200,)), power_limit_w=200, **twice)
    advice = advise(SPACE, History([first, slow]))
    assert advice["default"]["time_s"] == pytest.approx(240)
    assert advice["saving_percent"]["time"]["percent"] == pytest.approx(-10)


def test_a_run_that_ended_before_a_limit_was_measured_is_one_at_the_highest() -> None:
    advice = advise(SPACE, History([a_trial(0, 32, 12, proposal=Proposal(32, (250, 200)))]))
    assert (advice["status"], advice["use"]["power_limit_w"]) == ("advice", 250)


def test_no_joules_are_told_where_none_were_measured(tmp_path: Path) -> None:
    trials = [timed(0, 32, 12), timed(1, 16, 20, False), timed(1, 16, 6)]
    advice = advise(TIMED, History(trials))
    assert advice["use"]["power_limit_w"] is None
    assert advice["use"]["energy_j"] is None
    assert advice["saving_percent"]["energy"] is None
    assert advice["energy_source"] is None
    assert advice["why_no_energy"] == "no sensor here"
    header = {"power_limits_w": {}, "cost": {"eta": 0.0, "max_power_w": None}}
    text = joulecast("advise", "--recurring", a_file(tmp_path, trials, **header))
    assert "no saving of energy is known: no sensor here" in text
    assert "default's energy" not in text
    assert " J" not in text


def test_a_cost_that_is_not_known_is_no_advice() -> None:
    lost = [
        a_trial(n, 32, 12, energy_j=None, energy_source=None, cost=None, why_no_energy="lost")
        for n in range(2)
    ]
    advice = advise(SPACE, History(lost))
    assert (advice["status"], advice["use"], advice["why_no_energy"]) == (
        "cost unknown",
        None,
        "lost",
    )
    # Where the meter failed in one run only, the others say what an epoch takes.
    advice = advise(SPACE, History([lost[0], a_trial(1, 32, 12)]))
    assert advice["use"]["energy_j"] == pytest.approx(24_000)
    assert advice["exploration"]["spent_above_default"] is None
    assert "not known" in advice["exploration"]["said"]


def test_files_that_are_no_history_are_refused(tmp_path: Path) -> None:
    assert "no such history of trials" in refused(
        "advise", "--recurring", tmp_path / "absent.jsonl"
    )
    file = tmp_path / "h.jsonl"
    file.write_text("what?\n")
    assert "h.jsonl: line 1 is no trial" in refused("advise", "--recurring", file)
    file.write_text("")
    assert "h.jsonl: is empty" in refused("advise", "--recurring", file)
    file.write_text('{"format": 1}\n')
    assert "h.jsonl: its first line does not say what could be chosen" in refused(
        "advise", "--recurring", file
    )
    file.unlink()
    a_file(tmp_path, [a_trial(0, 48, 12)])
    assert "trials of batch size 48, which its first line does not list" in refused(
        "advise", "--recurring", file
    )


def test_a_history_that_was_cut_off_is_advised_on_without_its_last_line(tmp_path: Path) -> None:
    file = a_file(tmp_path, [a_trial(0, 32, 12), a_trial(1, 16, 6)])
    file.write_text(file.read_text()[:-9])
    assert json.loads(joulecast("advise", "--recurring", file, "--json"))["trials"] == 1


# --- live ---------------------------------------------------------------------------------------------------


def test_a_live_loop_goes_on_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(self: LiveTraining, proposal: Proposal, recurrence: int) -> Trial:
        trial = timed(recurrence, proposal.batch_size, 3 + proposal.batch_size / 64)
        return replace(trial, proposal=proposal)

    monkeypatch.setattr(LiveTraining, "run", trained)
    file = tmp_path / "live.jsonl"
    command = ["tune", "--live", "--policy", "zeus", "--target-accuracy", 0.8, "--history", file]
    first = json.loads(joulecast(*command, "--recurrences", 4, "--json"))
    assert (first["recurrences"], first["trials_now"]) == (4, 4)
    again = json.loads(joulecast(*command, "--recurrences", 6, "--json"))
    assert (again["recurrences"], again["trials_now"]) == (6, 2)
    assert again["by_recurrence"][:4] == first["by_recurrence"]
    assert again["advice"]["use"]["batch_size"] < 256
    assert again["advice"]["saving_percent"]["energy"] is None
    advice = json.loads(joulecast("advise", "--recurring", file, "--json"))
    assert advice == again["advice"]
    other = [*command[:5], 0.9, *command[6:]]
    assert "unlike trials do not mix" in refused(*other)
    assert "it is for replays only" in refused("tune", "--live", "--policy", "oracle")
    assert "--seeds is for replays" in refused("tune", "--live", "--seeds", 3)
    text = joulecast(*command, "--recurrences", 6)
    assert "zeus, live: 6 recurrences, 0 of their tries now" in text


def test_a_live_loop_without_a_file_is_advised_on_too() -> None:
    trials = [timed(0, 32, 12), timed(1, 16, 6)]
    done = [Recurrence.of(n, [trial]) for n, trial in enumerate(trials)]
    report = live_report(TIMED, "zeus", done, trials, ["a note"], None)
    assert (report["reached_share"], report["notes"]) == (1, ["a note"])
    assert report["advice"]["saving_percent"]["time"]["percent"] == pytest.approx(50)
    assert "use batch size 16" in live_report_text(report)
    assert trials[0].proposal.cost_bound == inf
