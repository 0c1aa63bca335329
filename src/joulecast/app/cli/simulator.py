"""The commands of the simulator: simulate a strategy, search for the best one, capture a network."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.app.cli.options import AsJson, asks, echo_json
from joulecast.errors import JoulecastError
from joulecast.quantities import digits, energies, with_range
from joulecast.simulate.request import SearchRequest, SimulateRequest


@asks(SimulateRequest)
def simulate(request: SimulateRequest, as_json: AsJson = False) -> None:
    """Simulate one training step of a parallel strategy: its time, memory and energy."""
    from joulecast.app.api.plans import simulate as simulate_on

    result = simulate_on(request)
    if as_json:
        echo_json(result)
    else:
        typer.echo(
            f"{result['step_s'] * 1e3:.2f} ms a step{_interval(result)}, "
            f"{result['samples_per_s']:,.1f} samples/s (simulated, {result['precision']})"
            + ("" if result["out_of_memory"] else f"; {result['verdict']}")
        )
        typer.echo(_energy_line(result))
    if result["out_of_memory"]:
        # The answer is printed all the same: how long the step would take.
        raise JoulecastError(result["verdict"])


_BASIS = {
    "description": "the GPU's description and kernels of other GPUs",
    "calibrated": "a step measured there",
}


def _interval(result: dict[str, Any]) -> str:
    """The 90 % interval of a step and what it rests on; nothing where no error was judged."""
    if result["step_low_s"] is None:
        return ""
    low, high = (digits(1e3 * result[end]) for end in ("step_low_s", "step_high_s"))
    return f" ({low} to {high} ms; from {_BASIS[result['basis']]})"


def _energy_line(result: dict[str, Any]) -> str:
    """The joules of a step and what they rest on; or why they are not known."""
    if result["step_j"] is None:
        return f"energy not known: {result['why_no_energy']}"
    values = energies(result["step_j"], result["step_j_low"], result["step_j_high"])
    missing = result["why_no_energy_interval"]
    notes = [result["energy_source"], result["energy_rests_on"], missing]
    return (
        f"{with_range(*values)} a step, {result['power_w']:,.0f} W of all nodes "
        f"({'; '.join(note for note in notes if note)})"
    )


@asks(SearchRequest)
def search(request: SearchRequest, as_json: AsJson = False) -> None:
    """Rank the parallel strategies of some devices that fit in memory, by one objective."""
    from joulecast.app.api.plans import search as search_on

    result = search_on(request)
    if as_json:
        echo_json(result)
    else:
        _print_ranking(result)
    if not result["feasible"]:
        why = [f"{name}: {each}" for name, each in result["out_of_memory"].items()]
        none_fits = f"no strategy fits in memory at {result['precision']}"
        raise JoulecastError(f"{none_fits}; {why[-1]}" if why else "no strategy can be run")


def _energy_basis(row: dict[str, Any]) -> str:
    """What the joules of a search rest on; or why there are none."""
    if row["step_j"] is None:
        return f"energy not known: {row['why_no_energy']}"
    return f"energy of the first: {row['energy_source']}; {row['energy_rests_on']}"


def _print_ranking(result: dict[str, Any]) -> None:
    """Print the best strategies of a search."""
    rows = result["feasible"]
    if rows:
        paid = f"{result['prices']['currency']}/step"
        header = ("step, ms", "samples/s", "memory, GB", "J/sample", paid)
        typer.echo(
            " ".join(f"{name:>10}" for name in header)
            + f"  strategy (simulated, {result['precision']})"
        )
    for row in rows:
        joules, cost = row["joules_per_sample"], row["step_cost"]
        typer.echo(
            f"{row['step_s'] * 1e3:10.2f} {row['samples_per_s']:10,.1f} "
            f"{row['peak_memory_bytes'] / 1e9:10.2f} {'-' if joules is None else digits(joules):>10} "
            f"{'-' if cost is None else digits(cost):>10}  {row['strategy']}"
        )
    if rows:
        typer.echo(f"90 % interval of the first{_interval(rows[0]) or ': not known'}")
        typer.echo(_energy_basis(rows[0]))
        if "estimated" in (rows[0]["cost_rests_on"] or ""):
            typer.echo("costs rest on estimated power")
    beaten = result["beaten"]
    if beaten:
        typer.echo(f"{len(beaten)} more fit and are no better")
    typer.echo(
        f"{len(rows) + len(beaten)} fit, {len(result['out_of_memory'])} are out of memory, "
        f"{len(result['impossible'])} cannot be run"
    )


def capture(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="A function that gives (torch module, list of example inputs with the batch in front).",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="JSON file to write; by default FUNCTION.json.")
    ] = None,
) -> None:
    """Capture the op graph of a network of your own, for simulate --network FILE.json."""
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
    parameters = sum(tensor.elements for tensor in graph.parameters)
    typer.echo(f"{file}: {len(graph.ops)} ops, {parameters:,} parameters")
