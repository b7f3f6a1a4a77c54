"""What of a model file has no HAL form: all of it, found before anything is raised.

An importer converts operator by operator, and goes on after one that is refused, which
it adds to `Refusals`; `Refusals.raise_any` then names all at once.
"""

from collections.abc import Sequence
from typing import Self

import msgspec

from asyncnn.hal.errors import GeneralFailureError, in_one_line

_SHOWN_KINDS = 40
_SHOWN_PLACES = 12
"""How much of a long list is in the message; the error itself has all."""


class UnsupportedOperator(msgspec.Struct, frozen=True):
    """An operator of a model file that cannot be imported.

    ``name`` is the file format's own, ``CUSTOM name`` for a custom operator of TFLite;
    ``index`` counts the operators of its graph, ``place`` says in words where that is.
    """

    name: str
    index: int
    place: str
    reason: str


class UnsupportedOperatorError(GeneralFailureError):
    """A valid file uses operators, or variants of some, that have no HAL form.

    ``operators`` are those in question; none if it is not about single operators.
    """

    def __init__(
        self,
        message: str = "",
        *,
        hint: str = "",
        operators: Sequence[UnsupportedOperator] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.operators = tuple(operators)

    def at(self, where: str) -> Self:
        """Return the same error with ``where`` in front of its message."""
        message = in_one_line(f"{where}: {self.message}")
        return type(self)(message, hint=self.hint, operators=self.operators)


class Refusals:
    """The operators of one file that were refused so far; ``count`` is how often."""

    def __init__(self) -> None:
        self.count = 0
        self._operators: dict[str, UnsupportedOperator] = {}
        self._hints: dict[str, None] = {}

    def add(
        self, name: str, index: int, place: str, error: UnsupportedOperatorError
    ) -> None:
        """Keep why the operator at a place is refused."""
        # A subgraph may be looked at several times, wherever it is called.
        found = UnsupportedOperator(name, index, place, error.message)
        self._operators.setdefault(place, found)
        self._hints[error.hint] = None
        self.count += 1

    def raise_any(self) -> None:
        """Raise one error that lists all operators, if there are any.

        :raises UnsupportedOperatorError: if there are.
        """
        if not self._operators:
            return
        raise UnsupportedOperatorError(
            _message(tuple(self._operators.values())),
            hint="; ".join(filter(None, self._hints)),
            operators=tuple(self._operators.values()),
        )


def _message(operators: Sequence[UnsupportedOperator]) -> str:
    if len(operators) == 1:
        (only,) = operators
        return f"{only.place}: {only.reason}"
    kinds: dict[tuple[str, str], list[str]] = {}
    for each in operators:
        kinds.setdefault((each.name, each.reason), []).append(each.place)
    lines = [
        f"{len(places)} x {name} ({_listed(places, _SHOWN_PLACES)}): {reason}"
        for (name, reason), places in list(kinds.items())[:_SHOWN_KINDS]
    ]
    if len(kinds) > _SHOWN_KINDS:
        lines.append(f"and {len(kinds) - _SHOWN_KINDS} other kinds")
    return f"{len(operators)} operators cannot be imported: {'; '.join(lines)}"


def _listed(places: Sequence[str], most: int) -> str:
    shown = ", ".join(places[:most])
    return f"{shown} and others" if len(places) > most else shown
