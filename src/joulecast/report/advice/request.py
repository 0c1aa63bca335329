"""What can be asked of advice: the setting to train in, within limits."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from joulecast.energy.request import Work
from joulecast.quantities import duration_s, energy_j, mass_kg
from joulecast.runs.files.shipped import PLATFORMS
from joulecast.runs.request import (
    RECORDS,
    Batches,
    Name,
    Priced,
    RecordFolders,
    Request,
    Scale,
    Shell,
    from_text,
)
from joulecast.simulate.request import Objective, SimulatedTraining


class Limit(Request):
    """What a training may take, each or none, and what is to be least within that."""

    objective: Objective | None = Field(
        default=None,
        description="What to minimise; edp: joules times seconds. By default energy; time where energy is "
        "estimated, or with budgets and no deadline.",
    )
    deadline_s: Annotated[float | None, from_text(duration_s), Shell("--deadline")] = Field(
        default=None, gt=0, description="Time that it may take: seconds, or as 30min, 1h, 2d."
    )
    energy_budget_j: Annotated[float | None, from_text(energy_j), Shell("--energy-budget")] = Field(
        default=None, gt=0, description="Energy that it may take: joules, or as 5MJ, 2kWh."
    )
    cost_budget: float | None = Field(
        default=None, gt=0, description="Money that it may cost, by the prices."
    )
    co2_budget_kg: Annotated[float | None, from_text(mass_kg), Shell("--co2-budget")] = Field(
        default=None, gt=0, description="CO2 equivalent that it may emit: kg, or as 500g, 1t."
    )

    @property
    def budgets(self) -> dict[str, float]:
        """What is given of each quantity: time in s, energy in J, money, CO2 in kg."""
        given = {
            "time": self.deadline_s,
            "energy": self.energy_budget_j,
            "cost": self.cost_budget,
            "co2": self.co2_budget_kg,
        }
        return {quantity: amount for quantity, amount in given.items() if amount is not None}

    @property
    def least(self) -> str:
        """The objective: what is least within the budgets."""
        has_budget_alone = self.budgets and self.deadline_s is None
        return self.objective or ("time" if has_budget_alone else "energy")


class _Training(Work):
    """The training to choose a setting for, and what to choose from."""

    network: Name = Field(
        description="Network, as the records name it; on the command line by default the one of NAME."
    )
    records: RecordFolders = Field(
        default=(),
        description=f"{RECORDS} Without any, a platform is simulated.",
    )
    platform: Name | None = Field(
        default=None,
        description="Platform, as the records name it; or one to simulate: a name, or a FILE.yaml.",
    )
    batch: Batches = Field(
        default=(), description="Batches of all nodes, as 4,8; by default those that were run."
    )


class AdviceRequest(SimulatedTraining, Priced, Limit, Scale, _Training):
    """Choose node count, batch size and strategy of a training within limits."""

    command: ClassVar[str] = "advise"

    platforms: Path = Field(default=PLATFORMS, description="Folder of your platform files.")
    fits: Path | None = Field(
        default=None, description="Fits of a campaign on a simulated platform, for its joules."
    )

    @model_validator(mode="before")
    @classmethod
    def _records_by_name(cls, given: Any) -> Any:
        """The name of a training that `measure` ran stands for its records, too."""
        # Loads numpy, which a request does not need.
        from joulecast.runs.folders import measured_records

        if not isinstance(given, dict) or given.get("records") or given.get("platform"):
            return given
        name = str(given.get("network"))
        return given | {"records": name} if measured_records(name) else given

    @model_validator(mode="after")
    def _can_be_answered(self) -> Self:
        if not self.records and self.platform is None:
            raise ValueError(
                "give --records FOLDER of measured or imported runs, or --platform NAME to simulate"
            )
        return self
