"""Writes a graph that failed to files that can be run again."""

import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncnn.hal.operations.bound import Array
from asyncnn.output_files import check_writable
from asyncnn.runtime.container import SUFFIX, save
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.samples import named_arrays, save_arrays

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
    save_arrays(dumped.arrays, arrays)
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
