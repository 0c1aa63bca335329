"""Facts of what is trained: samples of a batch, parameters of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def samples_of(batch: Any, depth: int = 0) -> int | None:
    """Samples of a batch: the length of the first tensor in it; ``None`` where there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth > 4:
        return None
    if isinstance(batch, Mapping) or hasattr(batch, "items"):
        parts: Any = list(batch.values())
    elif isinstance(batch, (list, tuple)):
        parts = batch
    else:
        parts = list(vars(batch).values()) if hasattr(batch, "__dict__") else []
    for part in parts:
        found = samples_of(part, depth + 1)
        if found is not None:
            return found
    return None


def facts_of(optimizer: Any, number: int) -> dict[str, Any]:
    """Facts of what an optimizer trains."""
    tensors = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if not tensors:
        return {}
    known = {"optimizer": type(optimizer).__name__}
    return known | facts_of_tensors(tensors, number)


def facts_of_tensors(tensors: list[Any], number: int) -> dict[str, Any]:
    """Facts of the tensors that optimizer ``number`` trains."""
    return {
        f"parameters_{number}": sum(p.numel() for p in tensors),
        f"parameter_bytes_{number}": sum(p.numel() * p.element_size() for p in tensors),
        "precision": str(tensors[0].dtype).removeprefix("torch."),
        "device": tensors[0].device.type,
    }
