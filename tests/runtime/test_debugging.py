"""The HAL call that carries runs can be forced, as the HAL's runtime can be."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import asyncnn
from asyncnn.devices.prepared import InProcessPreparedModel
from asyncnn.runtime.execution_options import SYNC_EXEC_VARIABLE
from asyncnn.runtime.prepared import Path
from tests.networks import addition

X = np.ones(2, np.float32)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Which of the two HAL calls were made, the synchronous one alone counting so."""
    seen: Counter[str] = Counter()
    cls = InProcessPreparedModel
    synchronously = cls.execute_synchronously_1_3

    async def sync(self: object, *arguments: object) -> object:
        seen["sync"] += 1
        seen["async"] -= 1  # it is made of that here
        return await synchronously(self, *arguments)  # type: ignore[arg-type]

    def launching(method: Callable[..., object]) -> Callable[..., object]:
        def launch(self: object, *arguments: object) -> object:
            seen["async"] += 1
            return method(self, *arguments)

        return launch

    monkeypatch.setattr(cls, "execute_synchronously_1_3", sync)
    monkeypatch.setattr(cls, "execute_1_3", launching(cls.execute_1_3))
    monkeypatch.setattr(cls, "launch", launching(cls.launch))
    return seen


async def run_all_ways(device: asyncnn.Device) -> None:
    prepared = await device.prepare(addition(2))
    paths: list[Path] = ["async", "sync", "fenced"]
    for path in paths:
        assert (await prepared.run([X, X], path=path))["z"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("variable", "setting", "expected"),
    [
        (None, None, {"async": 1, "sync": 1}),
        ("", None, {"async": 1, "sync": 1}),
        ("1", None, {"async": 0, "sync": 2}),
        ("0", None, {"async": 2, "sync": 0}),
        (None, True, {"async": 0, "sync": 2}),
        (None, False, {"async": 2, "sync": 0}),
        ("1", False, {"async": 2, "sync": 0}),
        ("0", True, {"async": 0, "sync": 2}),
    ],
)
async def test_the_setting_goes_before_the_environment(
    calls: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    variable: str | None,
    setting: bool | None,
    expected: dict[str, int],
) -> None:
    monkeypatch.delenv(SYNC_EXEC_VARIABLE, raising=False)
    if variable is not None:
        monkeypatch.setenv(SYNC_EXEC_VARIABLE, variable)
    async with asyncnn.open_device(sync_exec_hal=setting) as device:
        await run_all_ways(device)
    assert calls == Counter(expected)


async def test_anything_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SYNC_EXEC_VARIABLE, "yes")
    with pytest.raises(asyncnn.InvalidArgumentError, match=r"'yes'.*1 forces"):
        async with asyncnn.open_device():
            pass
    with pytest.raises(asyncnn.InvalidArgumentError, match=r"'yes'.*1 forces"):
        async with asyncnn.connect():
            pass
