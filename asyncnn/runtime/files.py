"""What all model file formats share: mapping, and messages that name the file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from asyncnn.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import Memory
from asyncnn.memory.pools import map_file


def map_model_file(path: str | os.PathLike[str]) -> Memory:
    """Map the whole file at ``path`` for reading.

    :raises InvalidArgumentError: if it is empty or not a regular file.
    :raises GeneralFailureError: if it cannot be opened or mapped.
    """
    memory = map_file(path)
    if not memory.size:
        raise InvalidArgumentError(f"{os.fspath(path)}: the file is empty")
    return memory


@contextmanager
def located(where: str | os.PathLike[str]) -> Iterator[None]:
    """Put ``where`` in front of the message of every asyncnn error."""
    try:
        yield
    except AsyncnnError as error:
        message = f"{os.fspath(where)}: {error.message}"
        raise type(error)(message, hint=error.hint) from error
