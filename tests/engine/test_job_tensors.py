"""Engines that have a tensor made over each array, for the time of a run."""

from typing import Any

import numpy as np
import pytest

from asyncnn.engine.array_memory import address_of
from asyncnn.engine.job import COPIED_BYTES, TensorCalls
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from tests.engine.scripted import BuiltGraph, PythonGraph, arrays


class PythonTensors(PythonGraph):
    has_stop_calls = has_tensors = True


class BuiltTensors(BuiltGraph):
    has_stop_calls = has_tensors = True


@pytest.fixture(params=[PythonTensors, BuiltTensors])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.parametrize("offset", [0, 16, 4])
@pytest.mark.parametrize("elements", [4, COPIED_BYTES])
def test_large_arrays_are_used_wherever_they_lie(
    kind: Any, elements: int, offset: int
) -> None:
    graph = kind(1, elements, inputs=2)
    script, used = graph.script, set()
    for _ in range(40):
        x, y = arrays(elements, offset=offset)
        assert graph.run([x, x], [y])
        np.testing.assert_array_equal(y, 2 * x + 1)
        is_in_place = 4 * elements > COPIED_BYTES and not offset % 16
        assert (script.input == address_of(x)) == is_in_place
        used.add(script.made - script.unmade)
    assert not graph.bound_addresses()
    assert len(used) == 1  # those over memory that stands in may be kept
    assert used <= {0, 0 if is_in_place else 3}
    graph.forget()
    assert script.made == script.unmade
    assert graph.run([x, x], [y])
    graph.forget()
    assert script.made == script.unmade


@pytest.mark.parametrize("elements", [4, COPIED_BYTES])
def test_a_tensor_that_is_refused_fails_the_run_alone(kind: Any, elements: int) -> None:
    graph = kind(1, elements, inputs=2)
    x, y = arrays(elements)
    for refuses in (1, 2, 3):
        graph.forget()
        graph.script.refuses = refuses
        with pytest.raises(GeneralFailureError, match="the engine says"):
            graph.run([x, x], [y])
        assert graph.script.begun == 0
    graph.forget()
    assert graph.script.made == graph.script.unmade
    assert graph.run([x, x], [y])
    np.testing.assert_array_equal(y, 2 * x + 1)


def test_a_run_that_is_interrupted_leaves_no_tensor(kind: Any) -> None:
    graph = kind(1, 4)
    x, y = arrays()
    graph.interrupt()
    with pytest.raises(GeneralFailureError):
        graph.run([x], [y])
    graph.clear_interrupt()
    assert graph.run([x], [y])
    graph.forget()
    assert graph.script.made == graph.script.unmade


@pytest.mark.parametrize(
    "wrong",
    [
        {"make": 0},
        {"unmake": 0},
        {"cells": ()},
        {"shapes": ((0, 0, 0),)},
        {"words": (1,) * 9},
        {"alignment": 0},
    ],
)
def test_calls_that_do_not_fit_are_refused(
    kind: Any, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = kind._tensor_calls

    def changed(self: Any, elements: int) -> TensorCalls:
        calls: TensorCalls = right(self, elements)
        return calls._replace(**wrong)

    monkeypatch.setattr(kind, "_tensor_calls", changed)
    with pytest.raises(
        InvalidArgumentError, match=r"no function at 0|of 0 bytes|cells and"
    ):
        kind(1, 4)
