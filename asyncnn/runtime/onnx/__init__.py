"""Reads ONNX files into HAL models; the `onnx` package reads and checks the files.

`importer` drives it: ``wire`` leaves weights where the file is mapped, ``schema`` and
``tensors`` turn the rest into records, ``folding`` evaluates what only computes shapes,
and a converter turns each node into operations, by way of a ``node`` and its draft:
``emitter`` collects operations, ``composing`` has the vocabulary. ``open_axes`` treats
axes without a length, ``functions`` operators that are defined by others.
"""

from asyncnn.runtime.onnx.importer import import_onnx, load_onnx

__all__ = ("import_onnx", "load_onnx")
