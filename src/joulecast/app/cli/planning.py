"""The commands of planning: which setting to train a network in, once or again and again."""

import typer

from joulecast.app.cli.options import AsJson, asks, echo_json, report_waiting
from joulecast.energy.request import StartRequest
from joulecast.quantities import masses, money
from joulecast.report.advice.request import AdviceRequest, PlanRequest
from joulecast.tune.request import TuneRequest


@asks(TuneRequest)
def tune(request: TuneRequest, as_json: AsJson = False) -> None:
    """Tune the batch size and power limit of a training that recurs, on recorded traces or live."""
    from joulecast.app.api.plans import tune_training
    from joulecast.tune.policy_report import live_report_text, report_text

    report = tune_training(request, tell=lambda note: typer.echo(f"note: {note}", err=True))
    in_words = live_report_text if request.live else report_text
    if as_json:
        echo_json(report)
    else:
        typer.echo(in_words(report))


@asks(PlanRequest)
def plan(request: PlanRequest, as_json: AsJson = False) -> None:
    """Choose platform, devices, strategy, batch, precision and power limit of a training. Nothing is run."""
    from joulecast.app.api.plans import plan as plan_on
    from joulecast.report.advice.text import advice_text

    with report_waiting("still searching; many devices, platforms or batches can take minutes"):
        planned = plan_on(request)
    if as_json:
        echo_json(planned)
    else:
        typer.echo(advice_text(planned))


@asks(StartRequest)
def when(request: StartRequest, as_json: AsJson = False) -> None:
    """Choose the hours to run a training in: the cheapest ones, or those with the least CO2."""
    from joulecast.app.api.plans import choose_start

    chosen = choose_start(request)
    if as_json:
        echo_json(chosen)
        return
    ways = {"now": "at once", "best": "started later", "paused": "with pauses"}
    shown = {"now": chosen["now"]}
    if chosen["best"]["start"] != chosen["now"]["start"]:
        shown["best"] = chosen["best"]
    if chosen["paused"] is not None and len(chosen["paused"]["runs"]) > 1:
        shown["paused"] = chosen["paused"]
    key, what = {"cost": ("cost", "money"), "co2": ("co2_kg", "CO2e")}[chosen["objective"]]
    for name, way in shown.items():
        # The mean price shows whether those of the file are prices of a MWh.
        costs = (
            ""
            if way["cost"] is None
            else f",{money('', way['cost'])[0]} in money ({way['cost'] / way['energy_kwh']:.4g} a kWh)"
        )
        (mass,) = masses(way["co2_kg"])
        emits = "" if way["co2_kg"] is None else f", {mass} CO2e"
        now = chosen["now"][key]
        # If a cost is zero or negative, it is no share of the other.
        share = 100 * (1 - way[key] / now) if now > 0 <= way[key] else 0.0
        less = "" if share <= 0 else f": {share:.0f} % less {what}"
        typer.echo(f"{ways[name]}: {way['start']} to {way['end']}{costs}{emits}{less}")
        if name == "paused":
            for start, end in way["runs"]:
                typer.echo(f"  runs {start} to {end}")
    if "best" not in shown:
        typer.echo("no later start is better")
    if chosen["paused"] is not None and "paused" not in shown:
        typer.echo("no pause is worth its restart")


@asks(AdviceRequest)
def advise(request: AdviceRequest, as_json: AsJson = False) -> None:
    """Choose the node count and batch size of a training from its run records, within your limits."""
    from joulecast.app.api.forecasts import advise as advise_on
    from joulecast.report.advice.text import advice_text

    advice = advise_on(request)
    if as_json:
        echo_json(advice)
    else:
        typer.echo(advice_text(advice))
