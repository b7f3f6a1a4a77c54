"""Requests that are expected again are known while they exist, and no longer."""

import gc
from typing import Any

import pytest

from asyncnn.engine.repeated_requests import RepeatedRequests
from asyncnn.hal.types import Request


def request(pools: Any = ()) -> Request:
    return Request((), (), pools)


def test_only_what_is_expected_is_found() -> None:
    requests = RepeatedRequests()
    first, second = request(), request()
    requests.expect(first)
    found = requests.find(first)
    assert found is not None
    assert requests.find(first) is found
    assert requests.find(second) is None


@pytest.mark.parametrize("is_in_a_cycle", [False, True])
def test_nothing_is_known_of_what_is_gone(is_in_a_cycle: bool) -> None:
    requests = RepeatedRequests()
    referring: list[Any] = []
    expected = request((referring,))
    if is_in_a_cycle:
        referring.append(expected)
    requests.expect(expected)
    del expected, referring
    if is_in_a_cycle:
        gc.collect()
    assert not len(requests)


def test_what_is_known_of_another_request_is_not_believed() -> None:
    requests = RepeatedRequests()
    first, second = request(), request()
    requests.expect(first)
    # As if the first had ended unheard, and the second taken its address.
    requests._expected[id(second)] = requests._expected.pop(id(first))
    assert requests.find(second) is None
    assert not len(requests)


def test_pools_that_may_change_are_not_expected() -> None:
    requests = RepeatedRequests()
    changing = request([])
    requests.expect(changing)
    assert requests.find(changing) is None
