"""A command of the site that prints what the node draws, in watts or as a counter of joules."""

import re
import time

from joulecast.measure.power.background import BackgroundMeter, CountedJoules
from joulecast.measure.power.kernel_files import MOST_NODE_W, identity_of
from joulecast.measure.power.meters import (
    Meter,
    MeteredNodes,
    MeterUnavailable,
    ReadFailed,
    Reading,
)
from joulecast.measure.power.programs import output_of, require_program, shown
from joulecast.measure.power.register import Limits, Register

_EVERY_S, _TIMEOUT_S = 1.0, 10.0
_READING = re.compile(
    r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(mW|W|kW|MW|J|kJ|MJ|Wh|kWh)\s*"
)
_WATTS = {"mW": 1e-3, "W": 1.0, "kW": 1e3, "MW": 1e6}
_JOULES = {"J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "kWh": 3.6e6}
_UNIT_J = 1e-6
# The counter of a wattmeter may be renewed by the minute.
_LIMITS = Limits(least_w=1.0, most_w=MOST_NODE_W, renewed_s=60.0, moves_within_s=300.0)


class SiteCommand:
    """What the command prints, as readings. The quantity of the first one is that of all."""

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self.counts: bool | None = None
        self._joules = CountedJoules(
            lambda count, at_s: Register(count, at_s, unit_j=_UNIT_J, limits=_LIMITS)
        )

    def ask(self) -> Reading:
        """Run the command once.

        Raises:
            ReadFailed: it fails, or prints no reading.
            MeterFailed: its counter cannot be believed.
        """
        before_s = time.monotonic()
        printed = output_of(self._words, _TIMEOUT_S)
        after_s = time.monotonic()
        match = _READING.fullmatch(printed)
        if match is None:
            raise ReadFailed(
                f"the command printed {shown(printed)!r}, expected a number with its unit, as 231.5 W or "
                "12345 J"
            )
        value, unit = float(match[1]), match[2]
        counts = unit in _JOULES
        if self.counts is None:
            self.counts = counts
        if counts != self.counts:
            raise ReadFailed(
                f"the command printed {shown(printed)!r}, another quantity than before"
            )
        if counts:
            count = round(value * _JOULES[unit] / _UNIT_J)
            return Reading(None, self._joules.since_first(count, before_s, after_s))
        watts = value * _WATTS[unit]
        if watts > MOST_NODE_W:
            raise ReadFailed(f"the command printed {shown(printed)!r}, which no node draws")
        return Reading(watts, None)


def open_meters(nodes: MeteredNodes) -> list[Meter]:
    """The command of the configuration key ``power.command``.

    Raises:
        MeterUnavailable: there is none, or it prints no reading.
    """
    words = nodes.power_command
    if not words:
        raise MeterUnavailable(
            "command: the site gave none",
            "set power.command to words that print what the node draws, as 231.5 W or 12345 J",
            elsewhere=True,
        )
    remedy = "run the words of power.command by hand, on the node"
    require_program(words[0], "command", remedy, elsewhere=False)
    command = SiteCommand(words)
    try:
        reading = command.ask()
        return [
            BackgroundMeter(
                "command",
                nodes.host_node,
                command.ask,
                every_s=_EVERY_S,
                counter=reading.joules is not None,
                identity=identity_of("command"),
            )
        ]
    except ReadFailed as error:
        raise MeterUnavailable(f"command: {error}", remedy) from None
