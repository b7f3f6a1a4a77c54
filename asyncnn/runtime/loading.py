"""Loads model files of every kind the project reads."""

import os
from collections.abc import Callable

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.types import Memory
from asyncnn.memory.pools import view
from asyncnn.runtime import container
from asyncnn.runtime.files import located, map_model_file
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.tflite import import_tflite, schema


def load(path: str | os.PathLike[str]) -> NamedModel:
    """Load the model file at ``path``: TFLite or the project's own container.

    The first bytes decide which, not the name. The file stays mapped while the model
    is in use and must not be changed; replacing it by another file is safe.

    :raises InvalidArgumentError: if the file is empty, damaged or of no known kind.
    :raises UnsupportedOperatorError: if a TFLite operator has no HAL form.
    :raises GeneralFailureError: if the file cannot be read.
    """
    memory = map_model_file(path)
    with located(path):
        return _reader_for(memory)(memory)


def _reader_for(memory: Memory) -> Callable[[Memory], NamedModel]:
    data = view(memory)
    if data[:8] == container.MAGIC:
        return container.read_container
    if data[4:8] == schema.IDENTIFIER:
        return import_tflite
    raise InvalidArgumentError("neither a TFLite nor an asyncnn model file")
