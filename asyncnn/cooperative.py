"""Long work in steps: a generator that yields wherever it may be left for a while.

Whoever drives it decides at each step whether to go on, and may do so on another
thread, or never.
"""

from collections.abc import Callable, Generator
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""Yields between two steps and returns the result."""


def completed(steps: Steps[T]) -> T:
    """Take all steps; return the result."""
    stepwise = Stepwise(steps)
    stepwise.advance(lambda: False)
    return stepwise.result


class Stepwise(Generic[T]):
    """Steps that are taken up where they were left.

    Whoever drops them closes them, too.
    """

    def __init__(self, steps: Steps[T]) -> None:
        self._results: list[T] = []
        # Nothing of it refers to this: it goes with this, and no collector has to come.
        self._steps = _keeping(self._results, steps)

    @property
    def result(self) -> T:
        """What the steps have returned; it is there at the end."""
        return self._results[0]

    def advance(self, must_stop: Callable[[], bool]) -> bool:
        """Take steps until ``must_stop`` says so after one; True at the end of all.

        What a step raises is their end, too.
        """
        return not any(must_stop() for _ in self._steps)

    def close(self) -> None:
        """Go on no more, and let go of what the steps hold."""
        self._steps.close()


def _keeping(results: list[T], steps: Steps[T]) -> Steps[None]:
    results.append((yield from steps))
