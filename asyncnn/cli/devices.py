"""``asyncnn devices``: what there is to run on."""

from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import typer
from rich.table import Table

from asyncnn.cli.console import console, print_json
from asyncnn.hal.types import OperandType
from asyncnn.runtime.device import Device, connect, device_names, open_device


class DeviceReport(msgspec.Struct, frozen=True):
    """One device. ``performance`` maps operand types to times relative to the CPU."""

    name: str
    version: str
    type: str
    status: str
    performance: dict[str, float]


def devices(
    socket: Annotated[
        Path | None,
        typer.Option(help="Show the device of the driver that serves this socket."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the devices with their versions, types and capabilities."""
    reports = anyio.run(_discover, socket)
    if json:
        print_json(reports)
        return
    table = Table("device", "version", "type", "status", "float32", "quant8")
    for report in reports:
        table.add_row(
            report.name,
            report.version,
            report.type,
            report.status,
            f"{report.performance[OperandType.TENSOR_FLOAT32.name]:.2f}",
            f"{report.performance[OperandType.TENSOR_QUANT8_ASYMM.name]:.2f}",
        )
    console().print(table)
    console().print("float32 and quant8: execution time relative to the CPU")


async def _discover(socket: Path | None) -> list[DeviceReport]:
    if socket is not None:
        async with connect(socket) as device:
            return [_report(device)]
    reports = []
    for name in device_names():
        async with open_device(name) as device:
            reports.append(_report(device))
    return reports


def _report(device: Device) -> DeviceReport:
    return DeviceReport(
        name=device.name,
        version=device.version,
        type=device.type.name,
        status=device.hal.get_status().name,
        performance={
            entry.type.name: entry.info.exec_time
            for entry in device.capabilities.operand_performance
        },
    )
