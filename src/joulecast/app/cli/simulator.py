"""The commands of the simulator: simulate a strategy, search for the best one, capture a network."""

import math
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from joulecast.app.cli.options import (
    AsJson,
    Attention,
    Calibrate,
    Co2,
    Gradients,
    Links,
    Optimizer,
    Precision,
    Price,
    PriceGpuHour,
    PriceNodeHour,
    PricesFile,
    Pue,
    echo_json,
    pairs,
)
from joulecast.errors import JoulecastError
from joulecast.quantities import digits, energies, with_range

Network = Annotated[
    str,
    typer.Option(
        help="By name (gpt2-xl), by numbers (gpt:layers=36,hidden=1280,heads=20), or a JSON file."
    ),
]
OnPlatform = Annotated[str, typer.Option(help="A platform by name, or a FILE.yaml.")]
Inference = Annotated[bool, typer.Option("--inference", help="Simulate a forward pass alone.")]
Calibration = Annotated[
    Path | None,
    typer.Option("--calibration", help="Network calibration, for the outermost link."),
]
DatabaseFile = Annotated[
    Path | None, typer.Option("--database", help="Op database measured on this platform.")
]

Fits = Annotated[
    Path | None,
    typer.Option(help="Fits of metered runs of this hardware, for the joules; shipped by default."),
]


def _stragglers(texts: list[str] | None) -> dict[int, float]:
    slow = {}
    for device, factor in pairs(texts, "--straggler").items():
        if not device.isdigit() or not math.isfinite(factor):
            raise JoulecastError(
                f"--straggler {device}={factor:g}: give it as DEVICE=TIMES, as 3=1.5"
            )
        slow[int(device)] = factor
    return slow


def simulate(
    network: Network,
    platform: OnPlatform,
    strategy: Annotated[
        str,
        typer.Option(help="Strategy, as dp=8,tp=2,pp=4,micro=16,zero=1,recompute; or a YAML file."),
    ],
    batch: Annotated[int, typer.Option(min=1, help="Samples of one replica's step.")] = 32,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Check that the strategy takes this many.")
    ] = None,
    precision: Precision = "fp32",
    optimizer: Optimizer = "momentum",
    attention: Attention = None,
    inference: Inference = False,
    gradients: Gradients = None,
    mode: Annotated[str, typer.Option(help="default; or proteus: the paper's own model.")] = (
        "default"
    ),
    straggler: Annotated[
        list[str] | None, typer.Option(help="A slow device, as 3=1.5 (times as long).")
    ] = None,
    gamma: Annotated[
        float | None, typer.Option(min=0, help="Overlap slowdown in place of the platform's.")
    ] = None,
    link: Links = None,
    calibration: Calibration = None,
    database: DatabaseFile = None,
    calibrate: Calibrate = None,
    fits: Fits = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace here.")] = None,
    explain: Annotated[bool, typer.Option(help="Say where the time goes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate one training step of a parallel strategy: its time, memory and energy."""
    from joulecast.app.api.plans import simulate as simulate_on

    result = simulate_on(
        network,
        platform,
        strategy,
        batch=batch,
        devices=devices,
        precision=precision,
        optimizer=optimizer,
        attention=attention,  # type: ignore[arg-type]
        inference=inference,
        gradients=gradients,  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        stragglers=_stragglers(straggler),
        gamma=gamma,
        links=pairs(link, "--link"),
        calibration=calibration,
        database=database,
        calibrate=calibrate,
        fits=fits,
        trace=trace,
        explain=explain and not as_json,
    )
    if as_json:
        echo_json(result)
    elif explain:
        typer.echo(result["explanation"])
        typer.echo(f"90 % interval of the step{_interval(result) or ': not known'}")
    else:
        typer.echo(
            f"{result['step_s'] * 1e3:.2f} ms a step{_interval(result)}, "
            f"{result['samples_per_s']:,.1f} samples/s (simulated); {result['verdict']}"
        )
    if not as_json:
        typer.echo(_energy_line(result))


_RESTS_ON = {
    "description": "the GPU's description and kernels of other GPUs",
    "calibrated": "a step measured there",
}


def _interval(result: dict[str, Any]) -> str:
    """The 90 % interval of a step and what it rests on; nothing where no error was judged."""
    if result["step_low_s"] is None:
        return ""
    low, high = (digits(1e3 * result[end]) for end in ("step_low_s", "step_high_s"))
    return f" ({low} to {high} ms; from {_RESTS_ON[result['rests_on']]})"


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


def search(
    network: Network,
    platform: OnPlatform,
    devices: Annotated[int, typer.Option(min=1, help="Devices to use.")],
    global_batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of a step over all devices (32 each).")
    ] = None,
    precision: Precision = "fp32",
    optimizer: Optimizer = "momentum",
    attention: Attention = None,
    inference: Inference = False,
    gradients: Gradients = None,
    link: Links = None,
    calibration: Calibration = None,
    database: DatabaseFile = None,
    calibrate: Calibrate = None,
    fits: Fits = None,
    objective: Annotated[str, typer.Option(help="time, energy, cost, co2 or edp.")] = "time",
    price: Price = None,
    price_node_hour: PriceNodeHour = None,
    price_gpu_hour: PriceGpuHour = None,
    co2: Co2 = None,
    pue: Pue = None,
    prices: PricesFile = None,
    top: Annotated[int, typer.Option(min=1, help="How many of the best to rank.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Rank the parallel strategies of some devices that fit in memory, by one objective."""
    from joulecast.app.api.plans import search as search_on

    result = search_on(
        network,
        platform,
        devices,
        global_batch=global_batch,
        precision=precision,
        optimizer=optimizer,
        attention=attention,  # type: ignore[arg-type]
        inference=inference,
        gradients=gradients,  # type: ignore[arg-type]
        links=pairs(link, "--link"),
        calibration=calibration,
        database=database,
        calibrate=calibrate,
        fits=fits,
        objective=objective,  # type: ignore[arg-type]
        price=price,
        price_node_hour=price_node_hour,
        price_gpu_hour=price_gpu_hour,
        co2=co2,
        pue=pue,
        prices=prices,
        top=top,
    )
    if as_json:
        echo_json(result)
    else:
        _print_ranking(result)


def _energy_basis(row: dict[str, Any]) -> str:
    """What the joules of a search rest on; or why there are none."""
    if row["step_j"] is None:
        return f"energy not known: {row['why_no_energy']}"
    return f"energy of the first: {row['energy_source']}; {row['energy_rests_on']}"


def _print_ranking(result: dict[str, Any]) -> None:
    """Print the best strategies of a search."""
    rows = result["feasible"]
    if rows:
        header = ("step, ms", "samples/s", "memory, GB", "J/sample", "cost/step")
        typer.echo(" ".join(f"{name:>10}" for name in header) + "  strategy (simulated)")
    else:
        why = "; ".join(f"{name}: {each}" for name, each in [*result["out_of_memory"].items()][-1:])
        typer.echo(f"no strategy fits in memory; {why}" if why else "no strategy can be run")
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
        least = f"{1e3 * min(beaten.values()):.2f} ms"
        typer.echo(f"{len(beaten)} more fit and are no better (their steps take {least} or more)")
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
    from joulecast.graphs.capture_function import captured_function

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
