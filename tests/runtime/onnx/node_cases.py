"""The node tests of the `onnx` package, judged: which pass, which are refused and why.

A test falls inside of the HAL if its types, its number of elements and its operator do.
What ONNX says by inputs of any node, the HAL takes as constants for shapes, axes and
weights. A test is tried with no input fixed, then with all but the first one, as they
are in models, then with all of them.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx.numpy_helper

from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import AsyncnnError
from asyncnn.memory.pools import from_buffer
from asyncnn.pacing import completed
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.onnx import importing_onnx
from asyncnn.runtime.onnx.schema import OLDEST_OPSET
from asyncnn.runtime.onnx.tensors import TYPE_NAMES
from tests.runtime.onnx.kept_cases import load_node_tests

HAL_TYPES = frozenset({"FLOAT", "FLOAT16", "INT32", "INT64", "BOOL", "UINT8", "INT8"})
"""Element types that HAL tensors can have; int64 as int32."""

_BITS = "the HAL has no operation on bits"
_RANDOM = "its result is random"
_FILES = "it decodes files"
_TEXT = "it works on text"

OUTSIDE = {
    **dict.fromkeys(("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor"), _BITS),
    "BitCast": _BITS,
    **dict.fromkeys(("Bernoulli", "RandomUniformLike"), _RANDOM),
    "ImageDecoder": _FILES,
    "TfIdfVectorizer": _TEXT,
}
"""Operators that no operations of the HAL can express, and why."""

TRAINING = frozenset({"Dropout", "BatchNormalization"})

HALF_TOLERANCE = 2**-9
"""Two units in the last place of float16, as the package allows them for bfloat16."""


@dataclass(frozen=True)
class Judged:
    """What became of a test; ``state`` is passed, refused, outside or wrong."""

    name: str
    operator: str
    state: str
    reason: str = ""
    fixed: int = 0


@cache
def node_tests() -> Mapping[str, Any]:
    """Return the tests by name."""
    return {test.name: test for test in load_node_tests()}


def operator_of(test: Any) -> str:
    """Return the operator that a test is about: that of its first node.

    The definition of an operator by others is tested as well: it is about that one.
    """
    base, is_expanded, _ = test.name.partition("_expanded")
    origin = node_tests().get(base, test) if is_expanded else test
    return str(origin.model.graph.node[0].op_type)


def outside(test: Any) -> str:
    """Return why a test does not fall inside of the HAL, nothing if it does."""
    model = test.model
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    for domain in opsets:
        if domain not in ("", "ai.onnx"):
            return f"it is of the domain {domain}"
    if opsets.get("", 0) < OLDEST_OPSET:
        return f"it is of operator set {opsets.get('')}"
    for info in (*model.graph.input, *model.graph.output):
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            name = (kind or "nothing").removesuffix("_type")
            return f"it has {'an' if name[0] in 'aeiou' else 'a'} {name}"
        name = TYPE_NAMES[info.type.tensor_type.elem_type]
        if name not in HAL_TYPES:
            return f"it has elements of type {name}"
    if any(array.size == 0 for array in _arrays(test)):
        return "it has tensors without elements"
    operators = {node.op_type for node in model.graph.node}
    if test.name.startswith("test_training_") or "training_mode" in test.name:
        return "it is about training"
    name = operator_of(test)
    for operator in (name, *sorted(operators)):
        if operator in OUTSIDE:
            return OUTSIDE[operator]
    inner = {node.op_type for graph in _graphs(model.graph) for node in graph.node}
    if any("Sequence" in name or "Optional" in name for name in operators | inner):
        return "it has a sequence"
    return ""


def _graphs(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
                yield from _graphs(attribute.g)


def array_of(value: Any) -> Any:
    """Return a value of a test as an array."""
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value)


def _arrays(test: Any) -> Iterator[Any]:
    for inputs, outputs in test.data_sets:
        yield from map(array_of, (*inputs, *outputs))


def imported(test: Any) -> tuple[NamedModel, int]:
    """Import the model of a test, with as few inputs fixed as it can be.

    :raises AsyncnnError: if it is refused.
    """
    content = test.model.SerializeToString()
    memory = from_buffer(np.frombuffer(content, np.uint8))
    names = [info.name for info in test.model.graph.input]
    values = dict(zip(names, map(array_of, test.data_sets[0][0]), strict=False))
    refusal: AsyncnnError | None = None
    for level, fixed in enumerate(([], names[1:], names)):
        constants = {name: values[name] for name in fixed if name in values}
        try:
            return completed(importing_onnx(memory, constants=constants)), level
        except AsyncnnError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


async def judge(test: Any, device: Device) -> Judged:
    """Import and run a test."""
    operator, reason = operator_of(test), outside(test)
    if reason:
        return Judged(test.name, operator, "outside", reason)
    try:
        named, level = imported(test)
    except AsyncnnError as error:
        return Judged(test.name, operator, "refused", _reason(error))
    prepared = await device.prepare(named)
    for inputs, outputs in test.data_sets:
        values = zip(test.model.graph.input, map(array_of, inputs), strict=False)
        given = {info.name: value for info, value in values}
        feed = {
            info.name: given[info.name]
            .astype(info.dtype)
            .reshape([length or -1 for length in info.dimensions])
            for info in named.inputs
        }
        found = await prepared.run(feed)
        for result, wanted in zip(found.values(), outputs, strict=False):
            if not agree(result, array_of(wanted), test.rtol, test.atol):
                return Judged(test.name, operator, "wrong", "", level)
    return Judged(test.name, operator, "passed", "", level)


def agree(found: Any, wanted: Any, rtol: float, atol: float) -> bool:
    """Return whether a result is what a test wants, as the package compares."""
    if found.size != wanted.size:
        return False
    if wanted.dtype == np.float16:
        rtol = max(rtol, HALF_TOLERANCE)
    # The HAL has rank 1 for 0, and int32 for int64.
    mine, theirs = (
        value.astype(np.float64 if value.dtype.kind == "f" else np.int64)
        for value in (found.reshape(wanted.shape), wanted)
    )
    return bool(np.allclose(mine, theirs, rtol=rtol, atol=atol, equal_nan=True))


def _reason(error: AsyncnnError) -> str:
    """Return why a model is refused, without the place."""
    operators = getattr(error, "operators", ())
    reason: str = operators[0].reason if operators else error.message
    return reason.replace("|", "/")[:100]


def judge_all(names: Iterable[str]) -> Sequence[Judged]:
    """Judge tests of the package by name."""

    async def run() -> list[Judged]:
        async with ReferenceDevice() as hal:
            device = Device("reference", hal)
            return [await judge(node_tests()[name], device) for name in names]

    return asyncio.run(run())
