"""A simulated step in words: where its time goes, what travels, what fills the memory."""

from collections import defaultdict

from joulecast.simulate.simulate import Simulation
from joulecast.simulate.strategy import text_of


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:5.1f} %" if whole > 0 else "    - "


def _compute_by_kind(simulation: Simulation) -> dict[str, float]:
    """Seconds of compute by kind of op and direction, the mean over devices."""
    sizes = simulation.fleet.classes.size
    found: dict[str, float] = defaultdict(float)
    for happening in simulation.happenings():
        activity = happening.activity
        if activity.usage is not None:
            continue
        weight = sizes[activity.devices[0]] / sizes.sum()
        pace = simulation.fleet.pace_of(activity.devices[0])
        for step, seconds in activity.parts:
            again = " again" if step.again else ""
            found[f"{step.item.op.kind} {step.direction}{again}"] += seconds * pace * weight
        if not activity.parts:
            found[activity.label] += activity.work * weight
    return found


def _messages(simulation: Simulation) -> dict[str, tuple[int, float]]:
    """Transfers by what they are: how many a class takes part in, and their seconds."""
    found: dict[str, tuple[int, float]] = {}
    for happening in simulation.happenings():
        activity = happening.activity
        if activity.usage is None or 0 not in activity.devices:
            continue
        what = "gradients" if activity.gradient else activity.label.split()[0]
        count, seconds = found.get(what, (0, 0.0))
        found[what] = (count + 1, seconds + happening.end_s - happening.start_s)
    return found


def explain(simulation: Simulation) -> str:
    """A page of text for a person."""
    parts, step = simulation.breakdown, simulation.step_s
    lines = [
        f"{simulation.graph.name} on {simulation.platform.name}, {text_of(simulation.strategy)}: "
        f"{step * 1e3:.2f} ms a step, {simulation.samples_per_s:,.1f} samples/s (simulated)",
        "",
        f"  computing              {parts.computing_s * 1e3:10.2f} ms  {_share(parts.computing_s, step)}",
        f"  exposed communication  {parts.exposed_communication_s * 1e3:10.2f} ms  "
        f"{_share(parts.exposed_communication_s, step)}",
        f"  bubble                 {parts.bubble_s * 1e3:10.2f} ms  {_share(parts.bubble_s, step)}",
        f"  communication in all   {parts.communication_s * 1e3:10.2f} ms, the rest of it behind compute",
        "",
        "compute by kind of op (mean over devices):",
    ]
    by_kind = sorted(_compute_by_kind(simulation).items(), key=lambda item: -item[1])
    lines += [
        f"  {name:32} {seconds * 1e3:10.2f} ms  {_share(seconds, step)}"
        for name, seconds in by_kind[:8]
    ]
    lines += ["", "transfers of the first device:"]
    lines += [
        f"  {name:20} {count:5d} x  {seconds * 1e3:10.2f} ms"
        for name, (count, seconds) in sorted(_messages(simulation).items())
    ] or ["  none"]
    lines += ["", f"memory ({simulation.verdict()}):"]
    for memory in simulation.memory:
        lines.append(
            f"  stage {memory.stage}: {memory.peak_bytes / 1e9:.2f} GB = weights "
            f"{memory.weights_bytes / 1e9:.2f} + gradients {memory.gradients_bytes / 1e9:.2f} + optimizer "
            f"{memory.optimizer_bytes / 1e9:.2f} + activations {memory.activations_bytes / 1e9:.2f} + "
            f"communication {memory.communication_bytes / 1e9:.2f} (most at `{memory.at_op}`)"
        )
    known = ", ".join(f"{count} {name}" for name, count in sorted(simulation.cost_sources.items()))
    classes = simulation.fleet.classes
    lines += [
        "",
        f"op costs: {known}; {len(simulation.activities.activities)} activities of {classes.count} "
        f"classes of devices for {simulation.strategy.devices} devices",
    ]
    return "\n".join(lines)
