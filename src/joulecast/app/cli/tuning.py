"""The command of tuning: let a policy choose batch sizes and power limits."""

import typer

from joulecast.app.cli.options import AsJson, asks, echo_json
from joulecast.tune.request import TuneRequest


@asks(TuneRequest)
def tune(request: TuneRequest, as_json: AsJson = False) -> None:
    """Tune batch size and power limit over recurrences of a training, replayed or live."""
    from joulecast.app.api.plans import tune_training
    from joulecast.tune.policy_report import live_report_text, report_text

    report = tune_training(request, tell=lambda note: typer.echo(f"note: {note}", err=True))
    in_words = live_report_text if request.live else report_text
    if as_json:
        echo_json(report)
    else:
        typer.echo(in_words(report))
