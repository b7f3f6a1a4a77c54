"""Opens devices for applications: `open_device`, `open_devices` and `connect`."""

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from msgspec.structs import replace

from asyncnn.deadlines import DEADLINE_GRACE_S
from asyncnn.devices import DeviceSettings
from asyncnn.extensions import Extension, load_extensions
from asyncnn.hal.errors import InvalidArgumentError, WrongTypeError
from asyncnn.hal.interfaces import IDevice
from asyncnn.logs import MANAGER
from asyncnn.memory.slabs import isolated_array, shared_array
from asyncnn.runtime.cluster_settings import ClusterSettings, cluster_options
from asyncnn.runtime.device import DEFAULT_MAX_IN_FLIGHT, Device
from asyncnn.runtime.execution_options import sync_exec_hal as forced_call
from asyncnn.runtime.framework import (
    FRAMEWORK,
    FrameworkSettings,
    chosen_fallback,
    chosen_partitioning,
)
from asyncnn.runtime.framework.device_registry import opener_of
from asyncnn.runtime.model_cache import ModelCache
from asyncnn.runtime.opening import opens

if TYPE_CHECKING:
    from asyncnn.service import RecordingSettings, RemoteDevice, Supervision
    from asyncnn.service.process import DriverProcess, Settings
    from asyncnn.service.supervised_device import SupervisedDevice

CacheDir: TypeAlias = str | os.PathLike[str] | ModelCache
"""A folder of prepared models, by its path or with a bound of one's own."""


@opens("device")
async def open_device(
    name: str | None = None,
    *,
    settings: DeviceSettings | None = None,
    extensions: Iterable[Extension | str] = (),
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    cache_dir: CacheDir | None = None,
    sync_exec_hal: bool | None = None,
    isolated: bool = False,
    replicas: int | ClusterSettings | None = None,
    device: str | None = None,
) -> AsyncIterator[Device]:
    """Open a device in this process: ``async with``, or ``await`` and ``aclose()``.

    Nothing is started but worker threads; no socket, no file. Nothing of the process is
    changed unless ``settings`` ask for it, but for the threads of BLAS while the device
    computes. Closing ends what is still pending with
    `DeviceClosedError`, and waits for what computes to come to a boundary. A device
    that is forgotten is closed with a `ResourceWarning`.

    It is used on the event loop in which it was opened.

    :param name: one of `device_names`, or ``framework:NAME,NAME`` for a framework of
        the devices named; see `open_devices` for what a framework is. None leaves it to
        the environment variable ``ASYNCNN_DEVICE``, or else is ``auto``, which has all
        engines, where both LiteRT and ONNX Runtime are installed, ``accelerated`` or
        ``onnxruntime`` where one of them is, and ``reference`` elsewhere.
    :param extensions: what the device has besides its settings' own: an
        `Extension`, or its name like ``package.module:attribute`` or, if a package has
        installed it, ``com.example.spectral``.
    :param max_in_flight: runs of one prepared model that hold memory at a time; more
        wait their turn.
    :param cache_dir: folder in which prepared models are kept for the next time, but
        not files that their engine gets as they are, which are prepared as soon.
    :param sync_exec_hal: for debugging, has every `PreparedModel.run` that is not
        fenced go by the HAL's synchronous call (True) or by that with a callback
        (False), whatever its path is. None leaves it to the environment variable
        ``ASYNCNN_SYNCEXEC_HAL``, or else to the path.
    :param isolated: open it in a process of its own that ends with the block, like
        `connect`: a model that crashes the engine then ends that process alone.
        Extensions are given by their names, and the device is one of this package.
    :param replicas: of a device on a cluster, whose address is the name: ``ray://auto``
        for this machine's, ``ray://HOST:PORT``, or ``ray://local`` for one that
        is started here and ends with the device. How many actors there are, or
        `asyncnn.cluster.ClusterSettings`; None is one.
    :param device: what each replica opens, by a name; as None here by default.
    :raises InvalidArgumentError: if there is no device or extension of that name, or
        that variable is no number.
    :raises WrongLoopError: if asyncio's event loop does not run.
    """
    if isolated:
        connecting = connect(
            device=name,
            extensions=_names_of(extensions),
            settings=settings,
            max_in_flight=max_in_flight,
            cache_dir=cache_dir,
            sync_exec_hal=sync_exec_hal,
        )
        async with AsyncExitStack() as stack:
            # Nothing here refers to the device, which may be forgotten.
            yield await stack.enter_async_context(connecting)
        return
    forced = forced_call(sync_exec_hal)
    given = _extended(settings or DeviceSettings(), extensions)
    on_cluster = cluster_options(name, replicas, device)
    async with _opened(name, given, on_cluster) as (opened, hal_device):
        cache = _cache_in(cache_dir)
        MANAGER("opened", device=opened)
        yield Device(
            opened,
            hal_device,
            max_in_flight=max_in_flight,
            cache=cache,
            sync_exec_hal=forced,
        )


@asynccontextmanager
async def _opened(
    name: str | None, settings: DeviceSettings, options: dict[str, Any]
) -> AsyncIterator[tuple[str, IDevice]]:
    # What only connects to a driver has no use for an engine and kernels.
    from asyncnn.devices.own_devices import (
        DEVICE_VARIABLE,
        default_device,
        default_device_name,
    )

    chosen = name or default_device_name()
    if chosen:
        try:
            opener = opener_of(chosen)
        except InvalidArgumentError as error:
            if name:
                raise
            message = f"{DEVICE_VARIABLE}: {error.message}"
            raise InvalidArgumentError(message, hint=error.hint) from None
        async with partial(opener, **options)(settings) as named:
            yield chosen, named
        return
    async with default_device(settings) as device:
        yield device.name.partition("-")[2], device


@opens("device")
async def open_devices(
    *devices: str | Device,
    partition: int | None = None,
    fallback: str | None = None,
    framework: FrameworkSettings | None = None,
    settings: DeviceSettings | None = None,
    extensions: Iterable[Extension | str] = (),
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    cache_dir: CacheDir | None = None,
    sync_exec_hal: bool | None = None,
) -> AsyncIterator[Device]:
    """Open several devices as one: ``async with``, or ``await`` and ``aclose()``.

    Each operation of a model goes to the device that declares to be best for it, as far
    as moving data is worth it; what a device cannot do, or fails with, goes to the CPU.
    ``outputs.route`` says which device has computed what.

    :param devices: names of devices to open, and devices that are open already, such as
        ones of `connect`. None stands for all that are registered, but for samples.
        The CPU, ``reference``, is always one of them, and the last resort.
    :param partition: 0 runs all on the CPU, 1 divides models, with the CPU as fallback,
        2 divides them without one. None leaves it to ``framework`` or, without that,
        to the environment variable ``ASYNCNN_PARTITION``, or else is 1.
    :param fallback: what the CPU computes if a device fails: ``forbid``, ``partial`` or
        ``full``. None leaves it to ``framework`` or, without that, is ``partial``.
    :param framework: further settings.
    :param cache_dir: folder in which prepared models are kept for the next time, those
        that are divided included.
    :raises InvalidArgumentError: if there is no such device, one is given twice, or one
        of the settings is none.
    :raises AsyncnnError: if a device cannot be opened.
    """
    from asyncnn.runtime.framework.opening import OpenDevice, open_framework

    forced = forced_call(sync_exec_hal)
    base = framework or FrameworkSettings(partition=chosen_partitioning(None))
    chosen = replace(
        base,
        partition=chosen_partitioning(
            base.partition if partition is None else partition
        ),
        fallback=chosen_fallback(base.fallback if fallback is None else fallback),
    )
    given = [each for each in devices if isinstance(each, Device)]
    for each in devices:
        if not isinstance(each, str | Device):
            raise WrongTypeError(
                f"{each!r} is no device",
                hint="give names of devices, or what open_device or connect gives",
            )
    async with open_framework(
        _extended(settings or DeviceSettings(), extensions),
        [each for each in devices if isinstance(each, str)],
        devices=[
            OpenDevice(each.name, each.hal, each.is_remote, each.copies)
            for each in given
        ],
        framework=chosen,
    ) as hal_device:
        MANAGER("opened", device=FRAMEWORK, members=len(hal_device.members))
        yield Device(
            FRAMEWORK,
            hal_device,
            max_in_flight=max_in_flight,
            make_array=shared_array if any(d.is_remote for d in given) else np.empty,
            cache=_cache_in(cache_dir),
            sync_exec_hal=forced,
        )


@opens("device")
async def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    supervised: "bool | Supervision" = False,
    driver_uids: Collection[int] = (),
    device: str | None = None,
    extensions: Collection[str] = (),
    settings: DeviceSettings | str | os.PathLike[str] | None = None,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
    cache_dir: CacheDir | None = None,
    sync_exec_hal: bool | None = None,
    deadline_grace: float = DEADLINE_GRACE_S,
) -> AsyncIterator[Device]:
    """Connect to the driver process that serves ``path``.

    As `open_device`, for an ``async with`` block, or by ``await`` until ``aclose()``.
    Without a path, a driver of one's own is started, which ends with the device. The
    device is used like any other. If the driver dies, everything that is pending ends
    with `DriverDiedError`. So does what is asked for later, unless the
    connection is supervised: then it is made again, after the driver was restarted if
    it is one's own, and prepared models go on working.

    The device's name is ``remote:PATH`` or, without a path, ``remote:DEVICE-PROCESS``:
    what the driver publishes, and the number of the process that was started first.

    :param supervised: settings of the supervision, or True for the usual ones.
    :param driver_uids: users besides this one and root whose drivers are trusted.
    :param device: what a driver of one's own publishes, ``auto``, ``accelerated``,
        ``onnxruntime``, ``onnxruntime-PROVIDER`` or ``reference``; None leaves it to
        ``ASYNCNN_DEVICE``, or else to `open_device`'s rule.
    :param extensions: what a driver of one's own imports and offers, by their names
        as `open_device` takes them.
    :param settings: of the device of a driver of one's own, or the path of a TOML
        file with some; what they leave open is as `DeviceSettings.for_own_process`.
    :param cache_dir: folder in which prepared models are kept for the next time.
    :param sync_exec_hal: as of `open_device`.
    :param deadline_grace: seconds after its deadline until a call is given up that the
        driver does not answer, because it was stopped, say; infinity waits for ever.
    :raises InvalidArgumentError: if ``path`` cannot be a socket's, extensions or
        settings are given for a driver that is running, the file of settings is wrong,
        ``ASYNCNN_SYNCEXEC_HAL`` is no number, or ``deadline_grace`` is negative.
    :raises NoDriverError: if no driver that is trusted serves ``path``, or none starts.
    :raises ResourceExhaustedTransientError: if this process has no memory or
        descriptors left for it, or can start no other.
    """
    forced = forced_call(sync_exec_hal)
    names = _names_of(extensions)
    given = {
        "extensions": ("--extension", bool(names)),
        "settings": ("--settings", settings is not None),
        "device": ("--device", device is not None),
    }
    for what, (option, is_given) in given.items():
        if path is not None and is_given:
            raise InvalidArgumentError(
                f"a driver that is running has its {what} already",
                hint=f"start it with asyncnn serve {option}",
            )
    has_others = not {os.geteuid(), 0}.issuperset(driver_uids)
    recording = _recording_of(supervised)
    start = partial(_running_driver, names, settings, device, recording)
    link = partial(_remote, path, driver_uids, start, deadline_grace)
    opened: AbstractAsyncContextManager[RemoteDevice | SupervisedDevice]
    opened = link() if supervised is False else _supervised(link, supervised)
    async with opened as hal_device:
        MANAGER("connected", path=path)
        yield Device(
            f"remote:{path or hal_device.label}",
            hal_device,
            max_in_flight=max_in_flight,
            make_array=isolated_array if has_others else shared_array,
            cache=_cache_in(cache_dir),
            sync_exec_hal=forced,
            deadline_grace=deadline_grace,
        )


def _recording_of(supervised: "bool | Supervision") -> "RecordingSettings | None":
    """Return what a driver is to note of its calls, for its supervisor."""
    if isinstance(supervised, bool):
        return None
    from asyncnn.service.limits import RecordingSettings
    from asyncnn.service.supervision import Supervision

    if not isinstance(supervised, Supervision):
        raise WrongTypeError(
            f"supervised is {supervised!r}",
            hint="give True, or asyncnn.Supervision(wait=2), say",
        )
    usual = RecordingSettings() if supervised.record_to else None
    return supervised.recording or usual


def _running_driver(
    extensions: Collection[str],
    settings: "Settings",
    device: str | None,
    recording: "RecordingSettings | None",
) -> "AbstractAsyncContextManager[DriverProcess]":
    from asyncnn.service.process import running_driver

    return running_driver(
        extensions=extensions,
        settings=settings,
        device=device,
        meanwhile=_import_client,
        recording=recording,
    )


def _import_client() -> type["RemoteDevice"]:
    from asyncnn.service.client.remote_device import RemoteDevice

    return RemoteDevice


@asynccontextmanager
async def _remote(
    path: str | os.PathLike[str] | None,
    driver_uids: Collection[int],
    start: "Callable[[], AbstractAsyncContextManager[DriverProcess]]",
    deadline_grace: float,
) -> AsyncIterator["RemoteDevice"]:
    async with AsyncExitStack() as stack:
        own: DriverProcess | None = None
        if path is None:
            own = await stack.enter_async_context(start())
            path, driver_uids = own.path, ()
        connecting = _import_client()(
            path, driver_uids=driver_uids, deadline_grace=deadline_grace
        )
        try:
            yield await stack.enter_async_context(connecting)
        finally:
            if own is not None and connecting.hangs:  # it would not end if asked to
                own.process.kill()


def _supervised(
    link: Callable[[], AbstractAsyncContextManager["RemoteDevice"]],
    supervision: "Literal[True] | Supervision",
) -> "AbstractAsyncContextManager[SupervisedDevice]":
    from asyncnn.service.supervised_device import supervised
    from asyncnn.service.supervision import Supervision

    return supervised(link, Supervision() if supervision is True else supervision)


def _names_of(extensions: Iterable[Extension | str]) -> list[str]:
    given = [extensions] if isinstance(extensions, str) else list(extensions)
    names = [each for each in given if isinstance(each, str)]
    if len(names) < len(given):
        raise WrongTypeError(
            "a process of its own imports its extensions",
            hint="give them by names like package.module:attribute",
        )
    return names


def _extended(
    settings: DeviceSettings, extensions: Iterable[Extension | str]
) -> DeviceSettings:
    if not isinstance(settings, DeviceSettings):
        raise WrongTypeError(
            f"settings of type {type(settings).__name__}",
            hint="give asyncnn.DeviceSettings(lanes=2), say",
        )
    more = load_extensions(extensions)
    return replace(settings, extensions=(*settings.extensions, *more))


def _cache_in(cache_dir: CacheDir | None) -> ModelCache | None:
    if cache_dir is None or isinstance(cache_dir, ModelCache):
        return cache_dir
    return ModelCache(cache_dir)
