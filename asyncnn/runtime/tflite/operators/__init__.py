"""Which converter handles which TFLite operator, one file per family."""

from asyncnn.runtime.tflite.node import Converter
from asyncnn.runtime.tflite.operators import (
    arithmetic,
    convolution,
    dense,
    elementwise,
    layout,
    lstm,
    quantization,
    recurrent,
    reduction,
    selection,
)

CONVERTERS: dict[str, Converter] = {
    **arithmetic.CONVERTERS,
    **convolution.CONVERTERS,
    **dense.CONVERTERS,
    **elementwise.CONVERTERS,
    **layout.CONVERTERS,
    **lstm.CONVERTERS,
    **quantization.CONVERTERS,
    **recurrent.CONVERTERS,
    **reduction.CONVERTERS,
    **selection.CONVERTERS,
}
"""Converters by the operator's name in the TFLite schema."""

SHAPE_INPUTS: dict[str, frozenset[int]] = layout.SHAPE_INPUTS | convolution.SHAPE_INPUTS
"""Inputs that only repeat what the output's shape says; they are never read."""
