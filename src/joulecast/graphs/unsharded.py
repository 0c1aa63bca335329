"""Modules whose weights are sharded over ranks (FSDP, DTensor), as modules on the meta device with whole
weights.

An export of a sharded module would gather its weights, in the middle of a training. So the export gets a copy
without weights and without the hooks that gather them.
"""

from collections import OrderedDict
from types import MethodType
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor

_FLAT = "_flat_param"
"""Name under which FSDP registers the weights that it has put into one."""
_Shapes = dict[tuple[int, str], torch.Size]
"""Whole shapes of weights, by the id of their module and their names there."""


def is_sharded(module: nn.Module) -> bool:
    """Whether the weights of a module are sharded over ranks."""
    return any(isinstance(part, FullyShardedDataParallel) for part in module.modules()) or any(
        isinstance(weight, DTensor) for weight in module.parameters()
    )


def unsharded(module: nn.Module) -> nn.Module:
    """The module with whole weights, on the meta device. The module itself stays as it is."""
    shapes: _Shapes = {}
    for part in module.modules():
        flat = getattr(getattr(part, "_handle", None), "flat_param", None)
        if flat is not None:
            infos = zip(flat._param_infos, flat._shapes, strict=True)
            shapes |= {(id(info.module), info.param_name): shape for info, shape in infos}
    return _plain(module, shapes, {})


def _plain(module: nn.Module, shapes: _Shapes, known: dict[int, Any]) -> nn.Module:
    """A copy of a module and of the modules in it. Equal objects have one copy."""
    if isinstance(module, FullyShardedDataParallel):
        return _plain(module.module, shapes, known)
    if id(module) in known:
        copied: nn.Module = known[id(module)]
        return copied
    kind = next(each for each in type(module).__mro__ if not issubclass(each, FSDPModule))
    plain = cast(nn.Module, object.__new__(kind))
    known[id(module)] = plain
    for name, value in vars(module).items():
        if isinstance(value, MethodType) and value.__self__ is module:
            # A method that another library has put in place of the module's own.
            value = MethodType(value.__func__, plain)
        vars(plain)[name] = OrderedDict() if name.endswith("_hooks") else value
    plain._modules = {
        name: part if part is None else _plain(part, shapes, known)
        for name, part in module._modules.items()
    }
    plain._buffers = {
        name: value if value is None else value.to("meta")
        for name, value in module._buffers.items()
    }
    own = {name: shape for (owner, name), shape in shapes.items() if owner == id(module)}
    weights = {name: value for name, value in module._parameters.items() if name != _FLAT}
    # FSDP keeps views in the places of weights.
    weights |= {name: getattr(module, name) for name in own}
    for name in own:
        vars(plain).pop(name, None)
    plain._parameters = {
        name: value if value is None else _whole(value, own.get(name, value.shape), known)
        for name, value in weights.items()
    }
    return plain


def _whole(weight: torch.Tensor, shape: torch.Size, known: dict[int, Any]) -> nn.Parameter:
    if id(weight) not in known:
        empty = torch.empty(shape, dtype=weight.dtype, device="meta")
        known[id(weight)] = nn.Parameter(empty, requires_grad=weight.requires_grad)
    whole: nn.Parameter = known[id(weight)]
    return whole
