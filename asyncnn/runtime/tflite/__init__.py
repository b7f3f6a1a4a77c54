"""Reads TFLite model files into HAL models.

`importer` drives it: `schema` turns the bytes into records, `tensors` describes them as
operands, and a converter turns each operator into HAL operations, by way of a `node`.
Converters are in `convolution` (with pooling, fully connected layers and matrix
products), `elementwise`, `recurrent` and `reshaping` (with slices and reductions).
"""

from asyncnn.runtime.tflite.importer import import_tflite, load_tflite
from asyncnn.runtime.unsupported import UnsupportedOperatorError

__all__ = ("UnsupportedOperatorError", "import_tflite", "load_tflite")
