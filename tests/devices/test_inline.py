"""Which executions run on the event loop itself."""

from unittest.mock import Mock

import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.executable import Executable
from asyncnn.engine import Program
from asyncnn.hal.types import ExecutionPreference, Model, Priority
from asyncnn.qos import WorkAccounting
from tests.devices.test_quality_of_service import prepare
from tests.engine.test_control_flow import while_model
from tests.networks import addition

BELOW_NS = 50_000.0


def learner(model: Model) -> Executable:
    counts = WorkAccounting()
    return Executable(Program(model), BELOW_NS, Priority.LOW, counts, cancel=Mock())


def test_nothing_is_inlined_before_it_was_measured() -> None:
    assert not learner(addition(4).model).should_inline


def test_short_executions_are_inlined() -> None:
    short = learner(addition(4).model)
    short.observe(*2 * [int(BELOW_NS) - 1])
    assert short.should_inline


def test_long_executions_are_not_inlined() -> None:
    long = learner(addition(4).model)
    long.observe(*2 * [int(BELOW_NS) + 1])
    assert not long.should_inline


def test_one_disturbed_execution_changes_nothing() -> None:
    short = learner(addition(4).model)
    short.observe(10_000, 10_000)
    short.observe(10_000_000, 10_000_000)
    assert short.should_inline


def test_a_model_that_became_slow_is_noticed() -> None:
    slow = learner(addition(4).model)
    slow.observe(10_000, 10_000)
    for _ in range(100):
        slow.observe(1_000_000, 1_000_000)
    assert not slow.should_inline


@pytest.mark.parametrize(
    "model", [while_model((3,)), addition(0).model], ids=["loop", "open shape"]
)
def test_what_one_execution_does_not_tell_of_is_never_inlined(model: Model) -> None:
    never = learner(model)
    never.observe(1, 1)
    assert not never.should_inline


async def test_a_model_prepared_for_low_power_wakes_no_thread_for_a_while() -> None:
    async with ReferenceDevice(DeviceSettings(inline_below_us=50)) as device:
        limits = []
        for preference in ExecutionPreference:
            prepared = await prepare(device, addition(4), preference=preference)
            executable = prepared._executable  # type: ignore[attr-defined]
            executable.observe(100_000, 100_000)
            limits.append((preference, executable.should_inline))
    assert [p for p, inlines in limits if inlines] == [ExecutionPreference.LOW_POWER]
