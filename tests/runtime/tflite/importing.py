"""Files as the models that they are translated to, or as regions, whatever is lost."""

from collections.abc import Iterable

from asyncnn.extensions import Extension
from asyncnn.hal.types import Memory
from asyncnn.input_files import decoding
from asyncnn.memory.pools import view
from asyncnn.pacing import completed
from asyncnn.runtime.model import InputShapes, NamedModel
from asyncnn.runtime.tflite import importing_tflite
from asyncnn.runtime.tflite.region import region_of_graph
from asyncnn.tflite.contents import reading_contents


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
        contents = completed(reading_contents(view(memory)))
        return completed(region_of_graph(contents, contents.graphs[0], memory, None))
