"""What Zeus and its reproduction publish."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from joulecast.report.tables.published import FromPaper, read_published_file


class PublishedPotential(BaseModel):
    """A workload's row of figure 1."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    batch_size_only: float
    power_limit_only: float
    both: float
    batch_size: int = Field(ge=1)
    power_limit_w: int = Field(ge=1)


class PublishedReproduction(BaseModel):
    """A reproduction, and what the authors' simulator says in its setting: energy and time by GPU."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    paper: str
    target: float
    recurrences: int
    energy_saving_percent: tuple[float, float]
    simulator: dict[str, dict[str, tuple[float, float]]]


class PublishedTuning(FromPaper):
    """What Zeus and its reproduction publish."""

    potential: dict[str, PublishedPotential]
    energy_saving_percent: tuple[float, float]
    time_saving_percent_up_to: float
    reproduction: PublishedReproduction


def read_published_tuning(path: Path) -> PublishedTuning:
    """Read ``config/published/zeus.yaml``.

    Raises:
        JoulecastError: missing, or with wrong keys.
    """
    return read_published_file(PublishedTuning, path)
