"""How stages are connected, and which cannot be."""

from typing import Any

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.pipeline import Pipeline, Stage
from asyncnn.pipeline.frame import StateMemory
from asyncnn.pipeline.wiring import FromPut, FromStage, FromState, wire
from tests.networks import addition, chain


class Prepared:
    """All that wiring looks at of a prepared model."""

    def __init__(self, model: Any) -> None:
        self.inputs = model.inputs
        self.outputs = model.outputs


def stage(name: str, model: Any, **given: Any) -> Stage:
    return Stage(name, Prepared(model), **given)  # type: ignore[arg-type]


PLUS_ONE, SUM = chain(1, 4), addition(4)


def test_outputs_go_to_the_inputs_of_the_next_stage_in_order() -> None:
    wiring = wire([stage("a", SUM), stage("b", PLUS_ONE)])
    assert wiring.sources == ((FromPut(0), FromPut(1)), (FromStage(0, 0),))
    assert wiring.feeds == ((), (0,))
    assert [info.name for info in wiring.put] == ["x", "y"]


def test_what_is_put_under_one_name_is_put_once() -> None:
    wiring = wire(
        [stage("a", PLUS_ONE), stage("b", SUM, inputs={"x": "put.x", "y": "a.z"})]
    )
    assert [info.name for info in wiring.put] == ["x"]
    assert wiring.sources[1] == (FromPut(0), FromStage(0, 0))


def test_state_is_left_out_of_both_ends() -> None:
    wiring = wire(
        [stage("a", SUM, state={"z": "y"}), stage("b", PLUS_ONE, inputs={"x": "a.z"})]
    )
    assert wiring.sources == ((FromPut(0), FromState(0)), (FromStage(0, 0),))


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "names"),
        ([stage("a", PLUS_ONE), stage("a", PLUS_ONE)], "names"),
        ([stage("put", PLUS_ONE)], "names"),
        ([stage("a", PLUS_ONE), stage("b", SUM)], "nothing is left for input y"),
        ([stage("a", chain(1, 4)), stage("b", chain(1, 3))], "takes float32"),
        ([stage("a", PLUS_ONE, inputs={"q": "put.x"})], "no input q"),
        ([stage("a", PLUS_ONE, inputs={"x": "b.z"})], "cannot take 'b.z'"),
        ([stage("a", PLUS_ONE, inputs={"x": "put"})], "cannot take 'put'"),
        ([stage("a", PLUS_ONE, inputs={"x": "a.z"})], "cannot take 'a.z'"),
        (
            [stage("a", PLUS_ONE), stage("b", PLUS_ONE, inputs={"x": "a.q"})],
            "no output 'q'",
        ),
        ([stage("a", SUM, state={"q": "x"})], "no output 'q'"),
        ([stage("a", SUM, state={"z": "q"})], "no input q"),
        ([stage("a", SUM, state={"z": "x"}, inputs={"x": "put.x"})], "named twice"),
        ([stage("a", SUM, initial={"x": np.zeros(4)})], "no state"),
        ([stage("a", addition(0))], "no fixed shape"),
        ([stage("a", SUM), stage("b", PLUS_ONE), stage("c", chain(1, 4))], None),
    ],
)
def test_stages_that_do_not_fit_are_refused(
    stages: list[Stage], message: str | None
) -> None:
    if message is None:
        wire(stages)
        return
    with pytest.raises(InvalidArgumentError, match=message):
        wire(stages)


async def test_an_initial_state_of_another_shape_is_refused() -> None:
    wrong = stage("a", SUM, state={"z": "y"}, initial={"y": np.zeros(3, np.float32)})
    with pytest.raises(InvalidArgumentError, match="initial y"):
        await StateMemory.of(wrong, 2, frozenset())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"in_flight": 0}, "positive"),
        ({"backlog": 0}, "positive"),
        ({"timeout": 0}, "positive"),
        ({"timeout": -1}, "positive"),
        ({"timeout": float("nan")}, "positive"),
        ({"when_full": "drop"}, "no policy 'drop'"),
        ({"when_failed": "ignore"}, "no policy 'ignore'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Pipeline(stage("a", PLUS_ONE), **settings)
