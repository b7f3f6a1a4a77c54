"""Originals that are mutated, written by the project: models, messages, packets."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from msgspec import inspect
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.burst.packets import RequestShape, ResultShape
from asyncnn.memory.pools import view
from asyncnn.runtime.container import save
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import bundled_file, load
from asyncnn.service import wire
from asyncnn.tools.onnx_writer import onnx_file
from asyncnn.tools.tflite_writer import TfliteWriter

_GRAPHS = 12
_IMAGE = (1 / 255, -128)
_ONE = hal.RequestArgument(False, hal.DataLocation(0, 0, 16), ())


def tflite_files() -> Iterator[bytes]:
    """Yield small networks as LiteRT's converter writes them, float and quantised.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    from asyncnn.tools.reference_models import speech_recognition

    for quantized, unsigned in ((False, False), (True, False), (True, True)):
        yield _convolutions(quantized=quantized, unsigned=unsigned)
    yield speech_recognition(cells=2)


def _convolutions(*, quantized: bool, unsigned: bool) -> bytes:
    """Return a network with a file of 3 to 6 kB: eight operators of seven kinds."""
    writer = TfliteWriter(quantized=quantized, seed=0, unsigned=unsigned)
    schema = writer.schema
    x = writer.tensor("image", (1, 6, 6, 2), _IMAGE)
    made = [
        writer.tensor(name, shape, (1 / 16, 0))
        for name, shape in (
            ("conv", (1, 3, 3, 4)),
            ("depthwise", (1, 3, 3, 4)),
            ("sum", (1, 3, 3, 4)),
            ("pooled", (1, 1, 1, 4)),
            ("flat", (1, 4)),
            ("logits", (1, 3)),
        )
    ]
    conv, depthwise, total, pooled, flat, logits = made
    weights = writer.weights("w", (4, 3, 3, 2), 0, 0.2), writer.bias("b", 4, 1 / 255)
    options = schema.Conv2DOptionsT(strideW=2, strideH=2)
    writer.operator("CONV_2D", [x, *weights], conv, options)
    weights = writer.weights("d", (1, 3, 3, 4), 3, 0.2), writer.bias("e", 4, 1 / 16)
    options = schema.DepthwiseConv2DOptionsT(strideW=1, strideH=1, depthMultiplier=1)
    writer.operator("DEPTHWISE_CONV_2D", [conv, *weights], depthwise, options)
    writer.operator("ADD", [conv, depthwise], total, schema.AddOptionsT())
    options = schema.Pool2DOptionsT(
        padding=1, strideW=3, strideH=3, filterWidth=3, filterHeight=3
    )
    writer.operator("AVERAGE_POOL_2D", [total], pooled, options)
    options = schema.ReshapeOptionsT(newShape=[1, 4])
    writer.operator("RESHAPE", [pooled], flat, options)
    weights = writer.weights("f", (3, 4), 0, 0.2), writer.bias("g", 3, 1 / 16)
    options = schema.FullyConnectedOptionsT()
    writer.operator("FULLY_CONNECTED", [flat, *weights], logits, options)
    result = writer.tensor("classes", (1, 3), (1 / 256, -128))
    writer.operator("SOFTMAX", [logits], result, schema.SoftmaxOptionsT(beta=1.0))
    return writer.finish([x], [result])


def onnx_files() -> Iterator[bytes]:
    """Yield networks in ONNX, float and quantised.

    :raises PeerMissingError: if the package onnx is not installed.
    """
    for quantized in (False, True):
        data = _convolutions(quantized=quantized, unsigned=False)
        yield onnx_file(load(data, strict=True))


def containers() -> Iterator[bytes]:
    """Yield containers of the models that come with asyncnn, and of random graphs."""
    for name in ("float", "int8"):
        yield bundled_file(f"digits_{name}.asyncnn").read_bytes()
    with TemporaryDirectory() as folder:
        path = Path(folder, "model")
        for named in random_models():
            save(named, path)
            yield path.read_bytes()


@cache
def random_models() -> Sequence[NamedModel]:
    """Return a few random graphs, the same each time; none without hypothesis."""
    try:
        from hypothesis import HealthCheck, Phase, given, seed, settings
    except ModuleNotFoundError:
        return ()
    from asyncnn.tools.conformance.random_graphs.families import RandomGraph, graphs

    drawn: list[NamedModel] = []

    def keep(graph: RandomGraph) -> None:
        drawn.append(graph.named)

    draw = given(graph=graphs())(keep)
    only = settings(
        database=None,
        deadline=None,
        max_examples=_GRAPHS,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    seed(0)(only(draw))()
    return drawn


def models() -> Iterator[hal.Model]:
    """Yield HAL models, without pools: constants are among their values."""
    digits = (bundled_file(f"digits_{name}.asyncnn") for name in ("float", "int8"))
    for named in (*map(load, digits), *random_models()):
        yield _without_pools(named.model)


def _without_pools(model: hal.Model) -> hal.Model:
    values, starts = bytearray(model.operand_values), []
    for pool in model.pools:
        values += bytes(-len(values) % 16)
        starts.append(len(values))
        values += view(pool)

    def moved(operand: hal.Operand) -> hal.Operand:
        if operand.lifetime != hal.OperandLifeTime.CONSTANT_REFERENCE:
            return operand
        at = operand.location
        at = hal.DataLocation(0, starts[at.pool_index] + at.offset, at.length)
        return replace(operand, lifetime=hal.OperandLifeTime.CONSTANT_COPY, location=at)

    def alone(graph: hal.Subgraph) -> hal.Subgraph:
        return replace(graph, operands=tuple(map(moved, graph.operands)))

    return replace(
        model,
        main=alone(model.main),
        referenced=tuple(map(alone, model.referenced)),
        operand_values=bytes(values),
        pools=(),
    )


def messages_to_driver() -> Iterator[bytes]:
    """Yield a message of each kind that clients send, and one for each of `models`."""
    for kind in get_args(wire.WithoutModel):
        for number in (1, 2):
            yield wire.encode(_example(inspect.type_info(kind), number))
    for model in models():
        yield wire.encode(wire.PrepareModel(1, model, (), 1, 1, None))


def messages_to_client() -> Iterator[bytes]:
    """Yield a message of each kind that drivers send."""
    for kind in get_args(wire.ToClient):
        for number in (1, 2):
            yield wire.encode(_example(inspect.type_info(kind), number))


def _example(kind: inspect.Type, number: int) -> Any:
    """Return a value of a type: ``number`` of what there may be many of."""
    match kind:
        case inspect.StructType():
            fields = {each.name: _example(each.type, number) for each in kind.fields}
            return kind.cls(**fields)
        case inspect.UnionType():
            return _example(kind.types[number % len(kind.types)], number)
        case inspect.EnumType():
            return [*kind.cls][number % len(kind.cls)]
        case inspect.VarTupleType():
            return tuple(_example(kind.item_type, each) for each in range(number))
        case inspect.TupleType():
            return tuple(_example(each, number) for each in kind.item_types)
        case inspect.DictType():
            return {_example(kind.key_type, number): _example(kind.value_type, number)}
        case _:
            return _PLAIN[type(kind)](number)


_PLAIN: dict[type[inspect.Type], Callable[[int], Any]] = {
    inspect.IntType: int,
    inspect.BoolType: bool,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.BytesType: bytes,
    inspect.NoneType: lambda _: None,
    inspect.AnyType: int,
    inspect.MemoryViewType: lambda _: None,
}


def requests() -> Iterator[bytes]:
    """Yield requests as messages, with pools by their place."""
    other = hal.RequestArgument(False, hal.DataLocation(1, 16, 16), (4,))
    for inputs in ((_ONE, _ONE), (_ONE, other), (hal.RequestArgument(True), _ONE)):
        yield wire.encode(wire.BindRequest(0, 0, inputs, (other,), (0, 1)))


def packets() -> Iterator[bytes]:
    """Yield requests and results of bursts."""
    other = hal.RequestArgument(False, hal.DataLocation(1, 16, 16), (1, 4))
    for inputs in ((_ONE,), (_ONE, other), (hal.RequestArgument(True), _ONE)):
        shape = RequestShape.of(inputs, (other,), 2)
        yield shape.encode((3, 7), hal.MeasureTiming.YES)
    for status in (hal.ErrorStatus.NONE, hal.ErrorStatus.OUTPUT_INSUFFICIENT_SIZE):
        shapes = (hal.OutputShape((1, 2), True), hal.OutputShape((), False))
        yield ResultShape.of(status, shapes).encode(hal.Timing(1, 2))
