"""Files that are one region, on devices with no engine for them: translated.

What a program gives and gets is the same wherever the file runs.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from onnx import helper

import asyncnn
from asyncnn import InvalidArgumentError, MissedDeadlineError
from asyncnn.devices import ReferenceDevice
from asyncnn.extensions import Extension
from asyncnn.extensions.regions import ONNX, region_extension, region_of
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.runtime.device import Device
from asyncnn.runtime.inspection import inspected
from asyncnn.runtime.translation import form_for
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from tests.places import driver_of, opened
from tests.runtime.onnx.files import model, tensor
from tests.runtime.tflite.files import Op, T, write
from tests.waits import cancelled

node = helper.make_node


def content(proto: Any) -> bytes:
    whole: bytes = proto.SerializeToString()
    return whole


def sums(dtype: Any = np.int64) -> bytes:
    """Return a file that adds two tensors of a length that is open."""
    ends = [tensor(name, ("n",), dtype) for name in ("x", "y", "z")]
    return content(model([node("Add", ["x", "y"], ["z"])], ends[:2], ends[2:]))


def scalars() -> bytes:
    """Return a file whose tensors have no axes."""
    ends = [tensor(name, ()) for name in ("x", "y", "z")]
    return content(model([node("Add", ["x", "y"], ["z"])], ends[:2], ends[2:]))


def count() -> bytes:
    """Return a file that has no translation."""
    nodes = [
        node("RandomUniformLike", ["x"], ["places"]),
        node("Size", ["places"], ["y"]),
    ]
    return content(model(nodes, [tensor("x", (2, 2))], [tensor("y", (), np.int64)]))


DEVICES = ["reference", "accelerated", "framework:reference,accelerated", "driver"]

driver = driver_of("reference")


@pytest.fixture(params=DEVICES)
async def device(request: pytest.FixtureRequest) -> AsyncIterator[Device]:
    async with opened(request.param, request) as device:
        yield device


class TestArrays:
    async def test_of_int64_are_narrowed(self, device: Device) -> None:
        prepared = await device.prepare(asyncnn.load(sums()))
        wide = np.arange(3)
        for x, y in ((wide, wide.astype(np.int32)), (wide, [0, 1, 2])):
            outputs = await prepared.run({"x": x, "y": y})
            np.testing.assert_array_equal(outputs["z"], [0, 2, 4])
        with pytest.raises(InvalidArgumentError, match="x has values beyond the 32"):
            await prepared.run([np.array([1, 1 << 40, 2]), wide])
        with pytest.raises(InvalidArgumentError, match="has dtype float32"):
            await prepared.run([wide.astype(np.float32), wide])

    async def test_of_int64_are_narrowed_on_any_path(self, device: Device) -> None:
        given = dict.fromkeys("xy", (3,))
        prepared = await device.prepare(asyncnn.load(sums(), input_shapes=given))
        sample = {"x": np.arange(3), "y": np.ones(3, np.int64)}
        for path in ("async", "sync", "burst", "fenced"):
            async with prepared.runner(path) as run:  # type: ignore[arg-type]
                outputs = await run(sample)
                np.testing.assert_array_equal(outputs["z"], [1, 2, 3])

    async def test_of_a_file_without_axes_have_one_or_none(
        self, device: Device
    ) -> None:
        prepared = await device.prepare(asyncnn.load(scalars()))
        one, two = np.array(1, np.float32), np.array([2], np.float32)
        for x, y in ((one, two), (two, one), (np.float32(1), 2.0)):
            outputs = await prepared.run({"x": x, "y": y})
            assert outputs["z"].shape == (1,)
            assert outputs["z"] == 3
        with pytest.raises(InvalidArgumentError, match=r"shape \[2\]"):
            await prepared.run([one, np.ones(2, np.float32)])

    async def test_of_many_axes_have_those_of_the_file(self, device: Device) -> None:
        ends = [tensor(name, ("n", 3, 1, 2, 2)) for name in "xy"]
        proto = model([node("Neg", ["x"], ["y"])], ends[:1], ends[1:])
        prepared = await device.prepare(asyncnn.load(content(proto)))
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 1, 2, 2)
        for given in (x, x.reshape(6, 1, 2, 2)):
            (y,) = (await prepared.run([given])).values()
            np.testing.assert_array_equal(y.reshape(x.shape), -x)
        with pytest.raises(InvalidArgumentError, match=r"shape \[2, 3, 2, 2, 1\]"):
            await prepared.run([x.reshape(2, 3, 2, 2, 1)])


async def test_int32_is_widened_where_the_engine_takes_int64() -> None:
    async with asyncnn.open_device("reference", extensions=[engine()]) as device:
        prepared = await device.prepare(asyncnn.load(sums()))
        outputs = await prepared.run([np.arange(3, dtype=np.int32), [1, 1, 1 << 40]])
        assert outputs["z"].dtype == np.int64
        assert outputs["z"].tolist() == [1, 2, 2 + (1 << 40)]


def engine(refusal: str = "") -> Extension:
    """Return regions of ONNX whose engine adds its inputs, or refuses them."""

    def compute(operation: BoundOperation) -> Sequence[Array]:
        _, *inputs = (operand.value for operand in operation.inputs if operand)
        return (np.add(*inputs),)

    def refuse(operation: BoundOperation) -> Any:
        raise asyncnn.GeneralFailureError(refusal)

    if refusal:
        return region_extension(ONNX, shape=refuse, prepare=refuse, compute=refuse)
    return region_extension(ONNX, compute=compute)


class TestForms:
    async def test_are_regions_where_the_engine_is(self) -> None:
        named = asyncnn.load(sums())
        async with asyncnn.open_device("reference", extensions=[engine()]) as device:
            assert await form_for(device.hal, named) is named
            assert not (await asyncnn.explain(device, named)).translated
            strict = asyncnn.load(sums(), strict=True)
            assert await form_for(device.hal, strict) is strict
            prepared = await device.prepare(strict)
            assert prepared.inputs[0].dtype == np.int32

    async def test_are_translated_elsewhere(self, device: Device) -> None:
        named = asyncnn.load(sums(np.int32))
        prepared = await device.prepare(named)
        form = await form_for(device.hal, named)
        assert region_of(form.model) is None
        assert prepared.inputs == form.inputs
        assert [info.name for info in form.inputs] == ["x", "y"]
        assert [info.axes for info in form.inputs] == [("n",), ("n",)]
        explanation = await asyncnn.explain(device, named)
        assert explanation.translated == ONNX
        assert [report.type for report in explanation.operations] == ["ADD"]

    async def test_are_both_refused_with_both_reasons(self) -> None:
        named = asyncnn.load(count())
        refusing = engine("no such engine today")
        async with asyncnn.open_device("reference", extensions=[refusing]) as device:
            with pytest.raises(asyncnn.GeneralFailureError) as refused:
                await device.prepare(named)
        assert "no such engine today" in str(refused.value)
        assert "RandomUniformLike" in str(refused.value)
        assert "may run it" not in str(refused.value)

    async def test_that_the_engine_refuses_are_translated(self) -> None:
        ends = [tensor(name, (2,), np.int64) for name in ("x", "y", "z")]
        proto = model([node("Add", ["x", "y"], ["z"])], ends[:2], ends[2:])
        named, refusing = asyncnn.load(content(proto)), engine("not today")
        async with asyncnn.open_device("reference", extensions=[refusing]) as device:
            prepared = await device.prepare(named)
            assert prepared.inputs[0].dtype == np.int32
            outputs = await prepared.run([[1, 2], [3, 4]])
            assert outputs["z"].tolist() == [4, 6]

    async def test_that_do_not_exist_are_refused_by_name(self, device: Device) -> None:
        named = asyncnn.load(count())
        with pytest.raises(
            UnsupportedOperatorError, match="RandomUniformLike"
        ) as refused:
            await device.prepare(named)
        assert "try the device onnxruntime" in refused.value.hint
        assert [each.name for each in refused.value.operators] == ["RandomUniformLike"]
        with pytest.raises(UnsupportedOperatorError, match="RandomUniformLike"):
            await asyncnn.explain(device, named)

    async def test_may_keep_a_state(self, device: Device) -> None:
        nodes = [node("Add", ["x", "h"], ["hn"]), node("Neg", ["hn"], ["y"])]
        ends = [tensor(name, (1, 2)) for name in ("x", "h", "hn", "y")]
        named = asyncnn.load(content(model(nodes, ends[:2], ends[2:])))
        prepared = await device.prepare(named)
        one = np.ones((1, 2), np.float32)
        async with prepared.session() as session:
            for step in (1, 2, 3):
                assert (await session.run([one]))["y"].tolist() == [[-step, -step]]

    async def test_keep_constants_and_shapes_that_were_given(
        self, device: Device
    ) -> None:
        inputs = [tensor("x", (None, "m")), tensor("k", (), np.float32)]
        proto = model([node("Mul", ["x", "k"], ["y"])], inputs, ["y"])
        named = asyncnn.load(
            content(proto), constants={"k": 3}, input_shapes={"x": (2, 0)}
        )
        prepared = await device.prepare(named)
        assert [info.lengths for info in prepared.inputs] == [("2", "m")]
        for length in (1, 4):
            outputs = await prepared.run([np.ones((2, length), np.float32)])
            np.testing.assert_array_equal(outputs["y"], np.full((2, length), 3))
        with pytest.raises(InvalidArgumentError, match="x has shape"):
            await prepared.run([np.ones((3, 1), np.float32)])

    async def test_of_a_bare_model_are_the_same(self, device: Device) -> None:
        prepared = await device.prepare(asyncnn.load(sums()).model)
        assert [info.name for info in prepared.inputs] == ["input_0", "input_1"]
        outputs = await prepared.run([[1, 2], [3, 4]])
        assert outputs["output_0"].tolist() == [4, 6]

    async def test_of_a_broken_model_are_none(self, device: Device) -> None:
        whole = asyncnn.load(sums()).model
        (operation,) = whole.main.operations
        bad = replace(operation, inputs=(*operation.inputs[:-1], 99))
        broken = replace(whole, main=replace(whole.main, operations=(bad,)))
        with pytest.raises(InvalidArgumentError):
            await device.prepare(broken)
        assert (await asyncnn.explain(device, broken)).problem

    async def test_are_warmed_up(self, device: Device) -> None:
        given = dict.fromkeys("xy", (3,))
        named = asyncnn.load(sums(), input_shapes=given)
        prepared = await device.prepare(named, warm=True)
        assert (await prepared.run([[1, 2, 3]] * 2))["z"].tolist() == [2, 4, 6]


class TestContainers:
    async def test_keep_the_region(self, device: Device, tmp_path: Path) -> None:
        path = tmp_path / "sums.asyncnn"
        asyncnn.save(asyncnn.load(sums()), path)
        named = await asyncnn.load_model(path)
        region = region_of(named.model)
        assert region is not None
        assert bytes(region.graph.buffer or b"") == sums()
        assert [info.dtype for info in named.inputs] == [np.int64] * 2
        prepared = await device.prepare(named)
        assert (await prepared.run([[1, 2], [3, 4]]))["z"].tolist() == [4, 6]

    def test_keep_names_constants_and_pairs(self, tmp_path: Path) -> None:
        nodes = [node("Add", ["x", "h"], ["hn"]), node("Mul", ["hn", "k"], ["y"])]
        ends = [tensor(name, (1, 2)) for name in ("x", "h", "hn", "y")]
        proto = model(nodes, [*ends[:2], tensor("k", ())], ends[2:])
        path = tmp_path / "state.asyncnn"
        before = asyncnn.load(content(proto), constants={"k": 2})
        asyncnn.save(before, path)
        after = asyncnn.load(path)
        assert after.pairs == before.pairs == (("h", "hn"),)
        assert (after.inputs, after.outputs) == (before.inputs, before.outputs)

    def test_keep_a_translation_if_that_is_saved(self, tmp_path: Path) -> None:
        path = tmp_path / "sums.asyncnn"
        asyncnn.save(asyncnn.load(sums(), strict=True), path)
        assert region_of(asyncnn.load(path).model) is None

    def test_with_a_damaged_region_are_refused(self, tmp_path: Path) -> None:
        named = asyncnn.load(sums())
        operands = list(named.model.main.operands)
        operands[0] = replace(operands[0], dimensions=(7,))
        main = replace(named.model.main, operands=tuple(operands))
        path = tmp_path / "bad.asyncnn"
        asyncnn.save(replace(named, model=replace(named.model, main=main)), path)
        with pytest.raises(InvalidArgumentError):
            region_of(asyncnn.load(path).model)


class TestCaches:
    @pytest.mark.parametrize("name", ["reference", "accelerated"])
    async def test_have_what_was_translated(self, name: str, tmp_path: Path) -> None:
        for _ in range(2):
            async with asyncnn.open_device(name, cache_dir=tmp_path) as device:
                prepared = await device.prepare(asyncnn.load(sums()), identity=b"sums")
                outputs = await prepared.run([[1, 2], [3, 4]])
                assert outputs["z"].tolist() == [4, 6]

    async def test_tell_a_region_from_its_translation(self, tmp_path: Path) -> None:
        given = dict.fromkeys("xy", (2,))
        for extension, dtype in ((engine("not today"), np.int32), (engine(), np.int64)):
            async with asyncnn.open_device(
                "reference", cache_dir=tmp_path, extensions=[extension]
            ) as device:
                named = asyncnn.load(sums(), input_shapes=given)
                prepared = await device.prepare(named, identity=b"sums")
                assert prepared.inputs[0].dtype == dtype
                outputs = await prepared.run([[1, 2], [3, 4]])
                assert outputs["z"].dtype == dtype
                assert outputs["z"].tolist() == [4, 6]


class TestTime:
    async def test_that_translating_takes_is_part_of_the_preparation(self) -> None:
        async with ReferenceDevice() as hal:
            device = Device("reference", hal)
            with pytest.raises(MissedDeadlineError, match="while the model was tra"):
                await device.prepare(asyncnn.load(deep(3000)), timeout=0)

    async def test_ends_when_the_preparation_is_cancelled(self) -> None:
        async with ReferenceDevice() as hal:
            device = Device("reference", hal)
            named = asyncnn.load(deep(3000))
            task = asyncio.create_task(device.prepare(named))
            await asyncio.sleep(0)
            await cancelled(task)


def deep(count: int) -> bytes:
    nodes = [node("Neg", [f"t{k}"], [f"t{k + 1}"]) for k in range(count)]
    ends = [tensor(name, (1, 4)) for name in ("t0", f"t{count}")]
    return content(model(nodes, ends[:1], ends[1:]))


class TestInspection:
    async def test_tells_the_operations_of_the_translation(self) -> None:
        found = await inspected(asyncnn.load(sums()))
        assert found.region == ONNX
        assert found.operations == {"org.asyncnn.onnx.nodes/NODES": 1}
        assert not found.untranslated
        by_name = {each.name: each for each in found.devices}
        assert not by_name["reference"].takes_region
        assert by_name["reference"].supported == 1
        assert [each.dtype for each in found.inputs] == ["int64", "int64"]

    async def test_tells_why_there_is_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        named = asyncnn.load(count())
        names = ["reference"]
        monkeypatch.setattr(
            "asyncnn.runtime.inspection.registered_devices", lambda: names
        )
        with pytest.raises(UnsupportedOperatorError, match="RandomUniformLike"):
            await inspected(named)
        found = await inspected(named, extensions=[engine()])
        assert "RandomUniformLike" in found.untranslated
        assert found.operations == {f"{ONNX}/REGION": 1}
        (reference,) = found.devices
        assert reference.takes_region

    async def test_of_other_models_names_no_region(self) -> None:
        found = await inspected(asyncnn.load(sums(), strict=True))
        assert (found.region, found.untranslated) == ("", "")
        assert not any(each.takes_region for each in found.devices)


async def test_a_file_without_inputs_is_translated() -> None:
    made = T(np.float32, (2, 3))
    given = [T.constant([2, 3]), T.constant(1.5, np.float32)]
    named = asyncnn.load(write([Op("FILL", given, [made])], [], [made]))
    async with asyncnn.open_device("reference") as device:
        (filled,) = (await (await device.prepare(named)).run([])).values()
    assert filled.tolist() == [[1.5] * 3] * 2
