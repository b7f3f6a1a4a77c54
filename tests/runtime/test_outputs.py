"""What runs return: arrays by name and position, times that were measured."""

import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.execution import RunTiming, timing_of
from asyncnn.hal.types import NO_TIMING, UINT64_MAX, Timing
from asyncnn.runtime.execution_options import AnyPath
from tests.networks import addition
from tests.runtime.stateful import counting

X = np.arange(4, dtype=np.float32)
PATHS = ("async", "sync", "fenced", "burst")


@pytest.mark.parametrize("path", PATHS)
async def test_timing_is_there_only_if_it_was_measured(path: AnyPath) -> None:
    async with asyncnn.open_device() as device:
        prepared = await device.prepare(addition(4))
        async with prepared.runner(path) as run:
            assert (await run([X, X])).timing is None
        if path == "burst":
            async with prepared.burst() as burst:
                measured = await burst.run([X, X], measure=True)
        else:
            measured = await prepared.run([X, X], measure=True, path=path)
        assert measured.timing is not None
        assert measured.timing.in_driver_ns < 10**10


async def test_timing_is_in_nanoseconds_and_its_old_names_in_microseconds() -> None:
    timing = timing_of(Timing(7, UINT64_MAX))
    assert timing is not None
    assert (timing.on_device_ns, timing.in_driver_ns) == (7000, None)
    with pytest.warns(DeprecationWarning, match="use on_device_ns") as warned:
        assert timing.time_on_device == 7
    assert warned[0].filename == __file__  # and not where it is warned
    with pytest.warns(DeprecationWarning, match="use on_device_ns"):
        assert RunTiming(7999, None).time_on_device == 7
    with pytest.warns(DeprecationWarning, match="use in_driver_ns"):
        assert timing.time_in_driver == UINT64_MAX
    assert timing_of(NO_TIMING) is None


async def test_timing_of_steps_and_of_fenced_runs() -> None:
    async with asyncnn.open_device() as device:
        prepared = await device.prepare(addition(4))
        run = prepared.run_fenced([X, X])
        assert run.outputs.timing is None
        await run
        assert run.timing is None
        async with (await device.prepare(counting())).session() as session:
            assert (await session.run(X)).timing is None
            assert (await session.run(X, measure=True)).timing is not None


async def test_outputs_are_found_by_position_as_well() -> None:
    async with asyncnn.open_device() as device:
        outputs = await (await device.prepare(addition(4))).run([X, X])
    assert outputs[0] is outputs["z"] is outputs[-1]
    assert list(outputs) == ["z"]
    assert len(outputs) == 1
    assert 0 not in outputs
    for key in ("y", 1, -2, None):
        with pytest.raises(KeyError, match=r"there is no output .* \(known: z\)"):
            outputs[key]  # type: ignore[index]
    assert outputs.get("y") is None
    with pytest.raises(AttributeError):
        outputs.latency  # type: ignore[attr-defined]  # noqa: B018
    for other in (copy.copy(outputs), pickle.loads(pickle.dumps(outputs))):
        assert other["z"].tolist() == outputs["z"].tolist()
        assert other.timing is None


def test_types_are_the_same_for_all_kinds_of_files(
    shared: Path, tmp_path: Path
) -> None:
    original = asyncnn.load(shared / "models" / "vww_96_int8.tflite")
    path = tmp_path / "model.asyncnn"
    asyncnn.save(original, path)
    again = asyncnn.load(path)
    for infos in (original.inputs, again.inputs):
        assert type(infos[0].type) is asyncnn.OperandType
        assert infos[0].type.name == "TENSOR_QUANT8_ASYMM_SIGNED"
    assert again.inputs == original.inputs


@pytest.mark.parametrize(
    ("dtype", "name"), [(np.float32, "float32"), (np.uint8, "uint8"), ("int8", "int8")]
)
def test_shared_arrays_have_the_dtype_asked_for(dtype: type, name: str) -> None:
    array = asyncnn.shared_array((2, 3), dtype)
    assert (array.shape, array.dtype.name) == ((2, 3), name)
