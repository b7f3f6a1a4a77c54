"""Older drivers that are late, or break the rules of their own version."""

import asyncio
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from asyncnn import connect, shared_array
from asyncnn.burst.controller import BurstController
from asyncnn.callbacks import ExecutionFuture
from asyncnn.devices import DeviceSettings
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, PreparationFailedError
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    OutputShape,
    PerformanceInfo,
    Request,
    Timing,
)
from asyncnn.hal.versions import v1_0
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.service.driver.server import Server
from asyncnn.service.process import private_address
from tests.networks import addition
from tests.runtime.framework.mixed import WHEREVER_BETTER
from tests.runtime.framework.older import (
    CLOSED,
    FAILED,
    INVALID,
    LATE,
    NONE,
    V1_0,
    V1_2,
    YES,
    adapted,
    execute,
    prepare,
    soon,
    sums,
)

CHEAP = PerformanceInfo(0.1, 0.1)


class TestDeadlines:
    async def test_one_that_has_passed_is_checked_before_the_driver_is_asked(
        self,
    ) -> None:
        async with adapted(V1_2) as (device, driver):
            prepared = await prepare(device, addition(4).model)
            request, z = sums(4)
            launched, result = await execute(prepared, request, deadline=soon(-1))
            assert launched is NONE
            assert result.status is ErrorStatus.MISSED_DEADLINE_PERSISTENT
            with pytest.raises(AsyncnnError) as caught:
                await prepare(device, addition(4).model, deadline=soon(-1))
            assert caught.value.status is ErrorStatus.MISSED_DEADLINE_PERSISTENT
            assert "execute_1_2" not in driver.names()
            assert not z.any()

    async def test_a_late_result_is_a_missed_deadline(self) -> None:
        held: list[Any] = []
        async with adapted(V1_2, execute_1_2=holding(held.append)) as (device, _):
            prepared = await prepare(device, addition(4).model)
            future = ExecutionFuture()
            prepared.execute_1_3(sums(4)[0], YES, soon(), None, future)
            (callback,) = held
            asked = asyncio.Event()  # the driver is asked to stop
            callback.link_to_death(asked.set)
            await asked.wait()
            assert future.result is None  # but may write to the outputs until it ends
            callback.notify_1_2(NONE, (), NO_TIMING)
            result = await future
            assert result.status is LATE
            assert result.timing == NO_TIMING
            assert "deadline of" in result.reason

    async def test_a_preparation_is_given_up_at_its_deadline(self) -> None:
        held: list[Any] = []
        async with adapted(V1_0, prepare_model=holding(held.append)) as (device, _):
            with pytest.raises(AsyncnnError) as caught:
                await prepare(device, addition(4).model, deadline=soon())
            assert caught.value.status is LATE
            assert held[0].is_dead
            held[0].notify(NONE, object())  # nobody waits for it

    async def test_one_that_is_pending_when_the_device_is_closed_dies(self) -> None:
        held: list[Any] = []
        async with adapted(V1_0, prepare_model=holding(held.append)) as (device, _):
            pending = asyncio.ensure_future(prepare(device, addition(4).model))
            await asyncio.sleep(0)
        with pytest.raises(AsyncnnError) as caught:
            await pending
        assert caught.value.status is CLOSED
        assert held[0].is_dead


class TestNeverAnswering:
    """The driver takes an execution, and does not tell how that ends."""

    @pytest.mark.parametrize("path", ["async", "fenced"])
    async def test_it_is_not_waited_for_long_after_a_deadline(self, path: str) -> None:
        held: asyncio.Queue[Any] = asyncio.Queue()
        scripted = {"execute_1_2": holding(held.put_nowait)}
        async with adapted(V1_2, **scripted) as (older, _):
            device = Device("older", older)
            model = await device.prepare(addition(4))
            buffer = await device.buffer_for(model.output("z"))
            x, out = np.ones(4, np.float32), {"z": buffer}
            async with asyncio.timeout(20):
                with pytest.raises(TimeoutError, match="has not answered"):
                    await model.run([x, x], out=out, timeout=0.02, path=path)
                # The driver may still write to it, until it answers.
                with pytest.raises(GeneralFailureError):
                    await model.run([x, x], out=out)
            held.get_nowait().notify_1_2(NONE, (), NO_TIMING)
            again = asyncio.ensure_future(model.run([x, x], out=out))
            (await held.get()).notify_1_2(NONE, (), NO_TIMING)
            await again

    @pytest.mark.parametrize("ends", ["deadline", "closing"])
    @pytest.mark.parametrize("path", ["async", "fenced"])
    async def test_nobody_else_computes_what_it_may_still_write(
        self, path: str, ends: str
    ) -> None:
        held: asyncio.Queue[Any] = asyncio.Queue()
        async with (
            adapted(V1_0, **cheap_and_silent(held)) as (older, _),
            open_framework(
                DeviceSettings(),
                devices=[OpenDevice("older", older)],
                framework=WHEREVER_BETTER,
            ) as hal,
        ):
            model = await Device("framework", hal).prepare(addition(4))
            assert model.hal.usual_route.devices == ("older",)
            x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
            timeout = 0.02 if ends == "deadline" else None
            run = asyncio.ensure_future(
                model.run([x, x], out=out, timeout=timeout, path=path)
            )
            callback = await held.get()
            if ends == "closing":
                await older.aclose()
            with pytest.raises(AsyncnnError) as caught:
                await run
            assert caught.value.status is (LATE if ends == "deadline" else CLOSED)
            assert not out.any()
            callback.notify(NONE)

    @pytest.mark.parametrize("path", ["async", "fenced"])
    async def test_nor_does_the_client_of_a_driver_that_serves_it(
        self, path: str
    ) -> None:
        held: asyncio.Queue[Any] = asyncio.Queue()
        address = private_address()
        async with (
            adapted(V1_0, **cheap_and_silent(held)) as (older, _),
            open_framework(
                DeviceSettings(),
                devices=[OpenDevice("older", older)],
                framework=WHEREVER_BETTER,
            ) as inner,
            Server(inner, address),
            connect(address, deadline_grace=math.inf) as remote,
            open_framework(
                DeviceSettings(),
                devices=[OpenDevice("driver", remote.hal, is_remote=True)],
                framework=WHEREVER_BETTER,
            ) as hal,
        ):
            model = await Device("framework", hal).prepare(addition(4))
            x, out = shared_array((4,), np.float32), shared_array((4,), np.float32)
            x[:] = 1
            with pytest.raises(TimeoutError, match="has not answered"):
                await model.run([x, x], out=out, timeout=0.02, path=path)
            assert not out.any()
            held.get_nowait().notify(NONE)

    async def test_the_memory_that_it_may_write_serves_no_other_run(self) -> None:
        held: list[Request] = []

        def hold(request: Request, *_: Any) -> ErrorStatus:
            held.append(request)
            return NONE

        address = private_address()
        async with (
            adapted(V1_2, execute_1_2=hold) as (older, _),
            Server(older, address),
            connect(address, deadline_grace=math.inf) as remote,
        ):
            model = await remote.prepare(addition(4))
            x = np.ones(4, np.float32)
            for _ in range(2):
                with pytest.raises(TimeoutError, match="has not answered"):
                    await model.run([x, x], timeout=0.02)
            first, second = (request.pools[-1].buffer for request in held)
            before = bytes(second)
            first[:] = bytes(len(first))
            assert bytes(second) == before

    async def test_closing_does_not_wait_for_it(self) -> None:
        held: list[Any] = []
        async with adapted(V1_2, execute_1_2=holding(held.append)) as (device, _):
            prepared = await prepare(device, addition(4).model)
            future = ExecutionFuture()
            prepared.execute_1_3(sums(4)[0], YES, None, None, future)
            fenced = prepared.execute_fenced(sums(4)[0], [], YES, None, None, None)[2]
        async with asyncio.timeout(20):
            assert (await future).status is CLOSED
        assert fenced is not None
        assert fenced.get_execution_info()[0] is CLOSED
        assert all(callback.is_dead for callback in held)
        for callback in held:
            callback.notify_1_2(NONE, (), NO_TIMING)  # nobody waits for it

    async def test_a_burst_of_its_own_ends_with_the_device(self) -> None:
        async with adapted(V1_2) as (device, driver):
            prepared = await prepare(device, addition(4).model)
            burst = await BurstController.open(prepared)
            ((_, arguments),) = [
                call for call in driver.calls if call[0] == "configure_execution_burst"
            ]
            assert (await burst.execute(sums(4)[0])).status is NONE
        with burst:
            assert (await burst.execute(sums(4)[0])).status is CLOSED
        again = await prepared.configure_execution_burst(*arguments)
        assert again == (CLOSED, None)

    async def test_a_burst_that_it_opens_while_it_is_closed_ends_at_once(self) -> None:
        asked, opens, context = asyncio.Event(), asyncio.Event(), Mock()

        async def late(*_: Any) -> Any:
            asked.set()
            await opens.wait()
            return NONE, context

        async with adapted(V1_2, configure_execution_burst=late) as (device, _):
            prepared = await prepare(device, addition(4).model)
            opening = asyncio.ensure_future(
                prepared.configure_execution_burst(Mock(), Mock(), Mock())
            )
            await asked.wait()
        opens.set()
        assert await opening == (CLOSED, None)
        context.close.assert_called_once_with()


def cheap_and_silent(held: asyncio.Queue[Any]) -> dict[str, Callable[..., Any]]:
    """Return calls of a driver that work is given to, and that answers none of it."""
    return {
        "execute": holding(held.put_nowait),
        "get_capabilities": lambda: (NONE, v1_0.Capabilities(CHEAP, CHEAP)),
    }


def holding(keep: Callable[[Any], None]) -> Callable[..., ErrorStatus]:
    """Return a call that gives its callback to ``keep``, and tells it nothing."""

    def call(*args: Any) -> ErrorStatus:
        keep(args[-1])
        return NONE

    return call


def raising(*_: Any) -> Any:
    raise ZeroDivisionError("a driver's mistake")


def refusing_silently(*_: Any) -> ErrorStatus:
    return INVALID


def refusing_aloud(*args: Any) -> ErrorStatus:
    args[-1].reason = "too many"
    args[-1].notify_1_2(FAILED, (), NO_TIMING)
    return FAILED


def telling_twice(*args: Any) -> ErrorStatus:
    args[-1].notify_1_2(FAILED, (), NO_TIMING)
    args[-1].notify_1_2(NONE, (), NO_TIMING)
    return NONE


def of_later_status(*args: Any) -> ErrorStatus:
    args[-1].notify_1_2(ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT, (), NO_TIMING)
    return NONE


def returning_nothing(*_: Any) -> None:
    return None


def cancelling(*_: Any) -> Any:
    raise asyncio.CancelledError


def telling(*told: Any) -> Callable[..., ErrorStatus]:
    """Return a call whose callback is told so in a later turn of the loop."""

    def call(*args: Any) -> ErrorStatus:
        asyncio.get_running_loop().call_soon(args[-1].notify_1_2, *told)
        return NONE

    return call


def telling_shapes(*shapes: Any) -> Callable[..., ErrorStatus]:
    return telling(NONE, tuple(OutputShape(each, True) for each in shapes), NO_TIMING)


class TestMisbehaving:
    @pytest.mark.parametrize(
        ("execute_1_2", "launched", "told"),
        [
            (raising, FAILED, FAILED),
            (refusing_silently, INVALID, INVALID),
            (refusing_aloud, FAILED, FAILED),
            (telling_twice, NONE, FAILED),
            (of_later_status, NONE, FAILED),
            (returning_nothing, FAILED, FAILED),
            (cancelling, FAILED, FAILED),
            (telling(), NONE, FAILED),
            (telling(None, (), NO_TIMING), NONE, FAILED),
            (telling(99, (), NO_TIMING), NONE, FAILED),
            (telling(int(INVALID), (), NO_TIMING), NONE, INVALID),
            (telling(NONE, 5, NO_TIMING), NONE, FAILED),
            (telling(NONE, (), None), NONE, FAILED),
            (telling(NONE, (), Timing(-1, -1)), NONE, FAILED),
            (telling_shapes((4,), (4,)), NONE, FAILED),
            (telling_shapes((-4,)), NONE, FAILED),
            (telling_shapes((5,)), NONE, FAILED),
            (telling_shapes((2, 2)), NONE, FAILED),
            (telling_shapes(("4",)), NONE, FAILED),
        ],
    )
    async def test_an_execution_ends_once_whatever_the_driver_does(
        self, execute_1_2: Callable[..., Any], launched: ErrorStatus, told: ErrorStatus
    ) -> None:
        async with adapted(V1_2, execute_1_2=execute_1_2) as (device, _):
            prepared = await prepare(device, addition(4).model)
            returned, result = await execute(prepared, sums(4)[0], YES)
            assert (returned, result.status) == (launched, told)
            assert type(result.status) is ErrorStatus
            assert result.output_shapes == ()

    @pytest.mark.parametrize(
        ("execute_1_2", "reason"),
        [(returning_nothing, "GENERAL_FAILURE"), (cancelling, "CancelledError")],
    )
    async def test_a_buffer_is_free_once_its_execution_was_refused(
        self, execute_1_2: Callable[..., Any], reason: str
    ) -> None:
        scripted = {"execute_1_2": execute_1_2}
        async with adapted(V1_2, **scripted) as (older, _):
            device = Device("older", older)
            model = await device.prepare(addition(4))
            buffer = await device.buffer_for(model.output("z"))
            x = np.ones(4, np.float32)
            for _ in range(2):  # the second is not refused for the first
                with pytest.raises(GeneralFailureError, match=reason):
                    await model.run([x, x], out={"z": buffer})

    @pytest.mark.parametrize("told", [(-4,), (10**9,), (2**40,), (2, 2), (0.5,), None])
    async def test_an_open_output_has_the_room_that_the_driver_tells(
        self, told: tuple[Any, ...] | None
    ) -> None:
        shapes = () if told is None else (told,)
        scripted = {"execute_1_2": telling_shapes(*shapes)}
        async with adapted(V1_2, **scripted) as (older, _):
            model = await Device("older", older).prepare(addition(0))
            x = np.ones(4, np.float32)
            with pytest.raises(GeneralFailureError, match="answer is wrong"):
                await model.run([x, x])

    @pytest.mark.parametrize(
        ("prepare_model_1_2", "told"),
        [
            (raising, FAILED),
            (refusing_silently, INVALID),
            (lambda *args: args[-1].notify_1_2(NONE, None) or NONE, FAILED),
            (returning_nothing, FAILED),
            (cancelling, FAILED),
            (telling(), FAILED),
            (telling(None, None), FAILED),
            (telling(int(INVALID), None), INVALID),
        ],
    )
    async def test_so_does_a_preparation(
        self, prepare_model_1_2: Callable[..., Any], told: ErrorStatus
    ) -> None:
        scripted = {"prepare_model_1_2": prepare_model_1_2}
        async with adapted(V1_2, **scripted) as (device, _):
            with pytest.raises(AsyncnnError) as caught:
                await prepare(device, addition(4).model)
            assert caught.value.status is told

    async def test_a_failure_without_a_reason_names_the_device(self) -> None:
        def failing(*args: Any) -> ErrorStatus:
            args[-1].notify_1_2(FAILED, None)
            return NONE

        async with adapted(V1_2, prepare_model_1_2=failing) as (device, _):
            with pytest.raises(PreparationFailedError, match="old: preparat"):
                await Device("old", device).prepare(addition(4))

    async def test_answers_for_other_operations_count_for_none(self) -> None:
        async def two(_: Any) -> tuple[ErrorStatus, tuple[bool, ...]]:
            return NONE, (True, True)

        async with adapted(V1_0, get_supported_operations=two) as (device, _):
            model = addition(4).model
            assert await device.get_supported_operations_1_3(model) == (FAILED, ())
