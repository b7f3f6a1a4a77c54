"""The models of the package pyopen-wakeword, and windows over what they compute."""

import importlib.util
from pathlib import Path

import numpy as np

import asyncnn
from asyncnn import NamedModel, OperandType, OperationType
from asyncnn.hal.types import Operand
from microphone import CHUNK

WORDS = ("alexa", "hey_jarvis", "hey_mycroft", "hey_rhasspy", "okay_nabu")

AUDIO_WINDOW = 1760
"""Samples that a melspectrogram is made of, those of the last chunk and some before."""

MEL_ROWS, MEL_BANDS = 8, 32
"""What a melspectrogram has: its rows are 10 ms apart."""

EMBEDDED_ROWS = 76
"""Rows of melspectrograms that an embedding is made of."""

EMBEDDING = 96
"""Numbers of an embedding; words are recognised in a window of several."""

F32 = OperandType.TENSOR_FLOAT32


class MissingModelsError(Exception):
    """The package is not installed, or has no such model."""


def _file(name: str) -> Path:
    # Its code would load a library of its own, and only the models are wanted.
    found = importlib.util.find_spec("pyopen_wakeword")
    if found is None or found.origin is None:
        raise MissingModelsError(
            "install the models with: pip install asyncnn[wakeword]"
        )
    path = Path(found.origin).parent / "models" / f"{name}.tflite"
    if not path.exists():
        raise MissingModelsError(f"the package has no model {name}")
    return path


async def word(name: str) -> NamedModel:
    """Return the model of a wake word: embeddings [1, rows, 96] to a score [1, 1]."""
    return await asyncnn.load_model(_file(name))


async def embedding() -> NamedModel:
    """Return the model from [1, 76, 32, 1] rows of melspectrograms to [1, 1, 1, 96]."""
    return await asyncnn.load_model(_file("embedding_model"))


async def melspectrogram() -> NamedModel:
    """Return the model from samples [1, 1760] to a melspectrogram [1, 1, 8, 32]."""
    # The file leaves the number of samples open.
    shapes = [(1, AUDIO_WINDOW)]
    return await asyncnn.load_model(_file("melspectrogram"), input_shapes=shapes)


def audio_window() -> NamedModel:
    """Return what adds a chunk [1, 1280] to those before: [1, 1760]."""
    builder = asyncnn.ModelBuilder()
    new = builder.input("new", F32, (1, CHUNK))
    _slide(builder, new, CHUNK, AUDIO_WINDOW, ())
    return builder.build()


def mel_window() -> NamedModel:
    """Return what adds a melspectrogram to those before: [1, 76, 32, 1].

    It is scaled to what the embedding was trained with.
    """
    builder = asyncnn.ModelBuilder()
    bands = (MEL_BANDS, 1)
    shape = (1, MEL_ROWS, *bands)
    none = builder.scalar(0)
    value = builder.input("new", F32, (1, 1, MEL_ROWS, MEL_BANDS))
    for kind, number in ((OperationType.DIV, 10), (OperationType.ADD, 2)):
        constant = builder.constant(np.array([number], np.float32))
        last = Operand(F32, (1, 1, MEL_ROWS, MEL_BANDS))
        value = builder.operation(kind, [value, constant, none], last)
    to = builder.constant(np.array(shape, np.int32))
    new = builder.operation(OperationType.RESHAPE, [value, to], Operand(F32, shape))
    _slide(builder, new, MEL_ROWS, EMBEDDED_ROWS, bands)
    return builder.build()


def embedding_window(rows: int) -> NamedModel:
    """Return what adds an embedding to those before: [1, rows, 96]."""
    builder = asyncnn.ModelBuilder()
    value = builder.input("new", F32, (1, 1, 1, EMBEDDING))
    shape = (1, 1, EMBEDDING)
    to = builder.constant(np.array(shape, np.int32))
    new = builder.operation(OperationType.RESHAPE, [value, to], Operand(F32, shape))
    _slide(builder, new, 1, rows, (EMBEDDING,))
    return builder.build()


def _slide(
    builder: asyncnn.ModelBuilder,
    new: int,
    added: int,
    rows: int,
    rest: tuple[int, ...],
) -> None:
    """Put ``added`` new rows behind those that the model keeps, and keep the last."""
    kept = (1, rows - added, *rest)
    before = builder.state("before", F32, kept)
    window = builder.operation(
        OperationType.CONCATENATION,
        [before, new, builder.scalar(1)],
        Operand(F32, (1, rows, *rest)),
    )
    begin = builder.constant(np.array([0, added, *[0] * len(rest)], np.int32))
    size = builder.constant(np.array(kept, np.int32))
    after = builder.operation(
        OperationType.SLICE, [window, begin, size], Operand(F32, kept)
    )
    builder.output(window, "window")
    builder.next_state(before, after)
