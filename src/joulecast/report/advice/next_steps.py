"""What to measure next, so that the choice is surer."""

from collections.abc import Sequence

from joulecast.quantities import steady
from joulecast.report.advice.candidate import Candidate
from joulecast.report.advice.choice import nearest
from joulecast.report.advice.verdict import overlaps
from joulecast.runs.scale import scale_in_words, unit_of

_MOST = 5


def _width(candidate: Candidate, quantity: str) -> float:
    """Relative width of the interval that the choice hangs on."""
    for each in (quantity, "time"):
        value, low, high = candidate.ends(each)
        if low is not None and high is not None and value:
            return (high - low) / value
    return 0.0


def measure_next(
    candidates: Sequence[Candidate],
    best: Candidate | None,
    *,
    most_nodes: int | None,
    least: str = "energy",
) -> list[dict[str, str]]:
    """What to measure, the most telling first, each with ``what`` and ``why``.

    Args:
        candidates: all of them.
        best: the choice; without one, what to do about that.
        most_nodes: that were run; ``None`` where nothing was.
        least: what the best is the least of.
    """
    leading = best or nearest(candidates, {"time": 1.0}) or candidates[0]
    # A weight of energy and time has no interval of its own.
    weighed = "energy" if least == "weight" else least
    weighed = "time" if leading.ends(weighed)[0] is None else weighed
    name = "the fastest setting" if best is None else "the choice"
    steps: list[tuple[str, str]] = []
    if leading.rests_on == "simulated":
        steps.append(
            (
                "a small campaign on this platform: 1 and 2 nodes, and the calibrations",
                "nothing was run there: times are simulated"
                + (" and have no interval" if leading.time_low_s is None else ""),
            )
        )
    elif leading.rests_on == "fitted":
        steps.append((leading.setting, f"{name} is a forecast; it was not run"))
        if leading.extrapolation:
            steps[-1] = (
                leading.setting,
                f"it lies outside of what was run ({'; '.join(leading.extrapolation)})",
            )
    elif leading.runs == 1:
        steps.append(
            (f"a repeat of {leading.setting}", "it was run once: how runs differ is not known")
        )
    if leading.energy_j is None or "estimated" in (leading.energy_source or ""):
        why = "energy is estimated from utilisation and assumed watts, and judges no setting"
        if leading.energy_j is None:
            why = f"no energy is known: {leading.why_no_energy}"
        what = "the same on a machine with a meter (a GPU, RAPL, a wattmeter); `joulecast meters`"
        steps.append((what, why))
    rivals = [c for c in candidates if c is not leading and overlaps(c, leading, weighed)]
    if rivals:
        # Of equally wide ones, as all are that the model forecasts, the nearest to be chosen instead.
        widest = min(rivals, key=lambda c: (-steady(_width(c, weighed)), c.cost_order))
        again = "again " if widest.rests_on == "measured" else ""
        steps.append(
            (
                f"{again}{widest.setting}",
                f"its interval is the widest (±{50 * _width(widest, weighed):.0f} %) of {len(rivals)} that "
                "overlap the choice's",
            )
        )
    if most_nodes is not None and leading.nodes == most_nodes:
        unit = unit_of(leading.nodes_are)
        larger = scale_in_words(2 * most_nodes, leading.nodes_are)
        steps.append((larger, f"{name} has the largest {unit} count that was run"))
    return [{"what": what, "why": why} for what, why in steps[:_MOST]]
