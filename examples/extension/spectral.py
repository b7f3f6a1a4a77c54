"""A vendor extension: spectra of sound, in a type that the HAL does not have.

Driver and application both import it: the driver for its kernels, the application to
build models of its operations. Names and numbers are a promise and never change.
"""

import numpy as np

from asyncnn import Extension, OperandType
from asyncnn.extensions import (
    Argument,
    BoundOperation,
    OperationFailedError,
    Scratch,
    stateless,
)
from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel, Run

spectral = Extension("com.example.spectral")

TENSOR_COMPLEX64 = spectral.tensor_type("TENSOR_COMPLEX64", 0, np.complex64)


def _spectrogram_shape(operation: BoundOperation) -> tuple[tuple[int, ...]]:
    batches, samples = operation.shape(0)
    window, hop = operation.integer(1), operation.integer(2)
    if not 2 <= window <= samples or hop < 1:
        raise OperationFailedError(
            f"SPECTROGRAM: windows of {window} samples every {hop}, of {samples}"
        )
    return ((batches, 1 + (samples - window) // hop, window // 2 + 1),)


def _prepare_spectrogram(operation: BoundOperation) -> PreparedKernel:
    """Compute ``rfft(samples[:, k * hop : k * hop + window] * hann)``.

    Inputs: samples: float32 [batches, samples]; window, hop: int32, in samples.
    Output: complex64 [batches, frames, window // 2 + 1].
    """
    batches, frames, _ = operation.outputs[0].require_shape()
    window, hop = operation.integer(1), operation.integer(2)
    hann = np.hanning(window + 1)[:-1].astype(np.float32)

    def instantiate(scratch: Scratch) -> Run:
        windowed = scratch.transient((batches, frames, window), np.float32)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            windows = np.lib.stride_tricks.sliding_window_view(inputs[0], window, 1)
            np.multiply(windows[:, ::hop], hann, out=windowed)
            np.fft.rfft(windowed, out=outputs[0])

        return run

    return instantiate


SPECTROGRAM = spectral.operation(
    "SPECTROGRAM",
    0,
    inputs=[
        Argument("samples", OperandType.TENSOR_FLOAT32, ranks=(2,)),
        Argument("window", OperandType.INT32),
        Argument("hop", OperandType.INT32),
    ],
    outputs=[Argument("spectrogram", TENSOR_COMPLEX64, ranks=(3,))],
    shape=_spectrogram_shape,
    prepare=_prepare_spectrogram,
)


def _magnitude(inputs: Inputs, outputs: Outputs) -> None:
    np.abs(inputs[0], out=outputs[0])


MAGNITUDE = spectral.operation(
    "MAGNITUDE",
    1,
    inputs=[Argument("spectrum", TENSOR_COMPLEX64)],
    outputs=[Argument("magnitude", OperandType.TENSOR_FLOAT32)],
    shape=lambda operation: (operation.shape(0),),
    prepare=lambda operation: stateless(_magnitude),
)
