"""TFLite files that have no form in operations of the HAL."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.runtime.tflite.cases import I8, I32, boolean, const, f32, i32, ramp
from tests.runtime.tflite.files import G, Op, T, flex, given, write
from tests.runtime.tflite.flow_files import if_, while_
from tests.runtime.tflite.graphs import conv_2d

I16, I64 = np.int16, np.int64


def i16(*shape: int, scale: float = 1e-3) -> T:
    return T(I16, shape, scale=(scale,), zero_point=(0,))


def i64(*shape: int) -> T:
    return T(I64, shape)


def one(name: str, inputs: Sequence[Any], output: T, *options: Any) -> bytes:
    operator = Op(name, inputs, [output], *options)
    return write([operator], given(operator), [output])


def conv_3d(x: T, filters: T, bias: T, y: T) -> Op:
    strides = {"StrideD": 1, "StrideW": 1, "StrideH": 1}
    dilations = {"DilationDFactor": 1, "DilationWFactor": 1, "DilationHFactor": 1}
    fields = {"Padding": 1, **strides, **dilations}
    return Op("CONV_3D", [x, filters, bias], [y], "Conv3DOptions", fields)


def volumes() -> bytes:
    x, y = f32(1, 4, 5, 6, 2), f32(1, 3, 4, 5, 3)
    operator = conv_3d(x, ramp((2, 2, 2, 2, 3)), ramp((3,)), y)  # without padding
    return write([operator], [x], [y])


def sixteen_bits() -> bytes:
    """Return a convolution of 16-bit activations, and a sum, whose result is 16-bit."""
    x, hidden, y = i16(1, 6, 6, 4), i16(1, 5, 5, 3), i16(1, 5, 5, 3, scale=2e-3)
    weights = ramp((3, 2, 2, 4), I8, scale=(0.1, 0.2, 0.3), zero_point=(0, 0, 0))
    bias = ramp((3,), I64, scale=(1e-4, 2e-4, 3e-4), zero_point=(0, 0, 0))
    operators = [
        conv_2d(x, weights, bias, hidden, Padding=1),
        Op("ADD", [hidden, hidden], [y], "AddOptions"),
    ]
    return write(operators, [x], [y])


def wide_integers() -> bytes:
    x, hidden, y = i64(2, 3), i64(2, 3), i64(2, 3)
    operators = [
        Op("ADD", [x, const([1 << 40], I64)], [hidden], "AddOptions"),
        Op("MUL", [hidden, x], [y], "MulOptions"),
    ]
    return write(operators, [x], [y])


def loop() -> bytes:
    """Return a loop over what the HAL has no operation for."""
    count, x, last, y = i32(1), i32(4), i32(1), i32(4)
    inner = [i32(1), i32(4)], [i32(1), i32(4)]
    yes, begun = boolean(1), [i32(1), i32(4)]
    condition = G([Op("LESS", [begun[0], const([3])], [yes])], begun, [yes])
    body = G(
        [
            Op("ADD", [inner[0][0], const([1])], [inner[1][0]], "AddOptions"),
            Op("BITWISE_XOR", [inner[0][1], const([5, 6, 7, 8])], [inner[1][1]]),
        ],
        *inner,
    )
    operators = [while_([count, x], [last, y], 1, 2)]
    return write(operators, [count, x], [last, y], condition, body)


def placed() -> bytes:
    """Return sums of rows whose places are computed: fixed lengths, unknown ones."""
    x, places, y = f32(4), i32(4, 1), f32(6)
    return write(
        [Op("SCATTER_ND", [places, x, const([6])], [y], "ScatterNdOptions")],
        [places, x],
        [y],
    )


def stale() -> bytes:
    """Return a layer whose result has another shape in the file than it gets."""
    x, hidden, y = i32(2, 3), i32(1, 1), i32(1, 1)
    operators = [Op("BITWISE_XOR", [x, x], [hidden]), Op("NEG", [hidden], [y])]
    return write(operators, [x], [y])


def stale_layer() -> bytes:
    """Return a dense layer whose result has shape [1, 1] in the file."""
    x, y = f32(2, 6), f32(1, 1)
    layer = [x, ramp((4, 6)), None], [y], "FullyConnectedOptions"
    return write([Op("FULLY_CONNECTED", *layer)], [x], [y])


def open_batch() -> bytes:
    """Return a file whose application chooses the first length, 1 in the file."""
    x = T(I32, (1, 3), signature=(-1, 3))
    y = T(I32, (1, 3), signature=(-1, 3))
    return write([Op("BITWISE_XOR", [x, const([1, 2, 3])], [y])], [x], [y])


def counting() -> bytes:
    """Return a file with an input and an output that keep what was added up."""
    x, state, y = i32(3), T(I32, (3,), name="state_in"), T(I32, (3,), name="state_out")
    z, xor = i32(3), T(I32, (3,), name="bits")
    operators = [
        Op("ADD", [x, state], [y], "AddOptions"),
        Op("BITWISE_XOR", [x, state], [xor]),
        Op("ADD", [xor, x], [z], "AddOptions"),
    ]
    return write(operators, [x, state], [z, y])


def same_ends() -> bytes:
    """Return a file that lists ends twice, of which some are computed by nothing."""
    x, y, free, fixed = i32(3), i32(3), T(np.int8, (2, 3)), ramp((2, 2))
    operators = [Op("BITWISE_XOR", [x, const([5])], [y])]
    return write(operators, [x, free, x], [y, x, fixed, y, free, fixed])


def same_results() -> bytes:
    """Return a branch that gives one tensor twice, and its input."""
    chosen, x, y, z, w = boolean(1), i32(3), i32(3), i32(3), i32(3)
    branches = []
    for number in (1, 2):
        given_, made = i32(3), i32(3)
        xor = Op("BITWISE_XOR", [given_, const([number])], [made])
        branches.append(G([xor], [given_], [made, made, given_]))
    return write([if_([chosen, x], [y, z, w], 1, 2)], [chosen, x], [y, z, w], *branches)


def arcs(*shape: int) -> bytes:
    x, y, z, bits, xor = f32(2, 3), f32(*shape), f32(2, 3), i32(3), i32(3)
    operators = [Op("ATAN2", [x, y], [z]), Op("BITWISE_XOR", [bits, const([5])], [xor])]
    return write(operators, [x, y, bits], [z, xor])


def speech(**options: float) -> bytes:
    """Return what LiteRT itself has of custom operators: features of sounds."""
    wave, spectrum, features = f32(800, 1), f32(1, 5, 129), f32(1, 5, 13)
    windows = {"window_size": 160, "stride": 160, "magnitude_squared": True}
    bands = {"filterbank_channel_count": 40, "dct_coefficient_count": 13}
    limits = {"upper_frequency_limit": 4000.0, "lower_frequency_limit": 20.0}
    operators = [
        Op("AudioSpectrogram", [wave], [spectrum], custom=flex(windows | options)),
        Op(
            *("Mfcc", [spectrum, const([16000])], [features]),
            custom=flex(bands | limits),
        ),
    ]
    return write(operators, [wave], [features])


FILES = {
    "ends listed twice": same_ends,
    "arcs": lambda: arcs(2, 3),
    "LiteRT's own custom operators": speech,
    "volumes": volumes,
    "activations of 16 bits": sixteen_bits,
    "integers of 64 bits": wide_integers,
    "loop": loop,
    "computed places": placed,
    "float64": lambda: one("CAST", [T(np.float64, (2, 3))], f32(2, 3), "CastOptions"),
    "uint32": lambda: one(
        "BITWISE_XOR",
        [T(np.uint32, (3,)), const([1, 2, 1 << 31], np.uint32)],
        T(np.uint32, (3,)),
    ),
    "bits": lambda: one("BITWISE_XOR", [i32(2, 3), i32(2, 3)], i32(2, 3)),
}

WHERE = one("WHERE", [boolean(2, 3)], i64(6, 2))
"""Only a run tells how many places there are."""
