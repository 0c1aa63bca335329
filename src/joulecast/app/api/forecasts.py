"""The public functions on runs: measure them, read, fit, judge and forecast from them, choose a setting.

Each loads what it needs when it is called, so that ``import joulecast`` is quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from joulecast.app.api.forecast_result import Forecast
from joulecast.app.api.given import AnyPath, Records, check, given_prices, naming, path, paths
from joulecast.quantities import MOST_NODES, MOST_SAMPLES, check_counts

if TYPE_CHECKING:
    from joulecast.energy.fitting import CampaignFit
    from joulecast.runs.record import RunRecord


def measure(
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
    from joulecast.app.campaign.measuring import measure_campaign

    if isinstance(configuration, str | PathLike):
        config = read_config(Path(configuration))
    else:
        config = parse_config(dict(configuration))
    return measure_campaign(config, launcher=launcher, tell=tell)


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
        keeps it for ``fits`` of :func:`simulate` and :func:`advise`.

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


def evaluate(
    records: Records,
    *,
    split: Literal[
        "in-sample",
        "leave-one-node-count-out",
        "extrapolation",
        "leave-one-workload-out",
        "next-scale",
    ]
    | None = None,
    time: Literal["given", "predicted"] | None = None,
) -> dict[str, Any]:
    """Judge MC2 and its rivals on the runs that one split leaves out of the fit.

    Args:
        split: what the fits do not see; by default ``leave-one-workload-out``, or
            ``leave-one-node-count-out`` where the records have one workload. ``next-scale`` predicts each
            scale of a submitter's series from the two below it, and its work.
        time: whether the models get the measured time of the judged runs; by default they do, but for the
            next scale.

    Returns:
        ``settings``, by held-out setting and model: ``predicted_j``, ``reference_j``, ``difference_percent``,
        and ``error_percent``, which is ``None`` where the reference is an estimate, which judges nothing;
        with the time predicted ``time_error_percent``. ``summary`` and ``time_summary`` by model,
        ``against_best_rival``, ``run_to_run_cv_percent``, ``left_out``, ``refused``.

    Raises:
        JoulecastError: nothing to fit, or nothing that the split can hold out.
    """
    from joulecast.energy.error_summary import evaluate_records
    from joulecast.energy.splits import SPLITS
    from joulecast.runs.recorded import run_records

    check("split", split, SPLITS)
    check("time", time or "given", ("given", "predicted"))
    with naming(*paths(records)), run_records(paths(records)) as folders:
        return evaluate_records(folders, split, time)


def forecast(
    records: Records,
    nodes: Iterable[int] = (),
    *,
    gpus: Iterable[int] = (),
    scaling: Literal["recorded", "weak", "strong"] = "recorded",
    batch: int | None = None,
    samples: float | None = None,
    epochs: float | None = None,
    to_target: bool = False,
    price: float | None = None,
    price_node_hour: float | None = None,
    price_gpu_hour: float | None = None,
    co2: float | None = None,
    pue: float | None = None,
    currency: str | None = None,
    prices: AnyPath | None = None,
) -> Forecast:
    """Forecast time, energy, money and CO2 of node counts not yet run, from MC2 fitted to run records.

    Args:
        nodes: node counts.
        gpus: counts of GPUs, in place of node counts; of ranks, where an observed training had no GPUs.
        scaling: ``weak`` lets the batch of all nodes grow with them, ``strong`` does not, ``recorded`` does
            as the records do.
        batch: batch of all nodes, in place of ``scaling``.
        samples, epochs: work of the forecast, in place of the recorded one.
        to_target: train to the quality that the records reached: the work follows the batch, by the work law
            of the records and of the recorded MLPerf times.
        price, price_node_hour, price_gpu_hour: price of a kWh at the building's meter, of an hour of a whole
            node, and of an hour of a GPU in use, all in one currency.
        co2: grams of CO2 equivalent for a kWh.
        pue: kWh of the building for each kWh of the nodes, 1 by default.
        currency: currency of the prices, EUR by default.
        prices: a configuration's file; its section ``prices`` counts for what is not given here.

    Returns:
        Plain data that a notebook shows as a table; ``table`` is its data frame, ``plot()`` its chart.
        ``forecasts``, each with ``platform``, ``workload``, ``nodes``, ``batch_size``, ``work`` with its
        ``work_unit`` and where it is from (``work_is``), ``time_s`` and ``energy_j`` with 90 % intervals
        (``time_low_s``, ...), ``energy_kwh``, ``cost`` and ``co2_kg`` likewise, what these rest
        on (``cost_rests_on``, ``co2_rests_on``) or ``why_no_cost``, and ``fitted_on``, the source of the
        energies; ``prices``, ``fitted_runs``, ``largest_fitted_nodes``, ``left_out``.

    Raises:
        JoulecastError: nothing to fit, or a node count below 1.
    """
    from joulecast.energy.forecast import Asked
    from joulecast.energy.forecast import forecast as forecast_records
    from joulecast.runs.recorded import run_records

    check("scaling", scaling, ("recorded", "weak", "strong"))
    asked = Asked(list(nodes), scaling, batch, samples, epochs, to_target, list(gpus))
    # Before the records are read.
    asked.check()
    paid = given_prices(prices, price, price_node_hour, price_gpu_hour, co2, pue, currency)
    with naming(*paths(records)), run_records(paths(records)) as folders:
        return Forecast(forecast_records(folders, asked, paid))


def advise(
    network: str,
    *,
    records: Records = (),
    platform: AnyPath | None = None,
    deadline_s: float | None = None,
    energy_budget_j: float | None = None,
    energy_weight: float | None = None,
    cost_budget: float | None = None,
    co2_budget_kg: float | None = None,
    objective: Literal["time", "energy", "cost", "co2", "edp"] | None = None,
    price: float | None = None,
    price_node_hour: float | None = None,
    price_gpu_hour: float | None = None,
    co2: float | None = None,
    pue: float | None = None,
    currency: str | None = None,
    prices: AnyPath | None = None,
    samples: float | None = None,
    nodes: Iterable[int] | None = None,
    gpus: Iterable[int] = (),
    batch: Iterable[int] | None = None,
    history: AnyPath | None = None,
    platforms: AnyPath | None = None,
    fits: AnyPath | None = None,
    precision: str = "fp32",
    optimizer: str = "momentum",
    attention: Literal["eager", "fused"] | None = None,
    gradients: Literal["fp32"] | None = None,
    links: Mapping[str, float] | None = None,
    calibrate: AnyPath | None = None,
) -> dict[str, Any]:
    """Choose node count, batch size and strategy of a training within limits, by one objective.

    Args:
        network: name of the training, as in the records.
        records: measured runs; without any, ``platform`` is simulated.
        platform: platform, as the records name it; or one to simulate.
        deadline_s, energy_budget_j, cost_budget, co2_budget_kg: what the training may take, each or none.
        energy_weight: weight of energy against time, 0 to 1, in place of an objective.
        objective: what to minimise: ``time``, ``energy``, ``cost``, ``co2``, or ``edp``, joules times
            seconds. By default energy; time, where energy is estimated, or there are budgets and no
            deadline.
        price, price_node_hour, price_gpu_hour, co2, pue, currency, prices: as in :func:`forecast`.
        samples: samples to train on; by default a million (1 epoch).
        nodes, batch: node counts and batches of all nodes to choose from; by default batches that were run,
            on as many nodes as were run and on up to four times as many.
        gpus: counts of GPUs, in place of node counts; of ranks, where an observed training had no GPUs.
        history: file of :func:`tune`, for the power limit.
        platforms: folder of your platform files; ``config/platforms`` by default.
        fits: folder of a campaign's fits on a simulated platform, for its joules.
        precision, optimizer, attention, gradients, links, calibrate: for a training that is simulated, as in
            :func:`simulate`.

    Returns:
        ``best`` (``None`` with ``why_none``), ``verdict`` (``clear_winner``, ``overlapping``, ``cheapest``,
        ``fastest``, ``in_words``), ``candidates`` with ``time_s``, ``energy_j``, ``energy_kwh``, ``cost`` and
        ``co2_kg`` of the whole training, their 90 % intervals, and what each rests on (measured, fitted,
        simulated), ``weighed`` (the ``counts`` of nodes, GPUs or ranks), ``by_energy`` (what estimated energy
        would choose, where time chooses in its place), ``prices``, ``warnings``, ``measure_next``, ...

    Raises:
        JoulecastError: an unknown network or platform, nothing to choose from, or an objective or a budget
            whose price or intensity is not given.
    """
    from joulecast.report.advice.advise import advise as advise_on
    from joulecast.report.advice.choice import Limit
    from joulecast.report.advice.simulated_training import SimulatedTraining
    from joulecast.runs.files.shipped import PLATFORMS
    from joulecast.runs.recorded import run_records

    paid = given_prices(prices, price, price_node_hour, price_gpu_hour, co2, pue, currency)
    limit = Limit(deadline_s, energy_budget_j, energy_weight, cost_budget, co2_budget_kg, objective)
    limit.check(paid)
    counts, batches = (None if given is None else list(given) for given in (nodes, batch))
    check_counts("nodes", counts or (), MOST_NODES)
    check_counts("batch", batches or (), MOST_SAMPLES)
    named = naming(*paths(records), platform, history, calibrate)
    with named, run_records(paths(records)) as folders:
        return advise_on(
            folders,
            network,
            limit,
            platform=None if platform is None else str(platform),
            samples=samples,
            nodes=counts,
            batches=batches,
            history=path(history),
            platforms=PLATFORMS if platforms is None else Path(platforms),
            fits=path(fits),
            trained=SimulatedTraining(
                precision, optimizer, attention, gradients, links or {}, path(calibrate)
            ),
            prices=paid,
            gpus=list(gpus),
        )
