"""The public functions that work on runs: read, fit, judge, forecast, and choose a setting.

Each loads what it needs when it is called, so that ``import joulecast`` is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulecast.app.api.arguments import Records, naming, paths, prices_of, takes_request
from joulecast.app.api.forecast_result import Forecast
from joulecast.energy.request import EvaluateRequest, ForecastRequest
from joulecast.report.advice.request import AdviceRequest

if TYPE_CHECKING:
    from joulecast.energy.campaign_fit import CampaignFit
    from joulecast.runs.record import RunRecord


def read_records(records: Records) -> list[RunRecord]:
    """Read run records into memory.

    Returns:
        The records, ordered by folder. ``info`` says what ran where, and how it ended. The frames ``stages``,
        ``power``, ``activity`` and ``phases`` have the columns of the run record.

    Raises:
        JoulecastError: there are no records, or a record is broken. The error names the record.
    """
    from joulecast.runs.record import read_record
    from joulecast.runs.recorded import run_records

    with run_records(paths(records)) as folders:
        return [read_record(folder) for folder in folders]


def fit(records: Records, *, series_splits: int | None = None) -> CampaignFit:
    """Fit MC2 and its rivals to run records, and judge all of them on every split.

    Args:
        records: run records of one campaign, or imported records.
        series_splits: number of split points of the time-series rivals.

    Returns:
        A :class:`CampaignFit`. Its ``mc2`` has the coefficients (in s, s/sample, s/byte, W, J/sample).

    Raises:
        JoulecastError: no training run is left to fit. The error says why.
    """
    from joulecast.app.campaign.config import Config
    from joulecast.energy.campaign_fit import fit_campaign
    from joulecast.runs.recorded import run_records

    usual = Config()
    with naming(*paths(records)), run_records(paths(records)) as folders:
        return fit_campaign(
            folders,
            series_splits=usual.evaluation.series_splits
            if series_splits is None
            else series_splits,
            series_period_s=usual.power.sample_period_s,
        )


@takes_request(EvaluateRequest)
def evaluate(request: EvaluateRequest) -> dict[str, Any]:
    """Judge MC2 and its rivals on the runs that one split leaves out of the fit.

    Returns:
        ``settings`` has a row for each held-out setting and model: ``predicted_j``, ``reference_j``,
        ``difference_percent`` and ``error_percent``; also ``time_error_percent`` if the time was predicted.
        If the reference is estimated, ``error_percent`` is ``None``. ``summary`` and
        ``time_summary`` have a row for each model.

        With a ledger, ``settings`` has the forecasts and what the trainings really took (``time_s``,
        ``time_was_s``, ...), ``summary`` has a row for each quantity, and ``waiting`` has the forecasts of
        settings that did not run yet.

    Raises:
        JoulecastError: there is nothing to fit, or nothing that the split can hold out.
    """
    from joulecast.energy.error_summary import evaluate_records
    from joulecast.energy.ledger import judge_ledger
    from joulecast.runs.recorded import run_records

    folders = paths(request.records)
    with naming(*request.records), run_records(folders) as records:
        if request.ledger is not None:
            return judge_ledger(request.ledger, records)
        return evaluate_records(records, request.split, request.time)


@takes_request(ForecastRequest, "nodes")
def forecast(request: ForecastRequest) -> Forecast:
    """Forecast time, energy, money and CO2 for node counts that were not run, by MC2 fitted to run records.

    With a ``platform``, the forecast is for hardware that the records did not run on, by simulation.

    Returns:
        A :class:`Forecast`. ``forecasts`` is a list. Each has ``platform``, ``workload``, ``nodes``,
        ``batch_size``, and ``work`` with its ``work_unit`` and its origin (``work_is``). ``time_s``,
        ``energy_j``, ``energy_kwh``, ``cost`` and ``co2_kg`` have 90 % intervals (``time_low_s``, ...).
        ``energy_source``, ``cost_rests_on`` and ``co2_rests_on`` name the source of the energy in each. If
        money and CO2 are missing, ``why_no_cost`` says why. ``notes`` says what limits the answer.
        ``first`` has the notes that matter most.

    Raises:
        JoulecastError: there is nothing to fit, or a node count is below 1.
    """
    from joulecast.energy.forecast import forecast as forecast_records
    from joulecast.energy.ledger import keep_forecast, widths_by_ledger
    from joulecast.report.advice.other_platform import forecast_other_platform
    from joulecast.runs.recorded import run_records

    paid, folders = prices_of(request), paths(request.records)
    with naming(*request.records), run_records(folders) as records:
        if request.platform is not None:
            found = forecast_other_platform(records, request, paid)
        else:
            widths = {} if request.keep is None else widths_by_ledger(request.keep, records)
            found = forecast_records(records, request, paid, widths)
    if request.keep is not None:
        keep_forecast(request.keep, found, request)
    return Forecast(found)


@takes_request(AdviceRequest)
def advise(request: AdviceRequest) -> dict[str, Any]:
    """Choose the node count and batch size of a training from its run records, within limits.

    Returns:
        ``best`` is the chosen setting, or ``None`` with ``why_none``. ``verdict`` has ``clear_winner``
        (``None`` if this is not known; ``in_words`` says why), ``overlapping`` and ``in_words``. Each of
        the ``candidates`` has ``time_s``, ``energy_j``, ``energy_kwh``, ``cost`` and ``co2_kg`` of the whole
        training, their 90 % intervals, and what each rests on (measured, fitted). ``weighed`` has the
        ``counts`` (of nodes, GPUs or ranks) that were compared. If time chooses because energy is only
        estimated, ``by_energy`` has what energy would choose. ``warnings`` and ``measure_next`` are lists.

    Raises:
        JoulecastError: the network or platform is unknown, there is nothing to choose from, or the objective
            or a budget needs a price or CO2 intensity that is missing.
    """
    from joulecast.energy.campaign_fit import KnownRuns
    from joulecast.report.advice.advise import advise as advise_on
    from joulecast.runs.recorded import run_records

    paid, folders = prices_of(request), paths(request.records)
    with naming(*request.records), run_records(folders) as records:
        return advise_on(KnownRuns.of_records(records), request, paid)
