"""Whose regions a driver gives to its engines."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn import NamedModel
from asyncnn.cli.serving import isolating
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.accelerated import AutoDevice
from asyncnn.extensions.regions import DECLARED, LITERT, ONNX
from asyncnn.hal.errors import (
    DeviceUnavailableError,
    GeneralFailureError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.refusals import PrepareArguments
from asyncnn.hal.types import ExecutionPreference, Model, Priority
from asyncnn.memory import allocate, view
from asyncnn.pacing import Steps
from asyncnn.runtime.model_cache import prepare
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import Server, UserLimits
from asyncnn.service.driver import server
from asyncnn.service.driver.isolating import Isolated, Isolation
from asyncnn.service.process import Peer
from tests.devices.cache.client import prepared_in
from tests.mappings import children
from tests.networks import addition
from tests.runtime.file_changes import SIZE, tflite
from tests.service.ending_engine import ENGINE, LENGTH, ending
from tests.tools.test_comparison import addition_in_onnx
from tests.waits import until

OTHER_UID = 4711
TWO = np.full((4, 2), 2, np.float32)


@pytest.fixture
def region() -> NamedModel:
    pytest.importorskip("onnxruntime")
    return asyncnn.load(addition_in_onnx(), input_shapes={"x": (4, 2)})


@pytest.fixture(params=["own", "other", "trusted"])
def user(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    who: str = request.param
    if who != "own":
        monkeypatch.setattr(server, "peer_of", lambda _: Peer(7, OTHER_UID))
    return who


async def test_other_users_have_regions_translated_unless_they_are_trusted(
    region: NamedModel, user: str, tmp_path: Path
) -> None:
    path = tmp_path / "driver.sock"
    options = {"allowed_uids": [OTHER_UID], "trust_regions": user == "trusted"}
    async with (
        AutoDevice() as hal,
        Server(hal, path, **options),
        connect(path) as device,
    ):
        names = [each.name for each in device.hal.get_supported_extensions()[1]]
        is_run = user != "other"
        assert ("org.asyncnn.onnx" in names) == is_run
        prepared = await device.prepare(region)
        given = {
            info.name: np.full(info.shape, 2, np.float32) for info in region.inputs
        }
        (result,) = (await prepared.run(given)).values()
        assert np.all(result == 4)
        if is_run:
            await bare(device, region)
            return
        with pytest.raises(GeneralFailureError, match="for its own user alone"):
            await bare(device, region)
        status, _ = await device.hal.get_supported_operations_1_3(region.model)
        assert status is GeneralFailureError.status


async def bare(device: asyncnn.Device, named: NamedModel) -> IPreparedModel:
    """Prepare a model as a client does that asks for nothing first."""
    given = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM, None
    return await prepare(device.hal, PrepareArguments(replace(named.model), *given))


@asynccontextmanager
async def apart() -> AsyncIterator[IDevice]:
    """Open a device with an engine that can end its process, in another process."""
    names = ["tests.service.ending_engine:ENGINE"]
    async with open_device("reference", extensions=names, isolated=True) as device:
        yield device.hal


def _never(_: Model) -> Steps[bool]:
    yield
    return False


APART = Isolation(apart, _never)


class TestApart:
    """Regions of a driver's clients run in processes that are theirs alone."""

    @pytest.fixture
    async def path(self, tmp_path: Path) -> AsyncIterator[Path]:
        before, path = children(), tmp_path / "driver.sock"
        settings = DeviceSettings(
            extensions=(DECLARED[ONNX],), cache_key_file=str(tmp_path / "key")
        )
        async with ReferenceDevice(settings) as hal:
            async with Server(hal, path, isolated=APART) as server:
                yield path
                await until(lambda: not server.connections)
            assert children() == before

    async def test_a_user_has_so_many_processes_and_another_once_one_has_ended(
        self, tmp_path: Path
    ) -> None:
        before, path = children(), tmp_path / "few.sock"
        limits = UserLimits(max_region_processes=1)
        refused = pytest.raises(
            ResourceExhaustedTransientError, match="max_region_processes"
        )
        async with (
            ReferenceDevice(DeviceSettings(extensions=(DECLARED[ONNX],))) as hal,
            Server(hal, path, isolated=APART, user_limits=limits),
            connect(path) as late,
        ):
            async with connect(path) as first:
                for _ in range(2):
                    assert await doubled(await first.prepare(ending("nothing")))
                with refused:
                    await bare(late, ending("nothing"))
            await until(lambda: children() == before)
            assert await doubled(await late.prepare(ending("nothing")))

    @pytest.mark.parametrize("way", ["prepare", "run", "sync", "fenced", "burst"])
    async def test_one_that_ends_its_process_is_an_error_of_its_client(
        self, path: Path, way: str
    ) -> None:
        async with connect(path) as victim, connect(path) as other:
            region = await other.prepare(ending("nothing"))
            operations = await victim.prepare(addition(LENGTH))
            with pytest.raises(DeviceUnavailableError):
                await end(victim, way)
            for _ in range(2):
                assert await doubled(region)
                sums = await operations.run({"x": X, "y": X})
                assert np.array_equal(sums["z"], 2 * X)
            assert await doubled(await victim.prepare(ending("nothing")))

    async def test_what_the_process_had_is_gone_with_it(self, path: Path) -> None:
        async with connect(path) as device:
            model = await device.prepare(ending("nothing"))
            with pytest.raises(DeviceUnavailableError):
                await end(device, "run")
            with pytest.raises(DeviceUnavailableError):
                await model.run([X])
            assert await doubled(await device.prepare(ending("nothing")))

    async def test_it_is_run_on_every_path(self, path: Path) -> None:
        async with connect(path) as device:
            model = await device.prepare(ending("nothing"))
            assert await doubled(model)
            (y,) = (await model.run([X], path="sync")).values()
            assert np.array_equal(y, 2 * X)
            run = model.run_fenced([X])
            (y,) = (await model.run_fenced([2 * X], wait_for=[run])).values()
            assert np.array_equal(y, 4 * X)
            async with model.burst() as burst:
                for factor in (1, 3):
                    (y,) = (await burst.run([factor * X])).values()
                    assert np.array_equal(y, 2 * factor * X)
            reusable = model.reusable([X])
            for _ in range(3):
                await reusable.run()
                assert np.array_equal(reusable.output(), 2 * X)

    async def test_its_buffers_are_those_of_its_process(self, path: Path) -> None:
        async with connect(path) as device:
            model = await device.prepare(ending("nothing"))
            held = await device.buffer_for(model.output(), model.input())
            await model.run([X], out=[held])
            (y,) = (await model.run([held])).values()
            assert np.array_equal(y, 4 * X)

    async def test_it_is_loaded_from_a_cache_by_its_process(
        self, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "asyncnn.runtime.model_cache")
        cache = tmp_path / "cache"
        async with connect(path) as device:
            assert await doubled(await prepared_in(cache, device, ending("nothing")))
        async with connect(path) as device:
            assert await doubled(await prepared_in(cache, device, ending("nothing")))
            with pytest.raises(DeviceUnavailableError):
                await end(device, "run")
        assert list(cache.iterdir())
        assert not [each for each in caplog.messages if "is not used" in each]

    async def test_all_run_in_the_driver_if_they_are_trusted(
        self, tmp_path: Path
    ) -> None:
        before, path = children(), tmp_path / "driver.sock"
        async with (
            ReferenceDevice(DeviceSettings(extensions=(ENGINE,))) as hal,
            Server(hal, path, isolated=APART, trust_regions=True),
            connect(path) as device,
        ):
            assert await doubled(await device.prepare(ending("nothing")))
            assert children() == before


class TestChecked:
    """Regions of TFLite files that the HAL can say run in the driver itself."""

    @pytest.fixture
    def region(self, tmp_path: Path) -> NamedModel:
        pytest.importorskip("ai_edge_litert")
        (file,) = tflite(tmp_path)
        named = asyncnn.load(file)
        assert [each.name for each in named.model.extension_name_to_prefix] == [LITERT]
        return named

    @pytest.fixture
    async def path(self, tmp_path: Path) -> AsyncIterator[Path]:
        pytest.importorskip("onnxruntime")
        path = tmp_path / "driver.sock"
        settings = DeviceSettings(cache_key_file=str(tmp_path / "key"))
        isolated = isolating("auto", settings, (), [])
        async with AutoDevice(settings) as hal, Server(hal, path, isolated=isolated):
            yield path

    async def test_one_that_translates_needs_no_process(
        self, path: Path, region: NamedModel
    ) -> None:
        before = children()
        async with connect(path) as device:
            await bare(device, region)
            assert children() == before

    async def test_one_of_onnx_has_a_process(self, path: Path) -> None:
        before = children()
        async with connect(path) as device:
            model = await device.prepare(products())
            (y,) = (await model.run([TWO, TWO])).values()
            assert np.array_equal(y, TWO * TWO)
            assert len(children()) == len(before) + 1

    async def test_one_that_declares_other_shapes_has_a_process(
        self, path: Path, region: NamedModel
    ) -> None:
        main = region.model.main
        (index,) = main.output_indexes
        operands = list(main.operands)
        operands[index] = replace(operands[index], dimensions=(SIZE, 1))
        main = replace(main, operands=tuple(operands))
        await expect_process(path, replace(region.model, main=main))

    async def test_what_changes_after_the_check_is_not_seen_by_the_engine(
        self, path: Path, region: NamedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (pool,) = region.model.pools
        copied = allocate(pool.size)
        view(copied)[:] = view(pool)
        check = Isolated.has_to_run

        async def change(isolated: Isolated, model: Model) -> bool:
            has_to = await check(isolated, model)
            view(copied)[:] = bytes(pool.size)
            return has_to

        monkeypatch.setattr(Isolated, "has_to_run", change)
        before = children()
        async with connect(path) as device:
            changing = replace(region.model, pools=(copied,))
            await bare(device, replace(region, model=changing))
            assert children() == before

    async def test_caches_of_both_are_loaded_where_they_were_made(
        self, path: Path, tmp_path: Path, region: NamedModel
    ) -> None:
        before = children()
        for _ in range(2):
            async with connect(path) as device:
                await prepared_in(tmp_path / "cache", device, region)
                assert children() == before
                await prepared_in(tmp_path / "cache", device, products())
                assert len(children()) == len(before) + 1
            await until(lambda: children() == before)


async def expect_process(path: Path, model: Model) -> None:
    before = children()
    async with connect(path) as device:
        await device.hal.get_supported_operations_1_3(model)
        assert len(children()) == len(before) + 1


def products() -> NamedModel:
    """Return a region of ONNX, of an operator that the HAL does not have."""
    helper = pytest.importorskip("onnx.helper")
    x, b, y = (helper.make_tensor_value_info(each, 1, [4, 2]) for each in "xby")
    node = helper.make_node("Einsum", ["x", "b"], ["y"], equation="ij,ij->ij")
    graph = helper.make_graph([node], "products", [x, b], [y])
    opsets = [helper.make_opsetid("", 17)]
    return asyncnn.load(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )


X = np.arange(LENGTH, dtype=np.float32)


async def doubled(model: PreparedModel) -> bool:
    (y,) = (await model.run([X])).values()
    return np.array_equal(y, 2 * X)


async def end(device: asyncnn.Device, way: str) -> None:
    """Have a region end its process in a preparation, or on a path of execution."""
    model = await device.prepare(ending("prepare" if way == "prepare" else "run"))
    if way == "fenced":
        await model.run_fenced([X])
    elif way == "burst":
        async with model.burst() as burst:
            await burst.run([X])
    else:
        await model.run([X], path="sync" if way == "sync" else "async")
