"""Arrays of a run are taken in C as Python takes them, or left to it."""

import gc
import importlib.util
import itertools
from typing import Any

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.runtime.requests import InputCheck, OutputSpace
from tests.networks import addition

NAME = "asyncnn.runtime._arrays"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(NAME) is None, reason="no arrays were compiled"
)

MODEL = addition(2, 3)
CHECK, SPACE = InputCheck(MODEL.inputs), OutputSpace(MODEL.outputs)
TAKE = SPACE.taker(CHECK)
X = np.ones((2, 3), np.float32)

EACH: dict[str, Any] = {
    "usual": X,
    "read-only": np.frombuffer(X.tobytes(), np.float32).reshape(2, 3),
    "other dtype": X.astype(np.float64),
    "other order of bytes": X.astype(">f4"),
    "other shape": X[:1],
    "by columns": np.asfortranarray(X),
    "every other": np.ones((2, 6), np.float32)[:, ::2],
    "unaligned": np.frombuffer(bytes(25), np.float32, 6, 1).reshape(2, 3),
    "subclass": X.view(np.matrix),
    "list": X.tolist(),
    "nothing": None,
}


def both(first: Any, second: Any) -> list[Any]:
    x, y = CHECK.names
    return [[first, second], {x: first, y: second}, (first, second)]


@pytest.mark.parametrize(
    "values",
    [v for pair in itertools.product(EACH.values(), repeat=2) for v in both(*pair)],
)
def test_they_are_taken_where_they_are_usual(values: Any) -> None:
    assert TAKE is not None
    taken, usual = TAKE(values), CHECK.usual(values)
    if type(values) is tuple:  # which the other has in order first
        assert taken is None
        return
    assert (taken is None) is (usual is None)
    if taken is not None and usual is not None:
        tensors, outputs = taken
        assert all(a is b for a, b in zip(tensors, usual, strict=False))
        assert [*outputs] == [*SPACE.names]
        assert tensors[len(usual) :] == (*outputs.values(),)
        (made,) = outputs.values()
        assert (made.shape, made.dtype) == ((2, 3), np.float32)


@pytest.mark.parametrize("values", [[X], [X, X, X], {}, {"a": X, "b": X}, X, None])
def test_what_is_not_there_is_for_python_to_say(values: Any) -> None:
    assert TAKE is not None
    assert TAKE(values) is None
    with pytest.raises(InvalidArgumentError):
        CHECK(values)


class Emptying:
    """What empties a list when it is collected."""

    def __init__(self, values: list[Any]) -> None:
        self.values, self.itself = values, self

    def __del__(self) -> None:
        self.values[:] = [None, None]


def test_what_is_emptied_meanwhile_lasts() -> None:
    assert TAKE is not None
    thresholds = gc.get_threshold()
    try:
        for number in range(120):
            gc.collect()
            values: list[Any] = [X.copy(), X.copy()]
            Emptying(values)
            gc.set_threshold(1 + number % 60, 1000, 1000)
            taken = TAKE(values)
            gc.set_threshold(*thresholds)
            assert taken is None or all((each == 1).all() for each in taken[0][:2])
    finally:
        gc.set_threshold(*thresholds)
