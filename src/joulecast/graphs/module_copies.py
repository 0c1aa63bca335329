"""Copies of modules that are being trained, for an export.

An export runs the forward pass, which may count its calls, keep tensors in lists or call hooks of the
training. So it gets a copy, whose forward pass changes nothing of the module. The copy of a module whose
weights are sharded over ranks (FSDP, DTensor, ZeRO 3) is on the meta device, with whole weights: an export of
the module itself would gather them. The copy of a layer with quantised weights is a plain layer: an export
cannot follow the kernels of bitsandbytes.
"""

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Sized
from contextlib import suppress
from copy import copy
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, cast

import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor

_FSDP_2: Any = getattr(fsdp, "FSDPModule", ())
"""Class of FSDP 2's modules. Torch 2.5 has it elsewhere, and its modules are not captured there."""
_FLAT = "_flat_param"
"""Name under which FSDP registers the weights that it has put into one."""
_ZERO_SHAPE = "ds_shape"
"""Attribute of weights that ZeRO 3 of DeepSpeed has sharded."""
_LARGE = 2**24
"""Tensors with more elements than this are shared, and not copied. They might be data sets."""
_MANY = 10_000
"""Collections with more items than this are shared, and not copied. They might be data sets."""
_Shapes = dict[tuple[int, str], torch.Size]
"""Whole shapes of weights, by the id of their module and their names there."""


def is_sharded(module: nn.Module) -> bool:
    """Whether the weights of a module are sharded over ranks."""
    return any(isinstance(part, FullyShardedDataParallel) for part in module.modules()) or any(
        isinstance(weight, DTensor) or hasattr(weight, _ZERO_SHAPE)
        for weight in module.parameters()
    )


def separate(module: nn.Module) -> nn.Module:
    """The module, as a copy. The forward pass of the copy changes nothing of the module."""
    shapes: _Shapes = {}
    for part in module.modules():
        flat = getattr(getattr(part, "_handle", None), "flat_param", None)
        if flat is not None:
            infos = zip(flat._param_infos, flat._shapes, strict=True)
            shapes |= {(id(info.module), info.param_name): shape for info, shape in infos}
    copied: nn.Module = _Copies(is_sharded(module), shapes).of(module)
    return copied


class Unpacked(nn.Module):
    """A frozen linear layer in place of one with quantised weights (bitsandbytes, HQQ, torchao)."""

    def __init__(self, layer: Any, weight: torch.Tensor, packed_bytes: int) -> None:
        super().__init__()
        own = weight.dtype if weight.dtype.is_floating_point else torch.float16
        dtype = getattr(layer, "compute_dtype", None) or own
        number = torch.empty((), dtype=dtype, device=weight.device)
        shape = (layer.out_features, layer.in_features)
        self.weight = nn.Parameter(number.expand(shape), requires_grad=False)
        vars(self.weight)["packed_bytes"] = packed_bytes
        self.bias = getattr(layer, "bias", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(self.weight.dtype)
        return nn.functional.linear(x.to(self.weight.dtype), self.weight, bias).to(x.dtype)


def _bytes(tensor: Any) -> int:
    """Bytes of a tensor. If it consists of other tensors, their bytes are added. The scales of a tensor that
    bitsandbytes has quantised are included."""
    parts = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ()
    inside = [getattr(tensor, name) for name in parts]
    scales = getattr(getattr(tensor, "quant_state", None), "absmax", None)
    own = sum(map(_bytes, inside)) or tensor.numel() * tensor.element_size()
    return own + (0 if scales is None else _bytes(scales))


def _unpacked(layer: nn.Module) -> Unpacked | None:
    """The plain layer in place of one with quantised weights, which are frozen; ``None`` for other layers."""
    if not isinstance(getattr(layer, "in_features", None), int) or any(layer.children()):
        return None
    weights = list(layer.parameters(recurse=False))
    own = [*weights, *layer.buffers(recurse=False)]
    usual = (nn.Parameter, torch.Tensor, DTensor)
    # Whole numbers on one axis are indices.
    packed = [
        each
        for each in own
        if type(each) not in usual or (each.dim() > 1 and not each.is_floating_point())
    ]
    others = [each for each in weights if all(each is not one for one in packed)]
    is_trained = any(each.requires_grad for each in weights)
    if not packed or is_trained or any(each.dim() > 1 for each in others):
        return None
    return Unpacked(layer, packed[0], sum(map(_bytes, packed)))


class _Copies:
    """Copies of objects. An object that occurs in several places has one copy.

    Args:
        is_sharded: whether weights and buffers become tensors on the meta device. Else, the copies
            share them.
    """

    def __init__(self, is_sharded: bool, shapes: _Shapes) -> None:
        self._is_sharded, self._shapes = is_sharded, shapes
        self._known = dict[int, Any]()
        self._kept: list[Any] = []
        """All objects that have a copy, so that no other object gets the id of one of them."""

    def of(self, value: Any, package: str = "") -> Any:
        """The copy of an object of a module. Objects of classes outside of its ``package`` are shared."""
        if id(value) in self._known:
            return self._known[id(value)]
        kind = type(value)
        if isinstance(value, FullyShardedDataParallel):
            return self.of(value.module)
        if isinstance(value, nn.Module) and not isinstance(value, torch.jit.ScriptModule):
            # A compiled module would be compiled again.
            inside = vars(value)["_modules"].get("_orig_mod")
            return self._module(value) if inside is None else self.of(inside)
        if isinstance(value, torch.Tensor):
            return self._keep(value, value.detach().clone()) if _can_be_copied(value) else value
        if isinstance(value, Sized) and len(value) > _MANY:
            return value
        if isinstance(value, MethodType):
            own = self.of(value.__self__, package)
            return MethodType(self.of(value.__func__, package), own)
        if isinstance(value, FunctionType):
            return self._function(value, package) if value.__closure__ else value
        if isinstance(value, partial):
            given = {name: self.of(each, package) for name, each in value.keywords.items()}
            return partial(value.func, *(self.of(each, package) for each in value.args), **given)
        if kind is tuple:
            return tuple(self.of(each, package) for each in value)
        if kind in (set, Counter):
            return self._keep(value, copy(value))
        if kind in (list, deque):
            several = self._keep(value, copy(value))
            for place, each in enumerate(value):
                several[place] = self.of(each, package)
            return several
        if kind in (dict, OrderedDict, defaultdict):
            named = self._keep(value, copy(value))
            for name, each in value.items():
                named[name] = self.of(each, package)
            return named
        is_own = bool(package) and kind.__module__.partition(".")[0] == package
        is_plain = kind.__new__ is cast(Any, object).__new__ and hasattr(value, "__dict__")
        if is_own and is_plain and not hasattr(kind, "__slots__") and not hasattr(kind, "__del__"):
            owned = self._keep(value, object.__new__(kind))
            for name, each in vars(value).items():
                vars(owned)[name] = self.of(each, package)
            return owned
        return value

    def _function(self, own: FunctionType, package: str) -> FunctionType:
        """The copy of a function that is an attribute of a module, such as a ``forward`` that wraps the
        module's own. The variables that the function holds are copied, too."""
        cells = own.__closure__ or ()
        places = tuple(CellType() for _ in cells)
        function: FunctionType = self._keep(
            own,
            FunctionType(own.__code__, own.__globals__, own.__name__, own.__defaults__, places),
        )
        function.__kwdefaults__ = own.__kwdefaults__
        for cell, place in zip(cells, places, strict=True):
            with suppress(ValueError):  # It is empty.
                place.cell_contents = self.of(cell.cell_contents, package)
        vars(function).update({name: self.of(each) for name, each in vars(own).items()})
        return function

    def _keep(self, own: Any, copied: Any) -> Any:
        self._kept.append(own)
        self._known[id(own)] = copied
        return copied

    def _module(self, module: nn.Module) -> nn.Module:
        unpacked = _unpacked(module)
        if unpacked is not None:
            return cast(
                nn.Module, self._keep(module, unpacked.to("meta") if self._is_sharded else unpacked)
            )
        kind = next(each for each in type(module).__mro__ if not issubclass(each, _FSDP_2))
        plain = cast(nn.Module, self._keep(module, object.__new__(kind)))
        for buffer in module._buffers.values():
            # An export changes no buffers.
            self._keep(buffer, buffer)
        package = kind.__module__.partition(".")[0]
        # The state of torch's own objects, such as FSDP's, is not the network's.
        package = "" if package == "torch" else package
        for name, value in vars(module).items():
            if name.endswith("_hooks") and isinstance(value, dict):
                vars(plain)[name] = OrderedDict(
                    (key, hook) for key, hook in value.items() if _is_of_the_network(hook)
                )
            elif name == "_compiled_call_impl":
                vars(plain)[name] = None
            elif name not in ("_modules", "_buffers", "_parameters"):
                vars(plain)[name] = self.of(value, package)
        plain._modules = {name: self.of(part) for name, part in module._modules.items()}
        plain._buffers = dict(module._buffers)
        plain._parameters = dict(module._parameters)
        if self._is_sharded:
            self._make_whole(module, plain)
        return plain

    def _make_whole(self, module: nn.Module, plain: nn.Module) -> None:
        """Give a copy whole weights, on the meta device."""
        plain._buffers = {
            name: value if value is None else value.to("meta")
            for name, value in module._buffers.items()
        }
        own = {name: shape for (owner, name), shape in self._shapes.items() if owner == id(module)}
        weights = {name: value for name, value in module._parameters.items() if name != _FLAT}
        # FSDP keeps views in the places of weights.
        weights |= {name: getattr(module, name) for name in own}
        for name in own:
            vars(plain).pop(name, None)
        plain._parameters = {
            name: value
            if value is None
            else self._whole(value, own.get(name, getattr(value, _ZERO_SHAPE, value.shape)))
            for name, value in weights.items()
        }

    def _whole(self, weight: torch.Tensor, shape: torch.Size) -> nn.Parameter:
        if id(weight) not in self._known:
            empty = torch.empty(shape, dtype=weight.dtype, device="meta")
            self._keep(weight, nn.Parameter(empty, requires_grad=weight.requires_grad))
        whole: nn.Parameter = self._known[id(weight)]
        return whole


def _can_be_copied(tensor: torch.Tensor) -> bool:
    """Whether a tensor that is no weight may be copied. FSDP has freed the memory of some of its tensors."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.numel() <= _LARGE
        and tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()
    )


def _is_of_the_network(hook: Any) -> bool:
    """Whether a forward pass needs a hook: those of weight norm make the weights of their layer, and those of
    transformers collect the hidden states that a model reads."""
    own = ("torch.nn.utils.", "transformers.utils.")
    return (getattr(hook, "__module__", None) or "").startswith(own)
