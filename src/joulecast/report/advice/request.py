"""Requests for advice: which setting to choose for a training, within limits."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from joulecast.energy.request import Work
from joulecast.quantities import MOST_SAMPLES, duration_s, energy_j, mass_kg
from joulecast.runs.files.shipped import PLATFORMS
from joulecast.runs.request import (
    RECORDS,
    Batches,
    Doublings,
    Name,
    Names,
    Percents,
    Priced,
    RatesByName,
    RecordFolders,
    Request,
    Scale,
    Shell,
    WithPrices,
    from_text,
    split_names,
)
from joulecast.simulate.request import Objective, PeakPrecision, SimulatedTraining


class Limit(Request):
    """The limits of a training (each may be missing), and the quantity to minimise within them."""

    objective: Objective | None = Field(
        default=None,
        description="What to minimise. edp is joules times seconds. By default energy. If energy is only "
        "estimated, or if there are budgets without a deadline: time.",
    )
    deadline_s: Annotated[float | None, from_text(duration_s), Shell("--deadline")] = Field(
        default=None,
        gt=0,
        description="Limit of the time: seconds, or with a unit (30min, 1h, 2d).",
    )
    energy_budget_j: Annotated[float | None, from_text(energy_j), Shell("--energy-budget")] = Field(
        default=None, gt=0, description="Limit of the energy: joules, or with a unit (5MJ, 2kWh)."
    )
    cost_budget: float | None = Field(
        default=None, gt=0, description="Limit of the money, in the currency of the prices."
    )
    co2_budget_kg: Annotated[float | None, from_text(mass_kg), Shell("--co2-budget")] = Field(
        default=None,
        gt=0,
        description="Limit of the CO2 equivalent: kg, or with a unit (500g, 1t).",
    )

    @property
    def budgets(self) -> dict[str, float]:
        """The budgets that the user states, by quantity: time in s, energy in J, money, CO2 in kg."""
        given = {
            "time": self.deadline_s,
            "energy": self.energy_budget_j,
            "cost": self.cost_budget,
            "co2": self.co2_budget_kg,
        }
        return {quantity: amount for quantity, amount in given.items() if amount is not None}

    @property
    def least(self) -> str:
        """The objective: the quantity to minimise within the budgets."""
        has_budget_alone = self.budgets and self.deadline_s is None
        return self.objective or ("time" if has_budget_alone else "energy")


class AdviceRequest(Priced, Limit, Scale, Work):
    """Choose the node count and batch size of a training from its run records, within limits."""

    command: ClassVar[str] = "advise"

    network: Name = Field(
        description="Network, by its name in the records. Leave it out if you give NAME."
    )
    records: RecordFolders = Field(default=(), description=RECORDS)
    platform: Name | None = Field(default=None, description="Platform, by its name in the records.")
    batch: Batches = Field(
        default=(),
        description="Batches to choose from, of all nodes together, such as 4,8. By default the batches "
        "that were run, and those in which each rank has the same batch as in the runs.",
    )

    @model_validator(mode="before")
    @classmethod
    def _records_by_name(cls, given: Any) -> Any:
        """Let the name of a training that `measure` ran stand for its records."""
        # Loads numpy, which a request does not need.
        from joulecast.runs.folders import measured_records

        if not isinstance(given, dict) or "network" not in given or given.get("records"):
            return given
        name = str(given.get("network"))
        if measured_records(name):
            return given | {"records": name}
        raise ValueError(
            "give --records FOLDER of measured or imported runs; of what was not run, ask `joulecast plan`"
        )


PLANNED_BATCH = 512
"""Samples in a step of all devices, if no batch is requested. It is the same for all settings."""


class PlanRequest(SimulatedTraining, WithPrices, Limit):
    """Choose platform, devices, strategy, batch, precision and power limit of a training. Nothing is run."""

    command: ClassVar[str] = "plan"

    network: Name = Field(
        description="Network: a name (gpt2-xl), a family with numbers (gpt:layers=36,hidden=1280,heads=20), "
        "hf:config.json (of the Hugging Face hub), a JSON file of `capture`, or the name of a training "
        "that `measure --capture` ran."
    )
    platform: Names = Field(
        min_length=1, description="Platforms to choose from, such as h100-sxm,a100-80gb-sxm."
    )
    samples: float = Field(
        gt=0,
        le=MOST_SAMPLES,
        description="Samples of the whole training: epochs x items of the data set.",
    )
    devices: Doublings = Field(
        default=(1, 2, 4, 8, 16, 32, 64),
        min_length=1,
        description="Numbers of devices to choose from, such as 8,16,24. 8:256 means 8, 16, 32, ..., 256.",
    )
    batch: Batches = Field(
        default=(PLANNED_BATCH,),
        min_length=1,
        description="Samples of all devices together in one step, such as 256,512. (In `simulate`, it is the "
        "batch of one replica.)",
    )
    precision: Annotated[tuple[PeakPrecision, ...], BeforeValidator(split_names)] = Field(
        default=(),
        min_length=1,
        description="Precisions to choose from, such as bf16,fp8. By default the precision of the "
        "measured steps, or of the training that was captured on a GPU. If there is neither: amp for a "
        "captured network, bf16 for a named one (fp16 or fp32 if the GPU has no bf16).",
    )
    power_limits: Percents = Field(
        default=(100, 85, 70),
        min_length=1,
        description="Power limits to choose from, in percent of the GPU's highest limit.",
    )
    objective: Objective | None = Field(
        default=None,
        description="What to minimise. edp is joules times seconds. By default money if there are prices, "
        "otherwise energy.",
    )
    price_gpu_hour: RatesByName = Field(
        default={},
        description="Price of a GPU in use for an hour: one number for all platforms, or one for each, "
        "such as h100-sxm=2.5,a100-80gb-sxm=1.2.",
    )
    platforms: Path = Field(default=PLATFORMS, description="Folder of your platform files.")
    html: Path | None = Field(
        default=None, description="HTML file to write: the plan, with a chart of its front."
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.calibrate is not None and len(self.platform) * len(self.precision or "1") > 1:
            raise ValueError(
                "a measured step corrects one platform at one precision; give one of each"
            )
        unknown = self.price_gpu_hour.keys() - {"", *self.platform}
        if unknown:
            raise ValueError(
                f"--price-gpu-hour: {sorted(unknown)[0]} is none of the platforms; name them as they are "
                f"given: {', '.join(self.platform)}"
            )
        missing = [name for name in self.platform if name not in self.price_gpu_hour]
        if self.price_gpu_hour and "" not in self.price_gpu_hour and missing:
            raise ValueError(f"--price-gpu-hour: {missing[0]} has none; give one for each platform")
        return self
