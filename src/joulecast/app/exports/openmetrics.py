"""Runs and forecasts as OpenMetrics text. The textfile collector of a node exporter can read it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import CollectorRegistry, GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest

from joulecast.app.api.arguments import AnyPath, Records
from joulecast.app.exports.exported import Exported, exported
from joulecast.runs.files.writing import written_aside


class _Gauges:
    """A collector (of the Prometheus client) with a gauge for each exported figure."""

    def __init__(self, found: Iterable[Exported]) -> None:
        self._families: dict[str, GaugeMetricFamily] = {}
        found = list(found)
        # All samples of a metric have the same labels. If a sample lacks a label, the label is empty.
        names = {
            kind: sorted({name for each in found if each.kind == kind for name in each.labels})
            for kind in {each.kind for each in found}
        }
        for each in found:
            for value in each.values:
                metric = f"joulecast_{each.kind}_{value.name}"
                labels = [*names[each.kind], *value.labels]
                family = self._families.setdefault(
                    metric, GaugeMetricFamily(metric, value.help, labels=labels)
                )
                own = [each.labels.get(name, "") for name in names[each.kind]]
                family.add_metric([*own, *value.labels.values()], value.amount)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauges, each with its samples."""
        return self._families.values()


def openmetrics_text(source: Records | Mapping[str, Any]) -> str:
    """OpenMetrics text of run records, or of a forecast.

    Args:
        source: the same as for :func:`joulecast.app.exports.exported.exported`.

    Raises:
        JoulecastError: there is nothing to export.
    """
    registry = CollectorRegistry()
    registry.register(_Gauges(exported(source)))
    text: str = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    return text


def write_openmetrics(source: Records | Mapping[str, Any], file: AnyPath) -> None:
    """Write OpenMetrics text into a file, whole or not at all. A textfile collector needs this."""
    text = openmetrics_text(source)
    with written_aside(Path(file)) as partial:
        partial.write_text(text)
