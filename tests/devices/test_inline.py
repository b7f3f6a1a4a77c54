"""Which executions run on the event loop itself."""

import pytest

from asyncnn.devices.work import Inliner
from asyncnn.engine import Program
from asyncnn.hal.types import Model
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
