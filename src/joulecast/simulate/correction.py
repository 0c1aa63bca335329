"""Corrects simulated steps by measured steps: how much longer do ops take than predicted?

The logarithm of a step's error is the sum of two parts. All steps of a GPU share the first part (clocks,
libraries). The second part is the step's own. Similar steps have similar second parts, and less so the more
they differ. Both parts have Student distributions. Their long tails allow for outliers. If one step takes
twice as long as predicted, this has little effect on other steps. If two steps do, the effect is large. So
the corrected time of a measured step is its measured time. A step that differs much from it is corrected only
by the first part.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, Literal

import numpy as np
import yaml
from numpy.typing import NDArray

from joulecast.graphs.opgraph import OpGraph
from joulecast.simulate.strategy import Strategy

_SHARED, _SHARED_TAIL = 0.055, 5
"""Scale and degrees of freedom of the error that all steps of a GPU share. In ``recorded/training-steps``,
the groups have a shared error of 0.03 to 0.2. With a larger scale, a single step changes different steps
more. This helps if the whole GPU is off, and makes other steps worse if the step is an outlier. The error
after one step is 6.2 % for scales from 0.03 to 0.055, and 7 % for 0.08. If all steps of a GPU are made 15 %
slower, the error is 12 % for a scale of 0.03, 10 % for 0.055 and 8 % for 0.08."""
_OWN, _OWN_TAIL = 0.08, 3
"""Scale and degrees of freedom of the second part of a step's error, which is the step's own."""
_REACH = 1.0
"""Doublings of a number in the setting over which the correlation of steps' own errors falls to 1 / e. Values
from 0.5 to 2 make no visible difference."""
_REPEATS = 1e-4
"""Share of a step's own error that a repeat of the step does not show."""
_OF_DEVICES = 0.25
"""How much a doubling of the devices counts. Other doublings count 1, because they also change the ops."""
_GRID = np.linspace(-2.3, 3.0, 1061)

Setting = tuple[float, ...]
"""Numbers by which steps are compared, as exponents of two."""


def step_setting(graph: OpGraph, strategy: Strategy, inference: bool) -> Setting:
    """Numbers by which steps are compared: the network's size, the work of a micro-batch, and how the network
    is split.

    The graph has the batch of all replicas of one micro-batch.
    """
    work = sum(t.elements for t in graph.tensors.values() if t.role == "activation")
    sizes = [strategy.mesh.get(axis, 1) for axis in ("tensor", "pipeline")]
    counts = [
        sum(tensor.elements for tensor in graph.weights),
        work / strategy.replicas,
        strategy.devices**_OF_DEVICES,
        *sizes,
        # A forward pass says little about the own error of a training step.
        1 << 8 * inference,
    ]
    return tuple(np.log2(np.maximum(counts, 1)).tolist())


@dataclass(frozen=True)
class MeasuredError:
    """A measured step's error."""

    setting: Setting
    step: float
    """Logarithm of the measured seconds of the step over the predicted ones."""
    ops: float
    """Logarithm of the factor for the seconds of all ops with which the simulated step would take as long as
    the measured one."""

    @property
    def share(self) -> float:
        """The share of an op error that appears as an error of the step."""
        return min(1.0, self.step / self.ops) if self.ops else 1.0


def _log_density(x: NDArray[np.float64], freedom: float) -> NDArray[np.float64]:
    """Logarithm of the density of Student's t, up to a constant. (``scipy.stats`` takes 0.4 s to load.)"""
    logs: NDArray[np.float64] = -(freedom + 1) / 2 * np.log1p(x**2 / freedom)
    return logs


@dataclass(frozen=True)
class MeasuredSteps:
    """Measured steps of a GPU, and the corrections of other steps that follow from them."""

    errors: tuple[MeasuredError, ...]
    remark: str | None = None
    """A remark for the user. It names the measured steps, and says which of them is far from its
    simulation."""

    @cached_property
    def shared(self) -> float:
        """Logarithm of the factor by which ops take longer in all steps of the GPU: the mean of the
        posterior."""
        logs = _log_density(_GRID / _SHARED, _SHARED_TAIL)
        for error in self.errors:
            logs = logs + _log_density((error.step - error.share * _GRID) / _OWN, _OWN_TAIL)
        weights = np.exp(logs - logs.max())
        return float((weights * _GRID).sum() / weights.sum())

    def _alike(self, settings: Sequence[Setting]) -> NDArray[np.float64]:
        own = np.array([error.setting for error in self.errors])
        apart = np.abs(own[:, None] - np.array(settings)[None]).sum(axis=-1)
        alike: NDArray[np.float64] = np.exp(-apart / _REACH)
        return alike

    @cached_property
    def _own(self) -> NDArray[np.float64]:
        """For each measured step, its weight in the correction of other steps. The weights are chosen so that
        the correction of a measured step is its own error. Similar steps divide a weight."""
        between = self._alike([error.setting for error in self.errors])
        left = np.array([error.ops - self.shared for error in self.errors])
        return np.linalg.solve(between + _REPEATS * np.eye(len(left)), left)

    def factor(self, setting: Setting) -> float:
        """Factor by which the ops of a step take longer than predicted."""
        return float(np.exp(self.shared + self._alike([setting])[:, 0] @ self._own))


StepKind = Literal["one", "several", "experts"]
"""Steps on one device, on several devices, or of a mixture of experts. Their errors differ."""


@cache
def _judged() -> dict[str, Any]:
    text = (resources.files("joulecast.simulate") / "judged_errors.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def memory_width(devices: int) -> float:
    """The relative error that 90 % of simulated peaks of memory do not exceed, on one device or on
    several."""
    return float(_judged()["memory"]["one" if devices == 1 else "several"])


def basis_of(cost_sources: Mapping[str, int]) -> str:
    """The basis of a simulation's costs: description, calibrated, or other."""
    sources = cost_sources.keys() - {"given"}
    if not sources or sources - {"kernels", "calibrated"}:
        return "other"
    return "calibrated" if "calibrated" in sources else "description"


def step_interval(
    ends_s: tuple[float, float], kind: StepKind, cost_sources: Mapping[str, int]
) -> tuple[float, float] | None:
    """Ends of the 90 % prediction interval of a step, in seconds; ``None`` if the error of such steps is not
    known.

    ``ends_s`` are the seconds of the step with a fast and with a slow host.
    """
    basis = basis_of(cost_sources)
    if basis == "other":
        return None
    width = _judged()["widths"][basis][kind]
    # An error of -w means that the step takes up to 1 / (1 - w) times as long.
    fast_s, slow_s = ends_s
    return fast_s / (1 + width), slow_s / (1 - width)
