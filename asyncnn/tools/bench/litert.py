"""LiteRT as a peer: imported when it is needed, its errors mapped to ours."""

import importlib
import importlib.metadata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions
from asyncnn.tools.bench.errors import PeerMissingError, PeerRefusedError

_MAX_REASON = 160


def litert_module(name: str) -> ModuleType:
    """Import one module of LiteRT.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    try:
        return importlib.import_module(f"ai_edge_litert.{name}")
    except ImportError as error:
        raise PeerMissingError(
            f"LiteRT cannot be imported: {error}",
            hint="install it with: pip install asyncnn[bench]",
        ) from error


def litert_version() -> str:
    """Return the version of LiteRT that is installed.

    :raises PeerMissingError: if there is none.
    """
    litert_module("interpreter")
    return importlib.metadata.version("ai-edge-litert")


class LiteRt:
    """One LiteRT interpreter with one thread.

    ``reference`` selects its reference kernels instead of XNNPACK. Do not load files
    from untrusted sources: LiteRT may end the process on damaged ones.

    :raises PeerMissingError: if LiteRT is not installed.
    :raises PeerRefusedError: if it cannot load the model.
    """

    def __init__(self, path: Path, *, reference: bool = False) -> None:
        module = litert_module("interpreter")
        resolvers = module.OpResolverType
        with _refusals():
            self._interpreter = module.Interpreter(
                model_path=str(path),
                num_threads=1,
                experimental_op_resolver_type=(
                    resolvers.BUILTIN_REF if reference else resolvers.AUTO
                ),
            )
            self._interpreter.allocate_tensors()
        self.invoke = self._interpreter.invoke
        """Runs the model once on the inputs that were set; a bare LiteRT call."""

    def input_kinds(self) -> list[tuple[Dimensions, np.dtype[Any]]]:
        """Return shape and dtype of every input, in the model's order."""
        return [
            (tuple(map(int, detail["shape"])), np.dtype(detail["dtype"]))
            for detail in self._interpreter.get_input_details()
        ]

    def set_inputs(self, arrays: Sequence[Array]) -> None:
        """Copy ``arrays`` into the model's inputs, in the model's order.

        :raises PeerRefusedError: if they do not fit.
        """
        details = self._interpreter.get_input_details()
        with _refusals():
            for detail, array in zip(details, arrays, strict=True):
                self._interpreter.set_tensor(detail["index"], array)

    def first_outputs(self) -> list[Array]:
        """Return copies of what one run gives when the model's state is zero.

        :raises PeerRefusedError: if running it fails.
        """
        with _refusals():
            self._interpreter.reset_all_variables()
            self.invoke()
            return [
                np.array(self._interpreter.get_tensor(detail["index"]))
                for detail in self._interpreter.get_output_details()
            ]


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        if len(reason) > _MAX_REASON:
            reason = f"{reason[:_MAX_REASON]}..."
        raise PeerRefusedError(reason) from error
