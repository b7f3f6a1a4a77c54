"""What a model file says of its model beyond the HAL: signatures and metadata.

An `Outline` is what it says of a model that may be impossible to import.
"""

from collections.abc import Iterable

import msgspec

from asyncnn.hal.errors import InvalidArgumentError


class Signature(msgspec.Struct, frozen=True):
    """Names by which a model is called, instead of its tensors' names.

    ``inputs`` and ``outputs`` are pairs: the signature's name, and the model's.
    """

    name: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


def find_signature(signatures: Iterable[Signature], name: str) -> Signature:
    """Return the signature called ``name``.

    :raises InvalidArgumentError: if there is none.
    """
    known = {signature.name: signature for signature in signatures}
    if name not in known:
        raise InvalidArgumentError(
            f"the model has no signature {name!r}",
            hint=f"it has: {', '.join(map(repr, known)) or 'none'}; one of another "
            "graph of the file is loaded by load(path, signature=...)",
        )
    return known[name]


class Normalization(msgspec.Struct, frozen=True):
    """How a model was trained to be fed: ``(value - mean) / std``.

    Both are of one element, or of one for each channel, the last axis.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]


class TensorMetadata(msgspec.Struct, frozen=True):
    """What the author of a model says of an input or output.

    ``name`` need not be the tensor's. ``labels`` name the elements along the last
    axis, or the values of the elements, whichever the model computes.
    """

    name: str = ""
    description: str = ""
    labels: tuple[str, ...] = ()
    normalization: Normalization | None = None


class ModelMetadata(msgspec.Struct, frozen=True):
    """What the author of a model says of it; ``inputs`` and ``outputs`` in its order.

    ``properties`` are all texts of an ONNX file, by name. Nothing of it is checked
    against the model.
    """

    name: str = ""
    description: str = ""
    version: str = ""
    author: str = ""
    license: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    properties: dict[str, str] = {}


class TensorOutline(msgspec.Struct, frozen=True):
    """What a file says of an input or output: its elements, the lengths of its axes.

    An axis that the file leaves open has its name instead, or ``?``.
    """

    name: str
    dtype: str
    lengths: tuple[int | str, ...]


class Outline(msgspec.Struct, frozen=True):
    """What a file says of its model, whether that can be imported or not."""

    inputs: tuple[TensorOutline, ...]
    outputs: tuple[TensorOutline, ...]
    metadata: ModelMetadata | None = None
