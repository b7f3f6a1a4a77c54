import gc

import pytest

from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    Memory,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.service.client.burst import MAX_CANDIDATES, Bindings

INPUTS = (RequestArgument(location=DataLocation(0, 0, 4)),)
OUTPUTS = (RequestArgument(location=DataLocation(1, 0, 4)),)


def pool() -> Memory:
    return from_buffer(bytearray(4))


def request(*pools: Memory | BufferToken) -> Request:
    return Request(INPUTS, OUTPUTS, pools or (pool(), pool()))


@pytest.fixture
def bindings() -> Bindings:
    return Bindings(2)


def test_a_request_is_worth_binding_when_it_comes_again(bindings: Bindings) -> None:
    mine, other = request(), request()
    assert [
        bindings.is_worth_binding(1, mine),
        bindings.is_worth_binding(1, other),
        bindings.is_worth_binding(2, mine),
        bindings.is_worth_binding(1, mine),
    ] == [False, False, False, True]


def test_one_that_is_made_anew_of_the_same_parts_is_the_same(
    bindings: Bindings,
) -> None:
    x, y = pool(), pool()
    bindings.add(7, 1, request(x, y))
    assert bindings.number_of(1, request(x, y)) == 7


def test_one_that_differs_in_any_part_is_another(bindings: Bindings) -> None:
    x, y = pool(), pool()
    bindings.add(7, 1, request(x, y))
    equal = RequestArgument(location=DataLocation(0, 0, 4))
    assert equal == INPUTS[0]
    others = [
        request(y, x),
        request(x, y, x),
        request(x, pool()),
        Request((equal,), OUTPUTS, (x, y)),
        Request(INPUTS, (equal,), (x, y)),
    ]
    assert [bindings.number_of(1, other) for other in others] == [None] * 5
    assert bindings.number_of(2, request(x, y)) is None


def test_what_is_no_request_has_no_number(bindings: Bindings) -> None:
    for nothing in (None, Request(INPUTS, OUTPUTS, None)):  # type: ignore[arg-type]
        assert bindings.number_of(1, nothing) is None  # type: ignore[arg-type]


def test_it_goes_with_any_of_its_pools(bindings: Bindings) -> None:
    x, y = pool(), pool()
    bindings.add(7, 1, request(x, y))
    bindings.add(8, 1, request(y, y))
    del x
    gc.collect()
    assert len(bindings) == 1
    assert bindings.number_of(1, request(y, y)) == 8


def test_a_token_is_known_by_its_value_until_its_buffer_goes(
    bindings: Bindings,
) -> None:
    x = pool()
    bindings.add(7, 1, request(x, BufferToken(2**32 - 1)))
    bindings.add(8, 1, request(x, BufferToken(5)))
    assert bindings.number_of(1, request(x, BufferToken(2**32 - 1))) == 7
    assert bindings.number_of(1, request(x, BufferToken(6))) is None
    bindings.forget_buffer(5)
    assert bindings.number_of(1, request(x, BufferToken(5))) is None
    assert len(bindings) == 1


def test_it_goes_with_its_prepared_model(bindings: Bindings) -> None:
    mine = request()
    bindings.add(7, 1, mine)
    bindings.add(8, 2, mine)
    bindings.release(1)
    assert bindings.number_of(1, mine) is None
    assert bindings.number_of(2, mine) == 8


def test_no_others_are_bound_when_there_are_enough(bindings: Bindings) -> None:
    kept = [request(), request()]
    for number, mine in enumerate(kept):
        bindings.add(number, 1, mine)
    late = request()
    assert not any(bindings.is_worth_binding(1, late) for _ in range(3))
    kept.pop()
    del mine
    gc.collect()
    assert bindings.is_worth_binding(1, late)


def test_a_request_seen_long_ago_is_forgotten(bindings: Bindings) -> None:
    requests = [request() for _ in range(MAX_CANDIDATES + 1)]
    for one in requests:
        assert not bindings.is_worth_binding(1, one)
    assert bindings.is_worth_binding(1, requests[-1])
    assert not bindings.is_worth_binding(1, requests[0])


def test_nothing_is_left_when_the_driver_is_gone(bindings: Bindings) -> None:
    mine, other = request(), request()
    bindings.add(7, 1, mine)
    bindings.is_worth_binding(1, other)
    bindings.clear()
    assert bindings.number_of(1, mine) is None
    assert not bindings.is_worth_binding(1, other)
