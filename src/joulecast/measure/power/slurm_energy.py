"""SLURM's own account of a step's energy: a check of the other meters, and never a part of a run's energy.

``ConsumedEnergyRaw`` is of all nodes of the step, since the step began. SLURM renews it every 30 s or more,
where the site has set up ``acct_gather_energy``. The step's first node asks for it.
"""

import os
import time

from joulecast.measure.power.background import BackgroundMeter, CountedJoules
from joulecast.measure.power.kernel_files import MOST_NODE_W
from joulecast.measure.power.meters import (
    Meter,
    MeteredNodes,
    MeterUnavailable,
    ReadFailed,
    Reading,
)
from joulecast.measure.power.programs import output_of, require_program, shown
from joulecast.measure.power.register import Limits, Register

_EVERY_S, _TIMEOUT_S = 30.0, 3.0
_SITE = "the site sets it up (AcctGatherEnergyType in slurm.conf)"


class StepEnergy:
    """The energy of a step, as SLURM accounts for it.

    Args:
        step: its job and number, as ``17.0``.
        nodes: that it runs on.
    """

    def __init__(self, program: str, step: str, nodes: int) -> None:
        self._words = [program, "-n", "-P", "-o", "ConsumedEnergyRaw", "-j", step]
        limits = Limits(0.0, nodes * MOST_NODE_W, renewed_s=120.0, moves_within_s=3600.0)
        self._joules = CountedJoules(
            lambda count, at_s: Register(count, at_s, unit_j=1.0, limits=limits)
        )

    def ask(self) -> Reading:
        """Joules since the first question.

        Raises:
            ReadFailed: SLURM does not answer, or accounts for no energy.
            MeterFailed: its account cannot be believed.
        """
        before_s = time.monotonic()
        printed = output_of(self._words, _TIMEOUT_S).strip()
        if not printed.isdecimal() or int(printed) == 0:
            raise ReadFailed(
                f"SLURM accounts for no energy of this step (it says {shown(printed)!r})"
            )
        return Reading(None, self._joules.since_first(int(printed), before_s, time.monotonic()))


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """SLURM's account of this step.

    Raises:
        MeterUnavailable: this is no SLURM job or not its first node, or SLURM accounts for no energy.
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        raise MeterUnavailable("slurm: this is no SLURM job", "start it by sbatch", elsewhere=True)
    if os.environ.get("SLURM_NODEID", "0") != "0":
        remedy = "nothing to do"
        raise MeterUnavailable("slurm: the job's first node asks", remedy, elsewhere=True)
    program = require_program("sstat", "slurm", _SITE, elsewhere=True)
    number = os.environ.get("SLURM_STEP_ID", "")
    step = f"{job}.{number if number.isdecimal() else 'batch'}"
    count = os.environ.get("SLURM_STEP_NUM_NODES") or os.environ.get("SLURM_JOB_NUM_NODES", "1")
    energy = StepEnergy(program, step, int(count) if count.isdecimal() else 1)
    try:
        meter = BackgroundMeter(
            "slurm",
            nodes.host_node,
            energy.ask,
            every_s=_EVERY_S,
            counter=True,
            identity=f"slurm:{step}",
        )
    except ReadFailed as error:
        raise MeterUnavailable(f"slurm: {error}", _SITE, elsewhere=True) from None
    meter.remark = f"of all {count} nodes of the step: a check, and no part of the energy"
    meter.covers = None
    return [meter]
