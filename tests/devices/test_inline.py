"""Which executions run on the event loop itself."""

import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.executable import Inliner
from asyncnn.engine import Program
from asyncnn.hal.types import ExecutionPreference, Model
from tests.devices.test_quality_of_service import prepare
from tests.engine.test_control_flow import while_model
from tests.networks import addition

BELOW_NS = 50_000.0


def inliner(model: Model) -> Inliner:
    return Inliner(Program(model), BELOW_NS)


def test_nothing_is_inlined_before_it_was_measured() -> None:
    assert not inliner(addition(4).model).should_inline


def test_short_executions_are_inlined() -> None:
    short = inliner(addition(4).model)
    short.observe(*2 * [int(BELOW_NS) - 1])
    assert short.should_inline


def test_long_executions_are_not_inlined() -> None:
    long = inliner(addition(4).model)
    long.observe(*2 * [int(BELOW_NS) + 1])
    assert not long.should_inline


def test_one_disturbed_execution_changes_nothing() -> None:
    short = inliner(addition(4).model)
    short.observe(10_000, 10_000)
    short.observe(10_000_000, 10_000_000)
    assert short.should_inline


def test_a_model_that_became_slow_is_noticed() -> None:
    slow = inliner(addition(4).model)
    slow.observe(10_000, 10_000)
    for _ in range(100):
        slow.observe(1_000_000, 1_000_000)
    assert not slow.should_inline


@pytest.mark.parametrize(
    "model", [while_model((3,)), addition(0).model], ids=["loop", "open shape"]
)
def test_what_one_execution_does_not_tell_of_is_never_inlined(model: Model) -> None:
    never = inliner(model)
    never.observe(1, 1)
    assert not never.should_inline


async def test_a_model_prepared_for_low_power_wakes_no_thread_for_a_while() -> None:
    async with ReferenceDevice(DeviceSettings(inline_below_us=50)) as device:
        limits = []
        for preference in ExecutionPreference:
            prepared = await prepare(device, addition(4), preference=preference)
            inliner = prepared._executable.inliner  # type: ignore[attr-defined]
            inliner.observe(100_000, 100_000)
            limits.append((preference, inliner.should_inline))
    assert [p for p, inlines in limits if inlines] == [ExecutionPreference.LOW_POWER]
