"""Files are regions where nothing is lost by it, and used as translations are."""

import asyncio
import gc
import os
import signal
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn import NamedModel
from asyncnn.devices import DeviceSettings
from asyncnn.devices.accelerated import AcceleratedDevice
from asyncnn.engine import Program
from asyncnn.engine.array_memory import address_of
from asyncnn.extensions.regions import LITERT, region_of
from asyncnn.hal.types import Memory, Priority
from asyncnn.memory.pools import from_buffer, view
from asyncnn.runtime.container import save
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.runtime.inspection import inspected
from asyncnn.runtime.model_file import load
from asyncnn.runtime.translation import form_for
from asyncnn.service import Server
from asyncnn.service.driver import server
from asyncnn.service.process import Peer
from asyncnn.tflite.contents import checked
from tests.mappings import children
from tests.places import driver_of, opened
from tests.runtime.tflite.cases import boolean, const, f32, i8, i32, ramp
from tests.runtime.tflite.files import G, Op, Signature, T, write
from tests.runtime.tflite.flow_files import if_, unary
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.layer_cases import CASES
from tests.runtime.tflite.region_cases import open_batch
from tests.waits import until

OTHER_UID = 4711
X = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
DEVICES = ["reference", "accelerated", "framework:accelerated,reference", "driver"]


def square(*shape: int) -> bytes:
    x, y = f32(*shape), f32(*shape)
    return write([Op("SQUARE", [x], [y])], [x], [y])


def is_region(named: NamedModel) -> bool:
    return region_of(named.model) is not None


def programs() -> int:
    gc.collect()
    return sum(isinstance(each, Program) for each in gc.get_objects())


driver = driver_of("accelerated")


@pytest.fixture(params=DEVICES)
async def device(request: pytest.FixtureRequest) -> AsyncIterator[Device]:
    if request.param != "reference":
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    async with opened(request.param, request) as device:
        yield device


def of_variables() -> bytes:
    state = T(np.float32, (1, 2), variable=True)
    x, y = f32(1, 3), f32(1, 2)
    weights = [ramp((2, 3)), ramp((2, 2)), ramp((2,))]
    operator = Op(
        "RNN", [x, *weights, state], [y], "RNNOptions", {"FusedActivationFunction": 4}
    )
    return write([operator], [x], [y])


def of_branches() -> bytes:
    condition, x, y = boolean(1), f32(2, 3), f32(2, 3)
    main, twice, a = [if_([condition, x], [y])], f32(4, 3), f32(2, 3)
    longer = G([Op("TILE", [a, const([2, 1])], [twice])], [a], [twice])
    return write(main, [condition, x], [y], longer, unary("NEG"))


def of_integers() -> bytes:
    x, y = T(np.int64, (2, 3)), T(np.int64, (2, 3))
    return write([Op("ABS", [x], [y], "AbsOptions")], [x], [y])


def of_lengths_that_a_run_tells() -> bytes:
    x, like, shape, y = f32(2, 3), f32(3, 2), i32(2), f32(3, 2)
    operators = [
        Op("SHAPE", [like], [shape], "ShapeOptions", {"OutType": 2}),
        Op("RESHAPE", [x, shape], [y], "ReshapeOptions"),
    ]
    return write(operators, [x, like], [y])


def of_integer_weights() -> bytes:
    weights = ramp((2, 3), np.int8, scale=(0.1,), zero_point=(0,))
    x, y = f32(1, 3), f32(1, 2)
    operator = Op("FULLY_CONNECTED", [x, weights], [y], "FullyConnectedOptions")
    return write([operator], [x], [y])


def of_long_runs() -> bytes:
    """Some 10 ms, which a pause would lose: only files of usual forms are divided."""
    x, y = f32(512, 1024), f32(512, 1024)
    weights = const(np.zeros((1024, 1024)), np.float32)
    operator = Op("FULLY_CONNECTED", [x, weights], [y], "FullyConnectedOptions")
    return write([operator], [x], [y, y])


TRANSLATED = {
    "long runs": of_long_runs,
    "integer weights for floats": of_integer_weights,
    "variables": of_variables,
    "branches of other lengths": of_branches,
    "int64 at the ends": of_integers,
    "five axes at the ends": lambda: square(2, 1, 3, 1, 2),
    "lengths that a run tells": of_lengths_that_a_run_tells,
}


def told(infos: Any) -> list[Any]:
    """Return what forms have in common: int64 is the HAL's int32."""
    return [
        (
            *(i.name, i.dimensions, i.scale, i.zero_point),
            np.dtype("i4" if i.dtype == "i8" else i.dtype),
        )
        for i in infos
    ]


@pytest.mark.parametrize("signature", [None, "other"])
async def test_what_the_hal_has_not_is_litert_s_in_graphs_of_signatures_too(
    signature: str | None,
) -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    x, y = T(np.int64, (2,), name="x"), T(np.int64, (2,), name="y")
    a, b = i32(2), i32(2)
    file = write(
        [Op("MUL", [x, x], [y], "MulOptions")],
        [x],
        [y],
        G([Op("BITWISE_XOR", [a, a], [b])], [a], [b]),
        signatures=[
            Signature("main", {"in": x}, {"out": y}),
            Signature("other", {"in": a}, {"out": b}, 1),
        ],
    )
    named = load(file, signature=signature)
    assert is_region(named)
    (found,) = named.signatures
    async with asyncnn.open_device("accelerated") as device:
        prepared = await device.prepare(named)
        outputs = await prepared.signature(found.name).run({"in": [1 << 20, -3]})
    wanted = [0, 0] if signature else [1 << 40, 9]
    assert outputs["out"].tolist() == wanted


class TestForms:
    def test_a_file_is_a_region_or_translated_if_that_is_asked_for(self) -> None:
        assert is_region(load(square(2, 3)))
        strict = load(square(2, 3), strict=True)
        assert [each.type for each in strict.model.main.operations] == [
            asyncnn.OperationType.MUL
        ]

    @pytest.mark.parametrize("name", TRANSLATED)
    def test_what_a_region_would_lose_is_translated(self, name: str) -> None:
        assert not is_region(load(TRANSLATED[name]()))

    def test_other_lengths_are_translated(self) -> None:
        named = load(open_batch(), input_shapes=[(4, 3)])
        assert named.inputs[0].dimensions == (4, 3)

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_both_forms_have_the_same_ends(self, case: Any) -> None:
        file = case.file()
        named, translated = load(file), import_tflite(from_buffer(file))
        assert told(named.inputs) == told(translated.inputs)
        assert told(named.outputs) == told(translated.outputs)
        assert named.open_shapes == translated.open_shapes

    def test_names_signatures_and_scales_are_those_of_the_file(self) -> None:
        x, y = i8(2, 3), i8(2, 3, scale=0.1, zero=-4)
        file = write(
            [Op("RELU", [x], [y])],
            [x],
            [y],
            signatures=[Signature("serve", {"in": x}, {"out": y})],
        )
        named, strict = load(file), load(file, strict=True)
        assert is_region(named)
        assert named.signatures == strict.signatures
        assert named.signatures[0].name == "serve"
        assert named.outputs == strict.outputs
        assert named.outputs[0].zero_point == -4

    def test_a_damaged_file_is_refused_as_it_is_loaded(self) -> None:
        file = square(2, 3)
        with pytest.raises(asyncnn.InvalidArgumentError):
            load(file[: len(file) // 2])

    def test_it_is_a_region_from_a_container(self, tmp_path: Path) -> None:
        named = load(square(2, 3))
        save(named, tmp_path / "square.asyncnn")
        loaded = load(tmp_path / "square.asyncnn")
        assert is_region(loaded)
        assert loaded.inputs == named.inputs


class TestDevices:
    async def test_each_gives_the_same(self, device: Device) -> None:
        prepared = await device.prepare(load(square(2, 3)))
        for path in ("async", "sync", "burst", "fenced"):
            async with prepared.runner(path) as run:
                (y,) = (await run(X)).values()
                np.testing.assert_array_equal(y, X * X)

    async def test_a_tensor_without_axes_has_one_of_length_1(
        self, device: Device
    ) -> None:
        prepared = await device.prepare(load(square()))
        (y,) = (await prepared.run([np.float32(3)])).values()
        assert y.shape == (1,)
        assert y.item() == 9

    @pytest.mark.parametrize("name", TRANSLATED)
    async def test_what_is_translated_is_prepared(
        self, device: Device, name: str
    ) -> None:
        named = load(TRANSLATED[name]())
        prepared = await device.prepare(named)
        assert [each.name for each in prepared.inputs] == [
            each.name for each in named.inputs
        ]

    async def test_litert_has_the_region_and_a_framework_the_operations(self) -> None:
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
        named = load(square(2, 3))
        names = {
            "accelerated": True,
            "reference": False,
            "framework:accelerated,reference": False,
        }
        for name, expected in names.items():
            async with asyncnn.open_device(name) as device:
                assert is_region(await form_for(device.hal, named)) == expected
                explanation = await asyncnn.explain(device, named)
                assert explanation.is_supported
                assert explanation.translated == ("" if expected else LITERT)

    async def test_a_framework_goes_on_where_a_device_fails(self) -> None:
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
        before = children()
        async with asyncnn.connect(device="accelerated") as remote:
            members = [OpenDevice("driver", remote.hal, is_remote=True)]
            async with open_framework(DeviceSettings(), devices=members) as hal:
                device = Device("framework", hal)
                prepared = await device.prepare(load(square(2, 3)))
                await prepared.run([X])
                (pid,) = children() - before
                os.kill(pid, signal.SIGKILL)
                (y,) = (await prepared.run([X])).values()
        np.testing.assert_array_equal(y, X * X)

    @pytest.mark.parametrize("who", ["own", "other", "trusted"])
    async def test_a_driver_translates_for_other_users(
        self, who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
        if who != "own":
            monkeypatch.setattr(server, "peer_of", lambda _: Peer(7, OTHER_UID))
        trusted = who == "trusted"
        path = tmp_path / "driver.sock"
        async with (
            AcceleratedDevice() as hal,
            Server(hal, path, allowed_uids=[OTHER_UID], trust_regions=trusted),
            asyncnn.connect(path) as device,
        ):
            named = load(square(2, 3))
            assert is_region(await form_for(device.hal, named)) == (who != "other")
            (y,) = (await (await device.prepare(named)).run([X])).values()
            np.testing.assert_array_equal(y, X * X)

    async def test_inspecting_names_who_takes_it_as_it_is(self) -> None:
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
        inspection = await inspected(load(square(2, 3)))
        assert inspection.region == LITERT
        assert inspection.operations == {"MUL": 1}
        takes = {each.name for each in inspection.devices if each.takes_region}
        assert "accelerated" in takes
        assert not takes & {"reference", "framework"}

    async def test_a_session_keeps_what_the_file_has_in_two_ends(
        self, device: Device
    ) -> None:
        x, before, after, y = f32(2, 3), f32(2, 3), f32(2, 3), f32(2, 3)
        operators = [
            Op("ADD", [x, before], [after], "AddOptions"),
            Op("NEG", [after], [y], "NegOptions"),
        ]
        file = write(operators, [x, before], [after, y])
        named = load(file)
        names = [each.name for each in named.inputs]
        named = load(file, states={names[1]: named.outputs[0].name})
        prepared = await device.prepare(named)
        async with prepared.session() as session:
            await asyncio.gather(*(session.run({names[0]: X}) for _ in range(3)))
            (sums,) = (await session.run({names[0]: X})).values()
        np.testing.assert_allclose(sums, -4 * X)

    async def test_no_cache_is_asked_for_what_is_prepared_as_soon(
        self, tmp_path: Path
    ) -> None:
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
        for _ in range(2):
            async with asyncnn.open_device("accelerated", cache_dir=tmp_path) as device:
                prepared = await device.prepare(load(square(2, 3)))
                (out,) = (await prepared.run([X])).values()
                np.testing.assert_allclose(out, X * X)
        assert not os.listdir(tmp_path)

    async def test_equal_files_are_compiled_once_while_one_is_in_use(
        self, tmp_path: Path
    ) -> None:
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
        paths = [tmp_path / "one.tflite", tmp_path / "two.tflite"]
        for path in paths:
            path.write_bytes(square(2, 3))
        named = [load(path) for path in paths]
        before = programs()
        async with asyncnn.open_device("accelerated") as device:
            used = [await device.prepare(each) for each in named * 2]
            assert programs() == before + 1
            for outputs in await asyncio.gather(*(each.run([X]) for each in used)):
                np.testing.assert_allclose(*outputs.values(), X * X)
            used.append(await device.prepare(load(square(3, 3))))
            low = await device.prepare(named[0], priority=Priority.LOW)
            assert programs() == before + 3
            changing = [load(bytearray(square(2, 3))) for _ in range(2)]
            others = [await device.prepare(each) for each in changing]
            assert programs() == before + 5
            del used, low, others
            await until(lambda: programs() == before)


class TestChecked:
    """What was read of a file is used again only where nobody can change it."""

    def place(self, memory: Memory) -> tuple[int, int]:
        return address_of(np.frombuffer(view(memory), np.uint8)), memory.size

    def test_a_copy_of_a_file_is_read_once_and_forgotten_with_its_model(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "square.tflite"
        path.write_bytes(square(2, 3))
        named = load(path)
        place = self.place(named.model.pools[0])
        contents = checked(*place)
        assert contents is not None
        assert [each.name for each in contents.graphs[0].operators] == ["SQUARE"]
        alive = weakref.ref(named.model.pools[0])
        del named, contents
        gc.collect()
        assert alive() is None
        assert checked(*place) is None

    async def test_what_may_be_written_to_is_read_again(self) -> None:
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
        file = bytearray(square(2, 3))
        named = load(memoryview(file).toreadonly())
        assert checked(*self.place(named.model.pools[0])) is None
        file[:] = bytes(len(file))
        async with asyncnn.open_device("accelerated") as device:
            with pytest.raises(asyncnn.AsyncnnError, match="not a TFLite file"):
                await device.prepare(named)
