"""Which devices an execution went by. Not in the HAL, which leaves that unsaid.

A framework divides a model into partitions, each for one device. The `Route` of an
execution lists them in the order in which they ran, with the device that computed each
and, where that is not the planned one, the reason.

Nearly all executions of a prepared model go the same way: its usual route, which is
asked for once (`IRouting`). A callback is notified of another one only
(`IExecutionCallback.took`), before it is notified.

A single device may have several engines. `IEngineShares` says which of them computes
what of a model.
"""

from typing import Protocol, runtime_checkable

import msgspec

from asyncnn.hal.types import Model


class RouteStep(msgspec.Struct, frozen=True):
    """One partition: ``operations`` of the main subgraph, computed by ``device``.

    If that is not the one it was planned for, it was computed ``instead_of`` that, for
    ``reason``.
    """

    device: str
    operations: tuple[int, ...]
    instead_of: str = ""
    reason: str = ""

    @property
    def fell_back(self) -> bool:
        """Whether another device was to compute it."""
        return bool(self.instead_of)

    def __str__(self) -> str:
        count = len(self.operations)
        text = f"{count} operation{'' if count == 1 else 's'} on {self.device}"
        if self.instead_of:
            text += f" instead of {self.instead_of}: {self.reason}"
        return text


class Route(msgspec.Struct, frozen=True):
    """The partitions of one execution, in order."""

    steps: tuple[RouteStep, ...]

    @property
    def fell_back(self) -> bool:
        """Whether any partition was computed by another device than planned."""
        return any(step.instead_of for step in self.steps)

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of each partition."""
        return tuple(step.device for step in self.steps)

    def __str__(self) -> str:
        return "; ".join(map(str, self.steps))


@runtime_checkable
class IRouting(Protocol):
    """A device that hands executions to other devices. Not in the HAL.

    Prepared models may be its own or these devices': as long as an execution
    needs nothing else, the device's own model is given out.
    """

    def usual_route(self, prepared: object) -> Route | None:
        """Return how executions of a prepared model go; None if it is not its own."""
        ...


class EngineShare(msgspec.Struct, frozen=True):
    """Operations of the main subgraph that one engine of a device computes in a row.

    ``reasons`` has one for each of those that a better engine leaves to this one; it is
    empty for the better one.
    """

    engine: str
    operations: tuple[int, ...]
    reasons: tuple[str, ...] = ()


@runtime_checkable
class IBatches(Protocol):
    """A device that may run waiting requests of one model as one. Not in the HAL."""

    async def batching_of(self, model: Model) -> str:
        """Return how many requests of a validated model may be one, or why none are.

        Nothing where its settings do not ask for that.

        :raises AsyncnnError: if the model cannot be prepared.
        """
        ...


@runtime_checkable
class IEngineShares(Protocol):
    """A device with more than one engine. Not in the HAL."""

    async def engine_shares(self, model: Model) -> tuple[EngineShare, ...]:
        """Return which engine computes what of a validated model, in order.

        Operations that are computed once, when the model is prepared, are in none.
        There is no share at all where shapes are known with a request only.

        :raises AsyncnnError: if the model cannot be prepared.
        """
        ...
