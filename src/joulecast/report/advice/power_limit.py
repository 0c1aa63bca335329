"""The power limit of a choice: known only where a history tuned one."""

from dataclasses import dataclass, replace
from pathlib import Path

from joulecast.errors import JoulecastError
from joulecast.report.advice.candidate import Candidate
from joulecast.tune.history import read_history_file
from joulecast.tune.next_run import advise_on_file, network_of


@dataclass(frozen=True)
class PowerLimit:
    """What a tuning history says of the power limit: of one batch size, on the device that was tuned."""

    watts: int | None
    batch_size: int | None
    why_none: str
    notes: tuple[str, ...] = ()

    def applied(self, candidate: Candidate) -> Candidate:
        """The candidate with its limit, or with why it has none."""
        if self.watts is not None and candidate.batch_size == self.batch_size:
            return replace(candidate, power_limit_w=self.watts)
        why = self.why_none
        if self.watts is not None:
            why = f"the history tells of batch size {self.batch_size} only ({self.watts} W)"
        return replace(candidate, why_no_power_limit=why)


NO_HISTORY = PowerLimit(None, None, "no history of a tuning of this network was given (--history)")


def power_limit_of(history: Path, network: str) -> PowerLimit:
    """The limit that a history advises.

    Args:
        history: file that ``joulecast tune --history`` wrote.
        network: that the advice is for.

    Raises:
        JoulecastError: no such history, or one of another network or of traces.
    """
    header, _ = read_history_file(history)
    advice = advise_on_file(history)
    tuned = network_of(header, history)
    if tuned != network:
        of = tuned or f"the traces of {header.get('workload')} on {header.get('gpu')}"
        raise JoulecastError(f"{history}: is of {of}, not of {network}; leave --history out")
    use = advice["use"]
    knows = use is not None and use["runs"] > 0
    if use is None or use["power_limit_w"] is None or not knows:
        why = "the history tuned no power limit"
        if not knows:
            why = f"the history advises nothing yet ({advice['status']})"
        return PowerLimit(None, None, why)
    note = (
        "expected energies and times are without the power limit, whose effect the history knows for "
        "its own training only"
    )
    return PowerLimit(use["power_limit_w"], use["batch_size"], "", (note,))
