"""`joulecast tune` as it is used: what they print, and what they refuse."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from joulecast.app.cli.main import app
from joulecast.tune.live import LiveTraining
from joulecast.tune.policy_report import live_report, live_report_text
from joulecast.tune.recurrences import Recurrence
from joulecast.tune.trial import CostModel, Proposal, SearchSpace, Trial

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


def test_an_epoch_that_was_measured_several_times_has_their_mean(folder: Path) -> None:
    command = ["tune", "--traces", folder, *WHOLE, "--seeds", 1, "--json", "--policy", "default"]
    once = json.loads(joulecast(*command))["default"]
    power = pd.read_csv(folder / "summary_power_v100.csv")
    slower = power.assign(time_per_epoch=3 * power["time_per_epoch"])
    pd.concat([power, slower]).to_csv(folder / "summary_power_v100.csv", index=False)
    twice = json.loads(joulecast(*command))["default"]
    for quantity in ("time_s", "energy_j"):
        assert twice[quantity] == pytest.approx(2 * once[quantity])


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


def test_two_optimizers_are_two_trainings(folder: Path) -> None:
    for file in folder.glob("*.csv"):
        table = pd.read_csv(file)
        pd.concat([table, table.assign(optimizer="sgd")]).to_csv(file, index=False)
    said = refused("tune", "--traces", folder, *WHOLE)
    assert "several optimizers (adadelta, sgd); keep the rows of one" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workload", "cifar", "--gpu", "v100"], "no workload `cifar`; there are librispeech"),
        (["--workload", "cifar100", "--gpu", "h100"], "no traces of `h100`; there are v100"),
        ([*WHOLE, "--target", "0.99"], "has no target 0.99; it has 0.6"),
        (["--workload", "squad", "--gpu", "v100"], "it has none, as no row has dataset squad"),
        (["--workload", "cifar100", "--gpu", "p100"], "summary_power_p100.csv"),
        ([*WHOLE, "--policy", "zoos"], "no policy `zoos`; there are default"),
        ([*WHOLE, "--policy", "zeus", "--beta", "1"], "beta is 1.0; it has to be above 1"),
        ([*WHOLE, "--policy", "oracle", "--beta", "2"], "oracle"),
        ([*WHOLE, "--policy", "default", "--beta", "2"], "beta"),
        ([*WHOLE, "--eta", "1.5"], "--eta '1.5': must be at most 1"),
        ([*WHOLE, "--history", "h.jsonl"], "--history is for trainings on this machine"),
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


# --- live ---------------------------------------------------------------------------------------------------

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
    assert again["cheapest"]["batch_size"] < 256
    other = [*command[:5], 0.9, *command[6:]]
    assert "unlike trials do not mix" in refused(*other)
    assert "it is for replays only" in refused("tune", "--live", "--policy", "oracle")
    assert "--seeds is for replays" in refused("tune", "--live", "--seeds", 3)
    assert "give it too" in refused("tune", "--live", "--max-slowdown", 1.2)
    text = joulecast(*command, "--recurrences", 6)
    assert "zeus, live: 6 recurrences, 0 tries in this call" in text


def test_a_live_loop_without_a_file_names_what_was_cheapest_with_its_failed_tries() -> None:
    trials = [timed(0, 32, 12), timed(1, 64, 9, False), timed(1, 64, 6), timed(2, 16, 8)]
    done = [Recurrence.of(n, [t for t in trials if t.recurrence == n]) for n in range(3)]
    report = live_report(TIMED, "zeus", done, trials, ["a note"], None)
    assert (report["reached_share"], report["notes"]) == (1, ["a note"])
    cheapest = {"batch_size": 16, "power_limit_w": None, "cost": 80.0, "reached": 1}
    assert report["cheapest"] == cheapest
    assert "batch size 16, 80 s a recurrence" in live_report_text(report)
    # A run whose cost is not known makes its size no cheaper.
    lost = replace(timed(3, 32, 12), cost=None)
    report = live_report(TIMED, "zeus", done, [*trials, lost, lost], [], None)
    assert report["cheapest"] == cheapest
    limited = live_report(TIMED, "zeus", [], [a_trial(0, 16, 6)], [], None)
    assert "batch size 16 at 250 W" in live_report_text(limited)
    none = live_report(TIMED, "zeus", [], [timed(0, 32, 9, False)], [], None)
    assert none["cheapest"] is None
    assert "no batch size has reached the target" in live_report_text(none)
