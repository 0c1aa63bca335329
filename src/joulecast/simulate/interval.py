"""Prediction intervals of a simulated step, from the errors that the simulator was judged to have.

How far a step may be off depends on what ops' costs rest on, and whether several devices take part. The
widths are those that held for nine tenths of the measured steps of ``recorded/training-steps``, each GPU with
the same weight (``benchmarks/simulator_gpus.py --held-out --write``).
"""

from collections.abc import Mapping
from functools import cache
from importlib import resources

import yaml

_RESTS_ON = {
    "kernels": "description",
    "calibrated": "calibrated",
}


@cache
def _widths() -> dict[str, dict[str, float]]:
    text = (resources.files("joulecast.simulate") / "judged_errors.yaml").read_text()
    found: dict[str, dict[str, float]] = yaml.safe_load(text)["widths"]
    return found


def rests_on(cost_sources: Mapping[str, int]) -> str:
    """What a simulation's costs rest on: description, calibrated, or other."""
    known = {_RESTS_ON.get(source, "other") for source in cost_sources if source != "given"}
    if not known or "other" in known:
        return "other"
    return "calibrated" if "calibrated" in known else "description"


def step_interval(
    step_s: float, devices: int, cost_sources: Mapping[str, int]
) -> tuple[float, float] | None:
    """Ends of the 90 % prediction interval of a step, in seconds; ``None`` where no error was judged."""
    basis = rests_on(cost_sources)
    if basis == "other":
        return None
    width = _widths()[basis]["one" if devices == 1 else "several"]
    # An error of -w means that the step takes up to 1 / (1 - w) times as long.
    return step_s / (1 + width), step_s / (1 - width)
