"""``asyncnn serve``: the driver as a process of its own."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asyncnn.cli.options import CommandOptions, Natural, Positive
from asyncnn.logs import Level

if TYPE_CHECKING:
    from asyncnn.hal.interfaces import IDevice


class ServeOptions(CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn serve`` is asked to do.

    socket: Where clients connect; by default a path of this user.
    device: Device to publish, one of asyncnn devices; by default $ASYNCNN_DEVICE, or
        the fastest that works.
    allow_uid: Another user whose processes may connect; repeatable.
    user_weight UID=WEIGHT: Share of lane time of a user, 1 unless given; repeatable.
    trust_same_uid: Map files of this user that could be truncated instead of copying.
    trust_regions: Run regions, which engines read as they are, in the driver itself,
        those of other users too; else those of this user that cannot be checked run
        apart, in a process for each connection.
    max_connections: Connections at a time.
    limit NAME=VALUE: What clients may have, by the name that errors give it, as in
        UserLimits.max_pools=8; repeatable.
    settings: TOML file with settings of the device.
    metrics_port: Serve metrics for Prometheus on this port of 127.0.0.1; 0 is any.
    log_level LEVEL: Least level of what is told on standard error: debug, info, warning
        or error.
    log_json: Tell it as one JSON object a line.
    record CALLS: Keep the last calls, to be written by asyncnn record, or by a client
        that supervises this driver when it dies; 0 keeps none.
    record_models: Keep the models of these calls, in full, which else are only told
        from each other.
    record_tensors: Keep the inputs and outputs of these calls.
    record_bytes: Memory for models, tensors and requests that are kept.
    record_on_missed_deadline FILE: Write the calls there, for this user alone, when
        one of them misses its deadline; once a second at most.
    until_eof: End when standard input does: with the process that started this.
    measure: Measure capabilities once for this machine, where they were not: in a
        process of low priority, after 30 s without work, for 20 s at most.
    """

    socket: Path | None = None
    device: str | None = None
    allow_uid: Annotated[list[int] | None, typer.Option(min=0)] = None
    user_weight: list[str] | None = None
    trust_same_uid: bool = False
    trust_regions: bool = False
    max_connections: Positive = 256
    limit: list[str] | None = None
    extension: list[str] | None = None
    settings: Path | None = None
    setting: list[str] | None = None
    metrics_port: Annotated[int | None, typer.Option(min=0, max=65535)] = None
    log_level: Annotated[Level, typer.Option(envvar="ASYNCNN_LOG_LEVEL")] = "warning"
    log_json: Annotated[bool, typer.Option(envvar="ASYNCNN_LOG_JSON")] = False
    record: Natural = 1000
    record_models: bool = False
    record_tensors: bool = False
    record_bytes: Natural = 2**22
    record_on_missed_deadline: Path | None = None
    until_eof: bool = False
    measure: bool = True


def serve(asked: ServeOptions) -> None:
    """Publish a device on a Unix-domain socket until interrupted."""
    from asyncnn.cli import serving
    from asyncnn.devices import DeviceSettings
    from asyncnn.devices.device_settings import read_settings, with_options
    from asyncnn.extensions import load_extension
    from asyncnn.output_files import check_writable
    from asyncnn.runtime.opening_devices import open_device
    from asyncnn.service import RecordingSettings
    from asyncnn.service.driver.server import Server
    from asyncnn.service.process import default_socket_path, socket_address
    from asyncnn.service.start import serve_until_stopped

    path = asked.socket or default_socket_path()
    socket_address(path)
    extensions = [load_extension(place) for place in asked.extension or ()]
    given = (
        DeviceSettings() if asked.settings is None else read_settings(asked.settings)
    )
    given = with_options(given, asked.setting or ()).for_own_process()
    apart: list[IDevice] = []
    isolated = serving.isolating(asked.device, given, asked.extension or (), apart)
    opened = open_device(asked.device, settings=given, extensions=extensions)
    limits, user_limits = serving.limits_of(asked.limit or ())
    check_writable(asked.record_on_missed_deadline)
    recording = RecordingSettings(
        calls=asked.record,
        models=asked.record_models,
        tensors=asked.record_tensors,
        max_bytes=asked.record_bytes,
        missed_deadlines_to=str(asked.record_on_missed_deadline or ""),
    )
    noting = recording, given, tuple(asked.extension or ()), asked.device
    publish = partial(
        serving.recording_server,
        Server,
        noting,
        path=path,
        allowed_uids=tuple(asked.allow_uid or ()),
        user_weights=dict(map(serving.weight_of, asked.user_weight or ())),
        trust_same_uid=asked.trust_same_uid,
        trust_regions=asked.trust_regions,
        isolated=None if asked.trust_regions else isolated,
        max_connections=asked.max_connections,
        limits=limits,
        user_limits=user_limits,
    )
    command = serving.measuring_command(given) if asked.measure else ()
    measured = partial(serving.measured_when_idle, apart=apart, command=command)
    ready = serving.published(path, opened, publish, asked.metrics_port, measured)
    serve_until_stopped(
        ready, asked.log_level, as_json=asked.log_json, until_eof=asked.until_eof
    )
