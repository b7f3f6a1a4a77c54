"""LiteRT runs IF and WHILE of files itself: as fast, as right, and stopped as soon."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings
from asyncnn.extensions.regions import region_of
from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
)
from asyncnn.hal.types import Priority
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.device import Device
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from tests.runtime.tflite.cases import F32, boolean, const, f32, i32
from tests.runtime.tflite.files import G, Op, Signature, T, write
from tests.runtime.tflite.flow_files import add, if_, less_than, unary, while_
from tests.runtime.tflite.importing import region_of_tflite
from tests.waits import until

interpreter = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="LiteRT is not installed"
)

LAST, ENDLESS = np.array([2**31 - 3], np.int32), np.array([0], np.int32)
"""Where a loop of `turns` begins that ends after one, or never as far as one sees."""


@pytest.fixture(params=["accelerated", "auto", "isolated"])
async def device(request: pytest.FixtureRequest) -> AsyncIterator[Device]:
    is_isolated = request.param == "isolated"
    name = "accelerated" if is_isolated else request.param
    settings = DeviceSettings(lanes=1)
    async with open_device(name, isolated=is_isolated, settings=settings) as device:
        yield device


def turns(limit: int, layers: int = 1, width: int = 3) -> bytes:
    """Return a loop that counts to a limit, of layers that change nothing."""
    i, x, n, y = i32(1), f32(width, width), i32(1), f32(width, width)
    a, b, j = i32(1), f32(width, width), i32(1)
    same, value = T.constant(np.eye(width), F32), b
    operators = [add(a, const([1]), j)]
    for _ in range(layers):
        after = f32(width, width)
        options = "FullyConnectedOptions"
        operators.append(Op("FULLY_CONNECTED", [value, same, None], [after], options))
        value = after
    body = G(operators, [a, b], [j, value])
    test = less_than(limit, f32(width, width))
    return write([while_([i, x], [n, y])], [i, x], [n, y], test, body)


def branches(*names: str) -> bytes:
    condition, x, y = boolean(1), f32(2, 3), f32(2, 3)
    return write([if_([condition, x], [y])], [condition, x], [y], *map(unary, names))


def joined(*recorded: int) -> bytes:
    """Return a loop that leaves lengths of its body open to LiteRT until it runs."""
    i, x, n, y, end = i32(1), f32(4, 3), i32(1), f32(4, 3), f32(*recorded)
    a, b, j, z = i32(1), f32(4, 3), i32(1), f32(4, 3)
    mask, places, values = boolean(4, 3), T(np.int64, (12, 2)), f32(12)
    body = G(
        [
            add(a, const([1]), j),
            Op("GREATER", [b, const([-1], F32)], [mask]),
            Op("WHERE", [mask], [places]),
            Op("GATHER_ND", [b, places], [values]),
            Op("RESHAPE", [values, const([4, 3])], [z]),
        ],
        [a, b],
        [j, z],
    )
    operators = [while_([i, x], [n, y]), Op("ABS", [y], [end])]
    return write(operators, [i, x], [n, end], less_than(3, f32(4, 3)), body)


def nested() -> bytes:
    x, y, a, b, j, z = f32(3), f32(3), i32(1), f32(3), i32(1), f32(3)
    inner = while_([const([0]), b], [i32(1), z], 3, 4)
    outer = G([inner, add(a, const([1]), j)], [a, b], [j, z])
    c, d, k, e = i32(1), f32(3), i32(1), f32(3)
    both = [add(c, const([1]), k), add(d, const([1], F32), e)]
    return write(
        [while_([const([0]), x], [i32(1), y])],
        [x],
        [y],
        *(less_than(3, f32(3)), outer, less_than(2, f32(3)), G(both, [c, d], [k, e])),
    )


def begun(width: int = 3) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [np.array([1], np.int32), rng.random((width, width), np.float32)]


FLOWS: dict[str, tuple[bytes, list[np.ndarray]]] = {
    "loop": (turns(5), begun()),
    "long body": (turns(3, layers=40, width=96), begun(96)),
    "lengths that a run tells": (
        joined(4, 3),
        [np.array([1], np.int32), np.arange(12, dtype=F32).reshape(4, 3)],
    ),
    "loops in loops": (nested(), [np.array([1, 2, 3], F32)]),
    "taken": (branches("ABS", "NEG"), [np.array([True]), begun(3)[1][:2]]),
    "left": (branches("ABS", "NEG"), [np.array([False]), begun(3)[1][:2]]),
}


def by_litert(file: bytes, inputs: list[np.ndarray]) -> list[np.ndarray]:
    running: Any = interpreter.Interpreter(model_content=file, num_threads=1)
    running.allocate_tensors()
    for detail, value in zip(running.get_input_details(), inputs, strict=True):
        running.set_tensor(detail["index"], value)
    running.invoke()
    return [running.get_tensor(each["index"]) for each in running.get_output_details()]


@pytest.mark.parametrize("name", FLOWS)
async def test_each_path_gives_what_litert_does(device: Device, name: str) -> None:
    file, inputs = FLOWS[name]
    model = load(file)
    assert region_of(model.model) is not None
    prepared = await device.prepare(model)
    expected = by_litert(file, inputs)
    for path in ("async", "sync", "burst", "fenced"):
        async with prepared.runner(path) as run:
            outputs = (await run(inputs)).values()
        for found, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", [k for k in FLOWS if k != "lengths that a run tells"])
async def test_other_devices_run_the_translation(name: str) -> None:
    file, inputs = FLOWS[name]
    async with open_device("reference") as device:
        outputs = await (await device.prepare(load(file))).run(inputs)
    for found, wanted in zip(outputs.values(), by_litert(file, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("first", [0, 1])
async def test_values_may_change_places(device: Device, first: int) -> None:
    i, x, y, outputs = i32(1), f32(3), f32(3), [i32(1), f32(3), f32(3)]
    a, b, c, j = i32(1), f32(3), f32(3), i32(1)
    body = G([add(a, const([1]), j)], [a, b, c], [j, c, b])
    test = less_than(3, f32(3), f32(3))
    file = write([while_([i, x, y], outputs)], [i, x, y], outputs, test, body)
    prepared = await device.prepare(load(file))
    # LiteRT's own interpreter copies one over the other, which is copied then.
    given = [np.array([first], np.int32), np.array([1, 2, 3], F32), np.zeros(3, F32)]
    _, one, other = (await prepared.run(given)).values()
    wanted = given[1:] if first else given[:0:-1]
    np.testing.assert_array_equal([one, other], wanted)


@pytest.mark.parametrize("recorded", [(5, 3), (3, 4), (2, 3), (12,)])
async def test_lengths_other_than_recorded_are_an_error(
    device: Device, recorded: tuple[int, ...]
) -> None:
    prepared = await device.prepare(region_of_tflite(from_buffer(joined(*recorded))))
    with pytest.raises(GeneralFailureError):
        await prepared.run([np.array([1], np.int32), np.ones((4, 3), F32)])


def test_graphs_that_are_handed_other_types_are_no_region() -> None:
    condition, x, y, a, b = boolean(1), f32(2, 3), f32(2, 3), i32(2, 3), i32(2, 3)
    other = G([Op("NEG", [a], [b])], [a], [b])
    operators = [if_([condition, x], [y])]
    file = write(operators, [condition, x], [y], unary("NEG"), other)
    with pytest.raises(InvalidArgumentError, match="other types"):
        region_of_tflite(from_buffer(file))


@pytest.mark.parametrize("signature", [None, "other"])
async def test_graphs_that_nothing_runs_are_left_out(
    device: Device, signature: str | None
) -> None:
    x, y, a, b = f32(2, 3), f32(2, 3), f32(2, 3), f32(2, 3)
    file = write(
        [Op("ABS", [x], [y])],
        [x],
        [y],
        G([Op("NEG", [a], [b])], [a], [b]),
        signatures=[
            Signature("main", {"in": x}, {"out": y}),
            Signature("other", {"in": a}, {"out": b}, 1),
        ],
    )
    prepared = await device.prepare(load(file, signature=signature))
    value = np.linspace(-1, 1, 6, dtype=F32).reshape(2, 3)
    (found,) = (await prepared.run([value])).values()
    np.testing.assert_array_equal(found, -value if signature else abs(value))


class TestInterrupts:
    """A loop without end takes no more than the run that begins it."""

    @pytest.mark.parametrize("layers", [1, 200])
    async def test_cancelling_frees_the_lane(self, device: Device, layers: int) -> None:
        model = load(turns(2**31 - 2, layers, 64))
        assert region_of(model.model) is not None
        endless = await device.prepare(model)
        quick = await device.prepare(load(branches("ABS", "NEG")))
        x = np.ones((64, 64), F32)
        for _ in range(40):  # so short that it might run on the loop from now on
            await endless.run([LAST, x])
        task = asyncio.create_task(endless.run([ENDLESS, x]))
        await asyncio.sleep(0.1)
        began = time.perf_counter()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await quick.run([np.array([True]), np.ones((2, 3), F32)], timeout=5)
        assert time.perf_counter() - began < 2
        (_, found) = (await endless.run([LAST, x])).values()
        np.testing.assert_array_equal(found, x)

    async def test_a_deadline_ends_it(self, device: Device) -> None:
        endless = await device.prepare(load(turns(2**31 - 2)))
        for _ in range(3):
            with pytest.raises(MissedDeadlineTransientError):
                await endless.run([ENDLESS, np.ones((3, 3), F32)], timeout=0.05)
        await endless.run([LAST, np.ones((3, 3), F32)], timeout=5)

    async def test_others_run_beside_it(self) -> None:
        settings = DeviceSettings(lanes=1)
        async with open_device("accelerated", settings=settings) as device:
            low = await device.prepare(load(turns(2**31 - 2)), priority=Priority.LOW)
            high = await device.prepare(
                load(branches("ABS", "NEG")), priority=Priority.HIGH
            )
            x = np.ones((3, 3), F32)
            task = asyncio.create_task(low.run([ENDLESS, x]))
            await asyncio.sleep(0.05)
            await high.run([np.array([True]), np.ones((2, 3), F32)], timeout=5)
            task.cancel()
            await until(task.done)
