"""The inputs and outputs of a graph of a TFLite file: names, shapes, signatures."""

from collections.abc import Sequence

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Dimensions
from asyncnn.runtime.model import distinct
from asyncnn.runtime.model_description import Signature
from asyncnn.tflite.tables import Contents, Graph, Tensor


def chosen_graph(contents: Contents, signature: str | None) -> Graph:
    """Return the graph of a signature, or the first one.

    :raises InvalidArgumentError: if there is no such signature.
    """
    if signature is None:
        return contents.graphs[0]
    for table in contents.signatures:
        if table.name == signature:
            return contents.graphs[table.graph]
    known = ", ".join(repr(table.name) for table in contents.signatures[:20])
    raise InvalidArgumentError(
        f"the file has no signature {signature!r}", hint=f"it has: {known or 'none'}"
    )


def open_lengths(tensor: Tensor) -> tuple[int | str, ...]:
    """Return the lengths of axes of a tensor that leaves some open; none otherwise."""
    if min(tensor.signature, default=0) >= 0:
        return ()
    return tuple("?" if length < 0 else length for length in tensor.signature)


def checked_shape(name: str, tensor: Tensor, shape: Sequence[int] | None) -> Dimensions:
    """Return the shape that is given for an input; without one, the file's.

    A tensor without axes may be given the one of length 1 that it has in models.

    :raises InvalidArgumentError: if the input cannot have it.
    """
    if shape is None or (not tensor.shape and tuple(shape) == (1,)):
        return tensor.shape
    if len(shape) != len(tensor.shape) or any(length < 1 for length in shape):
        raise InvalidArgumentError(
            f"input {name!r} of shape {list(tensor.shape)} cannot have shape "
            f"{list(shape)}"
        )
    return tuple(shape)


def unique_names(graph: Graph, indexes: Sequence[int]) -> list[str]:
    """Return unique names for the tensors at a border of the graph."""
    if -1 in indexes:
        raise InvalidArgumentError(
            f"inputs or outputs of the graph are left out: {list(indexes[:20])}"
        )
    return distinct((graph.tensors[i].name or f"tensor_{i}" for i in indexes), indexes)


def signatures_of(
    contents: Contents,
    graph: Graph,
    input_names: Sequence[str],
    output_names: Sequence[str],
) -> tuple[Signature, ...]:
    """Return the signatures of ``graph`` with the names of the model's tensors."""
    inputs = dict(zip(graph.inputs, input_names, strict=True))
    outputs = dict(zip(graph.outputs, output_names, strict=True))
    try:
        return tuple(
            Signature(
                table.name,
                tuple((name, inputs[tensor]) for name, tensor in table.inputs),
                tuple((name, outputs[tensor]) for name, tensor in table.outputs),
            )
            for table in contents.signatures
            if table.graph == graph.index
        )
    except KeyError as error:
        raise InvalidArgumentError(
            f"a signature names tensor {error}, which is no input or output of "
            f"{graph.label}"
        ) from None
