"""Policies by name."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from joulecast.errors import JoulecastError
from joulecast.tune.curve_policy import Curve
from joulecast.tune.policies import Default, GridSearch, Policy, PowerLimitOnly
from joulecast.tune.trial import SearchSpace
from joulecast.tune.zeus import Zeus

POLICIES: dict[str, Callable[..., Policy]] = {
    "default": Default,
    "power-limit-only": PowerLimitOnly,
    "zeus": Zeus,
    "grid-search": GridSearch,
    "curve": Curve,
}
# Policies that need more than the space: the costs of all configurations, or runs of another device.
INFORMED = ("oracle", "warm-start")


def make_policy(name: str, space: SearchSpace, **options: Any) -> Policy:
    """A policy by its name.

    Raises:
        JoulecastError: there is no such policy, or it does not have an option.
    """
    if name not in POLICIES:
        if name in INFORMED:
            raise JoulecastError(
                f"policy {name} knows what others do not: it is for replays only, and takes no options"
            )
        raise JoulecastError(f"no policy `{name}`; there are {', '.join((*POLICIES, *INFORMED))}")
    taken = [option for option in signature(POLICIES[name]).parameters if option != "space"]
    for option in options:
        if option not in taken:
            has = f"it has {', '.join(taken)}" if taken else "it has none"
            raise JoulecastError(f"policy {name} has no option `{option}`; {has}")
    return POLICIES[name](space, **options)
