"""``asyncnn devices`` and ``asyncnn capabilities``: what there is, how fast."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer
from msgspec.structs import replace

from asyncnn.cli.options import CommandOptions, console, print_json, progress
from asyncnn.hal.errors import GeneralFailureError, failure_of
from asyncnn.hal.types import OperandType

if TYPE_CHECKING:
    from asyncnn.devices.measured_capabilities import CapabilityMeasurement
    from asyncnn.runtime.device import Device
    from asyncnn.tools.capabilities import CapabilitiesReport


class DeviceReport(msgspec.Struct, frozen=True):
    """One device. ``performance`` maps operand types to times relative to the CPU.

    ``origin`` is the distribution that brings it, ``problem`` why it cannot be opened,
    if so. The one that ``is_default`` is opened where none is named.
    """

    name: str
    version: str
    type: str
    status: str
    performance: dict[str, float]
    origin: str = "asyncnn"
    problem: str = ""
    is_default: bool = False


class DevicesOptions(CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn devices`` is asked to do.

    socket: Show the device of the driver that serves this socket.
    """

    socket: Path | None = None
    json: bool = False


def devices(asked: DevicesOptions) -> None:
    """List the devices with their versions, types and capabilities."""
    import anyio
    from rich.table import Column, Table

    reports = anyio.run(_discover, asked.socket)
    if asked.json:
        print_json(reports)
        return
    name = Column("device", no_wrap=True)
    table = Table(name, "version", "type", "status", "float32", "quant8")
    for report in reports:
        figures = [
            f"{report.performance[type_.name]:.2f}" if report.performance else ""
            for type_ in (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_QUANT8_ASYMM)
        ]
        table.add_row(report.name, report.version, report.type, report.status, *figures)
    console().print(table)
    for report in reports:
        if report.problem:
            typer.echo(f"{report.name}: {report.problem}")
        if report.is_default:
            typer.echo(f"default: {report.name}")
    console().print("float32 and quant8: execution time relative to the CPU")
    if asked.socket is None:
        from asyncnn.engine.job import LanePort

        lanes = "native lanes" if LanePort else "lanes of Python: nothing was compiled"
        console().print(f"what an engine computes alone runs on {lanes}")


async def _discover(socket: Path | None) -> list[DeviceReport]:
    from asyncnn.devices.own_devices import usual_device_name
    from asyncnn.runtime.framework.device_registry import registered_devices
    from asyncnn.runtime.opening_devices import connect, open_device

    if socket is not None:
        async with connect(socket) as device:
            return [_describe(device)]
    reports = []
    for name, registered in registered_devices().items():
        try:
            async with open_device(name) as device:
                reports.append(_describe(device, registered.origin))
        except Exception as error:  # another distribution's device raises anything
            problem = str(failure_of(error))
            origin = registered.origin
            reports.append(DeviceReport(name, "", "", "BROKEN", {}, origin, problem))
    default = await usual_device_name()
    return [replace(each, is_default=each.name == default) for each in reports]


def _describe(device: "Device", origin: str = "asyncnn") -> DeviceReport:
    return DeviceReport(
        origin=origin,
        name=device.name,
        version=device.version,
        type=device.type.name,
        status=device.hal.get_status().name,
        performance={
            entry.type.name: entry.info.exec_time
            for entry in device.capabilities.operand_performance
        },
    )


class CapabilitiesOptions(CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn capabilities`` is asked to do.

    measure: Measure, unless that was done here before.
    again: Measure, even if that was done.
    models: Measure the accelerated device by reference models, too.
    """

    measure: bool = False
    again: bool = False
    models: bool = True
    socket: Path | None = None
    json: bool = False


def capabilities(asked: CapabilitiesOptions) -> None:
    """Show or measure how fast the reference device is beside plain NumPy.

    The accelerated device is measured beside it by MobileNets and networks for
    speech, as the HAL's documentation recommends. With --socket, the driver
    that serves it is measured in place of both, and nothing is kept. Devices
    report what was measured from the next boot of the machine on, so that the
    answers of one boot stay the same, until asyncnn, NumPy, its BLAS or the
    CPU changes.
    """
    import anyio

    from asyncnn.devices.measured_capabilities import store_measurement
    from asyncnn.tools.capabilities import CapabilitiesReport, measure_capabilities
    from asyncnn.tools.capabilities.once import check_kept

    measuring = partial(
        measure_capabilities,
        models=asked.models,
        progress=partial(progress, description="measuring"),
    )
    if asked.socket is not None:
        chosen = anyio.run(partial(measuring, socket=asked.socket))
        whose = f"the driver at {asked.socket}"
        _show(CapabilitiesReport.of(chosen), json=asked.json, whose=whose)
        return
    found, ignored = _found()
    if asked.again or (asked.measure and found is None):
        check_kept()
        found = anyio.run(measuring)
        _show(CapabilitiesReport.of(found), json=asked.json)
        store_measurement(found)
    else:
        _show(CapabilitiesReport.of(found, ignored), json=asked.json)


def _found() -> "tuple[CapabilityMeasurement | None, str]":
    from asyncnn.devices.measured_capabilities import load_measurement

    try:
        return load_measurement(), ""
    except GeneralFailureError as error:
        return None, str(error)


def _show(report: "CapabilitiesReport", *, json: bool, whose: str = "") -> None:
    from rich.table import Table

    if json:
        print_json(report)
        return
    table = Table("workload", "time", "power")
    for workload, ratio in report.exec_times.items():
        power = report.power_usages.get(workload)
        table.add_row(workload, f"{ratio:.2f}", "" if power is None else f"{power:.2f}")
    screen = console()
    screen.print(table)
    device = whose or "the device"
    screen.print(f"time: of {device}, relative to plain NumPy on the CPU")
    if report.model_times:
        by_models = Table("reference model", "time", "power", "float16")
        for name, each in report.model_times.items():
            figures = each.time, each.power, each.float16
            by_models.add_row(name, *("" if f is None else f"{f:.2f}" for f in figures))
        screen.print(by_models)
        device = whose or "the accelerated device"
        screen.print(f"time: of {device}, relative to the reference one")
        screen.print("float16: its time computing float32 as that, relative to time")
    if report.measured_at is not None:
        source = f"measured on {report.measured_at:%Y-%m-%d} with {report.surroundings}"
        if not whose and not report.is_in_force:
            source += "; in force from the next boot on"
    else:
        source = report.ignored or "not measured: asyncnn capabilities --measure"
    screen.print(source, soft_wrap=True)
