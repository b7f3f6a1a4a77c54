"""Reads TFLite model files into HAL models.

``schema`` turns the bytes into records, ``operators`` turn each operator into HAL
operations, ``importer`` drives both.
"""

from asyncnn.runtime.tflite.importer import import_tflite, load_tflite
from asyncnn.runtime.tflite.schema import UnsupportedOperatorError

__all__ = ("UnsupportedOperatorError", "import_tflite", "load_tflite")
