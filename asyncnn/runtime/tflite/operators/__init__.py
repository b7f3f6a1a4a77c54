"""Which converter handles which TFLite operator, one file per family."""

from asyncnn.runtime.tflite.node import Converter
from asyncnn.runtime.tflite.operators import (
    convolution,
    elementwise,
    layout,
    recurrent,
    selection,
)

CONVERTERS: dict[str, Converter] = {
    **convolution.CONVERTERS,
    **elementwise.CONVERTERS,
    **layout.CONVERTERS,
    **recurrent.CONVERTERS,
    **selection.CONVERTERS,
}
"""Converters by the operator's name in the TFLite schema."""

SHAPE_INPUTS: dict[str, frozenset[int]] = layout.SHAPE_INPUTS | convolution.SHAPE_INPUTS
"""Inputs that only repeat what the output's shape says; they are never read."""
