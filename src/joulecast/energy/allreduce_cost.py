"""How long an all-reduce takes, by its algorithm: seconds = latency terms x alpha + byte terms x k.

In each form, the time to add up a byte (gamma) and the time to transfer it (1/beta) are multiplied by the
same terms of N ranks and G bytes. Timing cannot tell them apart, so they are fitted as one number, k.
Sources: Thakur, Rabenseifner and Gropp 2005 (ring, tree, recursive doubling, Rabenseifner).
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from joulecast.quantities import steady
from joulecast.simulate.collectives import Algorithm, allreduce_share, allreduce_steps

Floats = NDArray[np.float64]
Form = Callable[[Floats, Floats], tuple[Floats, Floats]]


def _log2(ranks: Floats) -> Floats:
    return allreduce_steps("recursive_doubling", ranks)


def _messages(algorithm: Algorithm) -> Form:
    return lambda n, g: (allreduce_steps(algorithm, n), allreduce_share(algorithm, n) * g)


FORMS: dict[str, Form] = {
    "ring": _messages("ring"),
    "tree": lambda n, g: (2 * _log2(n), 2 * _log2(n) * g),
    "recursive_doubling": _messages("recursive_doubling"),
    "rabenseifner": _messages("rabenseifner"),
    # In a shared window, every rank reads and writes G bytes. If each rank has its own core, they do so at
    # the same time. If the memory is saturated, they do so one after the other.
    "shared_parallel": lambda n, g: ((n > 1) * 2 * _log2(n), (n > 1) * g),
    "shared_saturated": lambda n, g: ((n > 1) * 2 * _log2(n), (n > 1) * n / 2 * g),
}
"""For each form: a function of the ranks (n,) and the bytes of the messages (n,). It returns the latency
terms (n,) and the byte terms (n,). Both are 0 for one rank."""

_PRIOR = {"mpi": "rabenseifner", "shared": "shared_saturated", "two_level": "shared_saturated"}


def choose_form(points: pd.DataFrame) -> str:
    """The form that fits an all-reduce benchmark best, by relative error.

    A benchmark with a single rank count cannot show how the time depends on the rank count. Then the form of
    the recorded algorithm is taken. (For long messages, MPICH chooses Rabenseifner's algorithm.)
    """
    algorithm = str(points["algorithm"].iloc[0]).split(":")[0] if len(points) else "mpi"
    prior = _PRIOR.get(algorithm, "ring")
    if points["ranks"].nunique() < 2:
        return prior
    ranks, size = points["ranks"].to_numpy(float), points["bytes"].to_numpy(float)
    weight = 1 / points["copy_s"].to_numpy(float)
    residual = {}
    for name, terms in FORMS.items():
        system = np.column_stack(terms(ranks, size)) * weight[:, None]
        # Relative times are fitted, so all targets are 1. If a form fits exactly, its residual is only
        # rounding, and counts as 0.
        residual[name] = steady(float(nnls(system, np.ones(len(points)))[1]), relative_to=1.0)
    best = min(residual, key=lambda name: residual[name])
    # The form of the recorded algorithm is kept unless another form is clearly better.
    return best if residual[best] < 0.95 * residual[prior] else prior
