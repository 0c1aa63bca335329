"""The commands of the simulator: simulate a strategy, search for the best one, capture a network."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.app.cli.options import AsJson, asks, echo_json, report_waiting
from joulecast.errors import JoulecastError
from joulecast.graphs.precision import FUSED, FUSED_PRECISIONS
from joulecast.quantities import counted, digits, energies, step_times, with_range
from joulecast.simulate.request import OnSimulator, SearchRequest, SimulateRequest


@asks(SimulateRequest)
def simulate(request: SimulateRequest, as_json: AsJson = False) -> None:
    """Simulate one training step under a parallel strategy: its time, memory and energy."""
    from joulecast.app.api.plans import simulate_step

    result = simulate_step(request)
    if as_json:
        echo_json(result)
    else:
        batches = f"batch {result['batch']:,} of a replica, {result['global_batch']:,} of all"
        typer.echo(f"{_work(result)}, {batches}; {result['strategy']}, simulated:")
        typer.echo(
            f"{_step(result)}, {result['samples_per_s']:,.1f} samples/s"
            + ("" if result["out_of_memory"] else f"; {result['verdict']}")
        )
        typer.echo(_energy_line(result))
        _print_remarks(request, result)
    if result["out_of_memory"]:
        # The answer is printed before the error. It says how long the step would take.
        raise JoulecastError(f"{result['verdict']}. `joulecast search` finds strategies that fit")


def _print_remarks(request: OnSimulator, result: dict[str, Any]) -> None:
    if request.precision is None and result["precision"] in FUSED_PRECISIONS:
        typer.echo(f"note: {FUSED}")
    if result["calibration_remark"]:
        typer.echo(f"note: {result['calibration_remark']}")
    if result["host_stretch"] > 1:
        typer.echo(
            "note: the host sets the pace. The GPU needs only "
            f"{100 / result['host_stretch']:.0f} % of the time, but its kernels are too short for plain "
            "PyTorch to start them in time; take more samples in each (micro-)batch"
        )


_BASIS = {
    "description": "the GPU's data sheet, and constants that were fitted to measured steps",
    "calibrated": "kernels corrected by measured steps",
}


def _work(result: dict[str, Any]) -> str:
    """The network, and the platform on which it trains. They are the same for all strategies."""
    length = result["sequence"]
    sequence = "" if length is None else f", sequences of {length:,}"
    devices = counted(result["devices"], "device")
    how = f"{result['precision']}, optimizer {result['optimizer']}"
    return f"{result['network']} on {devices} of {result['platform']}, {how}{sequence}"


def _step(result: dict[str, Any]) -> str:
    """The time of a step, its 90 % interval, and its basis. The interval and the basis need a judged
    error."""
    step, low, high = step_times(
        *(result[name] for name in ("step_s", "step_low_s", "step_high_s"))
    )
    basis = "" if result["step_low_s"] is None else f", from {_BASIS[result['basis']]}"
    clock = f" at {result['sm_mhz']:,.0f} MHz" if result["sm_mhz"] else ""
    return f"{with_range(step, low, high)} a step{clock}{basis}"


def _energy_line(result: dict[str, Any]) -> str:
    """The joules of a step, and their source; or the reason why they are not known."""
    if result["step_j"] is None:
        return f"energy not known: {result['why_no_energy']}"
    values = energies(result["step_j"], result["step_j_low"], result["step_j_high"])
    missing = result["why_no_energy_interval"]
    notes = [note for note in (result["energy_rests_on"], missing) if note]
    rest = f"\n{'; '.join(notes)}" if notes else ""
    return (
        f"{with_range(*values)} a step, {result['power_w']:,.0f} W of all nodes "
        f"({result['energy_source']}){rest}"
    )


@asks(SearchRequest)
def search(request: SearchRequest, as_json: AsJson = False) -> None:
    """Find the best parallel strategies for a number of devices, among those that fit in memory."""
    from joulecast.app.api.plans import search as search_on

    devices = counted(request.devices, "device")
    with report_waiting(f"still searching the strategies of {devices}; many can take minutes"):
        result = search_on(request)
    if as_json:
        echo_json(result)
    else:
        _print_ranking(request, result)
    if not result["feasible"]:
        why = [f"{name}: {each}" for name, each in result["out_of_memory"].items()]
        none_fits = f"no strategy fits in memory at {result['precision']}"
        raise JoulecastError(
            f"{none_fits}; {why[0]}; take more devices" if why else "no strategy can be run"
        )


def _print_ranking(request: SearchRequest, result: dict[str, Any]) -> None:
    """Print the best strategies of a search."""
    rows = result["feasible"]
    if rows:
        _print_best(request, rows, result["prices"])
    near = [row for row in rows if row["near_memory_limit"]]
    if near:
        typer.echo(f"{len(near)} of these may not fit: near the memory limit of a device")
    typer.echo(
        f"not shown: {len(result['beaten'])} that are no better, {len(result['out_of_memory'])} out of "
        f"memory, {len(result['impossible'])} that cannot be run"
    )


def _print_best(request: SearchRequest, rows: list[dict[str, Any]], given: dict[str, Any]) -> None:
    # This loads pandas, and `simulate` does not need it.
    from joulecast.energy.prices import Prices, at_wall
    from joulecast.report.forecast_lines import text_table

    first, prices, cells = rows[0], Prices(**given), []
    for row, step in zip(rows, step_times(*(row["step_s"] for row in rows)), strict=True):
        paid = {f"{prices.currency}/step": digits(row["step_cost"])} if prices.known else {}
        paid |= {"kg CO2e": digits(row["step_co2_kg"])} if prices.co2 is not None else {}
        cells.append(
            {
                "step": step,
                "samples/s": f"{row['samples_per_s']:,.1f}",
                "memory, GB": f"{row['peak_memory_bytes'] / 1e9:.2f}",
                "J/sample": digits(row["joules_per_sample"]),
                **paid,
                "batch of a replica": f"{row['batch']:,}",
                "strategy": row["strategy"],
            }
        )
    typer.echo(f"{_work(first)}, batch {first['global_batch']:,} of all replicas, simulated:")
    typer.echo("\n".join(text_table(cells)))
    unknown = "" if first["step_low_s"] is not None else " (its 90 % interval is not known)"
    typer.echo(f"the first: {_step(first)}{unknown}")
    energy = f"energy not known: {first['why_no_energy']}"
    if first["step_j"] is not None:
        energy = f"energy of the first: {first['energy_source']}; {first['energy_rests_on']}"
    typer.echo(energy)
    _print_remarks(request, first)
    if first["supply"] == "DC" and (prices.price, prices.co2) != (None, None):
        typer.echo(f"note: {at_wall(None)}")
    if "estimated" in (first["cost_rests_on"] or ""):
        typer.echo("costs rest on estimated power")


def capture(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Function that returns (torch module, list of example inputs). The first dimension of "
            "each input is the batch.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="JSON file to write, by default FUNCTION.json.")
    ] = None,
) -> None:
    """Capture the op graph of your own network in a FILE.json, for `simulate --network FILE.json`."""
    from joulecast.graphs.network_graphs import captured_function

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        graph = captured_function(function)
    file = out or Path(f"{graph.name}.json")
    graph.write(file)
    for warning in caught:
        if issubclass(warning.category, UserWarning) and str(warning.message).startswith(
            graph.name
        ):
            typer.echo(f"warning: {warning.message}", err=True)
    parameters = sum(tensor.elements for tensor in graph.weights)
    typer.echo(f"{file}: {len(graph.ops)} ops, {parameters:,} parameters")
