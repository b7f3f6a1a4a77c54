"""Shared arrays: ordinary to NumPy, known to requests by the pool they lie in."""

import gc
import os
import weakref
from typing import Any

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Memory, Request
from asyncnn.memory.slabs import Part, in_slabs, place_of, shared_array


@pytest.mark.parametrize("shape", [(), 3, (2, 3), (4, 0), (1, 2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.bool_, "f2"])
def test_it_is_an_array_of_zeros(shape: Any, dtype: Any) -> None:
    array = shared_array(shape, dtype)
    assert type(array) is np.ndarray
    assert array.dtype == dtype
    assert array.flags.writeable
    np.testing.assert_array_equal(array, np.zeros(shape, dtype))


def test_its_pool_travels_and_has_its_bytes() -> None:
    array = shared_array((2, 3), np.int32)
    place = place_of(array)
    assert place is not None
    memory, offset = place
    array[:] = np.arange(6).reshape(2, 3)
    assert offset == 0
    assert bytes(memory.buffer or b"") == array.tobytes()
    (sent,) = in_slabs(Request((), (), (memory,))).pools
    assert isinstance(memory, Part)
    assert isinstance(sent, Memory)
    assert os.pread(sent.handle.fds[0], 24, memory.offset) == array.tobytes()


@pytest.mark.parametrize(
    ("view", "offset"),
    [
        (lambda a: a[1], 12),
        (lambda a: a[1:][1:], 24),
        (lambda a: a.reshape(-1)[5:], 20),
        (lambda a: a.view(np.int8).reshape(-1)[3:], 3),
        (lambda a: a.T, 0),
    ],
)
def test_a_view_lies_in_the_same_pool(view: Any, offset: int) -> None:
    array = shared_array((4, 3))
    whole = place_of(array)
    assert whole is not None
    assert place_of(view(array)) == (whole[0], offset)


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(3),
        np.zeros((2, 3))[1],
        np.frombuffer(b"1234", np.int8),
        shared_array(3) + 1,
        shared_array(3).copy(),
    ],
)
def test_other_arrays_have_no_place(other: Any) -> None:
    assert place_of(other) is None


def test_the_pool_goes_with_the_last_view() -> None:
    array = shared_array((2, 3))
    place = place_of(array)
    assert place is not None
    pool, view = weakref.ref(place[0]), array[1]
    del array, place
    gc.collect()
    view[:] = 7
    assert pool() is not None
    del view
    assert pool() is None


@pytest.mark.parametrize(
    ("shape", "dtype"), [((-1,), "f4"), ((-2, -2), "f4"), ((2, -1), "i1"), (2, "O")]
)
def test_an_array_that_cannot_be_is_refused(shape: Any, dtype: str) -> None:
    with pytest.raises(InvalidArgumentError):
        shared_array(shape, dtype)
