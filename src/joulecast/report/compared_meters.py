"""A comparison of meters in lines for the terminal."""

from joulecast.quantities import NONE, counted, digits, percent
from joulecast.records.meter_comparison import (
    MOST_APART_PERCENT,
    ComparedMeter,
    MeterAgreement,
    MeterComparison,
    MeterFigures,
)

_COLUMNS = ("meter", "covers", "idle", "under load", "noise", "new value", "lag")


def _watts(value: float | None) -> str:
    return NONE if value is None else f"{digits(value)} W"


def _renewed(figures: MeterFigures) -> str:
    if figures.renewed_s is not None:
        return f"every {figures.renewed_s:.2g} s"
    if figures.renewed_within_s is not None:
        return f"within {figures.renewed_within_s:.2g} s"
    return NONE


def _lag(figures: MeterFigures) -> str:
    lag_s, about_s = figures.lag_s, figures.lag_uncertainty_s
    if lag_s is None or about_s is None:
        return NONE
    text = f"{lag_s:.2f} ± {about_s:.2f} s"
    if figures.averages_over_s is not None:
        text += f", averages over {figures.averages_over_s:.2g} s"
    return text


def _cells(meter: ComparedMeter) -> tuple[str, ...]:
    figures = meter.figures
    return (
        meter.info.meter,
        meter.info.covers or NONE,
        _watts(figures.idle_w),
        _watts(figures.load_w),
        _watts(figures.noise_w),
        _renewed(figures),
        _lag(figures),
    )


def _remarks(meter: ComparedMeter) -> list[str]:
    info = meter.info
    name = info.meter
    reasons = dict.fromkeys(meter.figures.why_not.values())
    lines = [f"{name}: {why}" for why in reasons]
    if info.failed_reads:
        lines.append(
            f"{name}: {counted(info.failed_reads, 'read')} failed, {digits(info.readings)} were good"
        )
    if info.source == "estimated":
        lines.append(f"{name}: an estimate, which judges no meter")
    return lines + ([f"{name}: {info.remark}"] if info.remark else [])


def _agreement(agreement: MeterAgreement) -> str:
    one, other = " + ".join(agreement.meters), " + ".join(agreement.others)
    if agreement.relation == "same":
        what = f"{one} and {other} ({agreement.covers})"
    else:
        what = f"{one} ({agreement.covers}) holds {other} ({agreement.others_cover})"
    if agreement.agrees is None:
        return f"not judged: {what}: {agreement.why}"
    if not agreement.agrees:
        return f"DISAGREE by more than {MOST_APART_PERCENT:g} %: {what}: {agreement.why}"
    found = (agreement.load_percent, agreement.idle_percent)
    if agreement.relation == "same":
        shares = [percent(p, signed=True) for p in found]
        far = any(p is not None and abs(p) > MOST_APART_PERCENT for p in found)
    else:
        shares, far = [_share(p) for p in found], False
    why = ", which their noise explains" if far else ""
    return f"agree: {what}: under load {shares[0]}, idle {shares[1]}{why}"


def _share(above_percent: float | None) -> str:
    """What the parts are of the whole."""
    return percent(None if above_percent is None else 100 + above_percent)


def comparison_lines(info: MeterComparison) -> list[str]:
    """A table of the meters, what is to be known of them, and how they agree."""
    rows = [_COLUMNS, *map(_cells, info.meters)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines += [line for meter in info.meters for line in _remarks(meter)]
    lines += map(_agreement, info.agreements)
    if len(info.meters) == 1:
        lines.append("there is no other meter that it could be compared with")
    lines += info.remarks
    return lines + [f"disturbed: {why}" for why in info.disturbed]
