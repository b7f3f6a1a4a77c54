"""Replicas on a cluster as one `IDevice`."""

import asyncio
import logging
import time
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Self

from asyncnn import hal
from asyncnn.callbacks import IPreparedModelCallback, OneShot, result_of
from asyncnn.cluster.cluster_model import ClusterModel
from asyncnn.cluster.cluster_runs import ClusterRuns
from asyncnn.cluster.exchange import Answer, packed
from asyncnn.cluster.links import Cluster, LostError, ReplicaLink
from asyncnn.cluster.replicas import Scaling
from asyncnn.deadlines import seconds_until
from asyncnn.devices import DeviceSettings, DeviceStatistics
from asyncnn.devices.device_buffers import HAL_HINTS
from asyncnn.hal.errors import closed_error
from asyncnn.hal.refusals import (
    AllocateArguments,
    DeviceFacts,
    FactualDevice,
    NoCachesNorDomains,
    PrepareArguments,
)
from asyncnn.hal.validate import validate_model
from asyncnn.offload import offload
from asyncnn.runtime.cluster_settings import ClusterSettings
from asyncnn.runtime.framework.managed_memory import allocate_fixed

logger = logging.getLogger(__name__)

_PAUSE_S = 1.0


class ClusterDevice(FactualDevice, NoCachesNorDomains, ClusterRuns):
    """The device that links lead to, each to a replica of it; see `open_cluster`.

    What is asked for while a replica is lost goes to the others, or waits for it. What
    it had begun ends with `DriverDiedError`, or is run again if that was said to be
    safe. Buffers are memory of this process, and go with each run that names them: they
    outlive replicas.
    """

    name = "asyncnn-cluster"

    def __init__(
        self,
        cluster: Cluster,
        settings: ClusterSettings,
        make_link: Callable[[int], ReplicaLink],
    ) -> None:
        super().__init__(cluster, settings, make_link)
        self.facts: DeviceFacts
        self._models: dict[int, tuple[object, tuple[int, int]]] = {}
        self._sent_models: dict[int, tuple[weakref.ref[hal.Model], object]] = {}
        # Those that are recovered, and whether that is to be done again.
        self._recovering: dict[ReplicaLink, bool] = {}
        self._tasks_for: dict[ReplicaLink, set[asyncio.Task[None]]] = {}

    async def __aenter__(self) -> Self:
        opening = asyncio.gather(*(link.open() for link in self.links.values()))
        try:
            self.facts = (await opening)[0]
        except BaseException:
            await self.aclose()
            raise
        now = time.monotonic_ns()
        for link in self.links.values():
            self.act(self.dispatcher.up(link.number, (), now))
            self._begin_for(link, link.watch(partial(self._is_busy, link)))
        if self.settings.most > self.settings.replicas:
            self._begin(self._scale(Scaling(self.settings)))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End what is pending, then all actors, with their devices."""
        self._is_closed = True
        self.bursts.close()
        self.buffers.close()
        for waiting in tuple(self.waiting_runs):
            waiting.close()
        for run in tuple(self._runs.values()):
            self._settle(run, result_of(closed_error()))
        if self._alarm is not None:
            self._alarm.cancel()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self.links.values()))
        await self.buffers.wait_ended()

    def get_status(self) -> hal.DeviceStatus:
        """Return BUSY while runs wait here, OFFLINE once it is closed."""
        if self._is_closed:
            return hal.DeviceStatus.OFFLINE
        busy = self.dispatcher.waiting >= self.settings.dispatch.max_waiting
        return hal.DeviceStatus.BUSY if busy else hal.DeviceStatus.AVAILABLE

    def _facts(self) -> DeviceFacts:
        """Return what the first replica's device has said."""
        return self.facts

    @property
    def hal_hints(self) -> dict[str, str]:
        """What the replicas make of hints of the HAL, in words."""
        return {**HAL_HINTS, **self.facts.hal_hints}

    async def replica_statistics(self) -> tuple[DeviceStatistics, ...]:
        """Ask all replicas that are there what they have done.

        :raises AsyncnnError: if one is lost, or keeps no statistics.
        """
        up = [link for link in self.links.values() if link.is_up]
        return tuple(await asyncio.gather(*(each.call("statistics") for each in up)))

    async def _supported(self, model: hal.Model) -> tuple[bool, ...]:
        self.check_open()
        await offload(validate_model, model)
        sent = await self._put(model)
        for link in tuple(self.links.values()):
            if link.is_up:
                status, answer = await link.call("supported", sent)
                if status is not hal.ErrorStatus.NONE:
                    raise hal.error_for(status, "the replica does not say")
                return tuple(answer)
        raise hal.DriverDiedError("no replica is there")

    async def _allocate(self, asked: AllocateArguments) -> tuple[hal.IBuffer, int]:
        return allocate_fixed(self.buffers, asked, ClusterModel)

    def _prepare(
        self, asked: PrepareArguments, callback: IPreparedModelCallback
    ) -> hal.ErrorStatus:
        self.check_open()
        asked.validate()
        notify = OneShot(callback.notify_1_3)
        task = self._begin(self._prepared(asked))
        task.add_done_callback(partial(self._notify, callback, notify))
        callback.link_to_death(partial(_cancel, task))
        return hal.ErrorStatus.NONE

    async def _prepared(self, asked: PrepareArguments) -> ClusterModel:
        """Prepare a model on all replicas that are there; at least one has to do it."""
        numbers: dict[ReplicaLink, int] = {}  # of those that still prepare it
        key, how = next(self.numbers), (int(asked.preference), int(asked.priority))
        now = time.monotonic_ns()
        sent = await self._put(asked.model)
        self.dispatcher.known(key, now)
        self._models[key] = sent, how
        try:
            async with asyncio.timeout(seconds_until(asked.deadline)):
                up = [link for link in self.links.values() if link.is_up]
                found = await asyncio.gather(
                    *(self._prepare_on(e, key, asked.deadline, numbers) for e in up),
                    return_exceptions=True,
                )
            for error in found:
                if isinstance(error, BaseException) and not isinstance(
                    error, LostError
                ):
                    raise error
            if not any(each is None for each in found):
                raise hal.DriverDiedError(
                    "the replicas were lost while they prepared it"
                )
        except BaseException as error:
            for link, number in numbers.items():
                self._cancel_there(link, number)  # or it would outlive the release
            self._release(key)
            if isinstance(error, TimeoutError):
                late = "the deadline passed while the model was prepared"
                raise hal.error_for(
                    hal.ErrorStatus.MISSED_DEADLINE_TRANSIENT, late
                ) from None
            raise
        model = ClusterModel(self, key, asked)
        weakref.finalize(model, self._release_soon, key).atexit = False
        return model

    async def _prepare_on(
        self,
        link: ReplicaLink,
        key: int,
        deadline: int | None,
        numbers: dict[ReplicaLink, int],
    ) -> None:
        if not link.is_up:  # it was lost since it was chosen
            raise LostError(f"replica {link.number} is lost")
        numbers[link] = number = next(self.numbers)
        sent, how = self._models[key]
        there = link.there(deadline)
        answer: Answer = await link.call("prepare", key, number, sent, how, there)
        if answer.status != hal.ErrorStatus.NONE:
            raise hal.error_for(hal.ErrorStatus(answer.status), answer.reason)
        if link.number not in self.links:
            raise LostError(f"replica {link.number} was removed")
        del numbers[link]
        if key not in self._models:  # it was released meanwhile
            self._release_on(link, key)
            return
        self.act(self.dispatcher.up(link.number, (key,), time.monotonic_ns()))

    def _notify(
        self,
        callback: IPreparedModelCallback,
        notify: OneShot[[hal.ErrorStatus, hal.IPreparedModel | None]],
        task: asyncio.Task[ClusterModel],
    ) -> None:
        callback.unlink_to_death()
        if task.cancelled():
            error: hal.AsyncnnError = closed_error()
            if not self._is_closed:
                status = hal.ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
                error = hal.error_for(status, "the preparation was cancelled")
        elif (raised := task.exception()) is not None:
            error = hal.failure_of(raised)
        else:
            notify(hal.ErrorStatus.NONE, task.result())
            return
        callback.reason = str(error)
        notify(error.status, None)

    async def _put(self, model: hal.Model) -> object:
        """Return a model in Ray's store, from where each node fetches it once."""
        known = self._sent_models.get(id(model))
        if known is not None and known[0]() is model:
            return known[1]
        ref: object = await offload(lambda: self._cluster.ray.put(packed(model)))
        key, sent = id(model), self._sent_models
        watched = weakref.ref(model, lambda gone: sent.pop(key, None))
        self._sent_models[key] = watched, ref
        return ref

    def _lost(self, link: ReplicaLink) -> None:
        logger.warning("replica %d was lost", link.number)
        self.act(self.dispatcher.lost(link.number, time.monotonic_ns()))
        self.recover(link)

    def recover(self, link: ReplicaLink) -> None:
        """Wait for its next actor, if it is gone, and prepare all models there."""
        is_new = link not in self._recovering
        self._recovering[link] = True
        if is_new and not self._is_closed:
            self._begin_for(link, self._recovered(link))

    async def _recovered(self, link: ReplicaLink) -> None:
        while self._recovering[link]:
            self._recovering[link] = False
            try:
                await link.open()
                for key in tuple(self._models):
                    await self._prepare_again(link, key)
            except LostError:
                self._recovering[link] = True
            except Exception as error:
                logger.warning("replica %d is not back: %s", link.number, error)
                self._recovering[link] = True
                await asyncio.sleep(_PAUSE_S)
        del self._recovering[link]
        self.act(self.dispatcher.up(link.number, (), time.monotonic_ns()))
        logger.info("replica %d is back", link.number)

    async def _prepare_again(self, link: ReplicaLink, key: int) -> None:
        if key not in self._models:
            return  # it was released meanwhile
        try:
            await self._prepare_on(link, key, None, {})
        except LostError:
            raise
        except hal.AsyncnnError as error:  # others may have it
            logger.warning("replica %d lacks a model: %s", link.number, error)

    async def _scale(self, scaling: Scaling) -> None:
        """Have as many replicas as are wanted, again and again."""
        while True:
            await asyncio.sleep(scaling.period_s)
            known, now = self.dispatcher, time.monotonic_ns()
            waited_ns, replicas = known.waited_ns(now), known.replicas.values()
            count = scaling.wanted(replicas, known.waiting, waited_ns)
            for _ in range(count - len(self.links)):
                link = self._add_link()
                logger.info("replica %d is to be there", link.number)
                self.recover(link)
                self._begin_for(link, link.watch(partial(self._is_busy, link)))
            unused = [e for e in self.links.values() if not self._is_busy(e)]
            # Those that have not come up yet come first, then the latest.
            unused.sort(key=lambda each: (each.is_up, -each.number))
            for link in unused[: len(self.links) - count]:
                await self._remove(link)

    async def _remove(self, link: ReplicaLink) -> None:
        """End a replica that has nothing to do."""
        logger.info("replica %d is not needed", link.number)
        self.act(self.dispatcher.lost(link.number, time.monotonic_ns()))
        del self.links[link.number], self.dispatcher.replicas[link.number]
        for task in self._tasks_for.pop(link, ()):
            task.cancel()
        self._recovering.pop(link, None)
        await link.close()

    def _begin_for(self, link: ReplicaLink, work: Coroutine[Any, Any, None]) -> None:
        """Begin what goes on for as long as a replica is there, at most."""
        self._tasks_for.setdefault(link, set()).add(self._begin(work))

    def _is_busy(self, link: ReplicaLink) -> bool:
        return bool(self.dispatcher.replicas[link.number].begun)

    def _release_soon(self, key: int) -> None:
        if not self._is_closed and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._release, key)

    def _release(self, key: int) -> None:
        self._models.pop(key, None)
        self.dispatcher.forget(key)
        for link in self.links.values():
            self._release_on(link, key)

    def _release_on(self, link: ReplicaLink, key: int) -> None:
        if link.is_up and not self._is_closed:
            link.post("release", key, answered=lambda _: None)


def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


@asynccontextmanager
async def open_cluster(
    settings: DeviceSettings,
    *,
    address: str,
    replicas: int | ClusterSettings = 1,
    device: str | None = None,
) -> AsyncIterator[ClusterDevice]:
    """Open replicas of a device on the cluster at an address, as one device.

    Settings of devices stay here: each replica has its own process's.

    :raises EngineUnavailableError: if Ray is not installed.
    :raises NoDriverError: if no cluster is there, or not all replicas in time.
    :raises AsyncnnError: if a replica cannot open its device.
    """
    chosen = replicas
    if not isinstance(chosen, ClusterSettings):
        chosen = ClusterSettings(replicas=chosen)
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(chosen.open_timeout):
                cluster = await stack.enter_async_context(Cluster(address, chosen))
                like = partial(ReplicaLink, cluster, device or "", chosen.hang_after)
                opening = ClusterDevice(cluster, chosen, like)
                opened = await stack.enter_async_context(opening)
        except TimeoutError:
            raise hal.NoDriverError(
                f"{chosen.replicas} replicas of {chosen.cpus:g} CPUs each have not "
                f"started within {chosen.open_timeout:g} s",
                hint="the cluster may have too few; see ray status",
            ) from None
        yield opened
