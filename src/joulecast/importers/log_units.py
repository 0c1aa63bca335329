"""Units of power and energy, as logs and users write them."""

import re

from joulecast.errors import JoulecastError

_PREFIXES = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6}
_BASES = {"W": ("watts", 1.0), "J": ("joules", 1.0), "Wh": ("joules", 3600.0)}
_WORDS = {"watt": "W", "watts": "W", "joule": "J", "joules": "J"}
_IN_BRACKETS = re.compile(r"[\[(]\s*([^\])]+?)\s*[\])]\s*$")

UNITS = "W, mW, uW, kW, J, mJ, uJ, kJ, Wh, kWh"


def scale_of(unit: str, where: str) -> tuple[str, float]:
    """What a unit measures (``watts`` or ``joules``), and the factor to W or J.

    Raises:
        JoulecastError: it is no unit of power or energy; begins with ``where``.
    """
    plain = _WORDS.get(unit.strip().lower(), unit.strip())
    for base in ("Wh", "W", "J"):
        if plain.endswith(base) and plain[: -len(base)] in _PREFIXES:
            what, factor = _BASES[base]
            return what, _PREFIXES[plain[: -len(base)]] * factor
    raise JoulecastError(f"{where}: `{unit[:20]}` is no unit of power or energy; there are {UNITS}")


def unit_in(column: str) -> str | None:
    """The unit that a column's name gives in brackets, as ``power.draw [W]``; ``None`` without one."""
    match = _IN_BRACKETS.search(column)
    return match[1] if match else None
