import gc
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from asyncnn.callbacks import launched
from asyncnn.execution import reusable
from asyncnn.hal.errors import InvalidArgumentError
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
from asyncnn.memory.slabs import allocate_in_slab, shared_array
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.service import Server, wire
from asyncnn.service.client.remote_model import RemoteExecution
from asyncnn.service.client.sent_pools import Numbers
from asyncnn.service.client.staging import MAX_PLACES, Staged, Staging
from asyncnn.service.limits import ServiceLimits
from tests.networks import addition

T = TypeVar("T")

INPUTS = (RequestArgument(location=DataLocation(0, 0, 4)),)
OUTPUTS = (RequestArgument(location=DataLocation(1, 0, 4)),)


def pool() -> Memory:
    return allocate(4)


def request(*pools: Memory | BufferToken) -> Request:
    return Request(INPUTS, OUTPUTS, pools or (pool(), pool()))


class Line:
    """Keeps what the driver would be sent."""

    def __init__(self) -> None:
        self.numbers = itertools.count(7)
        self.sent: list[wire.ToDriver] = []

    def send(self, message: wire.ToDriver, _: Sequence[int] = ()) -> None:
        self.sent.append(message)

    send_if_open = send

    def call_soon(self, call: Callable[[], None]) -> None:
        call()

    def of(self, kind: type[T]) -> list[T]:
        return [message for message in self.sent if isinstance(message, kind)]

    @property
    def forgotten(self) -> list[int]:
        return [n for message in self.of(wire.ForgetPools) for n in message.numbers]


class Model:
    """What sends the requests of a prepared model, and the checks that it made."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self.checked: list[bool] = []
        self.staging = Staging(self._check)

    def _check(self, request: Request, is_fenced: bool) -> None:
        self.checked.append(is_fenced)

    def send(self, request: Request) -> int | None:
        """Send a request, to be done at once; return the number that stands for it."""
        sent = self.staging.sent(request)
        if not isinstance(sent, Staged):
            return sent.number or self.numbers.bind(1, sent, request)
        number = sent.sendable.number
        if number is None:
            number = self.numbers.bind(1, sent.sendable, sent.request)
        sent.give_back()
        return number

    def bind(self, request: Request) -> int:
        assert self.send(request) is None
        number = self.send(request)
        assert number is not None
        return number

    def number_of(self, request: Request) -> int | None:
        sent = self.staging.sent(request)
        if not isinstance(sent, Staged):
            return sent.number
        sent.give_back()
        return sent.sendable.number


@pytest.fixture
def line() -> Line:
    return Line()


@pytest.fixture
def numbers(line: Line) -> Numbers:
    numbers = Numbers(line, ServiceLimits())  # type: ignore[arg-type]
    numbers.most_requests = 2
    return numbers


@pytest.fixture
def model(numbers: Numbers) -> Model:
    return Model(numbers)


def test_a_request_is_bound_when_it_comes_again(
    line: Line, numbers: Numbers, model: Model
) -> None:
    mine, other, elsewhere = request(), request(), Model(numbers)
    assert model.send(mine) is None
    assert model.send(other) is None
    assert elsewhere.send(mine) is None
    assert not line.of(wire.BindRequest)
    number = model.send(mine)
    assert model.send(mine) == number
    (bound,) = line.of(wire.BindRequest)
    assert (bound.bound, bound.inputs, bound.outputs) == (number, INPUTS, OUTPUTS)


def test_one_that_is_made_anew_of_the_same_parts_is_the_same(model: Model) -> None:
    x, y = pool(), pool()
    number = model.bind(request(x, y))
    assert model.number_of(request(x, y)) == number
    assert model.checked == [False]


def test_one_that_differs_in_any_part_is_another(model: Model) -> None:
    x, y = pool(), pool()
    model.bind(request(x, y))
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
        assert model.send(listed) is None
    assert len(model.checked) == 3


@pytest.mark.parametrize("make", [pool, lambda: from_buffer(bytearray(4))])
def test_fenced_executions_have_more_to_check_once(
    model: Model, make: Callable[[], Memory]
) -> None:
    mine = request(make(), make())
    for is_fenced in (False, True, False, True):
        model.staging.sent(mine, is_fenced)
    assert model.checked == [False, True]


@pytest.mark.parametrize("nothing", [None, Request(INPUTS, OUTPUTS, None)])  # type: ignore[arg-type]
def test_what_is_no_request_is_checked(model: Model, nothing: Request) -> None:
    with pytest.raises((AttributeError, TypeError)):
        model.staging.sent(nothing)
    assert model.checked == [False]


def test_it_goes_with_any_of_its_pools(
    line: Line, numbers: Numbers, model: Model
) -> None:
    x, y = pool(), pool()
    number, other = model.bind(request(x, y)), model.bind(request(y, y))
    del x
    gc.collect()
    assert numbers.requests == 1
    (announced, *_) = line.of(wire.AnnouncePools)
    assert set(line.forgotten) == {number, announced.pools[0].number}
    assert model.number_of(request(y, y)) == other


def test_a_token_is_known_by_its_value_until_its_buffer_goes(
    numbers: Numbers, model: Model
) -> None:
    x = pool()
    for token in (2**32 - 1, 5, 6, 0):
        numbers.adopt(token, 100 + token)
    number = model.bind(request(x, BufferToken(2**32 - 1)))
    model.bind(request(x, BufferToken(5)))
    assert model.number_of(request(x, BufferToken(2**32 - 1))) == number
    assert model.number_of(request(x, BufferToken(6))) is None
    numbers.lose_buffer(5)
    assert model.number_of(request(x, BufferToken(5))) is None
    assert numbers.requests == 1


@pytest.mark.parametrize("token", [0, 1])
def test_a_token_is_not_taken_for_anything_else(model: Model, token: int) -> None:
    """The key of a request with pools that do not all travel has truth values."""
    model.staging.sent(request(from_buffer(bytearray(4)), pool()))
    tokens = request(BufferToken(token), BufferToken(1 - token))
    assert not isinstance(model.staging.sent(tokens), Staged)


def test_a_pool_that_the_driver_refuses_takes_its_numbers_along(
    line: Line, numbers: Numbers, model: Model
) -> None:
    x, y = pool(), pool()
    number = model.bind(request(x, y))
    refused = line.of(wire.AnnouncePools)[1].pools[0].number
    numbers.refused((refused,))
    assert model.number_of(request(x, y)) is None
    assert numbers.requests == 0
    assert number not in line.forgotten


def test_it_goes_with_its_prepared_model(numbers: Numbers, model: Model) -> None:
    mine, other = request(), Model(numbers)
    number = model.bind(mine)
    other.bind(mine)
    other.staging = Staging(lambda request, is_fenced: None)
    gc.collect()
    assert other.number_of(mine) is None
    assert model.number_of(mine) == number
    assert numbers.requests == 1


def test_no_others_are_bound_when_there_are_enough(model: Model) -> None:
    kept = [request(), request()]
    for mine in kept:
        model.bind(mine)
    late = request()
    assert [model.send(late) for _ in range(3)] == [None] * 3
    kept.pop()
    del mine
    gc.collect()
    assert model.send(late) is not None


class TestStaged:
    """What is copied keeps its number as long as what is not copied is the same."""

    def test_it_has_that_of_its_slab(self, model: Model) -> None:
        number = model.bind(request(*[from_buffer(bytearray(4)) for _ in range(2)]))
        again = request(*[from_buffer(bytearray(4)) for _ in range(2)])
        assert model.number_of(again) == number
        assert model.checked == [False]

    def test_another_shared_pool_is_another_request(
        self, line: Line, numbers: Numbers, model: Model
    ) -> None:
        shared = [pool(), pool()]
        sent = [
            model.send(request(shared[which], from_buffer(bytearray(4))))
            for which in (0, 0, 1, 0, 1, 0)
        ]
        one, other = sent[1], sent[4]
        assert sent == [None, one, None, one, other, one]
        assert None not in (one, other)
        assert one != other
        assert not line.forgotten
        shared.clear()
        assert not {one, other} & set(line.forgotten)
        model.staging.trim()
        assert set(line.forgotten) >= {one, other}
        assert numbers.requests == 0

    def test_a_small_array_where_another_has_lain_is_the_same(
        self, model: Model
    ) -> None:
        numbers = []
        for _ in range(4):
            small = allocate_in_slab(4)
            numbers.append(model.send(request(from_buffer(bytearray(4)), small)))
            at = small.offset  # type: ignore[attr-defined]
            del small
        assert numbers[0] is None
        assert len({*numbers[1:]}) == 1
        assert numbers[1] is not None
        blocked, small = allocate_in_slab(4), allocate_in_slab(4)
        assert small.offset != at  # type: ignore[attr-defined]
        assert model.send(request(from_buffer(bytearray(4)), small)) is None
        del blocked

    def test_many_places_take_no_more_memory_than_one(self, model: Model) -> None:
        slabs = set()
        shared = [pool() for _ in range(4 * MAX_PLACES)]
        for each in shared * 2:
            staged = model.staging.sent(request(each, from_buffer(bytearray(4))))
            assert isinstance(staged, Staged)
            slabs.add(id(staged.slab))
            staged.give_back()
        assert len(slabs) == 1

    def test_pools_of_other_sizes_are_checked_and_change_nothing_else(
        self, model: Model
    ) -> None:
        for size in (4, 4, 8, 8):
            private = from_buffer(bytearray(size))
            number = model.send(request(private, from_buffer(bytearray(4))))
        assert len(model.checked) == 2
        assert number is not None


class TestBound:
    """What was bound by the application keeps what there is to send for it."""

    def test_it_has_one_number_and_is_checked_once(
        self, numbers: Numbers, model: Model
    ) -> None:
        mine = model.staging.bound(request(pool(), from_buffer(bytearray(4))))
        number = model.bind(mine)
        for _ in range(3):
            assert model.send(mine) == number
        assert len(model.checked) == 1
        del mine
        gc.collect()
        assert numbers.requests == 0

    def test_each_execution_at_the_same_time_has_its_own_memory(
        self, line: Line, model: Model
    ) -> None:
        mine = model.staging.bound(request(*[from_buffer(bytearray(4))] * 2))
        executions = [
            RemoteExecution(line, mine, model.staging.sent(mine))  # type: ignore[arg-type]
            for _ in range(3)
        ]
        slabs = {id(each.staged.slab) for each in executions if each.staged}
        assert len(slabs) == 3

    def test_what_cannot_be_copied_back_is_told_when_it_is_executed(
        self, model: Model
    ) -> None:
        mine = model.staging.bound(request(pool(), from_buffer(b"....")))
        with pytest.raises(InvalidArgumentError, match="read-only"):
            model.staging.sent(mine)


def test_nothing_is_left_when_the_driver_is_gone(
    numbers: Numbers, model: Model
) -> None:
    model.bind(request())
    numbers.clear()
    assert numbers.requests == 0


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
