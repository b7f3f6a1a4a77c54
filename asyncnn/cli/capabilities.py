"""``asyncnn capabilities``: what the reference device says of its performance."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated

import anyio
import msgspec
import typer
from rich.table import Table

from asyncnn.cli.console import console, print_json, progress
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.tools.capabilities import (
    Measurement,
    ReferenceWorkload,
    Surroundings,
    load_measurement,
    measure_capabilities,
    store_measurement,
)
from asyncnn.tools.capabilities.workload import Workload


class CapabilitiesReport(msgspec.Struct, frozen=True):
    """The JSON document: times relative to the CPU, and where they come from.

    Nothing was measured if ``measured_at`` is None; ``ignored`` says why if there is a
    file that is not used.
    """

    exec_times: dict[ReferenceWorkload, float]
    measured_at: datetime | None = None
    surroundings: Surroundings | None = None
    ignored: str = ""


def capabilities(
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure, unless that was done here before."),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Measure, even if that was done.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show or measure how fast the reference device is beside plain NumPy.

    Devices that are opened later report what was measured. It stays the same until
    asyncnn, NumPy, its BLAS or the CPU changes.
    """
    found, ignored = _found()
    if again or (measure and found is None):
        found = anyio.run(partial(measure_capabilities, progress=_progress))
        _show(_report(found), json=json)
        store_measurement(found)
    else:
        _show(_report(found, ignored), json=json)


def _found() -> tuple[Measurement | None, str]:
    try:
        return load_measurement(), ""
    except GeneralFailureError as error:
        return None, str(error)


def _progress(workloads: Sequence[Workload]) -> Iterable[Workload]:
    return progress(workloads, "measuring", len(workloads))


def _report(measurement: Measurement | None, ignored: str = "") -> CapabilitiesReport:
    if measurement is None:
        as_the_cpu = dict.fromkeys(ReferenceWorkload, 1.0)
        return CapabilitiesReport(as_the_cpu, ignored=ignored)
    return CapabilitiesReport(
        measurement.exec_times, measurement.measured_at, measurement.surroundings
    )


def _show(report: CapabilitiesReport, *, json: bool) -> None:
    if json:
        print_json(report)
        return
    table = Table("workload", "time")
    for workload, ratio in report.exec_times.items():
        table.add_row(workload, f"{ratio:.2f}")
    screen = console()
    screen.print(table)
    screen.print("time: of the device, relative to plain NumPy on the CPU")
    if report.measured_at is not None:
        source = f"measured on {report.measured_at:%Y-%m-%d} with {report.surroundings}"
    else:
        source = report.ignored or "not measured: asyncnn capabilities --measure"
    screen.print(source, soft_wrap=True)
