"""Writes a case that failed to files that ``asyncnn run`` replays."""

import os
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.model_file import SUFFIX, save

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
) -> Dump:
    """Write ``name.asyncnn`` and ``name.npz``, in place of older ones.

    They go to the folder in `FOLDER_VARIABLE`, else to one among the temporary files.
    ``outputs`` are those that are expected.

    :raises GeneralFailureError: if the model cannot be written.
    :raises OSError: if the arrays cannot be.
    """
    folder = Path(
        os.environ.get(FOLDER_VARIABLE) or Path(tempfile.gettempdir(), "asyncnn-dumps")
    )
    folder.mkdir(parents=True, exist_ok=True)
    arrays = _by_name("input", named.inputs, inputs)
    arrays |= _by_name("output", named.outputs, outputs)
    dumped = Dump(folder / f"{name}{SUFFIX}", folder / f"{name}.npz")
    save(named, dumped.model)
    with dumped.arrays.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    return dumped


def _by_name(
    key: str, infos: Sequence[TensorInfo], arrays: Sequence[Array]
) -> dict[str, Array]:
    """Return the only sample as ``asyncnn run`` reads it."""
    return {
        f"{key}_0.{info.name}": array for info, array in zip(infos, arrays, strict=True)
    }
