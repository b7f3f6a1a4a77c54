"""LiteRT by its public `Interpreter`: slower for tiny models, but an API that stays.

Arrays are copied in and out, and an interrupt is noticed before a run, not within.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from asyncnn.devices.compiled_graph import Array, CompiledGraph, CompiledTensor
from asyncnn.devices.litert.c_api import first_words_discarded
from asyncnn.devices.litert.graph_file import (
    Engine,
    GraphFile,
    Source,
    for_want_of_room,
)
from asyncnn.devices.litert.weights import PackedWeights
from asyncnn.hal.errors import GeneralFailureError

_MODULE = "ai_edge_litert.interpreter"


class InterpreterEngine(Engine):
    """The engine on the public interpreter.

    :raises ImportError: if the interpreter cannot be imported.
    """

    name = "interpreter"

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self._interpreter: Any = importlib.import_module(_MODULE).Interpreter

    def _compile(
        self, model: Source, threads: int, weights: PackedWeights | None, float16: bool
    ) -> CompiledGraph:
        # Packed weights are of no use here.
        content = model.joined() if isinstance(model, GraphFile) else bytes(model)
        try:
            with first_words_discarded(_MODULE):
                interpreter = self._interpreter(
                    model_content=content, num_threads=threads
                )
                interpreter.allocate_tensors()
        except (RuntimeError, ValueError) as error:
            raise GeneralFailureError(_one_line(error)) from error
        return InterpreterGraph(interpreter)


class InterpreterGraph(CompiledGraph):
    """An interpreter of LiteRT's."""

    def __init__(self, interpreter: Any) -> None:
        self._interpreter: Any = interpreter
        self._is_interrupted = False
        super().__init__()
        inputs = interpreter.get_input_details()
        outputs = interpreter.get_output_details()
        self.inputs = tuple(map(_tensor, inputs))
        self.outputs = tuple(map(_tensor, outputs))
        # Each returns a view of the tensor, which must be gone as the model runs.
        self._inputs = _views(interpreter, inputs)
        self._outputs = _views(interpreter, outputs)

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """See `CompiledGraph`."""
        if not self._acquire(False):
            return self._refuse()
        try:
            self._check(inputs, outputs)
            if self._is_interrupted:
                return False
            for view, array in zip(self._inputs, inputs, strict=True):
                view().reshape(-1)[:] = array.reshape(-1)
            try:
                self._interpreter.invoke()
            except (RuntimeError, ValueError) as error:
                raise GeneralFailureError(_one_line(error)) from error
            for view, array in zip(self._outputs, outputs, strict=True):
                array.reshape(-1)[:] = view().reshape(-1)
        finally:
            self._release()
            if self._is_closing:
                self._free_if_idle()
        return True

    def interrupt(self) -> None:
        """See `CompiledGraph`; a run that is under way goes on to its end."""
        self._is_interrupted = True

    def clear_interrupt(self) -> None:
        """See `CompiledGraph`."""
        self._is_interrupted = False

    def end(self) -> None:
        """See `CompiledGraph`."""
        self.interrupt()

    def forget(self) -> None:
        """Do nothing: arrays are copied, and none is remembered."""

    def disown(self) -> None:
        """Refuse all use, and keep what is the parent's from being freed."""
        super().disown()
        _left_to_the_parent.append(self._interpreter)

    def _free(self) -> None:
        self._interpreter = None
        self._inputs = self._outputs = ()


_left_to_the_parent: list[Any] = []


def computed(file: GraphFile, inputs: Sequence[Array]) -> list[Array]:
    """Return the outputs of a graph whose shapes only a run shows.

    :raises GeneralFailureError: if it fails.
    """
    make: Any = importlib.import_module(_MODULE).Interpreter
    with for_want_of_room(file):
        try:
            with first_words_discarded(_MODULE):
                interpreter = make(model_content=file.joined(), num_threads=1)
                interpreter.allocate_tensors()
            details = interpreter.get_input_details()
            for detail, array in zip(details, inputs, strict=True):
                shaped = array.reshape(detail["shape"])
                interpreter.set_tensor(detail["index"], shaped)
            interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise GeneralFailureError(_one_line(error)) from error
    return [
        interpreter.get_tensor(detail["index"])
        for detail in interpreter.get_output_details()
    ]


def _views(interpreter: Any, details: Sequence[Any]) -> tuple[Callable[[], Any], ...]:
    return tuple(interpreter.tensor(detail["index"]) for detail in details)


def _tensor(detail: Any) -> CompiledTensor:
    return CompiledTensor.of(
        np.dtype(detail["dtype"]), tuple(map(int, detail["shape"]))
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
