"""Makes ops of torch's recurrent layers: LSTM, GRU and Elman's RNN.

Each layer has three ops in each direction. The product of the inputs with their weights is one for all time
steps, as in cuDNN. The product of the hidden states with their weights, and the cell, have one kernel for
each step (attribute ``steps``), and each waits for the one before. A graph has no cycle, so the product of
the hidden states reads the first product in place of the states that the cell writes.
"""

from joulecast.errors import JoulecastError
from joulecast.graphs import views
from joulecast.graphs.capture_builder import OPAQUE, Call, bindings, map_groups, rows
from joulecast.graphs.opgraph import Dim
from joulecast.graphs.products import linear_layer
from joulecast.graphs.views import View


def _direction(call: Call, x: View, weights: list[View], steps: int) -> View:
    """One layer in one direction. ``weights`` are those of inputs and hidden states, and then the biases."""
    of_input, of_hidden, *biases = weights
    of_inputs = linear_layer(call, x, of_input, biases[0] if biases else None, splits=False)
    of_states = linear_layer(
        call, of_inputs, of_hidden, biases[1] if biases else None, splits=False, steps=steps
    )
    leading = rows(x.axes[:-1], OPAQUE)
    states = [(v, bindings(View(v.tensor, v.axes[:-1]), leading)) for v in (of_inputs, of_states)]
    written = [*leading, [Dim("hidden", of_hidden.shape[1], OPAQUE)]]
    return call.emit("other", states, written, steps=steps)


def recurrent(call: Call) -> list[View]:
    """A stack of recurrent layers. The last states are a view of the states of all steps."""
    x, directions, layers = call["input"], 1 + call["bidirectional"], call["num_layers"]
    each = 4 if call["has_biases"] else 2
    weights: list[View] = call["params"]
    if len(x.axes) != 3 or len(weights) != each * directions * layers:
        raise JoulecastError(
            "a recurrent layer without a batch, or with a projection, is not known"
        )
    time = 1 if call["batch_first"] else 0
    for layer in range(layers):
        if layer and call["train"] and call["dropout"]:
            written = map_groups(x.axes)
            x = call.emit("dropout", [(x, bindings(x, written))], written, p=call["dropout"])
        states = []
        for _ in range(directions):
            states.append(_direction(call, x, weights[:each], x.shape[time]))
            weights = weights[each:]
        x = states[0]
        if directions > 1:
            written = [*rows(x.axes[:-1]), [Dim("features", 2 * x.shape[-1], OPAQUE)]]
            reads = [(v, [*bindings(View(v.tensor, v.axes[:-1]), written[:-1])]) for v in states]
            x = call.emit("concat", reads, written)
    last = [views.expand(views.select(states[0], time), shape) for shape in call.shapes[1:]]
    return [x, *last]
