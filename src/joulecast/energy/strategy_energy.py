"""The energy of a parallel strategy: simulated times, priced by powers that were fitted to metered runs.

A simulator says how long the stages of a step last on each node. The powers come from metered runs on the
same hardware (:mod:`joulecast.energy.node_power`). Joules need both: the simulator knows no watts, and the
fit knows only the settings to which it was fitted.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from joulecast.energy.node_power import (
    REST_SHARE,
    REST_WIDTH,
    MeteredNode,
    known_nodes,
    shipped_nodes,
)
from joulecast.graphs.clocks import POWER_WIDTH, GpuPower, gpu_power_of
from joulecast.graphs.kernel_costs import kernel_costs_of
from joulecast.graphs.precision import PRECISIONS
from joulecast.runs.platforms import Platform, gpu_in, same_hardware
from joulecast.simulate.simulate import Simulation

_OF_POWER_ALONE = (
    "the interval of the joules is of the power alone: none of the step's time is known"
)


@dataclass(frozen=True)
class StepEnergy:
    """Joules of one step of all nodes; ``None`` with a reason if they are not known.

    Attributes:
        source: source of the energies to which the powers were fitted (measured, estimated, recorded or
            imported); or ``described``, if the powers follow from the description of the GPUs.
        reason: why there are no joules.
        power_w: mean power of all nodes together over the step.
        low_j, high_j: 90 % interval; ``None`` with ``why_no_interval``.
        why_no_interval: why there is no interval, or what the interval does not contain.
        rests_on: the runs from which the powers come, and which of their values are used for this step.
        gpus_w: the part of the power that the GPUs in use draw, if their description says it.
        supply: ``DC`` if the meters of the node type read behind the power supplies.
    """

    joules: float | None
    source: str | None
    reason: str = ""
    power_w: float | None = None
    low_j: float | None = None
    high_j: float | None = None
    why_no_interval: str = ""
    rests_on: str = ""
    gpus_w: float | None = None
    supply: str | None = None

    @property
    def label(self) -> str | None:
        """The label of the joules: a simulated time, and the source of the powers."""
        return self.source and f"simulated time, {self.source} power"

    def as_json(self) -> dict[str, Any]:
        """Plain data, by the names of the command's output."""
        known = self.joules is not None
        return {
            "step_j": self.joules,
            "step_j_low": self.low_j,
            "step_j_high": self.high_j,
            "power_w": self.power_w,
            "energy_source": self.label,
            "energy_rests_on": self.rests_on or None,
            "gpus_power_w": self.gpus_w,
            "supply": self.supply,
            "why_no_energy": None if known else self.reason,
            "why_no_energy_interval": (self.why_no_interval or None) if known else None,
        }


def _hardware(platform: Platform) -> str:
    """The name of a platform's hardware: that of its GPU if the catalogue has it."""
    device = platform.require_cluster().device.name
    return gpu_in(device) or gpu_in(platform.name) or platform.name


def _used(platform: Platform, devices: int) -> list[int]:
    """Devices in use of each host."""
    per_node = platform.require_cluster().host_devices
    full, rest = divmod(devices, per_node)
    return [per_node] * full + [rest] * bool(rest)


def node_count(platform: Platform, devices: int) -> int:
    """Number of hosts that ``devices`` take. A host that is partly used counts as one."""
    return len(_used(platform, devices))


def supply_of(platform: Platform) -> str | None:
    """``DC`` if the powers of a platform come from meters behind the power supplies of its nodes."""
    node = _of_hardware(shipped_nodes(), platform)
    if node is None or node.gpus != platform.require_cluster().host_devices:
        return None
    return node.supply


def rising_joules(
    platform: Platform, precision: str, devices: int
) -> Callable[[float, float], float] | None:
    """A function that gives a lower bound of a step's joules. Its arguments are the seconds of the step, and
    the seconds in which a device computes. The bound never falls if one of the two rises.

    The result is ``None`` if there is no such bound, or if the joules are not known.
    """
    # GPUs that wait for the host of plain PyTorch may compute for less than the step's computing.
    surely = float(PRECISIONS[precision].half)
    node = _of_hardware(shipped_nodes(), platform)
    per_node = platform.require_cluster().host_devices
    power = _gpu_power(platform, precision)
    if power is not None and (node is None or node.gpus != per_node):
        # A GPU that computes draws more than one that is awake.
        more_w = float(power.watts(power.clock_at(power.limit_w))) - power.awake_w
        always_w = sum(_rest_of_nodes(platform, devices, power)) + devices * power.awake_w
        more_w *= surely
        return lambda step_s, computing_s: devices * computing_s * more_w + step_s * always_w
    if node is None or node.gpus != per_node or not node.rises:
        return None
    metered, used = node, _used(platform, devices)

    def joules(step_s: float, computing_s: float) -> float:
        return step_s * metered.expected_w(used, min(1.0, surely * computing_s / step_s), per_node)

    return joules


def _widths(simulation: Simulation) -> tuple[float, float] | None:
    """Half widths of the logarithm of the step's time, downwards and upwards."""
    ends = simulation.interval_s
    if ends is None:
        return None
    return math.log(simulation.step_s / ends[0]), math.log(ends[1] / simulation.step_s)


def _with_interval(
    energy: StepEnergy, simulation: Simulation, down: float, up: float
) -> StepEnergy:
    """The energy with its interval: the widths of power and time in quadrature, as they are independent.

    Args:
        down, up: half widths of the logarithm of the power.
    """
    if energy.joules is None:
        return energy
    times = _widths(simulation)
    ends = (0.0, 0.0) if times is None else times
    return replace(
        energy,
        low_j=energy.joules * math.exp(-math.hypot(down, ends[0])),
        high_j=energy.joules * math.exp(math.hypot(up, ends[1])),
        why_no_interval=_OF_POWER_ALONE if times is None else "",
    )


def power_widths(energy: StepEnergy, simulation: Simulation) -> tuple[float, float] | None:
    """Half widths of the logarithm of the power alone, downwards and upwards; ``None`` if not known."""
    if energy.joules is None or energy.low_j is None or energy.high_j is None:
        return None
    ends = math.log(energy.joules / energy.low_j), math.log(energy.high_j / energy.joules)
    down, up = (
        math.sqrt(max(0.0, end**2 - time**2))
        for end, time in zip(ends, _widths(simulation) or (0.0, 0.0), strict=True)
    )
    return down, up


def _busy_s(simulation: Simulation) -> float:
    """Seconds of a step in which its GPUs draw the power of computing.

    In plain PyTorch, the GPUs also wait for the host, and kernels wait for their own threads.
    """
    updating_s = simulation.optimizer_s
    ops_s = simulation.breakdown.computing_s - updating_s
    return simulation.host.loaded * ops_s / simulation.host_stretch + updating_s


def _node_energy(simulation: Simulation, node: MeteredNode) -> StepEnergy:
    """Joules of a step on nodes of a metered type."""
    platform = simulation.platform
    per_node = platform.require_cluster().host_devices
    if per_node != node.gpus:
        why = (
            f"the metered nodes of {node.platform} have {node.gpus} GPUs, the nodes of {platform.name} here "
            f"have {per_node}; simulate nodes of {node.gpus} GPUs: GPUs that stay idle are priced, too"
        )
        return StepEnergy(None, None, why)
    step_s = simulation.step_s
    share = _busy_s(simulation) / simulation.step_s
    power = node.power(
        _used(platform, simulation.strategy.devices), min(1.0, max(0.0, share)), per_node
    )
    energy = StepEnergy(
        power.watts * step_s,
        node.energy_source,
        power_w=power.watts,
        rests_on=power.rests_on,
        supply=node.supply,
    )
    down, up = math.log(power.watts / power.low_w), math.log(power.high_w / power.watts)
    return _with_interval(energy, simulation, down, up)


def _of_hardware(nodes: Sequence[MeteredNode], platform: Platform) -> MeteredNode | None:
    """The metered node type that fits a platform.

    It has the platform's name, or else the same hardware. Of several types, those with nodes of the same size
    go first, and then the one with most runs.
    """
    named = [node for node in nodes if node.platform == platform.name]
    alike = [node for node in nodes if same_hardware(node.platform, _hardware(platform))]
    per_node = platform.require_cluster().host_devices
    return max(named or alike, key=lambda n: (n.gpus == per_node, n.runs), default=None)


def _metered_energy(simulation: Simulation) -> StepEnergy:
    """Joules of a simulated step, with powers from metered runs of the same hardware. Without such runs, they
    are ``None`` with the reason."""
    node = _of_hardware(shipped_nodes(), simulation.platform)
    if node is not None:
        return _node_energy(simulation, node)
    why = (
        f"no metered run of {simulation.platform.name} is known; there are some of "
        f"{known_nodes(shipped_nodes())}"
    )
    return StepEnergy(None, None, why)


def _gpu_power(platform: Platform, precision: str) -> GpuPower | None:
    """The power model of a GPU of a platform, from the description of the GPU; ``None`` if the description
    has no watts."""
    costs = kernel_costs_of(platform, precision)
    return None if costs is None else gpu_power_of(costs.device, costs.precision)


def _rest_of_nodes(platform: Platform, devices: int, power: GpuPower) -> tuple[float, float]:
    """For nodes that are only described: watts of all parts but the GPUs, and watts of the GPUs that are
    not in use."""
    held = node_count(platform, devices) * platform.require_cluster().host_devices
    return REST_SHARE * held * power.limit_w, (held - devices) * power.awake_w


def _at_clock(metered: StepEnergy, simulation: Simulation) -> StepEnergy:
    """Joules of metered nodes, minus the joules that their GPUs save at the clock to which they are set."""
    power = _gpu_power(simulation.platform, simulation.training.precision.name)
    if metered.joules is None or simulation.sm_mhz is None or power is None:
        return metered
    full_w, set_w = (
        float(power.watts(clock))
        for clock in (power.clock_at(power.limit_w), simulation.sm_mhz / power.boost_mhz)
    )
    saved_j = simulation.strategy.devices * _busy_s(simulation) * (full_w - set_w)
    joules = metered.joules - saved_j
    of_saved = POWER_WIDTH * saved_j / joules

    def end(metered_j: float | None, sign: int) -> float | None:
        """The lower (``sign`` -1) or upper end of the interval. The width of the metered joules and that of
        ``saved_j`` are added in quadrature."""
        if metered_j is None or metered.joules is None:
            return None
        return joules * math.exp(sign * math.hypot(math.log(metered_j / metered.joules), of_saved))

    return replace(
        metered,
        joules=joules,
        power_w=joules / simulation.step_s,
        low_j=end(metered.low_j, -1),
        high_j=end(metered.high_j, 1),
        rests_on=f"{metered.rests_on}, of which a GPU that computes draws {full_w - set_w:,.0f} W less at "
        f"{simulation.sm_mhz:,.0f} MHz, by its description",
    )


def _described_energy(simulation: Simulation, why: str) -> StepEnergy | None:
    """Joules of a step by the description of the GPUs. The rest of their nodes is learnt from other nodes.

    ``None`` if the description has no watts. While a GPU does not compute, it is awake. ``why`` says why no
    metered run gives the joules.
    """
    platform, devices = simulation.platform, simulation.strategy.devices
    power = _gpu_power(platform, simulation.training.precision.name)
    if power is None:
        return None
    mhz = simulation.sm_mhz
    clock = float(power.clock_at(power.limit_w)) if mhz is None else mhz / power.boost_mhz
    busy_w, share = float(power.watts(clock)), _busy_s(simulation) / simulation.step_s
    each_w = share * busy_w + (1 - share) * power.awake_w
    gpus_w, rest_w, idle_w = devices * each_w, *_rest_of_nodes(platform, devices, power)
    watts = gpus_w + idle_w + rest_w
    unused = f"; {idle_w:,.0f} W are of GPUs that are not in use" if idle_w else ""
    energy = StepEnergy(
        watts * simulation.step_s,
        "described",
        power_w=watts,
        gpus_w=gpus_w,
        rests_on=f"watts from the GPU's description: {busy_w:,.0f} W computing at "
        f"{clock * power.boost_mhz:,.0f} MHz, {power.awake_w:,.0f} W awake; the step computes "
        f"{100 * share:.0f} % of its time; the other parts of a node are assumed to draw {REST_SHARE:g} "
        f"times the power limits of its GPUs (two nodes of 8 H100 had 0.32 and 0.55): {rest_w:,.0f} W of the "
        f"{watts:,.0f} W{unused}; {why}",
    )
    up = min(POWER_WIDTH, math.log(power.limit_w / each_w))
    less = math.hypot(gpus_w * -math.expm1(-POWER_WIDTH), rest_w * -math.expm1(-REST_WIDTH))
    more = math.hypot(gpus_w * math.expm1(up), rest_w * math.expm1(REST_WIDTH))
    return _with_interval(energy, simulation, -math.log1p(-less / watts), math.log1p(more / watts))


def simulation_energy(simulation: Simulation) -> StepEnergy:
    """Joules of a simulated step.

    They come from metered runs, minus what a power limit or clock takes off. Without metered runs, they
    come from the description of the GPUs.
    """
    metered = _metered_energy(simulation)
    if metered.joules is not None:
        return _at_clock(metered, simulation)
    return _described_energy(simulation, metered.reason) or metered


NO_INTERVAL = "simulated, and the simulator's error on this platform was not measured"


def energy_of_steps(simulation: Simulation, steps: int = 1) -> dict[str, Any]:
    """Time and energy of a number of whole steps, with the names that predictions have.

    Args:
        steps: number of steps.

    Returns:
        ``time_s`` and ``energy_j`` with the ends of their 90 % intervals (``time_low_s``, ...). Each is
        ``None`` if it is not known, with ``why_no_energy`` and ``why_no_interval``. Also
        ``energy_source`` and ``supply``.
    """
    energy = simulation_energy(simulation)
    ends = simulation.interval_s
    low_s, high_s = ends or (None, None)
    of_step = {
        "time_s": simulation.step_s,
        "time_low_s": low_s,
        "time_high_s": high_s,
        "energy_j": energy.joules,
        # If the time has no interval, the interval of the power alone is not an interval of the energy.
        "energy_low_j": energy.low_j if ends else None,
        "energy_high_j": energy.high_j if ends else None,
    }
    return {
        **{name: None if each is None else steps * each for name, each in of_step.items()},
        "energy_source": energy.label,
        "supply": energy.supply,
        "why_no_energy": None if energy.joules is not None else energy.reason,
        "why_no_interval": NO_INTERVAL if ends is None else energy.why_no_interval or None,
    }
