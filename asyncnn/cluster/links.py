"""Links to replicas: actors of Ray, their clocks, their deaths and what follows.

This is the one module that knows Ray, which is imported when a cluster is opened.
"""

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib import import_module
from math import ceil
from typing import Any, ClassVar, TypeAlias, cast

from asyncnn.cluster.exchange import RunOrder, Sent
from asyncnn.cluster.hosting import LANE_NICE, ReplicaHost
from asyncnn.cluster.streams import ClientEnd
from asyncnn.hal.errors import (
    AsyncnnError,
    EngineUnavailableError,
    InvalidArgumentError,
    NoDriverError,
    failure_of,
)
from asyncnn.hal.refusals import DeviceFacts
from asyncnn.offload import offload
from asyncnn.runtime.cluster_settings import CLUSTER, ClusterSettings

logger = logging.getLogger(__name__)

LOCAL, AUTO = "local", "auto"

_CALLS = 100_000
"""Calls of an actor that may be under way; what bounds them is dispatch."""

_USUAL_NICE = 15
"""Of Ray's actors, which only lanes have where the cluster is started here."""

_PINGS = 5
_WATCH_S = 5.0
_PAUSE_S = 0.1
_CLOSING_S = 5.0
_CONNECTING_S = 2.0

Answered: TypeAlias = Callable[[Any], None]
"""Gets what a call returned, or the exception that stands for its failure."""


class LostError(AsyncnnError):
    """The actor of a call is gone; it may have run it."""


class Cluster:
    """A connection of this process to Ray, which is shared by all that are open.

    :raises EngineUnavailableError: on entering, if Ray is not installed.
    :raises InvalidArgumentError: on entering, if the address is none.
    :raises NoDriverError: on entering, if no cluster is there, or this process has
        connected to another one.
    """

    host: type[ReplicaHost] = ReplicaHost
    _changing = threading.Lock()
    _users: ClassVar[set["Cluster"]] = set()
    _own: ThreadPoolExecutor | None = None  # of a connection that was made here
    _where = ""  # what it was asked for
    _cpus = 0  # of a cluster that was started here

    def __init__(self, address: str, settings: ClusterSettings) -> None:
        self._address = address.removeprefix(CLUSTER)
        self._settings = settings
        self.ray: Any = None

    async def __aenter__(self) -> "Cluster":
        where = self._address
        host, colon, port = where.rpartition(":")
        if where not in (LOCAL, AUTO) and not (host and colon and port.isdigit()):
            raise InvalidArgumentError(
                f"{CLUSTER}{where} is no address of a cluster",
                hint=f"{CLUSTER}{LOCAL}, {CLUSTER}{AUTO} or {CLUSTER}HOST:PORT",
            )
        try:
            self.ray = await offload(import_module, "ray")
        except ImportError as error:
            raise EngineUnavailableError(
                f"a cluster needs the package ray: {error}",
                hint="install it with: pip install 'asyncnn[ray]'",
            ) from error
        try:
            await offload(self._enter)
        except BaseException as error:  # cancelled or not, it has ended by then
            await offload(self._leave)
            if isinstance(error, NoDriverError) or not isinstance(error, Exception):
                raise
            words = " ".join(str(error).split())
            raise NoDriverError(
                f"no cluster at {CLUSTER}{where}: {words}",
                hint="one that takes tokens wants RAY_AUTH_MODE=token",
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await offload(self._leave)

    def _enter(self) -> None:
        with Cluster._changing:
            if not self.ray.is_initialized():
                # What Ray starts here ends with the thread that has started it.
                Cluster._own = ThreadPoolExecutor(1, "asyncnn-ray")
                Cluster._own.submit(self._connect).result()
                Cluster._where = self._address
            there = self.ray.get_runtime_context().gcs_address
            if self._address not in (AUTO, there, Cluster._where):
                known = f"{CLUSTER}{there}, which is {CLUSTER}{AUTO} here"
                raise ConnectionError(f"this process is connected to {known}")
            Cluster._users.add(self)
            asked = sum(e._settings.replicas * e._settings.cpus for e in Cluster._users)
            if Cluster._where == LOCAL and asked > Cluster._cpus:
                raise NoDriverError(
                    f"all devices on {CLUSTER}{LOCAL} ask for {asked:g} CPUs, of which "
                    f"the first has started it with {Cluster._cpus:g}",
                    hint="fewer ClusterSettings.cpus, say",
                )

    def _leave(self) -> None:
        with Cluster._changing:
            Cluster._users.discard(self)
            thread = Cluster._own
            if not Cluster._users and thread is not None:
                Cluster._own, Cluster._where = None, ""
                thread.submit(self.ray.shutdown).result()
                thread.shutdown(wait=False)

    def _connect(self) -> None:
        where = self._address
        options: dict[str, Any] = {"address": where}
        if where == LOCAL:
            asked = ceil(self._settings.most * self._settings.cpus)
            Cluster._cpus = max(os.cpu_count() or 1, asked)
            options |= {"num_cpus": Cluster._cpus, "include_dashboard": False}
            options["_system_config"] = {"worker_niceness": 0}  # that is for lanes
        elif where != AUTO:
            host, _, port = where.rpartition(":")
            # Ray itself tries for a minute.
            socket.create_connection((host, int(port)), _CONNECTING_S).close()
        self.ray.init(configure_logging=False, log_to_driver=False, **options)

    def actor(self, device: str) -> Any:
        """Start an actor that hosts a device; it comes back by itself if it dies."""
        settings = self._settings
        kind = self.ray.remote(self.host).options(
            num_cpus=settings.cpus,
            resources=dict(settings.resources),
            max_concurrency=_CALLS,
            max_restarts=-1,
            max_task_retries=0,  # what may have been run is for dispatch to decide
            scheduling_strategy="SPREAD",
        )
        is_own = Cluster._where == LOCAL
        return kind.remote(device, _USUAL_NICE if is_own else LANE_NICE)

    async def address_of(self, link: "ReplicaLink") -> str | None:
        """Return where an actor's node is; None if calls of actors are encrypted."""
        if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
            return None
        address: str = await link.call("__ray_call__", _own_address)
        return address

    def is_loss(self, error: BaseException) -> bool:
        """Return whether an exception of Ray says that an actor or its node is gone."""
        kinds = self.ray.exceptions
        return isinstance(
            error, kinds.RayActorError | kinds.NodeDiedError | kinds.WorkerCrashedError
        )


def _own_address(_: ReplicaHost) -> str:
    address: str = import_module("ray.util").get_node_ip_address()
    return address


class ReplicaLink:
    """The way to replica ``number``, whose actor may be another one each time it dies.

    ``lost`` is called once for each that dies after `open` has found it.
    """

    def __init__(
        self, cluster: Cluster, device: str, hang_after_s: float, number: int
    ) -> None:
        self.number = number
        self.lost: Callable[[ReplicaLink], None] = lambda link: None
        self.is_up = False
        self.offset_ns = self.bound_ns = 0
        self._cluster = cluster
        self._device = device
        self._hang_after_s = hang_after_s
        self._actor: Any = None
        self._stream: ClientEnd | None = None
        self._life = 0
        self._loop = asyncio.get_running_loop()

    async def open(self) -> DeviceFacts:
        """Wait for the actor, start it if there is none, and compare clocks.

        :raises AsyncnnError: if the device cannot be opened there.
        """
        while True:
            if self._actor is None:
                self._actor = await offload(self._cluster.actor, self._device)
            try:
                facts: DeviceFacts = await self.call("open")
                await self.compare_clocks()
                await self._connect()
            except LostError:
                logger.info("replica %d is not there yet", self.number)
                await asyncio.sleep(_PAUSE_S)
                continue
            self.is_up = True
            return facts

    async def _connect(self) -> None:
        """Have small runs go by a stream, if there can be one."""
        try:
            address = await self._cluster.address_of(self)
            if address is None:
                return
            port, token = await self.call("listen", address)
            kind = partial(ClientEnd, token, self._cut)
            async with asyncio.timeout(_CONNECTING_S):
                _, stream = await self._loop.create_connection(kind, address, port)
        except LostError:
            raise
        except (OSError, TimeoutError, AsyncnnError) as error:
            logger.info("replica %d gets no stream: %s", self.number, error)
            return
        if stream.transport.is_closing():
            raise LostError(f"replica {self.number} was lost")
        self._stream = stream

    def _cut(self, stream: ClientEnd) -> None:
        if stream is self._stream:
            self._gone()

    def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.transport.abort()

    async def compare_clocks(self) -> None:
        """Learn how far the clock there is ahead, by the quickest of some calls.

        It is off by ``bound_ns`` at most.

        :raises LostError: if the actor is gone.
        """
        found = []
        for _ in range(_PINGS):
            asked = time.monotonic_ns()
            there = await self.call("clock")
            answered = time.monotonic_ns()
            found.append(((answered - asked) // 2, there - (asked + answered) // 2))
        self.bound_ns, self.offset_ns = min(found)

    def there(self, deadline_ns: int | None) -> int | None:
        """Return a deadline on the clock there, not earlier than it is."""
        if deadline_ns is None:
            return None
        return max(0, deadline_ns + self.offset_ns + self.bound_ns)

    def run(
        self,
        order: RunOrder,
        inputs: Sent | object,
        answered: Answered,
        *,
        is_small: bool,
    ) -> None:
        """Have a run computed, by a stream if it is small; see `post`."""
        if is_small and self._stream is not None:
            self._stream.run(order, cast("Sent", inputs), answered)
        else:
            self.post("run", order, inputs, answered=answered)

    def stop(self, number: int) -> None:
        """Have a call stopped by its number, if the actor is there."""
        if self._stream is not None:
            self._stream.stop(number)
        elif self.is_up:
            self.post("cancel", number, answered=lambda _: None)

    def post(self, method: str, *args: Any, answered: Answered) -> None:
        """Call the actor; ``answered`` is called on the loop, once and later.

        It gets a `LostError` if the actor is gone, or another `AsyncnnError`.
        """
        life, loop = self._life, self._loop

        def arrived(future: Any) -> None:
            with suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(self._take, life, future, answered)

        try:
            future = getattr(self._actor, method).remote(*args).future()
        except Exception as error:
            future = Future()
            future.set_exception(error)
        future.add_done_callback(arrived)

    async def call(self, method: str, *args: Any) -> Any:
        """Call the actor, and return what it returns.

        :raises LostError: if it is gone.
        :raises AsyncnnError: of what it raises.
        """
        life = self._life
        ended: asyncio.Future[Any] = self._loop.create_future()

        def answered(answer: Any) -> None:
            if not ended.done():
                ended.set_result(answer)

        self.post(method, *args, answered=answered)
        answer = await ended
        if life != self._life:  # its actor has answered, and died since
            raise LostError(f"replica {self.number} was lost")
        if isinstance(answer, AsyncnnError):
            raise answer
        return answer

    async def watch(self, is_busy: Callable[[], bool]) -> None:
        """Compare clocks again and again; kill an actor that hangs while it is busy."""
        while True:
            await asyncio.sleep(_WATCH_S)
            if not self.is_up:
                continue
            try:
                async with asyncio.timeout(self._hang_after_s):
                    await self.compare_clocks()
            except TimeoutError:
                if is_busy():
                    logger.warning("replica %d hangs, and is killed", self.number)
                    self.kill(for_good=False)
            except AsyncnnError:
                pass  # whoever waits for it has been notified

    def kill(self, *, for_good: bool) -> None:
        """End the actor; it comes back unless it is ``for_good``."""
        if self._actor is not None:
            with suppress(Exception):  # the cluster may be gone
                self._cluster.ray.kill(self._actor, no_restart=for_good)

    async def close(self) -> None:
        """Close the device there, and end the actor."""
        if self.is_up:
            self.is_up = False
            with suppress(AsyncnnError, TimeoutError):
                async with asyncio.timeout(_CLOSING_S):
                    await self.call("close")
        self._disconnect()
        self.kill(for_good=True)

    def _take(self, life: int, future: Any, answered: Answered) -> None:
        error = future.exception()
        answered(future.result() if error is None else self._failure(life, error))

    def _gone(self) -> None:
        """Note the death of an actor, or that nothing leads there."""
        self._disconnect()
        if self.is_up:
            self.is_up = False
            self._life += 1
            self.lost(self)

    def _failure(self, life: int, error: BaseException) -> AsyncnnError:
        """Return what an exception of Ray stands for; note the death of an actor."""
        if not self._cluster.is_loss(error):
            cause = getattr(error, "cause", None)
            return failure_of(cause if isinstance(cause, AsyncnnError) else error)
        if life == self._life:  # not one that was lost before
            if isinstance(error, self._cluster.ray.exceptions.ActorDiedError):
                self._actor = None  # it does not come back
            self._gone()
        words = str(error).strip().splitlines() or [type(error).__name__]
        return LostError(f"replica {self.number} was lost: {words[0]}")
