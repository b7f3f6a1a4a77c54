"""``asyncnn serve``: the driver as a process of its own."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from asyncnn.cli.options import ExtensionOption, SettingOption
from asyncnn.logs import Level

if TYPE_CHECKING:
    from asyncnn.hal.interfaces import IDevice

_MAX_CONNECTIONS = 256

LimitOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=VALUE",
        help="What clients may have, by the name that errors give it, as in "
        "UserLimits.max_pools=8; repeatable.",
    ),
]


_SocketOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Where clients connect; by default a path of this user."),
]
_DeviceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Device to publish, one of asyncnn devices; by default "
        "$ASYNCNN_DEVICE, or the fastest that works."
    ),
]
_AllowUidOption: TypeAlias = Annotated[
    list[int] | None,
    typer.Option(min=0, help="Another user whose processes may connect; repeatable."),
]
_UserWeightOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="UID=WEIGHT",
        help="Share of lane time of a user, 1 unless given; repeatable.",
    ),
]
_TrustSameUidOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-same-uid",
        help="Map files of this user that could be truncated instead of copying.",
    ),
]
_TrustRegionsOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust-regions",
        help="Run regions, which engines read as they are, in the driver itself, "
        "those of other users too; else those of this user that cannot be checked "
        "run apart, in a process for each connection.",
    ),
]
_MaxConnectionsOption: TypeAlias = Annotated[
    int, typer.Option(min=1, help="Connections at a time.")
]
_SettingsOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="TOML file with settings of the device.")
]
_MetricsPortOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        help="Serve metrics for Prometheus on this port of 127.0.0.1; 0 is any.",
    ),
]
_LogLevelOption: TypeAlias = Annotated[
    Level,
    typer.Option(
        metavar="LEVEL",
        envvar="ASYNCNN_LOG_LEVEL",
        help="Least level of what is told on standard error: debug, info, "
        "warning or error.",
    ),
]
_LogJsonOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--log-json",
        envvar="ASYNCNN_LOG_JSON",
        help="Tell it as one JSON object a line.",
    ),
]
_UntilEofOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--until-eof",
        help="End when standard input does: with the process that started this.",
    ),
]

_MeasureOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        help="Measure capabilities once for this machine, where they were not: in a "
        "process of low priority, after 30 s without work, for 20 s at most."
    ),
]


def serve(
    socket: _SocketOption = None,
    device: _DeviceOption = None,
    allow_uid: _AllowUidOption = None,
    user_weight: _UserWeightOption = None,
    trust_same_uid: _TrustSameUidOption = False,
    trust_regions: _TrustRegionsOption = False,
    max_connections: _MaxConnectionsOption = _MAX_CONNECTIONS,
    limit: LimitOption = None,
    extension: ExtensionOption = None,
    settings: _SettingsOption = None,
    setting: SettingOption = None,
    metrics_port: _MetricsPortOption = None,
    log_level: _LogLevelOption = "warning",
    log_json: _LogJsonOption = False,
    until_eof: _UntilEofOption = False,
    measure: _MeasureOption = True,
) -> None:
    """Publish a device on a Unix-domain socket until interrupted."""
    from asyncnn.cli import serving
    from asyncnn.devices import DeviceSettings
    from asyncnn.devices.device_settings import read_settings, with_options
    from asyncnn.extensions import load_extension
    from asyncnn.runtime.opening_devices import open_device
    from asyncnn.service.driver.server import Server
    from asyncnn.service.process import default_socket_path, socket_address
    from asyncnn.service.start import serve_until_stopped

    path = socket or default_socket_path()
    socket_address(path)
    extensions = [load_extension(place) for place in extension or ()]
    given = DeviceSettings() if settings is None else read_settings(settings)
    given = with_options(given, setting or ()).for_own_process()
    apart: list[IDevice] = []
    isolated = serving.isolating(device, given, extension or (), apart)
    opened = open_device(device, settings=given, extensions=extensions)
    limits, user_limits = serving.limits_of(limit or ())
    publish = partial(
        Server,
        path=path,
        allowed_uids=tuple(allow_uid or ()),
        user_weights=dict(map(serving.weight_of, user_weight or ())),
        trust_same_uid=trust_same_uid,
        trust_regions=trust_regions,
        isolated=None if trust_regions else isolated,
        max_connections=max_connections,
        limits=limits,
        user_limits=user_limits,
    )
    command = serving.measuring_command(given) if measure else ()
    measured = partial(serving.measured_when_idle, apart=apart, command=command)
    ready = serving.published(path, opened, publish, metrics_port, measured)
    serve_until_stopped(ready, log_level, as_json=log_json, until_eof=until_eof)
