"""The frames of a run record: the columns of each Parquet file, and what they may contain."""

from joulecast.runs.files.columns import Column

STAGE_MEANINGS = {
    "materials": "getting the batch",
    "computing": "forward and backward",
    "communicating_wait": "until the last rank is there",
    "communicating_copy": "summing the gradients",
    "update": "the optimizer",
    "other": "the rest of a step: logging, checkpoints, evaluation",
}
STAGES = tuple(STAGE_MEANINGS)
"""Stages of a rank. MC2's third stage is both ``communicating_*`` and ``update``."""

PHASES = ("init", "run", "epoch", "block", "evaluation")

FRAME_MEANINGS = {
    "stages": "What each rank did, and when. Each row is an interval. If communication runs during "
    "computing, the two intervals overlap, and figures count this time as computing.",
    "power": "The readings of the meters. Each row is a reading.",
    "activity": "What the operating system counted during the run. Each row is a sample on one node.",
    "phases": "Phases that the log of the run names. Each row is an interval.",
}


_NAME = 255
"""Largest number of characters in the name of a host or a file."""


def _time_s(meaning: str, *, optional: bool = False) -> Column:
    # No run is longer than three centuries.
    return Column("number", -1e10, 1e10, optional=optional, meaning=meaning)


def _amount(meaning: str, most: float = 1e18) -> Column:
    return Column("number", 0, most, optional=True, meaning=meaning)


def _share(meaning: str) -> Column:
    # Rounding may make a difference of clocks a little less than 0.
    return Column("number", -1e-6, 1e6, optional=True, meaning=meaning)


FRAMES: dict[str, dict[str, Column]] = {
    "stages": {
        "rank": Column("whole", 0, 1e9, meaning="MPI rank, from 0"),
        "step": Column(
            "whole",
            0,
            1e12,
            meaning="number of the training step, from 0; in a calibration, number of the all-reduce",
        ),
        "stage": Column("text", choices=STAGES, meaning="stage of the step"),
        "start_s": _time_s("begin on the run clock"),
        "stop_s": _time_s("end on the run clock, not before `start_s`"),
    },
    "power": {
        "node": Column(
            "text", longest=_NAME, meaning="name of the node, as in `nodes` of `run.json`"
        ),
        "meter": Column(
            "text",
            longest=_NAME,
            meaning="name of the meter: `kind` or `kind:device`, such as `cpu:package-0`",
        ),
        # An estimate for a whole run has none.
        "t_s": _time_s(
            "time on the run clock; some readings lie before and after the run",
            optional=True,
        ),
        # No cluster draws as much as all power stations.
        "watts": _amount(
            "power at that moment, or the meter's own mean; missing for counters", 1e12
        ),
        "joules": _amount(
            "energy since the meter was opened; missing for meters without a counter"
        ),
    },
    "activity": {
        "node": Column("text", longest=_NAME, meaning="name of the node"),
        "t_s": _time_s("time on the run clock"),
        "cpu_utilisation": _share("share of the node's cores at work; 1 is all of them"),
        "gpu_utilisation": _share(
            "mean utilisation of the node's GPUs, as a share of 1; missing if it has no GPU"
        ),
        "memory_bytes": _amount(
            "memory of the node's processes; if the node is a whole host, memory of the host"
        ),
        "network_bytes_per_s": _amount("traffic of the host's interfaces, in and out"),
    },
    "phases": {
        "phase": Column("text", choices=PHASES, meaning="kind of the phase"),
        "index": Column(
            "number", -1e18, 1e18, optional=True, meaning="number that the log gives it"
        ),
        "start_s": _time_s("begin on the run clock"),
        "stop_s": _time_s("end on the run clock"),
        "samples": _amount("work done in it, in the run's unit: samples or epochs"),
    },
}
"""The columns of each frame of a record. A frame is a Parquet file."""

STAGE_COLUMNS, POWER_COLUMNS, ACTIVITY_COLUMNS, PHASE_COLUMNS = map(tuple, FRAMES.values())
