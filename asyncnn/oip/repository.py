"""Models by name and version: loaded, prepared, run for requests, and counted."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from asyncnn.deadlines import deadline_after, seconds_until
from asyncnn.execution import Outputs
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import DeviceStatus, Priority
from asyncnn.oip.admission import (
    AS_USUAL,
    Admission,
    AskedRun,
    OipLimits,
    UnknownNameError,
)
from asyncnn.oip.client_regions import SharedRegions
from asyncnn.oip.datatypes import datatype_of
from asyncnn.oip.sequences import Sequences
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.model_file import load_model
from asyncnn.runtime.prepared import PreparedModel


class NamedFile(NamedTuple):
    """A model file with the name and the version that clients know it by.

    ``states`` are inputs that sequences keep; see `asyncnn.load_model`.
    """

    name: str
    version: str
    path: Path
    states: Mapping[str, str] | None = None

    @classmethod
    def of(cls, option: str) -> Self:
        """Return what ``NAME=FILE`` or ``NAME:VERSION=FILE`` stands for.

        :raises InvalidArgumentError: if it has no name or no file.
        """
        name, _, path = option.partition("=")
        name, _, version = name.partition(":")
        if not (name and path) or "/" in name:
            raise InvalidArgumentError(
                f"--model {option} names no model", hint="write it as NAME=FILE"
            )
        return cls(name, version or "1", Path(path))

    @classmethod
    def all_of(cls, options: Iterable[str], states: Iterable[str]) -> list[Self]:
        """Return what options stand for, and ``NAME:INPUT=OUTPUT`` for their states.

        :raises InvalidArgumentError: if one is not written so, or of no model.
        """
        files, found = [cls.of(each) for each in options], dict[str, dict[str, str]]()
        for state in states:
            name, _, pair = state.partition(":")
            taken, _, given = pair.rpartition("=")
            if not (taken and given) or all(name != each.name for each in files):
                raise InvalidArgumentError(
                    f"--state {state} is no state of a --model",
                    hint="write it as NAME:INPUT=OUTPUT",
                )
            found.setdefault(name, {})[taken] = given
        return [each._replace(states=found.get(each.name)) for each in files]


class Tallies:
    """What became of the requests for a model since it was first loaded.

    ``counts`` has how often each thing was done, and for how many nanoseconds in all;
    ``last_ms`` is the time of the last one, in milliseconds since 1970.
    """

    def __init__(self) -> None:
        computing = "compute_input", "compute_infer", "compute_output"
        self.counts = {name: [0, 0] for name in ("success", "fail", *computing)}
        self.last_ms = 0

    def add(self, name: str, ns: int) -> None:
        """Count something once more."""
        self.counts[name][0] += 1
        self.counts[name][1] += ns


class ServedModel:
    """One version of a model; ``prepared`` has it by priority, as far as asked for.

    ``ready`` says whether it can be run; ``reason``, why not.
    """

    def __init__(self, device: Device, file: NamedFile) -> None:
        self.name, self.version, self.path, self._states = file
        self.tallies = Tallies()
        self.ready = False
        self.reason = "not loaded"
        self.inputs: Mapping[str, TensorInfo] = {}
        self.outputs: Mapping[str, TensorInfo] = {}
        self.prepared: dict[Priority, PreparedModel] = {}
        self._device = device
        self._model: NamedModel | None = None
        self._turn = asyncio.Lock()
        self._preparing: dict[Priority, asyncio.Task[PreparedModel]] = {}

    async def load(self) -> None:
        """Read the file and prepare the model; what ran before does so until then.

        :raises AsyncnnError: if that fails; a model that was ready is so still.
        """
        async with self._turn:
            try:
                model = await load_model(self.path, states=self._states)
                prepared = await self._device.prepare(model)
                for info in (*prepared.inputs, *prepared.outputs):
                    datatype_of(info)
            except AsyncnnError as error:
                if not self.ready:
                    self.reason = str(error)
                raise
            self.unload()
            self._model, self.prepared = model, {Priority.MEDIUM: prepared}
            self.inputs = {info.name: info for info in prepared.inputs}
            self.outputs = {info.name: info for info in prepared.outputs}
            self.ready, self.reason = True, ""

    def unload(self) -> None:
        """Let go of the model; requests under way go on with it."""
        for task in self._preparing.values():
            task.cancel()
        self._preparing, self.prepared, self._model = {}, {}, None
        self.ready, self.reason = False, "unloaded"

    async def prepare(self, priority: Priority) -> PreparedModel:
        """Prepare it for a priority, once, whoever else asks and whoever stops waiting.

        :raises AsyncnnError: if that fails, or it is unloaded before or meanwhile.
        """
        model, preparing = self._model, self._preparing
        if model is None:  # it was unloaded while the request was read
            raise _unavailable(self)
        task = preparing.get(priority)
        if task is None:
            coroutine = self._device.prepare(model, priority=priority)
            task = preparing[priority] = asyncio.create_task(coroutine)
            task.add_done_callback(lambda _: preparing.pop(priority, None))
        # Waiting so distinguishes a cancelled task from this call being cancelled.
        await asyncio.wait([task])
        if task.cancelled():  # it was loaded anew, or unloaded
            return await self.prepare(priority)
        prepared = task.result()
        if self._model is model:
            self.prepared[priority] = prepared
        return prepared


def _unavailable(served: ServedModel) -> DeviceUnavailableError:
    return DeviceUnavailableError(
        f"version {served.version} of model {served.name!r} is not ready: "
        f"{served.reason}"
    )


class Repository:
    """All models that a server was started with, and what is under way for them."""

    def __init__(
        self,
        device: Device,
        files: Iterable[NamedFile],
        limits: OipLimits | None = None,
        *,
        shares_memory: bool = False,
    ) -> None:
        """Know the models; `load_all` has them loaded.

        :param shares_memory: let clients have tensors in shared memory of this user.

        :raises InvalidArgumentError: if there is none, or two are of one name.
        """
        self.device = device
        self.limits = limits or OipLimits()
        self.admission = Admission(self.limits)
        self.sequences = Sequences(self.limits)
        self.regions = SharedRegions(self.limits.max_regions, is_open=shares_memory)
        self.doors: set[Callable[[], Awaitable[None]]] = set()
        self._models: dict[str, dict[str, ServedModel]] = {}
        for file in files:
            versions = self._models.setdefault(file.name, {})
            if file.version in versions:
                raise InvalidArgumentError(
                    f"model {file.name!r} of version {file.version} is given twice",
                    hint="write NAME:VERSION=FILE",
                )
            versions[file.version] = ServedModel(device, file)
        if not self._models:
            raise InvalidArgumentError("no model is given", hint="--model NAME=FILE")
        self._default = {name: _newest(each) for name, each in self._models.items()}

    @property
    def is_ready(self) -> bool:
        """Whether the device is there."""
        return self.device.hal.get_status() is not DeviceStatus.OFFLINE

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._models.values():
            yield from versions.values()

    def find(self, name: str, version: str = "") -> ServedModel:
        """Return a version of a model, by default the newest, ready or not.

        :raises UnknownNameError: if there is none.
        """
        versions = self.versions(name)
        served = versions.get(version) if version else self._default[name]
        if served is None:
            raise UnknownNameError(
                f"model {name!r} has no version {version!r}"[:200],
                hint=f"known: {', '.join(versions)}",
            )
        return served

    def versions(self, name: str) -> Mapping[str, ServedModel]:
        """Return the versions of a model.

        :raises UnknownNameError: if there is none of that name.
        """
        try:
            return self._models[name]
        except KeyError:
            raise UnknownNameError(
                f"there is no model {name!r}"[:200],
                hint=f"known: {', '.join(self._models)}",
            ) from None

    def usable(self, name: str, version: str = "") -> ServedModel:
        """Return a version of a model that can be run.

        :raises UnknownNameError: if there is none.
        :raises DeviceUnavailableError: if it is not ready.
        """
        served = self.find(name, version)
        if not served.ready:
            raise _unavailable(served)
        return served

    async def load_all(self) -> None:
        """Load all models.

        :raises AsyncnnError: if one cannot be loaded.
        """
        for name in self._models:
            await self.load(name)

    async def load(self, name: str) -> None:
        """Load all versions of a model, or load them again from their files.

        :raises AsyncnnError: if there is none of that name, or a file cannot be loaded.
        """
        for served in self.versions(name).values():
            await served.load()
            self.sequences.close(served)

    def unload(self, name: str) -> None:
        """Let go of all versions of a model, and end their sequences.

        :raises UnknownNameError: if there is none of that name.
        """
        for served in self.versions(name).values():
            served.unload()
            self.sequences.close(served)

    async def stop_serving(self) -> None:
        """Close all doors, of each server, as `Door.close` does, at the same time."""
        await asyncio.gather(*(close() for close in self.doors))

    def close(self) -> None:
        """Let go of all models."""
        for name in self._models:
            self.unload(name)
        self.regions.unregister()

    async def run(
        self, served: ServedModel, inputs: dict[str, Array], wanted: AskedRun = AS_USUAL
    ) -> Outputs:
        """Run a model that is ready as a request wants it; cancelling stops it.

        :raises AsyncnnError: as `PreparedModel.run` and `Sequences.step`.
        """
        prepared = served.prepared.get(wanted.priority)
        if prepared is None:
            deadline = deadline_after(wanted.timeout)
            prepared = await served.prepare(wanted.priority)
            wanted = wanted._replace(timeout=seconds_until(deadline))
        if wanted.sequence:
            return await self.sequences.step(served, prepared, inputs, wanted)
        return await prepared.run(inputs, timeout=wanted.timeout)


def _newest(versions: Mapping[str, ServedModel]) -> ServedModel:
    """Return the version of the highest number, or of the last text if none is one."""

    def order(version: str) -> tuple[bool, int, str]:
        is_number = version.isascii() and version.isdecimal()
        return is_number, int(version) if is_number else 0, version

    return versions[max(versions, key=order)]
