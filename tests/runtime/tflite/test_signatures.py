"""Signatures choose the graph of a file, and rename its inputs and outputs."""

from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.model import NamedModel
from tests.runtime.tflite.cases import F32
from tests.runtime.tflite.files import G, Op, Signature, T, write
from tests.runtime.tflite.flow_files import (
    add,
    assign,
    constant,
    handle,
    initial,
    named,
    names_of,
    once,
    read,
)
from tests.runtime.tflite.importing import import_tflite


def tensor(name: str) -> T:
    return T(F32, (3,), name=name)


def two_signatures() -> bytes:
    """Return a file that adds by one signature and negates by the other."""
    x, y, total, same = tensor("x:0"), tensor("y:0"), tensor("sum:0"), tensor("neg:0")
    negated, a = tensor("out:0"), tensor("in:0")
    serve = Signature(
        "serve", {"left": y, "right": x}, {"sum": total, "total": total, "minus": same}
    )
    return write(
        [Op("ADD", [x, y], [total], "AddOptions"), Op("NEG", [x], [same])],
        [x, y],
        [same, total],
        G([Op("NEG", [a], [negated])], [a], [negated]),
        signatures=[serve, Signature("negate", {"x": a}, {"y": negated}, 1)],
    )


def imported(data: bytes, signature: str | None = None) -> NamedModel:
    return import_tflite(from_buffer(data), signature=signature)


def test_the_first_graph_is_the_model_unless_a_signature_is_named(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(two_signatures())
    assert [info.name for info in asyncnn.load(path).inputs] == ["x:0", "y:0"]
    for strict in False, True:
        negate = asyncnn.load(path, signature="negate", strict=strict)
        assert [info.name for info in negate.inputs] == ["in:0"]
        assert [s.name for s in negate.signatures] == ["negate"]
    assert names_of(two_signatures()) == ["ADD", "NEG"]


def test_a_signature_maps_its_names_to_those_of_the_model() -> None:
    (signature,) = imported(two_signatures()).signatures
    assert dict(signature.inputs) == {"left": "y:0", "right": "x:0"}
    assert dict(signature.outputs) == {
        "sum": "sum:0",
        "total": "sum:0",
        "minus": "neg:0",
    }


def test_an_unknown_signature_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidArgumentError, match="no signature 'other'") as caught:
        imported(two_signatures(), "other")
    assert caught.value.hint == "it has: 'serve', 'negate'"


def test_a_signature_of_what_is_no_input_is_refused() -> None:
    x, y, hidden = tensor("x"), tensor("y"), tensor("hidden")
    operators = [Op("NEG", [x], [hidden]), Op("EXP", [hidden], [y])]
    wrong = Signature("wrong", {"x": hidden}, {})
    with pytest.raises(InvalidArgumentError, match="no input or output"):
        imported(write(operators, [x], [y], signatures=[wrong]))


def test_a_container_has_no_signatures(tmp_path: Path) -> None:
    path = tmp_path / "model.asyncnn"
    asyncnn.save(imported(two_signatures()), path)
    with pytest.raises(InvalidArgumentError, match="a signature cannot be given"):
        asyncnn.load(path, signature="serve")


LEFT, RIGHT = np.array([1, 2, 3], F32), np.array([10, 20, 30], F32)


async def test_a_prepared_model_runs_by_the_names_of_a_signature() -> None:
    async with asyncnn.open_device("reference") as device:
        prepared = await device.prepare(imported(two_signatures()))
        serve = prepared.signature("serve")
        outputs = await serve.run({"left": LEFT, "right": RIGHT}, measure=True)
        assert list(outputs) == ["sum", "total", "minus"]
        np.testing.assert_array_equal(outputs["total"], LEFT + RIGHT)
        np.testing.assert_array_equal(outputs["minus"], -RIGHT)
        assert outputs.timing.on_device_ns is not None
        in_order = await serve.run([LEFT, RIGHT])
        np.testing.assert_array_equal(in_order["minus"], -RIGHT)
        total = np.empty(3, F32)
        given = {"sum": total}
        await serve.run({"left": LEFT, "right": RIGHT}, out={**given, "minus": None})
        np.testing.assert_array_equal(total, LEFT + RIGHT)


async def test_names_that_a_signature_lacks_are_refused() -> None:
    async with asyncnn.open_device("reference") as device:
        prepared = await device.prepare(imported(two_signatures()))
        with pytest.raises(InvalidArgumentError, match="no signature 'negate'"):
            prepared.signature("negate")
        serve = prepared.signature("serve")
        with pytest.raises(InvalidArgumentError, match="no input 'x:0'"):
            await serve.run({"x:0": LEFT, "y:0": RIGHT})
        with pytest.raises(InvalidArgumentError, match="1 inputs for a signature"):
            await serve.run([LEFT])


async def test_a_session_steps_by_the_names_of_a_signature() -> None:
    resource, x, old, y = handle(), tensor("x:0"), tensor("old:0"), tensor("y:0")
    step = [read(resource, old), add(x, old, y), assign(resource, y)]
    data = write(
        [once(), named(resource), *step],
        [x],
        [y],
        initial(constant(10, 20, 30)),
        signatures=[Signature("step", {"by": x}, {"total": y})],
    )
    async with asyncnn.open_device("reference") as device:
        prepared = await device.prepare(imported(data))
        async with prepared.signature("step").session() as session:
            await session.run({"by": LEFT})
            outputs = await session.run(LEFT)
            np.testing.assert_array_equal(outputs["total"], [12, 24, 36])
            with pytest.raises(InvalidArgumentError, match="no sessions"):
                async with session.session():
                    pass
