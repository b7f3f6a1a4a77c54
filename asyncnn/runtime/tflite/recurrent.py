"""Recurrent layers: RNN, SVDF and LSTM, for a step and for a sequence, both ways.

State begins with zeros and is kept from one run to the next. A cell of integers becomes
a QUANTIZED_LSTM operation for each time step; the others are float.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import DTYPES
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.tensors import add_constant, describe
from asyncnn.runtime.tflite.weighted import read_real
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_STATE_TYPES = {
    OperandType.TENSOR_FLOAT32: "FLOAT32",
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: "INT8",
    OperandType.TENSOR_QUANT16_SYMM: "INT16",
}


def _activation(node: Node, code: int, *known: int) -> int:
    """Return the scalar operand of a cell's activation.

    :raises UnsupportedOperatorError: if ``code`` is not a ``known`` one.
    """
    if code not in known:
        raise UnsupportedOperatorError(f"activation {code} has no HAL form")
    return node.scalar(code)


def _read_state(node: Node, index: int, type_: OperandType) -> int:
    """Return the state in input ``index`` before the first step.

    :raises UnsupportedOperatorError: if the input is no variable of type ``type_``.
    :raises InvalidArgumentError: if it has no sensible shape or not one scale.
    """
    tensor = node.tensor(index)
    if not tensor.is_variable or tensor.type != _STATE_TYPES[type_]:
        raise UnsupportedOperatorError(
            f"{tensor.label} is not a state of type {_STATE_TYPES[type_]}"
        )
    if not all(tensor.shape) or not tensor.shape:
        raise InvalidArgumentError(f"{tensor.label} has shape {list(tensor.shape)}")
    if type_ != OperandType.TENSOR_FLOAT32 and len(tensor.scales) != 1:
        raise InvalidArgumentError(f"{tensor.label} must have one scale")
    return node.read(index)


def _keep_states(node: Node, states: Sequence[int], after: Sequence[int]) -> None:
    """Let the states in these inputs be the operands ``after`` from now on."""
    for index, operand in zip(states, after, strict=True):
        node.variables.assign(node.variable(index), operand)


def _store_layer(
    node: Node,
    type_: OperationType,
    inputs: Sequence[int],
    states: Sequence[int],
    scratch: Sequence[Operand] = (),
    outputs: int = 1,
    *,
    last: bool = False,
) -> None:
    """Add a float layer with ``states``, and store its ``outputs``.

    It gives the states after it ``last``, or between ``scratch`` and the outputs.
    """
    after = [Operand(_F32, node.tensor(index).shape) for index in states]
    targets = [node.target(index) for index in range(outputs)]
    made = [*targets, *after] if last else [*scratch, *after, *targets]
    results = node.compute_all(type_, inputs, made)
    begin = outputs if last else len(scratch)
    _keep_states(node, states, results[begin : begin + len(states)])
    for index, result in enumerate(results[0 if last else -outputs :][:outputs]):
        node.store(result, index)


def _clips(node: Node, options: Any) -> list[int]:
    return [
        node.scalar(clip, OperandType.FLOAT32)
        for clip in (options.CellClip(), options.ProjClip())
    ]


WEIGHTS = range(1, 9)
"""From the input to the four gates, then from the latest output to them."""

PEEPHOLES = range(9, 12)
BIASES = range(12, 16)
PROJECTION, PROJECTION_BIAS = 16, 17
OUTPUT_STATE, CELL_STATE = 18, 19
LAYER_NORMS = range(20, 24)
_LSTM_STATES = OUTPUT_STATE, CELL_STATE

HIDDEN = 4
"""The intermediate that says how the output before the projection is quantised.

Those before it belong to the gates.
"""


_Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
_Q8SYM = OperandType.TENSOR_QUANT8_SYMM
_Q16S = OperandType.TENSOR_QUANT16_SYMM
_I32 = OperandType.TENSOR_INT32

_GATE_SCALE = 2.0**-12
"""Scale of a gate's 16-bit sums where no layer normalisation sets another."""


def _quantized_steps(node: Node, options: Any, steps: Sequence[int]) -> list[int]:
    """Return the outputs of ``steps``, operands of shape [batch, inputs].

    :raises UnsupportedOperatorError: if the cell is not quantised as the HAL has it.
    """
    weights = _weights(node)
    settings = [
        *(_constant(node, index, _Q16S) for index in LAYER_NORMS),
        *_clips(node, options),
        *_intermediates(node),
    ]
    state = _read_state(node, OUTPUT_STATE, _Q8S)
    cell = _read_state(node, CELL_STATE, _Q16S)
    like = [node.builder.operand(operand) for operand in (state, cell, state)]
    outputs = []
    for step in steps:
        state, cell, output = node.compute_all(
            OperationType.QUANTIZED_LSTM, [step, *weights, state, cell, *settings], like
        )
        outputs.append(output)
    _keep_states(node, _LSTM_STATES, [state, cell])
    return outputs


def _weights(node: Node) -> list[int]:
    return [
        *(_constant(node, index, _Q8SYM) for index in WEIGHTS),
        *(_constant(node, index, _Q16S) for index in PEEPHOLES),
        *(_constant(node, index, _I32) for index in BIASES),
        _constant(node, PROJECTION, _Q8SYM),
        _constant(node, PROJECTION_BIAS, _I32),
    ]


def _constant(node: Node, index: int, type_: OperandType) -> int:
    if not node.has(index):
        return node.builder.omitted(type_, scale=0.0 if type_ == _I32 else 1.0)
    tensor = node.tensor(index)
    if node.values(index).dtype != DTYPES[type_]:
        raise UnsupportedOperatorError(f"{tensor.label} is of {tensor.type}")
    described = describe(tensor)
    if described.extra_params is not None or described.zero_point:
        raise UnsupportedOperatorError(f"{tensor.label} is not quantised symmetrically")
    scale = tensor.scales[0] if tensor.scales else described.scale
    operand = Operand(type_, described.dimensions, scale=scale)
    return add_constant(node.builder, tensor, operand)


def _intermediates(node: Node) -> list[int]:
    """Add scales of the four gates, then zero point and scale of the hidden state."""
    scales = [
        _scale(node, gate) if node.has(index) else _GATE_SCALE
        for gate, index in enumerate(LAYER_NORMS)
    ]
    zero_point = next(iter(node.intermediate(HIDDEN).zero_points), 0)
    return [
        *(node.scalar(scale, OperandType.FLOAT32) for scale in scales),
        node.scalar(zero_point, OperandType.INT32),
        node.scalar(_scale(node, HIDDEN), OperandType.FLOAT32),
    ]


def _scale(node: Node, index: int) -> float:
    tensor = node.intermediate(index)
    if len(tensor.scales) != 1 or not tensor.scales[0] > 0:
        raise InvalidArgumentError(f"{tensor.label} must have one positive scale")
    return tensor.scales[0]


_F32 = OperandType.TENSOR_FLOAT32

_LSTM_ACTIVATIONS = (1, 3, 4)
"""Codes that mean the same in both: ReLU, ReLU6, tanh.

Integer cells have no choice: there it is always tanh, whatever the file says.
"""

_FULL_KERNEL = 0


def _step(node: Node) -> None:
    options = node.options("LSTMOptions")
    if options.KernelType() != _FULL_KERNEL:
        raise UnsupportedOperatorError("an LSTM with all weights in one tensor")
    _require_rank(node, 2)
    if not _is_float(node):
        node.store(*_quantized_steps(node, options, [node.read(0)]))
        return
    inputs = _float_inputs(node, options) + _layer_norms(node)
    batch, units = node.tensor(CELL_STATE).shape
    gates = 4 if node.has(1) else 3
    scratch = Operand(_F32, (batch, gates * units))
    _store_layer(node, OperationType.LSTM, inputs, _LSTM_STATES, [scratch])


def _sequence(node: Node) -> None:
    options = node.options("UnidirectionalSequenceLSTMOptions")
    if options.DiagonalRecurrentTensors():
        raise UnsupportedOperatorError("an LSTM with diagonal recurrent weights")
    _require_rank(node, 3)
    time_major = bool(options.TimeMajor())
    if _is_float(node):
        inputs = [*_float_inputs(node, options), node.scalar(time_major)]
        inputs += _layer_norms(node)
        type_ = OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM
        _store_layer(node, type_, inputs, _LSTM_STATES, last=True)
    else:
        steps = _split_time(node, time_major=time_major)
        outputs = _quantized_steps(node, options, steps)
        node.store(_join_time(node, outputs, time_major=time_major))


def _require_rank(node: Node, rank: int) -> None:
    for shape in (node.tensor(0).shape, node.result().shape):
        if len(shape) != rank:
            raise InvalidArgumentError(
                f"input or output has rank {len(shape)}, not {rank}"
            )


def _is_float(node: Node) -> bool:
    """Return whether the layer is float, not integer.

    :raises UnsupportedOperatorError: if it is neither, as far as the HAL knows.
    """
    types = node.type, OperandType(node.target().type)
    if types not in ((_F32, _F32), (_Q8S, _Q8S)):
        names = " to ".join(type_.name for type_ in types)
        raise UnsupportedOperatorError(f"an LSTM from {names} has no HAL form")
    return node.type == _F32


def _float_inputs(node: Node, options: Any) -> list[int]:
    """Return all inputs but the last ones, in the order that the HAL shares."""
    return [
        node.read(0),
        *(read_real(node, index) for index in range(1, OUTPUT_STATE)),
        _read_state(node, OUTPUT_STATE, _F32),
        _read_state(node, CELL_STATE, _F32),
        _activation(node, options.FusedActivationFunction(), *_LSTM_ACTIVATIONS),
        *_clips(node, options),
    ]


def _layer_norms(node: Node) -> list[int]:
    return [read_real(node, index) for index in LAYER_NORMS]


def _split_time(node: Node, *, time_major: bool) -> Sequence[int]:
    """Return the input of every step, [batch, inputs]."""
    first, second, size = node.tensor(0).shape
    steps, batch = (first, second) if time_major else (second, first)
    node.allowance.take_steps(steps)
    flat = (steps * batch, size) if time_major else (batch, steps * size)
    joined = node.reshape(node.read(0), flat)
    if steps == 1:
        return [joined]
    step = replace(node.builder.operand(joined), dimensions=(batch, size))
    axis = node.scalar(0 if time_major else 1)
    inputs = [joined, axis, node.scalar(steps)]
    return node.compute_all(OperationType.SPLIT, inputs, [step] * steps)


def _join_time(node: Node, outputs: Sequence[int], *, time_major: bool) -> int:
    """Return the outputs of all steps as one operand of rank 3."""
    joined, steps = outputs[0], len(outputs)
    like = node.builder.operand(joined)
    batch, size = like.dimensions
    if steps > 1:
        flat = (steps * batch, size) if time_major else (batch, steps * size)
        joined = node.compute(
            OperationType.CONCATENATION,
            [*outputs, node.scalar(0 if time_major else 1)],
            replace(like, dimensions=flat),
        )
    whole = (steps, batch, size) if time_major else (batch, steps, size)
    return node.reshape(joined, whole)


_RNN_ACTIVATIONS = (0, 1, 2, 3, 4)
"""Codes that mean the same in both: none, three kinds of ReLU, tanh."""


def _rnn(node: Node) -> None:
    options = node.options("RNNOptions")
    inputs = _cell_inputs(node)
    code = _activation(node, options.FusedActivationFunction(), *_RNN_ACTIVATIONS)
    _store_layer(node, OperationType.RNN, [*inputs, code], [_RNN_STATE])


def _sequence_rnn(node: Node) -> None:
    options = node.options("SequenceRNNOptions")
    inputs = _cell_inputs(node)
    code = _activation(node, options.FusedActivationFunction(), *_RNN_ACTIVATIONS)
    time_major = node.scalar(int(options.TimeMajor()))
    type_ = OperationType.UNIDIRECTIONAL_SEQUENCE_RNN
    _store_layer(node, type_, [*inputs, code, time_major], [_RNN_STATE], last=True)


_RNN_STATE = 4
"""The only state of the smaller cells."""


def _cell_inputs(node: Node) -> list[int]:
    _require_float(node)
    weights = [read_real(node, index) for index in (1, 2, 3)]
    return [node.read(0), *weights, _read_state(node, _RNN_STATE, _F32)]


def _svdf(node: Node) -> None:
    options = node.options("SVDFOptions")
    inputs = [*_cell_inputs(node), node.scalar(options.Rank())]
    code = _activation(node, options.FusedActivationFunction(), *_RNN_ACTIVATIONS)
    _store_layer(node, OperationType.SVDF, [*inputs, code], [_RNN_STATE])


def _require_float(node: Node) -> None:
    """Check that a layer is float.

    :raises UnsupportedOperatorError: if its input is not.
    :raises InvalidArgumentError: if only its result is not.
    """
    if node.type != _F32:
        raise UnsupportedOperatorError(
            f"the HAL has this layer in float, not on {node.type.name}"
        )
    if node.target().type != _F32:
        raise InvalidArgumentError("a float layer with a result of another type")


_LSTM_INPUTS, _BOTH_STATES = 48, range(35, 39)
_LSTM_NORMS = 8
_RNN_INPUTS, _RNN_STATES = 12, (4, 8)


def _two_way_lstm(node: Node) -> None:
    options = node.options("BidirectionalSequenceLSTMOptions")
    scalars = [
        _activation(node, options.FusedActivationFunction(), *_LSTM_ACTIVATIONS),
        *_clips(node, options),
        node.scalar(bool(options.MergeOutputs())),
        node.scalar(bool(options.TimeMajor())),
        *(node.builder.omitted(_F32) for _ in range(_LSTM_NORMS)),
    ]
    type_ = OperationType.BIDIRECTIONAL_SEQUENCE_LSTM
    _store_two_way(node, type_, options, _LSTM_INPUTS, _BOTH_STATES, scalars)


def _two_way_rnn(node: Node) -> None:
    options = node.options("BidirectionalSequenceRNNOptions")
    scalars = [
        _activation(node, options.FusedActivationFunction(), *_RNN_ACTIVATIONS),
        node.scalar(bool(options.TimeMajor())),
        node.scalar(bool(options.MergeOutputs())),
    ]
    type_ = OperationType.BIDIRECTIONAL_SEQUENCE_RNN
    _store_two_way(node, type_, options, _RNN_INPUTS, _RNN_STATES, scalars)


def _store_two_way(
    node: Node,
    type_: OperationType,
    options: Any,
    count: int,
    states: Sequence[int],
    scalars: Sequence[int],
) -> None:
    """Add a layer that reads a sequence from both ends, each with states of its own.

    Inputs are the HAL's, in its order: the forward cell, the backward one, both
    states, and an auxiliary input with weights of its own. The last outputs are what
    the states are afterwards.
    """
    _require_float(node)
    outputs = 1 if options.MergeOutputs() else 2
    if len(node.operator.outputs) != outputs:
        raise InvalidArgumentError(f"{len(node.operator.outputs)} outputs")
    inputs = [
        _read_state(node, index, _F32) if index in states else read_real(node, index)
        for index in range(count)
    ]
    _store_layer(node, type_, [*inputs, *scalars], states, (), outputs, last=True)


CONVERTERS: dict[str, Converter] = {
    "LSTM": _step,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence,
    "RNN": _rnn,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _sequence_rnn,
    "SVDF": _svdf,
    "BIDIRECTIONAL_SEQUENCE_LSTM": _two_way_lstm,
    "BIDIRECTIONAL_SEQUENCE_RNN": _two_way_rnn,
}
