"""Captures op graphs from torch: exports a module, and makes an op or a view of every operator.

The graph holds the forward pass in training mode. Batch norm uses the statistics of the batch. The graph has
dropout if its probability is not 0, and Inception's auxiliary classifier. At the end of the graph, each
output has one ``cross_entropy`` op. The graph is traced with several samples, to see which axes follow the
batch, and then scaled to one sample. If two layers share a weight (tied), both read one tensor, which has the
first of its names.

This module needs torch, which takes seconds to import. :mod:`joulecast.graphs.network_graphs` reads captured
graphs without torch.
"""

import io
import operator
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn
from torch.export import ExportedProgram, export
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import CheckpointFunction

from joulecast.errors import JoulecastError
from joulecast.graphs.aten import OPERATORS, cross_entropy
from joulecast.graphs.capture_builder import (
    TRACED_BATCH,
    Builder,
    Call,
    any_operator,
    constants,
    is_constant,
)
from joulecast.graphs.module_copies import Unpacked, is_sharded, separate
from joulecast.graphs.opgraph import OpGraph, Role, checked
from joulecast.graphs.precision import CAPTURED_BYTES
from joulecast.graphs.views import View, units
from joulecast.quantities import counted

_UNKNOWN_USE = (JoulecastError, ValueError, IndexError, AttributeError, TypeError)
"""What a known operator raises if it is used in an unknown way."""
_NAMES_OF_LABELS = ("label", "labels", "shift_labels", "fused_lm_head")
"""Arguments from which a network of the Hugging Face hub computes its loss. With the last one, TRL's trainers
let a network return its loss in place of logits."""
_LABEL_BYTES = 8  # torch's class labels and token ids are 64-bit


@contextmanager
def _as_in_training() -> Iterator[None]:
    """Let a forward pass run as in training during an export: if its code asks torch, nothing is exported.

    For an export, Hugging Face's code makes a mask. In training, it has a causal kernel without a mask. The
    code also tests whether positions begin anew, as in packed sequences. Here positions only count up.
    """
    masks, asks = sys.modules.get("transformers.masking_utils"), "find_packed_sequence_indices"
    unpacked = patch.object(masks, asks, lambda _: None) if hasattr(masks, asks) else nullcontext()
    with patch.object(torch.compiler, "is_exporting", lambda: False), unpacked:
        yield


@contextmanager
def _with_finite_values() -> Iterator[None]:
    """Let a forward pass run as in training during an export. If its code tests whether values are finite,
    the test says yes."""
    # Only a tensor that is made during the export has a value there.
    with (
        _as_in_training(),
        patch.object(torch, "isfinite", lambda _: torch.tensor(True)),
        patch.object(torch, "isnan", lambda _: torch.tensor(False)),
        patch.object(torch, "isinf", lambda _: torch.tensor(False)),
    ):
        yield


@contextmanager
def _nothing_left_out() -> Iterator[None]:
    """Replace single random numbers by 1. A forward pass may branch on them to drop a layer (LayerDrop). With
    1, it drops none."""
    drawn = torch.rand

    def rand(*size: Any, **options: Any) -> Any:
        shape = options.get("size", size)
        return 1.0 if shape in ((), ([],), ((),), [], (1,)) else drawn(*size, **options)

    with (
        patch.object(torch, "rand", rand),
        patch.object(random, "random", lambda: 1.0),
        patch.object(random, "uniform", lambda low, high: high),
    ):
        yield


@contextmanager
def _apart_from_the_training() -> Iterator[None]:
    """Separate an export from what the program of a training has set up.

    The state of the random numbers is restored afterwards. During the export, hooks of all modules are off,
    no code is compiled, and checkpointed layers run as plain layers. (Their reentrant form would run without
    gradients.)
    """
    numbers = sys.modules.get("numpy.random")
    drawn, numpys = random.getstate(), numbers and numbers.get_state()
    modules: Any = torch.nn.modules.module
    names = [name for name in vars(modules) if name.startswith("_global_forward")]
    try:
        with ExitStack() as patches:
            patches.enter_context(torch.random.fork_rng(devices=[]))
            patches.enter_context(torch.enable_grad())
            for name in names:
                patches.enter_context(patch.dict(getattr(modules, name), clear=True))
            patches.enter_context(
                patch.object(CheckpointFunction, "apply", lambda run, _, *args: run(*args))
            )
            if hasattr(torch.compiler, "set_stance"):
                patches.enter_context(torch.compiler.set_stance("force_eager"))
            yield
    finally:
        random.setstate(drawn)
        if numbers is not None:
            numbers.set_state(numpys)


@contextmanager
def _without_autocast() -> Iterator[None]:
    """Keep the forward pass at the precision of its inputs, also if it enters ``torch.autocast`` itself.

    Hugging Face's Trainer and accelerate put autocast inside the module's ``forward``. An export would hide
    everything in it in one operator. :mod:`joulecast.graphs.autocast` has the rules of autocast.
    """
    with (
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        patch.object(torch.autocast, "__enter__", lambda autocast: autocast),
        patch.object(torch.autocast, "__exit__", lambda *_: None),
    ):
        yield


@contextmanager
def _with_plain_settings(module: nn.Module) -> Iterator[None]:
    """Let Hugging Face's models run code that an export can follow.

    They return no keys and values for the next token (``use_cache``), which a training does not need.
    Attention of another package becomes torch's, which is the same op of the graph.
    """
    plain = {"use_cache": False, "_attn_implementation": "sdpa"}
    usual = (None, False, "eager", "sdpa")
    configs: list[Any] = [getattr(part, "config", None) for part in module.modules()]
    # All values are noted before one is changed, because a model's config also changes the configs of its
    # parts.
    held = [(c, name, getattr(c, name, None)) for c in configs for name in plain]
    try:
        for config, name, own in held:
            if own not in usual:
                setattr(config, name, plain[name])
        yield
    finally:
        for config, name, own in held:
            if getattr(config, name, None) != own:
                setattr(config, name, own)


_WAY_OUT = (
    "`joulecast capture` takes a function that builds a part that can be captured, for example the network "
    "without its loss"
)


def exported(
    module: nn.Module,
    inputs: Sequence[Any],
    named_inputs: Mapping[str, Any] = MappingProxyType({}),
) -> ExportedProgram:
    """The module's forward pass in training mode, as operators of torch. The module's own mode stays.

    Raises:
        JoulecastError: torch cannot export the module (for example, its forward pass depends on values).
    """
    reasons = []
    # If it fails, an export prints all operators that it has seen.
    silent = redirect_stderr(io.StringIO())
    with silent, _apart_from_the_training(), _nothing_left_out(), _without_autocast():
        # In training, the code may look at values. An export has no values.
        for setup in (_as_in_training, nullcontext, _with_finite_values):
            apart = separate(module)
            apart.train()
            try:
                with setup(), _with_plain_settings(apart):
                    return export(apart, tuple(inputs), dict(named_inputs), strict=False)
            except Exception as error:
                reasons.append(
                    f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}"
                )
    raise JoulecastError(
        f"{type(module).__name__}: torch.export cannot follow its forward: "
        f"{'; '.join(dict.fromkeys(reasons))}; {_WAY_OUT}"
    )


def _itemsize(tensor: torch.Tensor) -> int:
    """Bytes of a number in the graph, which is at fp32 whatever the precision of the module."""
    kind = tensor.dtype
    return CAPTURED_BYTES if kind.is_floating_point and kind.itemsize == 2 else kind.itemsize


def _parameter_names(module: nn.Module) -> dict[str, str]:
    """All names of parameters and buffers, each with the first name of the same tensor."""
    first: dict[int, str] = {}
    both = (
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    )
    return {name: first.setdefault(id(tensor), name) for name, tensor in both}


def _place_tensors(
    program: ExportedProgram, module: nn.Module, builder: Builder
) -> dict[torch.fx.Node, View]:
    """Declare parameters, buffers and inputs. Returns the view of each placeholder of the export."""
    names = _parameter_names(module)
    signature = program.graph_signature
    inputs = list(signature.user_inputs)
    views: dict[torch.fx.Node, View] = {}
    declared: dict[str, View] = {}
    for node in program.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta["val"]
        found = signature.inputs_to_parameters.get(node.name)
        constant = signature.inputs_to_lifted_tensor_constants.get(node.name)
        buffer = signature.inputs_to_buffers.get(node.name) or constant
        if found or buffer:
            name = names.get(found or buffer, found or buffer)
            if name not in declared:
                role: Role = "buffer"
                weight = module.get_parameter(found) if found else None
                if weight is not None:
                    role = "parameter" if weight.requires_grad else "frozen"
                packed = getattr(weight, "packed_bytes", None)
                size = _itemsize(value) if packed is None else 1
                declared[name] = builder.add_tensor(name, value.shape, size, role)
                builder.tensors[name] = replace(builder.tensors[name], packed_bytes=packed)
            views[node] = declared[name]
        elif isinstance(value, torch.Tensor):
            name = "input" if len(inputs) == 1 else f"input{inputs.index(node.name) + 1}"
            views[node] = builder.add_tensor(
                name,
                value.shape,
                _itemsize(value),
                "input",
                batch=[0] if value.dim() and value.shape[0] == TRACED_BATCH else (),
                spatial=range(2, value.dim()) if value.dim() > 3 else (),
            )
    return views


def _arguments(node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> dict[str, Any]:
    """The arguments of a node by name, with defaults. Tensors are views."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        # The node is a block of code with its own settings.
        given: dict[str, Any] = {str(place): value for place, value in enumerate(node.args)}
    else:
        given = {a.name: a.default_value for a in schema.arguments}
        given |= {a.name: value for a, value in zip(schema.arguments, node.args, strict=False)}
    given |= node.kwargs

    def viewed(value: Any) -> Any:
        if isinstance(value, torch.fx.Node):
            return values.get(value)
        return [viewed(v) for v in value] if isinstance(value, list | tuple) else value

    return {name: viewed(value) for name, value in given.items()}


def _is_strided(node: torch.fx.Node, result: torch.Tensor) -> bool:
    """Whether an element-wise operation has operands that lie in memory in different orders, or repeats one.
    Torch's kernel then looks for the place of each element."""
    layouts = set()
    for each in (node, *node.all_input_nodes):
        value = each.meta.get("val")
        if isinstance(value, torch.Tensor) and value.dim():
            added = result.dim() - value.dim()
            shape = [*(1 for _ in range(added)), *value.shape]
            strides = [*(0 for _ in range(added)), *value.stride()]
            axes = list(zip(shape, strides, result.shape, strict=False))
            if added < 0 or any(mine not in (1, size) for mine, _, size in axes):
                # The operation is not element-wise.
                return False
            layouts.add(tuple(stride * (mine > 1) for mine, stride, size in axes if size > 1))
    return len(layouts) > 1


def _without_gradient(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Nodes whose results are only used behind a ``detach``, as those of a teacher or of a frozen part."""
    found: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.users and all(
            user in found or user.target is torch.ops.aten.detach.default for user in node.users
        ):
            found.add(node)
    return found


class Capture:
    """Walks through an export, and makes the graph.

    ``graph_ops`` maps each node of the export to its op. For a view, it is the op that writes the tensor, or
    ``None`` if the tensor is a parameter or an input.
    """

    def __init__(self, module: nn.Module, program: ExportedProgram, name: str) -> None:
        self.name, self.builder = name, Builder()
        self.graph_ops: dict[str, str | None] = {}
        self._layers = dict(module.named_modules())
        self._is_half = any(p.dtype.itemsize == 2 for p in module.parameters())
        self.unknown: Counter[str] = Counter()
        """Operators of which only the memory traffic is known, and how often they occur."""
        self._values: dict[torch.fx.Node, Any] = dict(_place_tensors(program, module, self.builder))
        without_gradient = _without_gradient(program.graph)
        for node in program.graph.nodes:
            known = len(self.builder.ops)
            if node.op == "call_function":
                self._add(node)
            for op in self.builder.ops[known:] if node in without_gradient else ():
                op.attributes["no_grad"] = True
        outputs = program.graph.find_nodes(op="output")[0].args[0]
        mutated = len(program.graph_signature.buffers_to_mutate)
        views = [self._values.get(node) for node in outputs[mutated:] if node is not None]
        self._add_losses(self._logits([view for view in views if isinstance(view, View)]))

    def _logits(self, outputs: list[View]) -> list[View]:
        """Outputs that have a loss: the first one, and others with the same classes (Inception's second)."""
        tensors, ops = self.builder.tensors, tuple(self.builder.ops)
        found = [v for v in outputs if tensors[v.tensor].role == "activation" and len(v.axes) > 1]
        # A teacher's output has no gradient.
        trained = OpGraph(self.name, ops, tensors, TRACED_BATCH).trained
        found = [view for view in found if view.tensor in trained] or found
        return [
            v
            for v in found
            if (len(v.axes), v.shape[-1]) == (len(found[0].axes), found[0].shape[-1])
        ]

    def _add(self, node: torch.fx.Node) -> None:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, torch.fx.Node) and isinstance(index, int)
            held = self._values.get(source)
            self._values[node] = held[index] if isinstance(held, list) else held
            self.graph_ops[node.name] = self.graph_ops.get(source.name)
            return
        if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            self._add_block(node)
            return
        results = node.meta.get("val")
        results = list(results) if isinstance(results, list | tuple) else [results]
        several = len(results) > 1 or isinstance(node.meta.get("val"), list | tuple)
        if not all(isinstance(result, torch.Tensor) for result in results):
            # The node is a check, or gives a number.
            self._values[node] = None
            return
        arguments = _arguments(node, self._values)
        weight = arguments.get("weight")
        module, leaf = self._place(node, weight.tensor if isinstance(weight, View) else "")
        target = str(node.target).removeprefix("aten.")
        if any(isinstance(size, torch.SymInt) for result in results for size in result.shape):
            raise JoulecastError(
                f"the result of {target} in {module or 'the network'} has a size that depends on the values "
                f"of the inputs; {_WAY_OUT}"
            )
        call = Call(
            self.builder,
            arguments,
            tuple(results[0].shape),
            _itemsize(results[0]),
            [tuple(r.shape) for r in results],
            module,
            leaf,
            inplace=target.split(".")[0].endswith("_"),
            wide=results[0].dtype == torch.float32 if self._is_half else None,
            strided=not several and _is_strided(node, results[0]),
        )
        known = len(self.builder.ops)
        if node.target is torch.ops.aten.cross_entropy_loss.default:
            # A module that is given labels computes its loss.
            with suppress(*_UNKNOWN_USE):
                cross_entropy(call)
                self._values[node] = None
                return
        value = self._result(call, target, node.name)
        self._values[node] = value if several or not isinstance(value, list) else value[0]
        view = value[0] if isinstance(value, list) else value
        if len(self.builder.ops) > known:
            self.graph_ops[node.name] = self.builder.ops[-1].name
        else:
            activation = self.builder.tensors[view.tensor].role == "activation"
            self.graph_ops[node.name] = view.tensor if activation else None

    def _place(self, node: torch.fx.Node, weight: str) -> tuple[str, bool]:
        """The module path of a node, and whether this module has no layers inside.

        Some parents call the function of a layer and not the layer itself (torch's attention does so with its
        output projection). Then the name of the ``weight`` gives the layer.
        """
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path = re.sub(r"@\d+", "", stack[-1][0]) if stack else ""
        owner = weight.rpartition(".")[0]
        if weight and owner in self._layers and owner.startswith(f"{path}." if path else ""):
            path = owner
        layer = self._layers.get(path)
        return path, bool(path) and layer is not None and not any(layer.children())

    def _add_block(self, node: torch.fx.Node) -> None:
        """Add the ops of a block of code under ``no_grad`` (or under ``enable_grad``)."""
        enabled, getter, *operands = node.args
        assert isinstance(getter, torch.fx.Node) and getter.graph.owning_module is not None
        block = getter.graph.owning_module.get_submodule(str(getter.target))
        assert isinstance(block, torch.fx.GraphModule)
        known, places = len(self.builder.ops), block.graph.find_nodes(op="placeholder")
        for place, operand in zip(places, operands, strict=True):
            self._values[place] = self._values.get(cast("torch.fx.Node", operand))
        for each in block.graph.nodes:
            if each.op == "call_function":
                self._add(each)
        results = cast("Sequence[torch.fx.Node]", block.graph.output_node().args[0])
        self._values[node] = [self._values.get(each) for each in results]
        for op in self.builder.ops[known:] if not enabled else ():
            op.attributes["no_grad"] = True

    def _result(self, call: Call, target: str, name: str) -> View | list[View]:
        """Add the ops of a call (a known or unknown operator, or a constant). Returns the views of its
        results."""
        if is_constant(call, target):
            return constants(call, name)
        if target in OPERATORS:
            before = len(self.builder.ops)
            try:
                return OPERATORS[target](call)
            except _UNKNOWN_USE:
                # The operator is used in an unknown way. It may have added some of its ops.
                del self.builder.ops[before:]
        self.unknown[target] += 1
        return any_operator(call)

    def _add_losses(self, outputs: list[View]) -> None:
        target: View | None = None
        read = {op.reads[0].tensor for op in self.builder.ops if op.kind == "cross_entropy"}
        for logits in outputs:
            if logits.tensor in read:
                continue
            if target is None:
                leading = [unit for axis in logits.axes[:-1] for unit in units(axis)]
                target = self.builder.add_tensor(
                    "target",
                    [unit.size for unit in leading],
                    _LABEL_BYTES,
                    "input",
                    batch=[i for i, unit in enumerate(leading) if unit.batch],
                )
            itemsize = self.builder.tensors[logits.tensor].itemsize
            arguments = {"self": logits, "target": target}
            cross_entropy(Call(self.builder, arguments, (), itemsize, [], "", False))

    def graph(self) -> OpGraph:
        """Check the graph, and return it for one sample."""
        builder = self.builder
        used = {access.tensor for op in builder.ops for access in (*op.reads, *op.writes)}
        read = {a.tensor for op in builder.ops for a in op.reads if "no_grad" not in op.attributes}
        tensors = {
            # What only code under no_grad reads is not trained.
            name: replace(tensor, role="frozen")
            if tensor.role == "parameter" and name in used - read
            else tensor
            for name, tensor in builder.tensors.items()
            if name in used or tensor.is_weight
        }
        graph = OpGraph(self.name, tuple(builder.ops), tensors, TRACED_BATCH)
        return checked(graph.with_batch(1))


def capture(
    module: nn.Module,
    example_inputs: Sequence[Any],
    name: str,
    named_inputs: Mapping[str, Any] = MappingProxyType({}),
    samples: int | None = None,
) -> OpGraph:
    """The op graph of a module, for one sample.

    ``module`` takes tensors whose first axis is the batch (here of any size), and returns one or several
    logits ``(batch, ..., classes)``. It may be on the ``meta`` device, because nothing is computed. An
    unknown operator becomes an op that only reads and writes memory, with a warning.

    Args:
        samples: the batch of the inputs. Tensors without it stay unchanged. ``None`` if every tensor has a
            batch, of any size.

    Raises:
        JoulecastError: torch cannot export the module.
    """

    def traced(each: torch.Tensor) -> torch.Tensor:
        if not each.dim() or samples not in (None, each.shape[0]):
            return each
        return each.new_zeros((TRACED_BATCH, *each.shape[1:]))

    given = tree_map_only(torch.Tensor, traced, (list(example_inputs), dict(named_inputs)))
    module = separate(module)
    unpacked = sum(isinstance(part, Unpacked) for part in module.modules())
    if unpacked:
        warnings.warn(
            f"{name}: {counted(unpacked, 'layer')} with quantised weights: the time to unpack them is not "
            "counted",
            stacklevel=2,
        )
    captured = Capture(module, exported(module, *given), name)
    if captured.unknown:
        found = ", ".join(f"{target} ({count})" for target, count in captured.unknown.items())
        warnings.warn(
            f"{name}: only the memory traffic of these operators is counted: {found}", stacklevel=2
        )
    return captured.graph()


def capture_trained(
    module: nn.Module, inputs: Sequence[Any], named_inputs: Mapping[str, Any]
) -> OpGraph:
    """The op graph of a module that is being trained. It has no labels, unless the forward pass needs them.

    Weights that are sharded over ranks are whole in the graph.

    Raises:
        JoulecastError: an error of :func:`capture`, or the export lost the trained weights.
    """
    # Take the module inside the wrappers of torch.compile and DistributedDataParallel.
    module = getattr(module, "_orig_mod", module)
    given: Any = (list(inputs), dict(named_inputs))
    if is_sharded(module):
        module = separate(module)
        given = tree_map_only(torch.Tensor, lambda each: each.to("meta"), given)
    module = getattr(module, "module", module)
    name = type(module).__name__
    batches = Counter(
        each.shape[0]
        for each in tree_leaves(given)
        if isinstance(each, torch.Tensor) and each.dim()
    )
    inputs, named = given
    samples = batches.most_common(1)[0][0] if batches else None
    unlabelled = {key: each for key, each in named.items() if key not in _NAMES_OF_LABELS}
    try:
        graph = capture(module, inputs, name, unlabelled, samples)
    except JoulecastError:
        if unlabelled.keys() == named.keys():
            raise
        # The decoder of a sequence-to-sequence network takes its inputs from the labels.
        graph = capture(module, inputs, name, named, samples)
    if not any(map(graph.has_backward, graph.ops)):
        raise JoulecastError(
            f"{name}: its export shows no op of its trained weights, as with networks of Keras"
        )
    return graph
