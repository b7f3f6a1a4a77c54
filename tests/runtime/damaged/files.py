"""The files that are damaged: generated ones of every kind, and small trained ones."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load, save
from tests.runtime.tflite.test_hostile import hybrid_file, recurrent_file

TRAINED = (
    "hello_world_int8.tflite",
    "hello_world_float.tflite",
    "micro_speech_quantized.tflite",
    "trained_lstm_int8.tflite",
    "kws_ref_model.tflite",
)


def contained(named: NamedModel) -> bytes:
    """Return the container of a model."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "model")
        save(named, path)
        return path.read_bytes()


def container_with_state() -> bytes:
    """Return a container with a pool, a large constant, names, and a branch."""
    operand = Operand(OperandType.TENSOR_FLOAT32, (2, 40))
    builder = ModelBuilder(relaxed=True)
    x = builder.input("x", operand.type, operand.dimensions)
    weights = builder.constant(np.ones((40, 40), np.float32))
    bias = builder.constant(np.zeros(40, np.float32))
    none = builder.scalar(FusedActivationFunc.NONE)
    y = builder.operation(
        OperationType.FULLY_CONNECTED, [x, weights, bias, none], operand
    )
    builder.output(builder.operation(OperationType.RELU, [y], operand), "y")
    return contained(builder.build())


GENERATED: Mapping[str, Callable[[], bytes]] = {
    "hybrid": hybrid_file,
    "recurrent": recurrent_file,
    "container": container_with_state,
    "hybrid container": lambda: contained(load(hybrid_file())),
}


def files(models: Path | None) -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes, of trained models if their folder is known."""
    for name, make in GENERATED.items():
        yield name, make()
    for name in TRAINED if models is not None else ():
        assert models is not None
        yield name, (models / name).read_bytes()
