"""Reads the output of Megatron-LM with ``--log-energy``: the joules of its GPUs, which NVML counted.

A line has the mean joules of a step and a GPU, over all GPUs and over the steps since the line before. The
sum over all GPUs is divided evenly among the nodes. Energy during evaluations and checkpoints is not counted.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np

from joulecast.errors import JoulecastError
from joulecast.logs.log import Log, LoggedMeter, LoggedRun, LogOptions
from joulecast.logs.training_log import read_steps

_MEAN = "the mean of all GPUs, times the GPUs of a node"
_REMARKED, _MOST = 0.01, 0.05
"""Share of the training's time without joules (evaluations and checkpoints) above which there is a remark,
and above which the log is refused."""


def read(file: Path, options: LogOptions) -> Log:
    """The training, and the joules of the GPUs of each node.

    Raises:
        JoulecastError: an error of :func:`joulecast.logs.training_log.read_steps`; the log has no energy, or
            none for a large part of the time; or the number of GPUs is not known.
    """
    log = read_steps(file, options.clock)
    pairs = list(pairwise(log.steps))
    without = next((after.where for _, after in pairs if after.gpu_j is None), None)
    if without is not None:
        raise JoulecastError(
            f"{without}: has no energy, which Megatron-LM prints with --log-energy; `joulecast import "
            "training-log` makes a table of runs for a power log"
        )
    if options.nodes is None or options.gpus is None:
        raise JoulecastError(
            f"{file}: it prints the mean of a GPU; give --nodes, and --accelerators for the GPUs of a node"
        )
    t_s = np.array([step.t_s for step in log.steps])
    each_j = [(after.gpu_j or 0.0) * (after.step - before.step) for before, after in pairs]
    trained_s = sum((after.lasts_s or 0.0) * (after.step - before.step) for before, after in pairs)
    unread_s, all_s = max(0.0, float(np.ptp(t_s)) - trained_s), float(np.ptp(t_s))
    said = f"{unread_s:.4g} of {all_s:.4g} s are evaluations and checkpoints, which Megatron-LM leaves out"
    if unread_s > _MOST * all_s:
        raise JoulecastError(
            f"{file}: {said}; take the energy from a power log of the GPUs, and the times from `joulecast "
            "import training-log`"
        )
    name, trained = options.node_of(file), log.trained
    meters = [
        LoggedMeter(
            f"{name}-{node}",
            None,
            "gpu",
            str(file),
            t_s,
            joules=options.gpus * np.cumsum([0.0, *each_j]),
            remark=_MEAN,
        )
        for node in range(1, options.nodes + 1)
    ]
    run = LoggedRun(
        name,
        float(t_s[0]),
        float(t_s[-1]),
        options.nodes,
        samples=trained.get("samples"),
        batch=trained.get("batch"),
    )
    remarks = [f"not metered: {said}"] if unread_s > _REMARKED * all_s else []
    return Log(meters, [run], log.form, remarks)
