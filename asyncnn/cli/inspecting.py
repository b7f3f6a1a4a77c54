"""``asyncnn inspect``: what a model file expects, holds and needs."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asyncnn.cli.options import (
    ConstantOption,
    ExtensionOption,
    InputShapeOption,
    console,
    counted,
    load_extended,
    print_json,
)

if TYPE_CHECKING:
    from asyncnn.runtime.inspection import DeviceSupport, Inspection, TensorSummary


def inspect(
    model: Annotated[Path, typer.Argument(help="A .tflite, .onnx or .asyncnn file.")],
    extension: ExtensionOption = None,
    input_shape: InputShapeOption = None,
    constant: ConstantOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a model expects and returns, what it computes, and what runs it."""
    import anyio

    from asyncnn.runtime.inspection import inspected

    loaded, extensions = load_extended(
        model, extension or (), input_shape or (), constant or ()
    )

    async def describe() -> "Inspection":
        return await inspected(loaded, extensions=extensions)

    inspection = anyio.run(describe)
    if json:
        print_json(inspection)
    else:
        print_inspection(inspection)


def print_inspection(inspection: "Inspection") -> None:
    """Print tables of tensors and operations, the size, and what each device runs."""
    from rich.table import Column, Table

    screen = console()
    # Names of tensors can be long: they are folded rather than cut.
    tensors = Table(
        "", Column("name", overflow="fold"), "dtype", "shape", "scale", "zero point"
    )
    for kind in ("input", "output", "state"):
        for summary in getattr(inspection, f"{kind}s"):
            tensors.add_row(kind, *_cells(summary))
    screen.print(tensors)
    tensors_of = inspection.inputs + inspection.outputs + inspection.states
    if any(each.scale for each in tensors_of):
        screen.print("quantised: real value = scale * (stored - zero point)")
    operations = Table(Column("operation", overflow="fold"), "count")
    for name, count in inspection.operations.items():
        operations.add_row(name, str(count))
    screen.print(operations)
    for line in _lines(inspection):
        screen.print(line, soft_wrap=True)


def _cells(summary: "TensorSummary") -> tuple[str, ...]:
    shape = " x ".join(str(axis) if axis else "?" for axis in summary.shape)
    cells = summary.name, summary.dtype or summary.type, shape
    if not summary.scale:
        return cells
    return *cells, f"{summary.scale:.6g}", str(summary.zero_point)


def _lines(inspection: "Inspection") -> Iterable[str]:
    count = inspection.operation_count
    where = ""
    if inspection.subgraphs > 1:
        where = f" in {inspection.subgraphs} subgraphs"
    version = f"HAL version {inspection.hal_version} or newer"
    yield f"{counted(count, 'operation')}{where}, {version}"
    yield f"weights: {_size(inspection.weight_bytes)}"
    if inspection.open_inputs:
        names = ", ".join(inspection.open_inputs)
        yield f"shapes that the application may choose: those of {names}"
    for device in inspection.devices:
        yield f"{device.name}: {_support(device, count)}"


def _support(device: "DeviceSupport", count: int) -> str:
    if device.problem:
        return device.problem
    if device.supported == count:
        return "runs it"
    return f"supports {device.supported} of {counted(count, 'operation')}"


def _size(size_bytes: int) -> str:
    if size_bytes < 1000:
        return counted(size_bytes, "byte")
    size = float(size_bytes)
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:.3g} {unit}"
    return f"{size / 1000:.3g} GB"
