"""Export to Weights & Biases. A run record or a forecast becomes one run there. The scales of a forecast are
its steps."""

from collections.abc import Mapping
from typing import Any

import wandb

from joulecast.app.api.arguments import Records
from joulecast.app.exports.exported import exported, grouped


def log(source: Records | Mapping[str, Any], **options: Any) -> list[str]:
    """Log run records, or a forecast, into Weights & Biases.

    Args:
        source: the same as for :func:`joulecast.app.exports.exported.exported`.
        options: options of ``wandb.init``, such as ``project`` and ``mode``.

    Returns:
        Ids of the runs that were made.

    Raises:
        JoulecastError: there is nothing to export.
    """
    made = []
    for parts in grouped(exported(source)):
        config = dict(set.intersection(*(set(part.labels.items()) for part in parts)))
        given = {"project": "joulecast", "job_type": parts[0].kind, **options}
        with wandb.init(name=parts[0].title, config=config, reinit="create_new", **given) as run:
            made.append(str(run.id))
            for part in parts:
                run.log({value.flat_name: value.amount for value in part.values}, step=part.scale)
    return made
