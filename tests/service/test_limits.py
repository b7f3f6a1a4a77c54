"""What exceeds a limit of clients is refused by the name of its setting."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn import Device
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import InvalidArgumentError, ResourceExhaustedTransientError
from asyncnn.hal.types import ErrorStatus
from asyncnn.logs import KindLimit
from asyncnn.memory.shared import allocate
from asyncnn.service import Server, ServiceLimits, UserLimits
from asyncnn.service.driver import reporting
from tests.networks import addition
from tests.places import served
from tests.service.raw import RawClient, execute

SUM = addition(4).model
PLACES = ((0, 0, 16), (0, 16, 16), (0, 32, 16))
TRANSIENT = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
PERSISTENT = ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "driver.sock"


def file_that_can_shrink() -> int:
    fd = os.memfd_create("unsealed")
    os.truncate(fd, 48)
    return fd


async def a_sum(device: Device) -> None:
    model = await device.prepare(SUM)
    x = np.zeros(4, np.float32)
    await model.run([x, x])


@pytest.mark.parametrize(
    ("limit", "is_sealed", "status"),
    [
        ("max_pool_bytes", True, PERSISTENT),
        ("max_copied_bytes", False, PERSISTENT),
        ("max_descriptors", False, TRANSIENT),
        ("max_mappings", True, TRANSIENT),
    ],
)
async def test_one_of_pools_is_named(
    path: Path, limit: str, is_sealed: bool, status: ErrorStatus
) -> None:
    limits = replace(ServiceLimits(), **{limit: 0})
    async with ReferenceDevice() as hal, Server(hal, path, limits=limits):
        client = await RawClient.connect(path).greet()
        assert (await client.prepare(1, SUM)).status == ErrorStatus.NONE
        if is_sealed:
            client.announce(2, allocate(48))
        else:
            fd = file_that_can_shrink()
            client.announce_fd(2, fd, 48)
            os.close(fd)
        answer = await client.execute(execute(1, 1, *PLACES, pools=(2,)))
        assert answer.status == status
        assert f"ServiceLimits.{limit} is 0" in answer.reason
        client.close()


@pytest.mark.parametrize(
    ("limits", "user_limits"),
    [
        (ServiceLimits(max_executions=0), UserLimits()),
        (ServiceLimits(), UserLimits(max_executions=0)),
        (ServiceLimits(max_pools=0), UserLimits()),
    ],
    ids=["executions", "executions of a user", "pools"],
)
async def test_one_of_0_refuses_calls_but_no_connection(
    path: Path, limits: ServiceLimits, user_limits: UserLimits
) -> None:
    async with served(path, limits=limits, user_limits=user_limits) as device:
        with pytest.raises(
            ResourceExhaustedTransientError, match=r"Limits\.max_\w+ is 0"
        ):
            await a_sum(device)


@pytest.mark.parametrize("limits", [ServiceLimits, UserLimits])
def test_none_is_negative(limits: type[ServiceLimits | UserLimits]) -> None:
    for name in limits.__struct_fields__:
        with pytest.raises(InvalidArgumentError, match=f"{limits.__name__}.{name} is"):
            limits(**{name: -1})


async def test_each_of_a_user_is_logged_by_itself(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reporting.log, "_limit", KindLimit())
    caplog.set_level(logging.WARNING, "asyncnn")
    limits = UserLimits(max_prepared_models=0, max_pools=0)
    async with ReferenceDevice() as hal, Server(hal, path, user_limits=limits):
        client = await RawClient.connect(path).greet()
        for number in (1, 2):
            client.announce(number, allocate(48))
            assert (await client.prepare(number, SUM)).status == TRANSIENT
        client.close()
    assert [record.fields["setting"] for record in caplog.records] == [
        "UserLimits.max_pools",
        "UserLimits.max_prepared_models",
    ]
