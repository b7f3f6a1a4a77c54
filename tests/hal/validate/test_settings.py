from collections.abc import Callable

import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import ExecutionPreference, Priority
from asyncnn.hal.validate import validate_execution_preference, validate_priority


@pytest.mark.parametrize("value", [-1, 3, 1.5, None, "1", 1 << 70])
@pytest.mark.parametrize("check", [validate_execution_preference, validate_priority])
def test_an_unknown_value_is_refused(
    check: Callable[[object], None], value: object
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"\[M17\]"):
        check(value)


def test_every_known_value_is_accepted() -> None:
    for preference in ExecutionPreference:
        validate_execution_preference(preference)
    for priority in Priority:
        validate_priority(int(priority))
