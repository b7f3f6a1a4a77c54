"""The settings of a device, read from a file or from options of the command line.

A TOML file has the names of `DeviceSettings` as keys, its policy's in a table,
and extensions by the names that they are found by::

    max_pending = 512
    extensions = ["package.module:attribute"]

    [policy]
    starvation_limit_ns = 20_000_000

Options of the command line are like ``max_pending=512`` and ``policy.slice_ns=1000``.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Self, TypeVar

import msgspec
from msgspec.structs import fields, replace

from asyncnn.extensions import Extension, load_extension
from asyncnn.hal.errors import InvalidArgumentError, check_least
from asyncnn.input_files import read_input
from asyncnn.offload import SWITCH_INTERVAL_S
from asyncnn.qos import Policy

logger = logging.getLogger(__name__)

FOR_ENGINES = "most_threads", "packed_weights_dir", "relaxed_as_float16"


class DeviceSettings(msgspec.Struct, frozen=True):
    """Limits and trade-offs of an in-process device.

    ``max_pending`` bounds the executions that wait or run, ``max_waiting`` the fenced
    ones under way, which cost little while they wait for their fences; more are refused
    with RESOURCE_EXHAUSTED_TRANSIENT, and so are bursts beyond ``max_bursts`` that are
    open at a time. ``max_run_bytes`` are the most that the temporaries of one execution
    may take, None as many as a process can have: a model that needs more is refused,
    and a run whose shapes, or kernels' scratch memory, do. What an engine needs
    within a region is not known before, and not counted. The
    device-managed buffers of one client hold ``max_buffer_bytes`` at most. Executions
    of a model that lately took less than ``inline_below_us``
    microseconds run on the event loop itself when nothing else is pending, or only what
    is less urgent, since handing them to a thread would cost more; 0 switches that off.
    Models that were prepared for LOW_POWER may take four times as long.

    While the device computes, BLAS has at most ``blas_threads`` threads in the whole
    process, as several are far slower than one on small matrices and on busy machines;
    0 leaves it alone.

    Two change the whole process while the device is open: ``switch_interval_s`` makes
    busy lanes hand the interpreter to the loop sooner. With ``freezes_large_models``,
    the objects of the process are kept from full garbage collections (`gc.freeze`) once
    a model of many operations was prepared, since each would stop the loop for some
    hundred milliseconds; circular garbage that exists then stays until the last device
    is closed. None leaves them as they are, except in a process that does nothing else,
    such as a driver: see `for_own_process`. So does 0 or False, everywhere.

    ``cache_key_file`` is the secret that keeps cached models from being forged, created
    when it is needed; by default it lies where the user's programs keep their state.
    Cache files are copied into memory. ``maps_cache_files`` promises that nobody
    changes this user's in place: they are mapped then, which takes no time, and
    memory that all processes share. A driver maps copies of what its clients send.

    ``packed_weights_dir`` is where the accelerated device keeps what its engine makes
    of the weights of cached models, if it maps cache files: a gigabyte at most, by
    default beside the key.

    ``capabilities_file`` holds what `asyncnn.tools.capabilities` has measured here;
    by default it lies where the user's programs keep their state.

    ``lanes`` are the threads that execute, None as many as suit the device: one for the
    reference device, whose small calls only contend for the interpreter, and one for
    each CPU for the accelerated one.

    ``lane_nice`` is added to their nice value, so that on a machine without an idle CPU
    the loop gets its turn before them: it takes calls, and ends what is cancelled.

    ``most_threads`` are those that an execution of a model for FAST_SINGLE_ANSWER may
    have, where its engine has threads, lanes are idle, and it was measured to gain.

    With ``relaxed_as_float16``, the accelerated device has its engine compute float32
    as float16 where a model allows that; None where it was measured to gain by it.

    ``batching`` is how many waiting runs of one model may run as one, 1 for none: of
    models whose outputs were seen not to depend on that, where every deadline holds.

    ``policy`` orders what competes. With ``refuses_unmeetable_deadlines`` an execution
    is not begun if its deadline comes sooner than any that its model has lately needed.
    After ``idle_after_s`` without work, buffers and threads are given back; those of
    models for SUSTAINED_SPEED, and all threads beside them, after 30 times that.
    Executions and preparations that come to no boundary for ``stuck_after_s`` fail, at
    the latest after twice that, and closing the device waits for that long at most; 0
    waits for ever.

    ``extensions`` are what the device has of operations and types beyond the HAL's. Of
    one that is ``isolated``, no other device loads regions from its caches.

    :raises InvalidArgumentError: if a limit is not positive.
    """

    max_pending: int = 4096
    max_waiting: int = 262_144
    max_bursts: int = 1024
    max_run_bytes: int | None = None
    max_buffer_bytes: int = 2**30
    inline_below_us: float = 50.0
    blas_threads: int = 1
    switch_interval_s: float | None = None
    freezes_large_models: bool | None = None
    cache_key_file: str = ""
    maps_cache_files: bool = False
    packed_weights_dir: str = ""
    capabilities_file: str = ""
    lanes: int | None = None
    lane_nice: int = 0
    most_threads: int = 4
    relaxed_as_float16: bool | None = None
    policy: Policy = Policy()
    refuses_unmeetable_deadlines: bool = False
    idle_after_s: float = 2.0
    stuck_after_s: float = 30.0
    extensions: tuple[Extension, ...] = ()
    isolated: bool = False
    batching: int = 1

    def __post_init__(self) -> None:
        check_least(
            self, 1, "max_pending", "max_waiting", "max_bursts", "max_run_bytes"
        )
        check_least(self, 1, "lanes", "most_threads", "batching")
        check_least(self, 0, "max_buffer_bytes", "stuck_after_s", "inline_below_us")
        check_least(self, 0, "blas_threads", "switch_interval_s", "lane_nice")
        if not self.idle_after_s > 0:
            raise InvalidArgumentError("DeviceSettings.idle_after_s is not positive")

    def for_own_process(self) -> Self:
        """Return the settings for a process that does nothing but run models.

        Settings of the whole process that are None get the values that models run best
        with: the interpreter switches between threads every millisecond, large models
        are frozen.
        """
        best: dict[str, object] = {
            "switch_interval_s": SWITCH_INTERVAL_S,
            "freezes_large_models": True,
        }
        unset = {k: v for k, v in best.items() if getattr(self, k) is None}
        return replace(self, **unset)


OWN_PROCESS = DeviceSettings().for_own_process()
"""The settings of a driver process, and of commands that run models."""


def warn_of_unused(
    device: str, settings: DeviceSettings, fields: Sequence[str]
) -> None:
    """Log, once for each of ``fields``, that a device has no use for what is set."""
    for name in fields:
        if getattr(settings, name) != getattr(OWN_PROCESS, name):
            _warn_once(device, name)


@cache
def _warn_once(device: str, name: str) -> None:
    logger.warning("%s does not use DeviceSettings.%s", device, name)


SettingsT = TypeVar("SettingsT", DeviceSettings, Policy)


def read_settings(
    path: str | os.PathLike[str], base: DeviceSettings | None = None
) -> DeviceSettings:
    """Return ``base``, by default the usual settings, changed by a TOML file.

    :raises InvalidArgumentError: if the file cannot be read or is not TOML, has a key
        that is no setting, or a value that it cannot have.
    """
    import tomllib  # few processes have such a file

    where = os.fspath(path)
    try:
        table = tomllib.loads(read_input(path).decode())
    except OSError as error:
        raise InvalidArgumentError(f"{where}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"{where} is not TOML: {error}") from error
    return _changed(base or DeviceSettings(), table, f"{where}: ", is_text=False)


def with_options(base: DeviceSettings, options: Iterable[str]) -> DeviceSettings:
    """Return ``base`` changed by options like ``name=value`` or ``policy.name=value``.

    :raises InvalidArgumentError: if one has another form, names no setting, or has a
        value that this cannot have.
    """
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise InvalidArgumentError(
                f"{option!r} is no setting", hint="write it as NAME=VALUE"
            )
        table: dict[str, Any] = {name.strip(): value.strip()}
        scope, dot, name = name.strip().partition(".")
        if dot:
            table = {scope: {name: value.strip()}}
        base = _changed(base, table, "", is_text=True)
    return base


def options_for(settings: DeviceSettings) -> list[str]:
    """Return the options that make usual settings the same as ``settings``.

    :raises InvalidArgumentError: if it has extensions, which have to be named.
    """
    if settings.extensions:
        raise InvalidArgumentError(
            "settings for another process cannot hold extensions",
            hint="name them instead: extensions=['package.module:attribute']",
        )
    plain = replace(settings, policy=Policy())
    return [
        *_differences(plain, DeviceSettings(), ""),
        *_differences(settings.policy, Policy(), "policy."),
    ]


def _changed(
    base: DeviceSettings, table: Mapping[str, Any], where: str, *, is_text: bool
) -> DeviceSettings:
    table = dict(table)
    special: dict[str, Callable[[Any], object]] = {
        "policy": lambda value: _policy(base.policy, value, where, is_text=is_text),
        "extensions": lambda value: _extensions(value, where),
    }
    known: dict[str, object] = {
        name: make(table.pop(name)) for name, make in special.items() if name in table
    }
    return _with_values(replace(base, **known), table, where, is_text=is_text)


def _policy(base: Policy, value: object, where: str, *, is_text: bool) -> Policy:
    if not isinstance(value, Mapping):
        raise InvalidArgumentError(
            f"{where}policy is not a table",
            hint="write its settings in a table [policy], or as policy.slice_ns=1000",
        )
    return _with_values(base, value, f"{where}policy.", is_text=is_text)


def _extensions(value: object, where: str) -> tuple[object, ...]:
    try:
        names = msgspec.convert(value, list[str])
    except msgspec.ValidationError as error:
        raise InvalidArgumentError(f"{where}extensions: {error}") from error
    return tuple(load_extension(name) for name in names)


def _with_values(
    base: SettingsT, table: Mapping[str, Any], where: str, *, is_text: bool
) -> SettingsT:
    types = {field.name: field.type for field in fields(base)}
    values: dict[str, object] = {}
    for name, value in table.items():
        if name not in types:
            from difflib import get_close_matches

            close = get_close_matches(name, types, n=2)
            raise InvalidArgumentError(
                f"{where}there is no setting {name!r}",
                hint=f"did you mean {' or '.join(close)}?"
                if close
                else f"known: {', '.join(types)}",
            )
        try:
            values[name] = msgspec.convert(value, types[name], strict=not is_text)
        except msgspec.ValidationError as error:
            raise InvalidArgumentError(f"{where}{name}: {error}") from error
    try:
        return replace(base, **values)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(
            f"{where}{error.message}", hint=error.hint
        ) from error


def _differences(settings: SettingsT, usual: SettingsT, prefix: str) -> list[str]:
    options: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != getattr(usual, field.name):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            options.append(f"{prefix}{field.name}={text}")
    return options
