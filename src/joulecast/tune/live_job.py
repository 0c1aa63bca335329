"""The job of a live tuning: what is trained, and the provenance of its trials."""

from typing import Any

from pydantic import ConfigDict, Field

from joulecast.runs.provenance import host_fingerprint, source_state, versions
from joulecast.runs.spec import Workload
from joulecast.tune.limit_measurement import LimitWindow
from joulecast.tune.request import RecurringTraining


class LiveJob(RecurringTraining):
    """The job of a live tuning: what is trained, and what may be chosen. It has the keys of the
    configuration, and some more.

    Attributes:
        momentum: momentum of the optimizer.
        threads: number of torch's threads.
        prefetch_batches: number of batches prepared ahead.
        limit_step_w: difference in W between two power limits that are tried.
        window: how long a power limit is measured.
    """

    model_config = ConfigDict(frozen=True)

    momentum: float = Field(0.9, ge=0, lt=1)
    threads: int = Field(1, ge=1)
    prefetch_batches: int = Field(0, ge=0)
    limit_step_w: int = Field(25, ge=1)
    window: LimitWindow = LimitWindow()

    @property
    def workload(self) -> Workload:
        """The workload: the network, and images of digits in the size that the job gives."""
        return Workload(network=self.network, image_size=self.image_size)

    def as_trained(self) -> dict[str, Any]:
        """A description of the job as plain data. If two jobs have the same description, their trials may be
        compared."""
        content = self.model_dump(mode="json", exclude={"network", "image_size"})
        return content | {"workload": self.workload.model_dump(mode="json")}


def live_provenance() -> dict[str, Any]:
    """Provenance of trials that are made now."""
    return {"host": host_fingerprint(), "versions": versions(), "source": source_state()}
