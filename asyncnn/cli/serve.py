"""``asyncnn serve``: the driver as a process of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asyncnn.cli.options import CommandOptions, Natural, Positive, console
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.logs import Level

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from asyncnn.hal.interfaces import IDevice
    from asyncnn.oip import OipLimits
    from asyncnn.runtime.device import Device


class ServeOptions(CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn serve`` is asked to do.

    socket: Where clients connect; by default a path of this user.
    device: Device to publish, one of asyncnn devices; by default $ASYNCNN_DEVICE, or
        the fastest that works.
    allow_uid: Another user whose processes may connect; repeatable.
    user_weight UID=WEIGHT: Share of lane time of a user, 1 unless given; repeatable.
    trust_same_uid: Map files of this user that could be truncated instead of copying.
    trust_regions: Run regions, which engines read as they are, in the driver itself,
        of all users; else this user's that cannot be checked run apart, in a process
        for each connection.
    max_connections: Connections at a time.
    limit NAME=VALUE: What clients may have, by the name that errors give it, as in
        UserLimits.max_pools=8; repeatable.
    settings: TOML file with settings of the device.
    metrics_port: Serve metrics for Prometheus on this port of 127.0.0.1; 0 is any.
    log_level LEVEL: Least level of what is logged to standard error: debug, info,
        warning or error.
    log_json: Log one JSON object a line.
    record CALLS: Keep the last calls, to be written by asyncnn record, or by a client
        that supervises this driver when it dies; 0 keeps none.
    record_models: Keep the models of these calls, in full, which else have only
        digests.
    record_tensors: Keep the inputs and outputs of these calls.
    record_bytes: Memory for models, tensors and requests that are kept.
    record_on_missed_deadline FILE: Write the calls there, for this user alone, when
        one of them misses its deadline; once a second at most.
    until_eof: End when standard input does: with the process that started this.
    measure: Measure capabilities once for this machine, where they were not: in a
        process of low priority, after 30 s without work, for 20 s at most.
    oip ADDRESS: Serve models by HTTP there, by the Open Inference Protocol: :8000 for
        this machine alone, or 0.0.0.0:8000 for all that reach it.
    grpc ADDRESS: The same by gRPC.
    model NAME=FILE: Model file for clients of the protocol, by its name, or by
        NAME:VERSION; repeatable.
    state NAME:INPUT=OUTPUT: Input of a model that sequences of the protocol keep, with
        the output that is its next value, if their names leave it open; repeatable.
    tls_cert: Certificate of the protocol's ports with its chain, a PEM file.
    tls_key: Key of the certificate, a PEM file.
    shared_memory: Let clients of the protocol have tensors in shared memory of this
        user: all who reach its ports then have what lies there.
    token_file: File of bearer tokens, one a line, one of which clients of the protocol
        have to bring.
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
    oip: str | None = None
    grpc: str | None = None
    model: list[str] | None = None
    state: list[str] | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = None
    shared_memory: bool = False


def check_oip(asked: ServeOptions) -> None:
    """Check that models have a place, and a place has models.

    :raises InvalidArgumentError: if not.
    """
    if asked.model and not (asked.oip or asked.grpc):
        raise InvalidArgumentError(
            "--model is for clients of the Open Inference Protocol",
            hint="say where: --oip :8000, --grpc :8001",
        )
    needy = "oip", "grpc", "state", "tls_cert", "tls_key", "token_file", "shared_memory"
    for option in needy:
        if getattr(asked, option) not in (None, False) and not asked.model:
            raise InvalidArgumentError(
                f"--{option.replace('_', '-')} needs a model to serve",
                hint="--model NAME=FILE",
            )


@asynccontextmanager
async def oip_served(
    asked: ServeOptions, limits: "OipLimits", device: "Device"
) -> AsyncIterator[None]:
    """Serve models by the Open Inference Protocol for the block, if any are to be.

    :raises InvalidArgumentError: if a package for that is not installed.
    :raises AsyncnnError: if a model cannot be loaded, or an address cannot be had.
    """
    if not asked.model:
        yield
        return
    try:
        from asyncnn.oip import NamedFile, Repository, Tokens, listening
    except ImportError as error:
        raise InvalidArgumentError(
            f"the Open Inference Protocol needs packages: {error}",
            hint="install them with: pip install asyncnn[oip]",
        ) from error
    tokens = Tokens.read(asked.token_file)
    security = listening.Security(asked.tls_cert, asked.tls_key, tokens)
    files = NamedFile.all_of(asked.model, asked.state or ())
    shared = asked.shared_memory
    repository = Repository(device, files, limits, shares_memory=shared)
    async with AsyncExitStack() as stack:
        stack.callback(repository.close)
        await repository.load_all()
        for place, serve, scheme in (
            (asked.oip, listening.rest_served, "http"),
            (asked.grpc, listening.rpc_served, "grpc"),
        ):
            if place is None:
                continue
            serving = serve(repository, listening.Address.of(place), security)
            where = await stack.enter_async_context(serving)
            secure = "s" if asked.tls_cert else ""
            console().print(f"models at {scheme}{secure}://{where}", soft_wrap=True)
        stack.push_async_callback(repository.stop_serving)
        yield


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
    limits, user_limits, oip_limits = serving.limits_of(asked.limit or ())
    check_oip(asked)
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
    besides: list[Callable[[Device], AbstractAsyncContextManager[None]]] = [
        partial(oip_served, asked, oip_limits),
        partial(serving.metrics_served, port=asked.metrics_port),
        lambda device: serving.measured_when_idle(device.hal, apart, command),
    ]
    ready = serving.published(path, opened, publish, besides)
    serve_until_stopped(
        ready, asked.log_level, as_json=asked.log_json, until_eof=asked.until_eof
    )
