"""Derives cases for the pairs that no vector exercises."""

from collections.abc import Iterable, Iterator, Set
from functools import cache
from pathlib import Path

from asyncnn.tools.conformance.coupling import twin
from asyncnn.tools.conformance.coverage import (
    Pair,
    all_pairs,
    pairs_of,
    pairs_with_vectors,
    succeeding_cases,
)
from asyncnn.tools.conformance.derived.formulas import computed
from asyncnn.tools.conformance.derived.mirroring import mirrored
from asyncnn.tools.conformance.derived.reinterpreting import reinterpreted
from asyncnn.tools.conformance.derived.retyping import retyped
from asyncnn.tools.conformance.rewriting import is_single
from asyncnn.tools.conformance.vectors import Case


@cache
def derived_cases(directory: Path) -> tuple[Case, ...]:
    """Return cases for what the vectors below ``directory`` leave out."""
    missing = frozenset(all_pairs()) - pairs_with_vectors(directory)
    return tuple(derive(succeeding_cases(directory), missing))


def derive(templates: Iterable[Case], wanted: Set[Pair]) -> Iterator[Case]:
    """Yield cases that exercise wanted pairs, as far as the templates allow."""
    yield from computed(wanted)
    for case in templates:
        if is_single(case) and not case.relaxed and not case.multinomial_tolerance:
            yield from mirrored(case, wanted)
            yield from reinterpreted(case, wanted)
            yield from retyped(case, wanted)
            yield from _coupled(case, wanted)


def _coupled(case: Case, wanted: Set[Pair]) -> Iterator[Case]:
    other = twin(case)
    if other is not None and pairs_of(other) & wanted:
        yield other
