import gc
from pathlib import Path

import numpy as np
import pytest

from asyncnn.callbacks import launched
from asyncnn.execution import reusable
from asyncnn.hal.types import (
    DEFAULT_OPTIONS,
    BufferToken,
    DataLocation,
    ErrorStatus,
    Memory,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.memory.shared import allocate
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.service import Server
from asyncnn.service.client.pools import Bindings, Sendable
from asyncnn.service.client.staging import Layout, Staging
from tests.networks import addition

INPUTS = (RequestArgument(location=DataLocation(0, 0, 4)),)
OUTPUTS = (RequestArgument(location=DataLocation(1, 0, 4)),)


def pool() -> Memory:
    return allocate(4)


def request(*pools: Memory | BufferToken) -> Request:
    return Request(INPUTS, OUTPUTS, pools or (pool(), pool()))


class Model:
    """What sends the requests of a prepared model, and the checks that it made."""

    def __init__(self, bindings: Bindings) -> None:
        self.bindings = bindings
        self.checked: list[bool] = []
        self.staging = Staging(self._check, bindings)

    def _check(self, request: Request, is_fenced: bool) -> None:
        self.checked.append(is_fenced)

    def sendable(self, request: Request) -> Sendable:
        known = self.staging.known(request)
        if isinstance(known, Layout):
            return self.staging.staged(known, request.pools)
        return known

    def bind(self, number: int, request: Request) -> None:
        self.bindings.add(number, self.sendable(request))

    def number_of(self, request: Request) -> int | None:
        return self.sendable(request).number


@pytest.fixture
def bindings() -> Bindings:
    return Bindings(2)


@pytest.fixture
def model(bindings: Bindings) -> Model:
    return Model(bindings)


def test_a_request_is_worth_binding_when_it_comes_again(
    bindings: Bindings, model: Model
) -> None:
    mine, other, elsewhere = request(), request(), Model(bindings)
    assert [
        bindings.is_worth_binding(model.sendable(mine)),
        bindings.is_worth_binding(model.sendable(other)),
        bindings.is_worth_binding(elsewhere.sendable(mine)),
        bindings.is_worth_binding(model.sendable(mine)),
    ] == [False, False, False, True]


def test_one_that_is_made_anew_of_the_same_parts_is_the_same(model: Model) -> None:
    x, y = pool(), pool()
    model.bind(7, request(x, y))
    assert model.number_of(request(x, y)) == 7
    assert model.checked == [False]


def test_one_that_differs_in_any_part_is_another(model: Model) -> None:
    x, y = pool(), pool()
    model.bind(7, request(x, y))
    equal = RequestArgument(location=DataLocation(0, 0, 4))
    assert equal == INPUTS[0]
    others = [
        request(y, x),
        request(x, y, x),
        request(x, pool()),
        Request((equal,), OUTPUTS, (x, y)),
        Request(INPUTS, (equal,), (x, y)),
    ]
    assert [model.number_of(other) for other in others] == [None] * 5
    assert len(model.checked) == 6


def test_lists_of_arguments_are_looked_at_each_time(model: Model) -> None:
    x, y = pool(), pool()
    listed = Request(list(INPUTS), OUTPUTS, (x, y))  # type: ignore[arg-type]
    for _ in range(3):
        assert model.number_of(listed) is None
    assert len(model.checked) == 3


def test_fenced_executions_have_more_to_check_once(model: Model) -> None:
    mine = request()
    for is_fenced in (False, True, False, True):
        model.staging.known(mine, is_fenced)
    assert model.checked == [False, True]


@pytest.mark.parametrize("nothing", [None, Request(INPUTS, OUTPUTS, None)])  # type: ignore[arg-type]
def test_what_is_no_request_is_checked(model: Model, nothing: Request) -> None:
    with pytest.raises((AttributeError, TypeError)):
        model.staging.known(nothing)
    assert model.checked == [False]


def test_it_goes_with_any_of_its_pools(bindings: Bindings, model: Model) -> None:
    x, y = pool(), pool()
    model.bind(7, request(x, y))
    model.bind(8, request(y, y))
    del x
    gc.collect()
    assert len(bindings) == 1
    assert bindings.take_forgotten() == (7,)
    assert model.number_of(request(y, y)) == 8


def test_a_token_is_known_by_its_value_until_its_buffer_goes(
    bindings: Bindings, model: Model
) -> None:
    x = pool()
    model.bind(7, request(x, BufferToken(2**32 - 1)))
    model.bind(8, request(x, BufferToken(5)))
    assert model.number_of(request(x, BufferToken(2**32 - 1))) == 7
    assert model.number_of(request(x, BufferToken(6))) is None
    bindings.forget(BufferToken(5))
    assert model.number_of(request(x, BufferToken(5))) is None
    assert len(bindings) == 1


def test_a_pool_that_the_driver_refuses_takes_its_numbers_along(
    bindings: Bindings, model: Model
) -> None:
    x, y = pool(), pool()
    model.bind(7, request(x, y))
    bindings.forget(y)
    assert model.number_of(request(x, y)) is None
    assert bindings.take_forgotten() == ()


def test_it_goes_with_its_prepared_model(bindings: Bindings, model: Model) -> None:
    mine, other = request(), Model(bindings)
    model.bind(7, mine)
    other.bind(8, mine)
    other.staging = Staging(lambda request, is_fenced: None, bindings)
    gc.collect()
    assert other.number_of(mine) is None
    assert model.number_of(mine) == 7


def test_no_others_are_bound_when_there_are_enough(
    bindings: Bindings, model: Model
) -> None:
    kept = [request(), request()]
    for number, mine in enumerate(kept):
        model.bind(number, mine)
    late = request()
    assert not any(bindings.is_worth_binding(model.sendable(late)) for _ in range(3))
    kept.pop()
    del mine
    gc.collect()
    assert bindings.is_worth_binding(model.sendable(late))


class TestStaged:
    """What is copied keeps its number as long as what is not copied is the same."""

    def test_it_has_that_of_its_slab(self, bindings: Bindings, model: Model) -> None:
        first = model.sendable(request(*[from_buffer(bytearray(4)) for _ in range(2)]))
        bindings.add(7, first)
        model.staging.give_back(first)  # type: ignore[arg-type]
        again = request(*[from_buffer(bytearray(4)) for _ in range(2)])
        assert model.number_of(again) == 7
        assert model.checked == [False]

    def test_another_shared_pool_is_another_request(
        self, bindings: Bindings, model: Model
    ) -> None:
        shared = [pool(), pool()]
        numbers = []
        for which in (0, 0, 1, 0):
            mine = request(shared[which], from_buffer(bytearray(4)))
            sendable = model.sendable(mine)
            numbers.append(sendable.number)
            bindings.add(10 + len(numbers), sendable)
            model.staging.give_back(sendable)  # type: ignore[arg-type]
        assert numbers == [None, 11, None, None]

    def test_pools_of_other_sizes_are_checked(self, model: Model) -> None:
        for size in (4, 4, 8):
            private = from_buffer(bytearray(size))
            model.sendable(request(private, from_buffer(bytearray(4))))
        assert len(model.checked) == 2


def test_nothing_is_left_when_the_driver_is_gone(
    bindings: Bindings, model: Model
) -> None:
    model.bind(7, request())
    bindings.clear()
    assert len(bindings) == 0


async def test_one_that_was_made_for_another_connection_is_looked_at_anew(
    tmp_path: Path,
) -> None:
    """As after a restart of the driver, where numbers mean other things."""
    path, x, z = tmp_path / "driver.sock", shared_array(4), shared_array(4)
    x[:] = 1
    build = RequestBuilder(addition(4).inputs, addition(4).outputs)
    async with (
        open_device() as device,
        Server(device.hal, path),
        connect(path) as first,
        connect(path) as second,
    ):
        models = [await each.prepare(addition(4)) for each in (first, second)]
        request = reusable(models[0].hal, build([x, x], [z]))
        for model in models * 3:
            z[:] = 0
            result = await launched(model.hal, request, DEFAULT_OPTIONS)
            assert result.status is ErrorStatus.NONE
            assert np.array_equal(z, 2 * x)
