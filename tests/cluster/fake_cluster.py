"""A cluster without Ray: actors are hosts of this process, which die when asked to."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Self

from asyncnn.cluster.cluster_device import ClusterDevice
from asyncnn.cluster.hosting import ReplicaHost
from asyncnn.cluster.links import ReplicaLink
from asyncnn.runtime.cluster_settings import ClusterSettings
from asyncnn.runtime.device import Device


class GoneError(Exception):
    """What calls of an actor end with that is gone; it may come back."""


class DiedError(GoneError):
    """It does not come back."""


class _Reply:
    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def future(self) -> "Future[Any]":
        return self._future


class _Method:
    def __init__(self, actor: "FakeActor", name: str) -> None:
        self._actor = actor
        self._name = name

    def remote(self, *args: Any) -> _Reply:
        return _Reply(self._actor.called(self._name, args))


class FakeActor:
    """An actor; ``before`` is awaited before each call, ``after`` called behind it."""

    before: Callable[[str], Awaitable[object]] | None = None
    after: Callable[[str], object] | None = None

    def __init__(self, device: str, kind: type[ReplicaHost] = ReplicaHost) -> None:
        self._hosting = partial(kind, device)
        self._calls: dict[Future[Any], asyncio.Task[None]] = {}
        self.is_gone = False
        self.begun = 0
        self.host = self._hosted()

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)

    def _hosted(self) -> ReplicaHost:
        """Return a host whose runs are watched, whichever way they come."""
        host = self._hosting()
        run = host.run

        async def watched(*args: Any) -> Any:
            self.begun += 1
            if self.before is not None:
                await self.before("run")
            return await run(*args)

        host.run = watched  # type: ignore[method-assign]
        return host

    def called(self, name: str, args: tuple[Any, ...]) -> "Future[Any]":
        future: Future[Any] = Future()
        if self.is_gone:
            future.set_exception(DiedError("it was killed"))
            return future
        host = self.host
        task = asyncio.get_running_loop().create_task(
            self._answer(host, name, args, future)
        )
        self._calls[future] = task
        return future

    async def _answer(
        self, host: ReplicaHost, name: str, args: tuple[Any, ...], future: "Future[Any]"
    ) -> None:
        try:
            if self.before is not None and name != "run":
                await self.before(name)
            found = await getattr(host, name)(*args)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(found)
            if self.after is not None:
                self.after(name)
        finally:
            self._calls.pop(future, None)

    def die(self, *, for_good: bool = False) -> None:
        """Answer nobody any more; a new host takes what is called from now on."""
        host, self.host = self.host, self._hosted()
        calls, self._calls = self._calls, {}
        self.is_gone = for_good
        for future in calls:
            if not future.done():
                future.set_exception(GoneError("it has died"))
        self.ending = asyncio.get_running_loop().create_task(host.close())


class FakeCluster:
    """What links have of a cluster, of which ``actors`` are all there have been."""

    address: str | None = "127.0.0.1"

    class exceptions:  # noqa: N801 - as Ray has it
        ActorDiedError = DiedError

    def __init__(self, host: type[ReplicaHost] = ReplicaHost) -> None:
        self.ray = self
        self._host = host
        self.actors: list[FakeActor] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ended()

    def put(self, thing: Any) -> Any:
        return thing

    def actor(self, device: str) -> FakeActor:
        self.actors.append(FakeActor(device, self._host))
        return self.actors[-1]

    def is_loss(self, error: BaseException) -> bool:
        return isinstance(error, GoneError)

    def kill(self, actor: FakeActor, no_restart: bool) -> None:
        if not actor.is_gone:
            actor.die(for_good=no_restart)

    async def address_of(self, link: ReplicaLink) -> str | None:
        return self.address

    async def ended(self) -> None:
        for actor in self.actors:
            with suppress(AttributeError):
                await actor.__dict__["ending"]


class FakeRay:
    """What a connection has of the package."""

    gcs_address = "10.0.0.1:6379"
    is_on = False

    def is_initialized(self) -> bool:
        return self.is_on

    def init(self, **_: object) -> None:
        time.sleep(0.02)
        assert not self.is_on
        self.is_on = True

    def shutdown(self) -> None:
        self.is_on = False

    def get_runtime_context(self) -> "FakeRay":
        return self


@asynccontextmanager
async def fake_device(
    address: str | None = "127.0.0.1", **settings: Any
) -> AsyncIterator[tuple[Device, FakeCluster]]:
    """Open a device on a fake cluster, with streams if hosts have an address."""
    cluster, chosen = FakeCluster(), ClusterSettings(**settings)
    cluster.address = address
    link = partial(ReplicaLink, cluster, "reference", chosen.hang_after)  # type: ignore[arg-type]
    async with ClusterDevice(cluster, chosen, link) as hal:  # type: ignore[arg-type]
        yield Device("cluster", hal), cluster
    await cluster.ended()
