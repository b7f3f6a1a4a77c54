"""What a mutation yields, and the rows that mutations are listed in."""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Generic, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from asyncnn.hal.interfaces import ISyncFence
from asyncnn.hal.types import (
    ExecutionPreference,
    HalVersion,
    MeasureTiming,
    Model,
    Priority,
    Request,
)


class Mutant(msgspec.Struct, frozen=True, eq=False):
    """A model with one thing changed, and how it is asked to be prepared.

    ``label`` says what was changed and where. ``may_pass`` is why the mutant may be
    legal after all; it is empty for one that must be refused.
    """

    label: str
    model: Model
    preference: int = ExecutionPreference.FAST_SINGLE_ANSWER
    priority: int = Priority.MEDIUM
    may_pass: str = ""


class RequestMutant(msgspec.Struct, frozen=True, eq=False):
    """A request with one thing changed, which must be refused; see `Mutant`.

    One that is wrong in the fences that it waits for is so in fenced executions alone.
    """

    label: str
    request: Request
    measure: MeasureTiming = MeasureTiming.NO
    wait_for: tuple[ISyncFence | None, ...] = ()
    may_pass: str = ""


class PacketMutant(msgspec.Struct, frozen=True, eq=False):
    """A packet of a burst with one datum changed, which must be refused."""

    label: str
    packet: bytes
    may_pass: str = ""


Mutants: TypeAlias = Iterator[Mutant]
AnyMutant = TypeVar("AnyMutant", Mutant, RequestMutant, PacketMutant)


class Listed(msgspec.Struct, frozen=True):
    """A row of the public suite's list, by its number there and what it is."""

    number: str
    words: str


class Row(Listed, frozen=True):
    """One kind of mutation of models.

    ``mutate`` takes a valid model and the version of its structure, and changes the
    main subgraph, or only what is said beside the model.
    """

    mutate: Callable[[Model, HalVersion], Mutants]
    changes_subgraph: bool = True

    def mutants(self, model: Model, version: HalVersion) -> Mutants:
        """Yield mutants of the model by a change in any one of its subgraphs."""
        yield from self.mutate(model, version)
        if self.changes_subgraph:
            for number, subgraph in enumerate(model.referenced):
                as_main = replace(model, main=subgraph)
                for mutant in self.mutate(as_main, version):
                    yield _put_back(mutant, model, number)


def _put_back(mutant: Mutant, model: Model, number: int) -> Mutant:
    """Return the mutant of ``model`` whose subgraph was mutated as if it were main."""
    before, after = model.referenced[:number], model.referenced[number + 1 :]
    changed = replace(
        mutant.model, main=model.main, referenced=(*before, mutant.model.main, *after)
    )
    label = f"{mutant.label} of referenced subgraph {number}"
    return replace(mutant, label=label, model=changed)


class RequestRow(Listed, frozen=True):
    """One kind of mutation of requests; see `Row`.

    ``by_burst`` tells whether a controller of bursts would send it as it is.
    """

    mutate: Callable[[Request, Model], Iterator[RequestMutant]]
    by_burst: bool = True


class PacketRow(Listed, frozen=True):
    """One kind of mutation of packets; see `Row`."""

    mutate: Callable[[bytes], Iterator[PacketMutant]]


class Sample(msgspec.Struct, Generic[AnyMutant], frozen=True):
    """The mutants to try, and why others of the same row are not."""

    tried: Sequence[AnyMutant]
    exempt: Sequence[str]


def sample(
    mutants: Iterator[AnyMutant], limit: int | None, seed: str
) -> Sample[AnyMutant]:
    """Choose ``limit`` of the mutants that must be refused, the same every time."""
    wrong, exempt = [], []
    for mutant in mutants:
        if mutant.may_pass:
            exempt.append(mutant.may_pass)
        else:
            wrong.append(mutant)
    if limit is not None and limit < len(wrong):
        wrong = Random(seed).sample(wrong, limit)
    return Sample(wrong, exempt)
