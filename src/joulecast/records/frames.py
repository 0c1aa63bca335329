"""The frames of a run record: which columns each Parquet file has, and what they may hold."""

from joulecast.files.columns import Column

STAGES = (
    "materials",
    "computing",
    "communicating_wait",
    "communicating_copy",
    "update",
    "other",
)
"""Stages of a rank. MC2's third stage is both ``communicating_*`` and ``update``."""

PHASES = ("init", "run", "epoch", "block", "evaluation")

# No run is longer than three centuries, and no cluster draws as much as all power stations.
_TIME_S = Column("number", -1e10, 1e10)
_AMOUNT = Column("number", 0, 1e18, optional=True)
_SHARE = Column("number", -1e-6, 1e6, optional=True)  # differences of clocks, hence the rounding
_NAME = Column("text")

FRAMES: dict[str, dict[str, Column]] = {
    "stages": {
        "rank": Column("whole", 0, 1e9),
        "step": Column("whole", 0, 1e12),
        "stage": Column("text", choices=STAGES),
        "start_s": _TIME_S,
        "stop_s": _TIME_S,
    },
    "power": {
        "node": _NAME,
        "meter": _NAME,
        "t_s": Column("number", -1e10, 1e10, optional=True),  # an estimate for a whole run has none
        "watts": Column("number", 0, 1e12, optional=True),
        "joules": _AMOUNT,
    },
    "activity": {
        "node": _NAME,
        "t_s": _TIME_S,
        "cpu_utilisation": _SHARE,
        "gpu_utilisation": _SHARE,
        "memory_bytes": _AMOUNT,
        "network_bytes_per_s": _AMOUNT,
    },
    "phases": {
        "phase": Column("text", choices=PHASES),
        "index": Column("number", -1e18, 1e18, optional=True),  # as the log counts, if it does
        "start_s": _TIME_S,
        "stop_s": _TIME_S,
        "samples": _AMOUNT,
    },
}
"""The frames of a record, each a parquet file, by the columns that it must have."""

STAGE_COLUMNS, POWER_COLUMNS, ACTIVITY_COLUMNS, PHASE_COLUMNS = map(tuple, FRAMES.values())
