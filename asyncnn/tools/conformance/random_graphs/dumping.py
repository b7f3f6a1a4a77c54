"""Shows a graph that failed as text, and writes it to files that can be run again."""

import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from asyncnn import hal
from asyncnn.hal.operations.bound import Array
from asyncnn.output_files import check_writable
from asyncnn.runtime.container import SUFFIX, save
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.conformance.random_graphs.checking import constants_of
from asyncnn.tools.samples import named_arrays

_LONGEST_VALUE = 12


def listing(model: hal.Model, inputs: Sequence[Array]) -> str:
    """Return a line for every operand and operation of every subgraph."""
    given = dict(zip(model.main.input_indexes, inputs, strict=True))
    lines = ["main:", *_lines(model, model.main, given)]
    for number, subgraph in enumerate(model.referenced):
        lines += [f"subgraph {number}:", *_lines(model, subgraph, {})]
    return "\n" + "\n".join(lines)


def _lines(
    model: hal.Model, subgraph: hal.Subgraph, given: dict[int, Array]
) -> Iterator[str]:
    operands = subgraph.operands
    for index in subgraph.input_indexes:
        shown = _value(given[index]) if index in given else ""
        yield f"  %{index} = input {_type(operands[index])}{shown}"
    for index, constant in constants_of(model, subgraph).items():
        yield f"  %{index} = {_type(operands[index])}{_value(constant)}"
    for operation in subgraph.operations:
        results = ", ".join(
            f"%{index} {_type(operands[index])}" for index in operation.outputs
        )
        arguments = ", ".join(_argument(index, operands) for index in operation.inputs)
        yield f"  {results} = {hal.OperationType(operation.type).name}({arguments})"
    yield f"  return {', '.join(f'%{index}' for index in subgraph.output_indexes)}"


def _argument(index: int, operands: Sequence[hal.Operand]) -> str:
    operand = operands[index]
    match operand.lifetime:
        case hal.OperandLifeTime.NO_VALUE:
            return "omitted"
        case hal.OperandLifeTime.SUBGRAPH:
            return f"subgraph {operand.location.offset}"
    return f"%{index}"


def _type(operand: hal.Operand) -> str:
    name = hal.OperandType(operand.type).name.removeprefix("TENSOR_").lower()
    scale = f" * {operand.scale:g} @ {operand.zero_point}" if operand.scale else ""
    return f"{name}{list(operand.dimensions)}{scale}"


def _value(value: Array) -> str:
    flat = value.reshape(-1)
    shown = np.array2string(flat[:_LONGEST_VALUE], separator=", ", max_line_width=200)
    rest = (
        "" if len(flat) <= _LONGEST_VALUE else f" and {len(flat) - _LONGEST_VALUE} more"
    )
    return f" = shape {list(value.shape)} {shown}{rest}"


FOLDER_VARIABLE = "ASYNCNN_DUMPS"
"""Environment variable that names the folder of dumps."""


class Dump(msgspec.Struct, frozen=True):
    """The files of one case: a model, and its inputs and expected outputs."""

    model: Path
    arrays: Path

    @property
    def command(self) -> str:
        """The shell command that runs the case again."""
        model, arrays = str(self.model), str(self.arrays)
        return shlex.join(
            ["asyncnn", "run", model, "--input", arrays, "--check", arrays]
        )


def dump(
    named: NamedModel,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    name: str,
    folder: Path | None = None,
) -> Dump:
    """Write ``name.asyncnn`` and ``name.npz``, in place of older ones.

    They go to ``folder``, to that in `FOLDER_VARIABLE`, else to one among the
    temporary files.
    ``outputs`` are those that are expected.

    :raises GeneralFailureError: if the model cannot be written.
    :raises OSError: if the arrays cannot be.
    """
    folder = _folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = named_arrays("input", named.inputs, inputs)
    arrays |= named_arrays("output", named.outputs, outputs)
    dumped = Dump(folder / f"{name}{SUFFIX}", folder / f"{name}.npz")
    save(named, dumped.model)
    with dumped.arrays.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return dumped


def check_dumps(folder: Path | None) -> None:
    """Find out, before long work, whether `dump` can write there; make no folder.

    :raises OSError: if it cannot.
    """
    nearest = _folder(folder).resolve()
    while not nearest.exists():
        nearest = nearest.parent
    check_writable(nearest / "dump")


def _folder(given: Path | None) -> Path:
    usual = Path(tempfile.gettempdir(), "asyncnn-dumps")
    return given or Path(os.environ.get(FOLDER_VARIABLE) or usual)
