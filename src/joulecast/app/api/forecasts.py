"""The public functions on runs: measure them, read, fit, judge and forecast from them, choose a setting.

Each loads what it needs when it is called, so that ``import joulecast`` is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulecast.app.api.arguments import AnyPath, Records, naming, paths, prices_of, takes_request
from joulecast.app.api.forecast_result import Forecast
from joulecast.energy.request import EvaluateRequest, ForecastRequest
from joulecast.report.advice.request import AdviceRequest

if TYPE_CHECKING:
    from joulecast.energy.fitting import CampaignFit
    from joulecast.runs.record import RunRecord


def measure_campaign(
    configuration: AnyPath | Mapping[str, Any],
    *,
    launcher: str = "mpiexec",
    tell: Callable[[str], None] = print,
) -> list[Path]:
    """Measure the training runs that a configuration asks for, one after the other.

    Call it again after an interruption: only missing runs are measured. It waits until no other measurement
    holds the machine. It makes only run records; the workflow makes tables and pages from them.

    Args:
        configuration: a file, or its content; ``joulecast config default`` prints all keys.
        launcher: command that starts runs of several ranks, as ``srun --mpi=pmi2``.
        tell: function that gets one line for each run.

    Returns:
        Folders of the run records, in ``records/`` of the configuration's ``results``.

    Raises:
        JoulecastError: a wrong key, what cannot be measured here, or runs that failed, with their reasons.
    """
    from joulecast.app.campaign.config import parse_config, read_config
    from joulecast.app.campaign.measuring import measure_campaign as measure_runs

    if isinstance(configuration, str | PathLike):
        config = read_config(Path(configuration))
    else:
        config = parse_config(dict(configuration))
    return measure_runs(config, launcher=launcher, tell=tell)


def read_records(records: Records) -> list[RunRecord]:
    """Read run records into memory.

    Returns:
        Each with ``info`` (what ran where, and how it ended) and the frames ``stages``, ``power``,
        ``activity`` and ``phases``, with the columns of the run record. Ordered by folder.

    Raises:
        JoulecastError: there are none, or one is broken; names it.
    """
    from joulecast.runs.record import read_record
    from joulecast.runs.recorded import run_records

    with run_records(paths(records)) as folders:
        return [read_record(folder) for folder in folders]


def fit(
    records: Records, *, bootstrap: int | None = None, series_splits: int | None = None
) -> CampaignFit:
    """Fit MC2 and its rivals to run records, and judge all of them on every split.

    Args:
        records: of one campaign, or imported ones.
        bootstrap: resamples behind the 90 % intervals; by default as in the configuration.
        series_splits: split points of the time-series rivals; by default as in the configuration.

    Returns:
        The fit: ``mc2`` has the coefficients (s, s/sample, s/byte, W), ``observations`` a row a run,
        ``predictions`` what each model predicted of runs that it had not seen, and ``series`` the errors of
        time-series models; ``judged("energy")`` joins the predictions with the runs, and ``save(folder)``
        keeps it for ``fits`` of :func:`simulate_step` and :func:`advise`.

    Raises:
        JoulecastError: no training run is left to fit; says why each was left out.
    """
    from joulecast.app.campaign.config import Config
    from joulecast.energy.fitting import fit_campaign
    from joulecast.runs.recorded import run_records

    usual = Config()
    with naming(*paths(records)), run_records(paths(records)) as folders:
        return fit_campaign(
            folders,
            bootstrap=usual.evaluation.bootstrap if bootstrap is None else bootstrap,
            series_splits=usual.evaluation.series_splits
            if series_splits is None
            else series_splits,
            series_period_s=usual.power.sample_period_s,
        )


@takes_request(EvaluateRequest)
def evaluate(request: EvaluateRequest) -> dict[str, Any]:
    """Judge MC2 and its rivals on the runs that one split leaves out of the fit.

    Returns:
        ``settings``, by held-out setting and model: ``predicted_j``, ``reference_j``, ``difference_percent``,
        and ``error_percent``, which is ``None`` where the reference is an estimate, which judges nothing;
        with the time predicted ``time_error_percent``. ``summary`` and ``time_summary`` by model,
        ``against_best_rival``, ``run_to_run_cv_percent``, ``left_out``, ``refused``. With a ledger in place
        of these ``settings`` (forecast and what it took: ``time_s``, ``time_was_s``, ...), ``summary`` by
        quantity, and ``waiting``, the forecasts of what did not run yet.

    Raises:
        JoulecastError: nothing to fit, or nothing that the split can hold out.
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
    """Forecast time, energy, money and CO2 of node counts not yet run, from MC2 fitted to run records; with a
    ``platform``, of hardware that they did not run on, by simulation.

    Returns:
        Plain data that a notebook shows as a table; ``table`` is its data frame, ``plot()`` its chart.
        ``forecasts``, each with ``platform``, ``workload``, ``nodes``, ``batch_size``, ``work`` with its
        ``work_unit`` and where it is from (``work_is``), ``time_s`` and ``energy_j`` with 90 % intervals
        (``time_low_s``, ...), ``energy_kwh``, ``cost`` and ``co2_kg`` likewise, what these rest
        on (``cost_rests_on``, ``co2_rests_on``) or ``why_no_cost``, and ``energy_source``, the source of the
        energies; ``prices``, ``fitted_runs``, ``largest_fitted_nodes``, ``left_out``, ``notes``, and
        ``first``: notes that change the question, as a batch that is kept on more nodes.

    Raises:
        JoulecastError: nothing to fit, or a node count below 1.
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
        keep_forecast(request.keep, found)
    return Forecast(found)


@takes_request(AdviceRequest)
def advise(request: AdviceRequest) -> dict[str, Any]:
    """Choose node count and batch size of a training that was run, within limits, by one objective.

    Returns:
        ``best`` (``None`` with ``why_none``), ``verdict`` (``clear_winner``, ``overlapping``, ``cheapest``,
        ``fastest``, ``in_words``), ``candidates`` with ``time_s``, ``energy_j``, ``energy_kwh``, ``cost`` and
        ``co2_kg`` of the whole training, their 90 % intervals, and what each rests on (measured,
        fitted), ``weighed`` (the ``counts`` of nodes, GPUs or ranks), ``by_energy`` (what estimated energy
        would choose, where time chooses in its place), ``prices``, ``warnings``, ``measure_next``, ...

    Raises:
        JoulecastError: an unknown network or platform, nothing to choose from, or an objective or a budget
            whose price or intensity is not given.
    """
    from joulecast.report.advice.advise import advise as advise_on
    from joulecast.runs.recorded import run_records

    paid, folders = prices_of(request), paths(request.records)
    with naming(*request.records), run_records(folders) as records:
        return advise_on(records, request, paid)
