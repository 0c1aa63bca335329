"""Quantities for people: numbers in words, and durations that people type.

Quantities in one sentence are converted together, so that they get the same unit.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

from joulecast.errors import JoulecastError

NONE = "—"
"""The text in place of a number that is missing. It is never 0."""

_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_LONG = 120.0
"""Seconds from which a duration is given in minutes, hours or days."""
_COUNTED = 1e15
MOST_NODES = 10**7
MOST_SAMPLES = 10**18
_JOULES = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))
_WATT_HOURS = ((1e9, "GWh"), (1e6, "MWh"), (1e3, "kWh"), (1.0, "Wh"))
_J_PER_WH = 3600.0
_MUCH_J = 3.6e3
"""Joules (1 Wh) from which an energy is given in Wh or kWh, as on a bill."""
_NO_CENTS, _TENTH = 1000.0, 0.1
"""An amount of money from the first number on is written without cents. An amount below the second number has
more digits than cents."""
_GRAMS = ((1e6, "t"), (1e3, "kg"), (1.0, "g"), (1e-3, "mg"))
_PART = re.compile(r"(\d+\.?\d*|\.\d+)\s*([a-z]+)\s*")
_TYPED = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def is_number(value: Any) -> bool:
    """Whether the value is a finite number."""
    return isinstance(value, Real) and math.isfinite(value)


def steady(value: float, relative_to: float = 0.0) -> float:
    """A number with nine significant digits. Use it as a key where rounding must not decide an order or a
    choice.

    The last bits of a number differ between processors. Numbers that differ only in their last bits become
    equal. Then the next part of the key decides.

    Args:
        relative_to: if ``value`` is a difference of two numbers, one of these. The difference is rounded
            relative to its size.
    """
    size = max(abs(value), abs(relative_to))
    if not size or not math.isfinite(size):
        return value
    return round(float(value), 8 - math.floor(math.log10(size)))


def digits(value: Any, count: int = 3) -> str:
    """A number with this many significant digits. A whole number is written in full. The number has an
    exponent only if people could not read it otherwise."""
    if not is_number(value):
        return NONE
    if float(value).is_integer() and abs(value) < _COUNTED:
        return f"{int(value):,}"
    return _significant(value, count)


def _significant(value: float, count: int = 3) -> str:
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if not -4 <= size < 15:
        return f"{value:.{count - 1}e}"
    rounded = round(float(value), count - 1 - size)
    return f"{rounded:,.{max(0, count - 1 - size)}f}"


def _together(
    values: Sequence[Any], units: Sequence[tuple[float, str]], count: int = 3
) -> list[str]:
    """Values in the unit that fits the first of them, with ``count`` significant digits."""
    first = next((abs(value) for value in values if is_number(value)), 0.0)
    size, unit = next(((s, u) for s, u in units if first >= s), units[-1])
    return [
        f"{_significant(value / size, count)} {unit}" if is_number(value) else NONE
        for value in values
    ]


def duration_in_words(value: float) -> str:
    """A duration to the second, the minute or the hour: 45 s, 3 min 20 s, 2 h 5 min, 2 d 5 h."""
    whole = round(value)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours < 1:
        parts = [(minutes, "min"), (whole % 60, "s")]
    elif days < 2:
        parts = [(hours, "h"), (minutes % 60, "min")]
    else:
        parts = [(days, "d"), (hours % 24, "h")]
    return " ".join(f"{count:,} {unit}" for count, unit in parts if count) or "0 s"


def times(*values: Any) -> list[str]:
    """Texts for durations in seconds. If all are short, they have the same unit, as 1.23 s. Otherwise each
    has its own units, as 4 min 34 s, 3 h 20 min or 2 d 5 h."""
    if max((abs(value) for value in values if is_number(value)), default=0.0) < _LONG:
        return _together(values, _TIMES)
    return [duration_in_words(value) if is_number(value) else NONE for value in values]


def step_times(*values: Any) -> list[str]:
    """Seconds of training steps, as 126.7 s or 12.35 ms. They have one digit more, because they are
    compared."""
    return _together(values, _TIMES, 4)


def energies(*values: Any) -> list[str]:
    """Energies in joules, as 1.23 kJ. All have the same unit."""
    return _together(values, _JOULES)


def consumptions(*values: Any) -> list[str]:
    """Energies of whole trainings: below 1 Wh in joules, as 1.23 kJ; from there on as 1.23 Wh or 1.23 kWh."""
    if max((abs(value) for value in values if is_number(value)), default=0.0) < _MUCH_J:
        return energies(*values)
    return _together([v / _J_PER_WH if is_number(v) else v for v in values], _WATT_HOURS)


def consumptions_of(column: Iterable[Any]) -> Callable[..., list[str]]:
    """The function to write the energies of a column: :func:`consumptions` if all are large, else
    :func:`energies`. So a reader never compares joules with kWh."""
    known = [abs(value) for value in column if is_number(value)]
    return consumptions if min(known, default=0.0) >= _MUCH_J else energies


def masses(*values: Any) -> list[str]:
    """Masses in kg, as 1.23 kg. All have the same unit."""
    return _together([1e3 * value if is_number(value) else value for value in values], _GRAMS)


def money(currency: str, *values: Any) -> list[str]:
    """Amounts of money, as EUR 0.57, EUR 1,234 or EUR 0.00057."""
    return [f"{currency} {_coins(value)}" if is_number(value) else NONE for value in values]


def _coins(value: float) -> str:
    size = abs(value)
    if size >= _NO_CENTS:
        return f"{value:,.0f}"
    if size >= _TENTH or not size:
        return f"{value:.2f}"
    # People write money without an exponent, however little it is.
    return f"{value:.{1 - math.floor(math.log10(size))}f}"


def seconds(value: Any) -> str:
    """One duration, as :func:`times` gives it."""
    return times(value)[0]


def joules(value: Any) -> str:
    """One energy, as :func:`energies` gives it."""
    return energies(value)[0]


def span(low: str, high: str) -> str:
    """``1.1 to 2.8``; only one number if both are the same."""
    return low if low == high else f"{low} to {high}"


def with_range(value: str, low: str, high: str) -> str:
    """``146 s (96.8 to 250 s)``, from a value and the ends of its range, all as texts in one unit. Without a
    range, only the value."""
    if NONE in (low, high):
        return value
    currency = f"{low.rpartition(' ')[0]} "
    if not currency[0].isdigit() and all(each.startswith(currency) for each in (value, high)):
        return f"{value} ({low.removeprefix(currency)} to {high.removeprefix(currency)})"
    unit = f" {low.rpartition(' ')[2]}"
    alike = low.count(" ") == high.count(" ") == 1 and high.endswith(unit)
    return f"{value} ({low.removesuffix(unit) if alike else low} to {high})"


def duration_s(text: str) -> float:
    """Seconds of a duration as people type it: ``90``, ``90s``, ``30min``, ``1.5h``, ``2d``, ``1h30min``.

    Raises:
        JoulecastError: the text is no duration.
    """
    typed = text.strip().lower()
    try:
        plain = float(typed)
    except ValueError:
        plain = math.nan
    if math.isfinite(plain) and plain >= 0:
        return plain
    found = list(_PART.finditer(typed))
    units = [match[2] for match in found]
    is_whole = "".join(match[0] for match in found) == typed != ""
    if not is_whole or any(unit not in _TYPED for unit in units):
        raise JoulecastError(
            f"{text}: no duration; give seconds, or with a unit (45s, 30min, 1h, 1h30min, 2d)"
        )
    return sum(float(match[1]) * _TYPED[match[2]] for match in found)


_ENERGIES_TYPED = {
    **{"j": 1.0, "kj": 1e3, "Mj": 1e6, "gj": 1e9},
    **{"wh": 3600.0, "kwh": 3.6e6, "Mwh": 3.6e9, "gwh": 3.6e12},
}
_MASSES_TYPED = {"g": 1e-3, "kg": 1.0, "t": 1e3}


def _typed(text: str, units: dict[str, float], what: str, examples: str) -> float:
    # People type kwh for kWh. But m is milli, and M is mega.
    typed = "M".join(part.lower() for part in text.strip().split("M"))
    found = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?)\s*([a-zM]*)", typed)
    try:
        amount = float(found[1] if found else typed)
    except ValueError:
        amount = math.nan
    unit = found[2] if found else ""
    if not math.isfinite(amount) or (unit and unit not in units):
        raise JoulecastError(f"{text}: no {what}; give {examples}")
    return amount * units.get(unit, 1.0)


def energy_j(text: str) -> float:
    """Joules of an energy as people type it: ``90``, ``90kJ``, ``2.5 MJ``, ``2kWh``.

    Raises:
        JoulecastError: the text is no energy.
    """
    return _typed(
        text, _ENERGIES_TYPED, "energy", "joules, or with a unit (90kJ, 2MJ, 500Wh, 2kWh)"
    )


def mass_kg(text: str) -> float:
    """Kilograms of a mass as people type it: ``2``, ``2kg``, ``500g``, ``1.5t``.

    Raises:
        JoulecastError: the text is no mass.
    """
    return _typed(text, _MASSES_TYPED, "mass", "kilograms, or with a unit (500g, 2kg, 1t)")


def percent(value: Any, signed: bool = False) -> str:
    """A percentage. If ``signed``, an increase has a ``+``."""
    if not is_number(value):
        return NONE
    places = 0 if abs(value) >= 10 or value == 0 else 1 if abs(value) >= 1 else 2
    return f"{value:{'+' if signed else ''},.{places}f} %"


def counted(count: int, one: str, many: str | None = None) -> str:
    """``1 run``, ``3 runs``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def amount(number: float, units: str) -> str:
    """``1 step``, ``2,000 samples``, ``2.5 epochs``."""
    return f"{digits(number)} {units.removesuffix('s') if number == 1 else units}"


def listed(names: Sequence[Any], most: int = 6) -> str:
    """Names in a sentence. If some are left out, it says how many."""
    shown = [str(name) for name in names[:most]]
    if len(names) > most:
        return f"{', '.join(shown)} and {len(names) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def check_counts(name: str, values: Iterable[int | None], most: int) -> None:
    """Refuse a count that is below 1, or larger than anything that exists."""
    for value in values:
        if value is not None and not 1 <= value <= most:
            raise JoulecastError(
                f"{name} {str(value)[:20]}: must be at least 1 and at most {most:g}"
            )
