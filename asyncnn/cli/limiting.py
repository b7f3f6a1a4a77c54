"""The option ``--limit`` of commands that serve clients."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Annotated, TypeAlias

import msgspec
import typer

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.service import ServiceLimits, UserLimits

LimitOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        help="What clients may have, by the name that errors give it, like "
        "ServiceLimits.max_bursts=8; repeatable.",
    ),
]

_KNOWN = [
    f"{limits.__name__}.{name}"
    for limits in (ServiceLimits, UserLimits)
    for name in limits.__struct_fields__
]


def limits_of(options: Iterable[str]) -> tuple[ServiceLimits, UserLimits]:
    """Return the limits of connections and of users that options ask for.

    :raises InvalidArgumentError: if one names no limit, or has a value that this cannot
        have.
    """
    given: dict[str, dict[str, str]] = {"ServiceLimits": {}, "UserLimits": {}}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals and name in _KNOWN:
            raise InvalidArgumentError(
                f"--limit {option} has no value", hint="write it as NAME=VALUE"
            )
        if name not in _KNOWN:
            close = [each for each in _KNOWN if each.endswith(f".{name}")]
            close = close or get_close_matches(name, _KNOWN, n=2)
            raise InvalidArgumentError(
                f"--limit {option}: there is no such limit",
                hint=f"did you mean {' or '.join(close)}?"
                if close
                else f"known: {', '.join(_KNOWN)}",
            )
        whose, _, field = name.partition(".")
        given[whose][field] = value
    try:
        return (
            msgspec.convert(given["ServiceLimits"], ServiceLimits, strict=False),
            msgspec.convert(given["UserLimits"], UserLimits, strict=False),
        )
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"--limit: {error}") from error
