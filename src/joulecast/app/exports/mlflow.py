"""Export to MLflow. A run record or a forecast becomes one run of MLflow. The scales of a forecast are its
steps."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import mlflow

from joulecast.app.api.arguments import Records
from joulecast.app.exports.exported import exported, grouped


def log(source: Records | Mapping[str, Any]) -> list[str]:
    """Log run records, or a forecast, into MLflow's current experiment.

    Each run record or forecast gets a run of MLflow. If a run of MLflow is active, they are its children.
    Otherwise, figures that the current experiment already has do not get a second run.

    Args:
        source: the same as for :func:`joulecast.app.exports.exported.exported`.

    Returns:
        Ids of MLflow's runs.

    Raises:
        JoulecastError: there is nothing to export.
    """
    made = []
    for parts in grouped(exported(source)):
        digest = sha256(repr(parts).encode()).hexdigest()
        active = mlflow.active_run() is not None
        same = f"tags.joulecast_sha256 = '{digest}'"
        if not active and (there := mlflow.search_runs(filter_string=same, output_format="list")):
            made.append(str(there[0].info.run_id))
            continue
        with mlflow.start_run(run_name=parts[0].title, nested=active) as run:
            made.append(str(run.info.run_id))
            mlflow.set_tags({"joulecast": parts[0].kind})
            # What differs between the scales of a forecast is in its metrics.
            mlflow.log_params(dict(set.intersection(*(set(p.labels.items()) for p in parts))))
            for part in parts:
                metrics = {value.flat_name: value.amount for value in part.values}
                mlflow.log_metrics(metrics, step=part.scale or 0)
            # This tag is set last. So a run that was cut short has no tag, and is not taken for a whole one.
            mlflow.set_tag("joulecast_sha256", digest)
    return made
