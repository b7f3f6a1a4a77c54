"""Whether a file may be handed to LiteRT as it is, and what is dangerous to it.

LiteRT trusts what its own converter makes: an operator that reads a tensor which nobody
has computed, writes to a constant, or has a stride of 0, ends the process. Here each
graph is walked in its order, and every such file refused. What the values of tensors
may do to an operator, its kernel in LiteRT checks, as it has to at each run.
"""

import struct
from collections.abc import Collection, Iterator, Sequence
from math import prod

import numpy as np
from flatbuffers import flexbuffers  # type: ignore[import-untyped]

from asyncnn.extensions import FlexOptions
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.tflite import flatbuffer
from asyncnn.tflite.operator_rules import (
    ALIKE,
    COMPARING,
    COUNTED,
    COUNTS,
    KEPT,
    MEASURED,
    MOST_RATIO,
    MOST_SCALE,
    PLAIN,
    RANKS,
    SHAPED_BY,
    WHOLE,
)
from asyncnn.tflite.tables import (
    ALL_DTYPES,
    BUILTIN_OPTIONS,
    BUILTINS,
    DTYPES,
    OPTION_VECTORS,
    Contents,
    Graph,
    Operator,
    Tensor,
)

MOST_BYTES = 2**31 - 2**20
"""Of a tensor: LiteRT has places that count them in 31 bits."""

MOST_NESTED = 16
"""Graphs that call one another, the deepest of all."""

BYTES = {"INT8": (-128, 127), "UINT8": (0, 255), "INT16": (-(2**15), 2**15 - 1)}
"""Types of quantised numbers, and the least and greatest of them."""

NO_OPERATORS = frozenset(
    {
        *("CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES"),
        # These do not ask if lengths fit:
        *("BROADCAST_ARGS", "REVERSE_SEQUENCE"),
    }
)
OWN_CUSTOM = {
    "CUSTOM AudioSpectrogram": {"window_size": 2, "stride": 1, "magnitude_squared": 0},
    "CUSTOM Mfcc": {
        "upper_frequency_limit": 1,
        "lower_frequency_limit": 0,
        "filterbank_channel_count": 1,
        "dct_coefficient_count": 1,
    },
}
"""Custom operators that LiteRT has itself, and the least values of their options."""

_KNOWN = (BUILTINS | {*OWN_CUSTOM}) - NO_OPERATORS
_OF_COMPLEX = frozenset(
    {"RFFT2D", "REAL", "IMAG", "COMPLEX_ABS", "EXPAND_DIMS", "RESHAPE", "SQUEEZE"}
)
"""Operators that see to it which of their tensors are complex."""

LEFT_OUT = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "CONV_3D"), 2),
    **dict.fromkeys(("TRANSPOSE_CONV", "CONV_3D_TRANSPOSE"), 3),
}
"""Which input may be left out: a bias."""

CALLED = {
    "IF": ("IfOptions", ("ThenSubgraphIndex", "ElseSubgraphIndex")),
    "WHILE": ("WhileOptions", ("CondSubgraphIndex", "BodySubgraphIndex")),
}
"""Operators that run other graphs, and where their options say which."""

POSITIVE: dict[str, dict[int, str]] = {
    kind: {int(number): name for number, name in map(str.split, fields)}
    for kind, fields in {
        "Conv2DOptions": ("1 StrideW", "2 StrideH", "4 DilationW", "5 DilationH"),
        "DepthwiseConv2DOptions": (
            *("1 StrideW", "2 StrideH", "5 DilationW", "6 DilationH"),
        ),
        "Conv3DOptions": (
            *("1 StrideD", "2 StrideW", "3 StrideH"),
            *("5 DilationD", "6 DilationW", "7 DilationH"),
        ),
        "TransposeConvOptions": ("1 StrideW", "2 StrideH"),
        "Pool2DOptions": ("1 StrideW", "2 StrideH", "3 FilterWidth", "4 FilterHeight"),
        "SpaceToDepthOptions": ("0 BlockSize",),
        "DepthToSpaceOptions": ("0 BlockSize",),
        "LocalResponseNormalizationOptions": ("0 Radius",),
    }.items()
}
"""Numbers and names of int32 fields of options that are divided by, or counted with.

Of those that are left out, dilations are 1, the others 0.
"""

MOST_POSITIVE = 1 << 16
_NOTHING: dict[int, str] = {}

_MOST_TABLE_BYTES = 512
_MOST_VECTOR = 1 << 12
REFERRING = frozenset({"VarHandleOptions", "ConcatEmbeddingsOptions"})
"""Tables of options that refer to something else."""

OFFSETS = {"StridedSliceOptions": (5,)}
"""Slots that say that ends count from where slices begin.

LiteRT reads ends beyond those that are given then, if there are fewer than axes.
"""


def refusal(contents: Contents) -> str:
    """Return what LiteRT does not run of a file, or not so by itself; empty if it does.

    :raises InvalidArgumentError: if the file is damaged.
    """
    if contents.graphs[0].survey is not None:
        return ""
    for graph in contents.graphs:
        for tensor in graph.tensors:
            if tensor.is_variable:
                return f"{tensor.label} is kept from run to run"
            is_other = tensor.type in ALL_DTYPES and tensor.type not in DTYPES
            if tensor.unsupported and not is_other:
                return f"{tensor.label} has {tensor.unsupported}"
            if tensor.zero_points and len({*tensor.zero_points}) > 1:
                return f"{tensor.label} has several zero points"
        complex_ = {t.index for t in graph.tensors if t.type == "COMPLEX64"}
        for operator in graph.operators:
            is_complex = not complex_.isdisjoint(operator.inputs + operator.outputs)
            if operator.name not in (_OF_COMPLEX if is_complex else _KNOWN):
                return f"operator {operator.index} is {operator.name}"
            if operator.name == "STRIDED_SLICE" and _reads_on(graph, operator):
                return f"operator {operator.index} has offsets of some axes only"
            number, second = operator.kind_of_options()
            if second or number not in BUILTIN_OPTIONS:
                return f"operator {operator.index} ({operator.name}) has newer options"
    return ""


def _reads_on(graph: Graph, operator: Operator) -> bool:
    """Return whether LiteRT reads ends of slices beyond those that are given."""
    kind, table = "StridedSliceOptions", operator.options_place()
    if BUILTIN_OPTIONS.get(operator.kind_of_options()[0]) != kind or not table:
        return False  # LiteRT reads no others
    _offsets(operator.data, table, kind, operator.name)  # else it may be damaged
    if not operator.options(kind).Offset():
        return False
    read = [graph.tensors[index].shape for index in operator.inputs[:2]]
    return read[1:] != [(len(shape),) for shape in read[:1]]


def check(contents: Contents) -> None:
    """Check all graphs of a file that is not refused.

    :raises InvalidArgumentError: if one is not sound.
    """
    if contents.graphs[0].survey is not None:
        return
    for graph in contents.graphs:
        _check_graph(graph)
    _check_calls(contents)


def _check_graph(graph: Graph) -> None:
    for tensor in graph.tensors:
        _check_tensor(tensor)
    made = {t.index for t in graph.tensors if t.stored is not None}
    for index in graph.inputs if graph.index else {*graph.inputs}:
        if index < 0 or index in made:
            raise InvalidArgumentError(f"{graph.label}: input {index} has a value")
        made.add(index)
    for operator in graph.operators:
        what = f"{graph.label}: operator {operator.index} ({operator.name})"
        _check_counts(operator, what)
        for position, index in enumerate(operator.inputs):
            if index < 0 and position != LEFT_OUT.get(operator.name):
                raise InvalidArgumentError(f"{what} has input {position} left out")
            if index >= 0 and index not in made and not _is_nothing(graph, index):
                raise InvalidArgumentError(f"{what} reads tensor {index} too early")
        for index in operator.outputs:
            if index < 0 or index in made:
                raise InvalidArgumentError(f"{what} cannot write to tensor {index}")
            made.add(index)
        _check_operands(graph, operator, what)
        _check_options(operator, what)
    for index in graph.outputs:
        if index not in made:
            raise InvalidArgumentError(f"{graph.label}: no output {index} is made")
    if not graph.outputs:
        raise InvalidArgumentError(f"{graph.label} has no outputs")


def _is_nothing(graph: Graph, index: int) -> bool:
    """Return whether a tensor, a constant without bytes in the file, has no elements.

    As weights of few bits it ends the process.
    """
    tensor = graph.tensors[index]
    return 0 in tensor.shape and tensor.type not in ("INT8", "UINT8")


def _check_tensor(tensor: Tensor) -> None:
    if prod(tensor.shape) * ALL_DTYPES[tensor.type].itemsize > MOST_BYTES:
        raise InvalidArgumentError(f"{tensor.label} has shape {list(tensor.shape)}")
    scales = len(tensor.scales)
    if not (scales or tensor.zero_points):
        return
    if not tensor.is_plain:
        quantized_axis(tensor)
    known = tensor.scales
    if isinstance(known, memoryview):
        many = np.array(known, np.float32)
        known = float(many.min()), float(many.max())
    if not all(1 / MOST_SCALE <= scale <= MOST_SCALE for scale in known):
        raise InvalidArgumentError(
            f"{tensor.label} has a scale that is no usual number"
        )
    points, limits = tensor.zero_points, BYTES.get(tensor.type)
    if points and limits and not limits[0] <= min(points) <= max(points) <= limits[1]:
        raise InvalidArgumentError(f"{tensor.label} has zero point beyond its type")
    if len(tensor.zero_points) not in (0, scales):
        raise InvalidArgumentError(
            f"{tensor.label} has {scales} scales but {len(tensor.zero_points)} "
            "zero points"
        )


def quantized_axis(tensor: Tensor) -> int:
    """Return the axis whose indexes scales are of; some files have another for a bias.

    :raises InvalidArgumentError: if there is no axis of as many.
    """
    count, axis = len(tensor.scales), tensor.quantized_dimension
    if count < 2:
        return 0
    for each in axis, 0:
        is_whole = each == axis or len(tensor.shape) == 1
        if is_whole and 0 <= each < len(tensor.shape) and tensor.shape[each] == count:
            return each
    raise InvalidArgumentError(f"{tensor.label} has {count} scales on axis {axis}")


def _check_counts(operator: Operator, what: str) -> None:
    """Check how many operands there are, of operators that have a known number."""
    fewest, most, made = COUNTS.get(operator.name, (0, None, 0))
    read, outputs = len(operator.inputs), len(operator.outputs)
    if read < fewest or (most is not None and (read > most or outputs != made)):
        raise InvalidArgumentError(f"{what} has {read} inputs and {outputs} outputs")
    if operator.name in ("SPLIT", "SPLIT_V", "UNPACK", "PACK"):
        kind = BUILTIN_OPTIONS[operator.kind_of_options()[0]]
        field, count = COUNTED[operator.name], outputs
        if operator.name == "PACK":
            count = read
        if kind == "NONE" or getattr(operator.options(kind), field)() != count:
            raise InvalidArgumentError(f"{what} has options for another number")


def _check_operands(graph: Graph, operator: Operator, what: str) -> None:
    """Check types, ranks, scales, and lengths that are constant."""
    read, made = (
        [graph.tensors[index] for index in indexes if index >= 0]
        for indexes in (operator.inputs, operator.outputs)
    )
    for tensor, rank in zip(read, RANKS.get(operator.name, ()), strict=False):
        has = len(tensor.shape)
        if has < abs(rank) or (rank > 0 and has != rank):
            raise InvalidArgumentError(f"{what} reads a tensor of rank {has}")
    like = read if operator.name in ALIKE else read[:1]
    like = [*like, *made[:1]] if operator.name in KEPT else like
    types = {each.type for each in like}
    if len(types) > 1 or (operator.name == "ATAN2" and types != {"FLOAT32"}):
        raise InvalidArgumentError(f"{what} is of {', '.join(sorted(types))}")
    scales = [
        each.scales[0] if len(each.scales) == 1 else 0.0
        for each in (*read, *made)
        if each.type in BYTES and len(each.scales) < 2
    ]
    known = [scale for scale in scales if scale]
    least, most = min(known, default=1.0), max(known, default=1.0)
    is_plain = "INT16" in types and operator.name in COMPARING | {"ADD"} and not known
    is_comparing = bool(scales) and operator.name in COMPARING and not is_plain
    needs_all = operator.name in (ALIKE if known else MEASURED) and not is_plain
    if (
        most > MOST_RATIO * least
        or (len(known) < len(scales) and needs_all)
        or (is_comparing and not 1 / MOST_RATIO < min(scales) <= most < 1)
    ):
        raise InvalidArgumentError(f"{what} has scales {scales[:20]}")
    is_empty = operator.name == "LOG_SOFTMAX" and not read[0].shape[-1]
    # Where it is a constant: LiteRT finds nothing wrong with axes that come later.
    is_empty |= operator.name == "REVERSE_V2" and 0 in read[1].shape
    if is_empty:
        raise InvalidArgumentError(f"{what} reads a tensor without elements")
    for position in WHOLE.get(operator.name, ()):
        data = read[position].data if position < len(read) else None
        if data is not None and data.size and data.min() < 0:
            raise InvalidArgumentError(f"{what} reads a length or a place below 0")
    if operator.name == "RFFT2D":
        lengths = read[1].data if len(read) == 2 else None
        if lengths is None or lengths.max(initial=0) > MOST_POSITIVE:
            raise InvalidArgumentError(f"{what} has lengths that are not known")


def _check_options(operator: Operator, what: str) -> None:
    """Check the table of options, and what its numbers and vectors may do."""
    data, table = operator.data, operator.options_place()
    number, _ = operator.kind_of_options()
    if operator.name in OWN_CUSTOM:
        custom_options(operator)
    if not number:
        return
    kind = BUILTIN_OPTIONS[number]
    offsets = _offsets(data, table, kind, what) if table else ()
    width = OPTION_VECTORS.get(kind, 0)
    if width and offsets and offsets[0]:
        start, count = flatbuffer.vector(data, table + offsets[0])
        if count > _MOST_VECTOR or start + width * count > len(data):
            raise InvalidArgumentError(f"{what} has long options")
    for slot, field in POSITIVE.get(kind, _NOTHING).items():
        value = int(field.startswith("Dilation"))
        if slot < len(offsets) and offsets[slot]:
            (value,) = flatbuffer.int32(data, table + offsets[slot])
        if not 1 <= value <= MOST_POSITIVE:
            raise InvalidArgumentError(f"{what} has {field} {value}")


def custom_options(operator: Operator) -> bytes:
    """Return the options of one of LiteRT's own custom operators, written anew.

    :raises InvalidArgumentError: if one is missing or no usual number.
    """
    given, builder = FlexOptions(operator.custom_options()), flexbuffers.Builder()
    with builder.Map():
        for key, least in OWN_CUSTOM[operator.name].items():
            value = given.real(key)
            if not least <= value <= MOST_POSITIVE:
                raise InvalidArgumentError(f"option {key!r} is {value}")
            builder.Key(key)
            builder.Float(value)
    return bytes(builder.Finish())


def _offsets(data: memoryview, table: int, kind: str, what: str) -> tuple[int, ...]:
    """Return where fields lie in a table of options, 0 for those that are left out.

    :raises InvalidArgumentError: if it is no such table.
    """
    vtable = table - flatbuffer.int32(data, table)[0]
    if vtable < 0 or kind in REFERRING:
        raise InvalidArgumentError(f"{what} has unknown options")
    size, table_size = flatbuffer.sizes(data, vtable)
    offsets = struct.unpack_from(f"<{max(size // 2 - 2, 0)}H", data, vtable + 4)
    if (
        size % 2
        or not 4 <= min(size, table_size) <= max(size, table_size) <= _MOST_TABLE_BYTES
        or table + table_size > len(data)
        or any(offset and not 4 <= offset < table_size for offset in offsets)
    ):
        raise InvalidArgumentError(f"{what} has damaged options")
    return offsets


def callers(graph: Graph, names: Collection[str] = CALLED) -> list[Operator]:
    """Return the operators that run other graphs, or have some names."""
    if graph.survey is not None:
        return []
    return [each for each in graph.operators if each.name in names]


def called(operator: Operator) -> Iterator[int]:
    """Yield the numbers of the graphs that an operator runs."""
    kind, fields = CALLED.get(operator.name, ("", ()))
    options = operator.options(kind) if fields else None
    for field in fields:
        yield getattr(options, field)()


def reached(contents: Contents) -> set[int]:
    """Return the numbers of the first graph and all that it runs."""
    found, unread = {0}, [0]
    while unread:
        operators = callers(contents.graphs[unread.pop()])
        new = {number for each in operators for number in called(each)} - found
        unread += new
        found |= new
    return found


def calls(contents: Contents, *names: str) -> bool:
    """Return whether a graph runs others, by any operator of these names or by any."""
    return any(callers(graph, names or CALLED) for graph in contents.graphs)


def keeps_lengths(contents: Contents) -> bool:
    """Return whether what graphs hand one another has the same recorded lengths."""
    count = len(contents.graphs)
    return all(
        all(0 < number < count for number in called(each))
        and all(a.shape == b.shape for a, b in _passed(contents, graph, each))
        for graph in contents.graphs
        for each in callers(graph)
    )


def _passed(
    contents: Contents, graph: Graph, operator: Operator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of tensors that an operator hands from graph to graph."""
    is_loop = operator.name == "WHILE"
    read, made = operator.inputs[not is_loop :], operator.outputs
    for a, b in zip(read, made, strict=False) if is_loop else ():
        yield graph.tensors[a], graph.tensors[b]
    for position, number in enumerate(called(operator)):
        other = contents.graphs[number]
        pairs = [*zip(read, other.inputs, strict=False)]
        if position or not is_loop:  # else it is the condition of a loop
            pairs += zip(made, other.outputs, strict=False)
        for a, b in pairs:
            yield graph.tensors[a], other.tensors[b]


def _check_calls(contents: Contents) -> None:
    """Check that no graph runs itself, nor too many one inside of the other."""
    callees: dict[int, set[int]] = {}
    for graph in contents.graphs:
        callees[graph.index] = set()
        for operator in callers(graph):
            for number in called(operator):
                if not 0 < number < len(contents.graphs):
                    raise InvalidArgumentError(
                        f"operator {operator.index} ({operator.name}) runs subgraph "
                        f"{number} of {len(contents.graphs)}"
                    )
                _check_call(operator, contents.graphs[number])
                callees[graph.index].add(number)
            if any(a.type != b.type for a, b in _passed(contents, graph, operator)):
                raise InvalidArgumentError(
                    f"operator {operator.index} ({operator.name}) hands on other types"
                )
    for _ in range(MOST_NESTED):
        inner = {each for each, others in callees.items() if not others}
        callees = {each: others - inner for each, others in callees.items() if others}
    if callees:
        raise InvalidArgumentError("its subgraphs run one another without end")


def _check_call(operator: Operator, other: Graph) -> None:
    read, written = len(operator.inputs), len(operator.outputs)
    read -= operator.name == "IF"
    is_condition = operator.name == "WHILE" and len(other.outputs) == 1
    if read != len(other.inputs) or not (is_condition or written == len(other.outputs)):
        raise InvalidArgumentError(
            f"operator {operator.index} ({operator.name}) does not fit {other.label}"
        )


def may_surprise(contents: Contents) -> bool:
    """Return whether only a run may show the shape of an output."""
    graph = contents.graphs[0]
    if graph.survey is not None:
        return bool(graph.survey.may_surprise)
    return any(_may_surprise(graph.tensors, each) for each in graph.operators)


def _may_surprise(tensors: Sequence[Tensor], operator: Operator) -> bool:
    if operator.name in PLAIN or operator.name in OWN_CUSTOM:
        return False
    shaping = SHAPED_BY.get(operator.name)
    if shaping is None:
        return True
    given = [operator.inputs[at] for at in shaping if at < len(operator.inputs)]
    return any(index < 0 or tensors[index].stored is None for index in given)
