"""Files as the models that they are translated to, or as regions, whatever is lost."""

from collections.abc import Iterable

import numpy as np

from asyncnn.extensions import Extension
from asyncnn.hal.types import Memory
from asyncnn.input_files import decoding
from asyncnn.memory.pages import is_final
from asyncnn.memory.pools import view
from asyncnn.pacing import completed
from asyncnn.runtime.model import InputShapes, NamedModel
from asyncnn.runtime.tflite import importing_tflite
from asyncnn.runtime.tflite.region import region_of_graph
from asyncnn.tflite.scan import reading_checked


def import_tflite(
    memory: Memory,
    *,
    signature: str | None = None,
    input_shapes: InputShapes = None,
    extensions: Iterable[Extension | str] = (),
) -> NamedModel:
    """Translate the file whose bytes are in ``memory``."""
    given = signature, input_shapes, extensions
    return completed(importing_tflite(memory, *given))


def region_of_tflite(memory: Memory) -> NamedModel:
    """Return a file as a region."""
    with decoding("TFLite"):
        data = view(memory)
        final = is_final(np.frombuffer(data, np.uint8))
        contents = completed(reading_checked(data, is_final=final))
        return completed(region_of_graph(contents, contents.graphs[0], memory, None))
