"""Predicts the seconds of a pipeline's step from the times of its stages, for the planner's experiment."""

from collections.abc import Sequence
from typing import Literal

Schedule = Literal["gpipe", "1f1b"]


def makespan(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    schedule: Schedule,
    micro_batches: int,
) -> float:
    """Seconds from the start of a step to the end of its last backward pass. Transfers take no time.

    A forward pass waits for the forward pass of the same micro-batch in the stage before. A backward pass
    waits for that of the same micro-batch in the stage after. With GPipe, the result is
    sum f + (M - 1) max f + sum b + (M - 1) max b.

    Args:
        forward_s: seconds of the forward pass of one micro-batch, for each stage.
        backward_s: the same for the backward pass.
    """
    stages = range(len(forward_s))
    # Forwards that a stage does before its first backward.
    ahead = [micro_batches if schedule == "gpipe" else len(stages) - stage for stage in stages]
    free_s = [0.0] * len(stages)
    backward_done_s: dict[tuple[int, int], float] = {}
    for turn in range(micro_batches + ahead[0]):
        if turn < micro_batches:
            arrives_s = 0.0
            for stage in stages:
                arrives_s = free_s[stage] = max(free_s[stage], arrives_s) + forward_s[stage]
        for stage in reversed(stages):
            batch = turn - ahead[stage] + 1
            if 0 <= batch < micro_batches:
                arrives_s = backward_done_s.get((stage + 1, batch), 0.0)
                free_s[stage] = max(free_s[stage], arrives_s) + backward_s[stage]
                backward_done_s[stage, batch] = free_s[stage]
    return max(free_s)
