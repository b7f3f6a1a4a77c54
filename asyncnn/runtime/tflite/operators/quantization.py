"""Conversions between element types and quantisations."""

from asyncnn.hal.types import OperationType
from asyncnn.runtime.tflite.node import Converter, Node


def _convert(node: Node) -> None:
    # Storing adds the operations that lead from one quantisation to the other.
    node.store(node.read(0))


def _cast(node: Node) -> None:
    node.emit(OperationType.CAST, [node.read(0)])


CONVERTERS: dict[str, Converter] = {
    "QUANTIZE": _convert,
    "DEQUANTIZE": _convert,
    "CAST": _cast,
}
