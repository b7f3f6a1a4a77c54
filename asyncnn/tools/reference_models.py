"""Recurrent networks for speech with random weights, and the reference models by name.

Their shapes are the test suite's: a network that names the phone that a frame of
sound belongs to, and one that leads a vocoder. Both take one step for each
frame and keep the state of three LSTM layers from step to step.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions
from asyncnn.tools.mobilenets import MOBILENETS, MORE_MOBILENETS
from asyncnn.tools.tflite_writer import TfliteWriter

PHONES = 42
"""Classes of the speech recognition."""

FRAME = 40 + 7 + 1 + 1
"""Mel cepstrum, aperiodicity, log F0 and voicing of a frame of the synthesis."""

FRAMES = 4
"""Frames that one step of the synthesis gives."""

_SOUND = 320
_LINGUISTIC = 346
_CELLS = 256
_LAYERS = 3
_GATES = ("input", "forget", "cell", "output")
_OMITTED = -1
_FORGET_BIAS = 1.0


def speech_recognition(*, cells: int = _CELLS, seed: int = 0) -> bytes:
    """Return the file of a network like the suite's ``asr_float``.

    A frame, float32 [1, 320], goes in; how likely each phone is, float32 [1, 42], comes
    out. ``cells`` is the width of each of three LSTM layers.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    network = _Recurrent("frame", _SOUND, cells, seed)
    network.dense(PHONES, "logits", gain=8.0)
    network.apply("SOFTMAX", "phones", beta=1.0)
    return network.file()


def speech_synthesis(*, cells: int = _CELLS, seed: int = 0) -> bytes:
    """Return the file of a network like the suite's ``tts_float``.

    Linguistic features, float32 [1, 346], go in; four frames for a vocoder, float32
    [1, 196], come out: each is a mel cepstrum of 40, 7 of aperiodicity, log F0 and
    voicing.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    network = _Recurrent("features", _LINGUISTIC, cells, seed)
    network.dense(FRAMES * FRAME, "frames", gain=2.0)
    return network.file()


class ReferenceModel(msgspec.Struct, frozen=True):
    """A model by which the HAL's documentation recommends to measure capabilities.

    ``make`` returns its file. ``evaluator`` is how the suite judges it, and ``steps``
    how many frames a sequence of it has; models without state have one.
    """

    make: Callable[[], bytes]
    quantized: bool = False
    evaluator: str = "golden"
    steps: int = 1
    unsigned: bool = False

    def inputs(self, dimensions: Dimensions, seed: int, sequences: int) -> list[Array]:
        """Return frames of so many sequences: the same for the same ``seed``.

        Images are uniform, over all codes or in [0, 1); features are normal.
        """
        rng = np.random.default_rng(seed)
        count = sequences * self.steps
        if self.unsigned:
            return [rng.integers(0, 256, dimensions, np.uint8) for _ in range(count)]
        if self.quantized:
            return [rng.integers(-128, 128, dimensions, np.int8) for _ in range(count)]
        if self.steps > 1:
            return [rng.standard_normal(dimensions, np.float32) for _ in range(count)]
        return [rng.random(dimensions, np.float32) for _ in range(count)]


REFERENCE_MODELS = {
    **{
        name: ReferenceModel(make, quantized=name.endswith("int8"))
        for name, make in MOBILENETS.items()
    },
    "asr_float": ReferenceModel(
        speech_recognition, evaluator="phone-error-rate", steps=20
    ),
    "tts_float": ReferenceModel(speech_synthesis, evaluator="mel-cep-log-f0", steps=20),
}
"""MobileNet v1 and v2, float and quantised, and speech, float.

Source: Neural Networks API drivers, "Initialization": what drivers should measure their
capabilities by.
"""


MORE_MODELS = {
    name: ReferenceModel(
        make, quantized=not name.endswith("float"), unsigned=name.endswith("u8")
    )
    for name, make in MORE_MOBILENETS.items()
}
"""MobileNets for 128 to 224 pixels, a quarter to all of the channels, u8 among them."""


class _Recurrent:
    """A network so far: ``_tensor`` is its last activation, of ``_width`` numbers."""

    def __init__(self, name: str, width: int, cells: int, seed: int) -> None:
        self._writer = TfliteWriter(quantized=False, seed=seed)
        self._schema = self._writer.schema
        self._layers = 0
        self._width = width
        self._input = self._tensor = self._float(name, width)
        self.dense(cells, "projected", gain=1.0)
        for _ in range(_LAYERS):
            self._lstm(cells)

    def file(self) -> bytes:
        return self._writer.finish([self._input], [self._tensor])

    def dense(self, width: int, name: str, *, gain: float) -> None:
        """Add a fully connected layer."""
        weights = self._weights(f"{name}_weights", width, self._width, gain)
        bias = self._writer.bias(f"{name}_bias", width, 1.0)
        options = self._schema.FullyConnectedOptionsT()
        result = self._float(name, width)
        inputs = (self._tensor, weights, bias)
        self._writer.operator("FULLY_CONNECTED", inputs, result, options)
        self._tensor, self._width = result, width

    def apply(self, operator: str, name: str, **options: float) -> None:
        """Apply an operator that keeps the shape."""
        made = getattr(self._schema, f"{operator.capitalize()}OptionsT")(**options)
        result = self._float(name, self._width)
        self._writer.operator(operator, (self._tensor,), result, made)
        self._tensor = result

    def _lstm(self, cells: int) -> None:
        self._layers += 1
        layer, writer = f"lstm_{self._layers}", self._writer
        of_input, of_output = (
            [
                self._weights(f"{layer}_{kind}_{gate}", cells, width, 1.0)
                for gate in _GATES
            ]
            for kind, width in (("from_input", self._width), ("recurrent", cells))
        )
        biases = [
            writer.constant(
                f"{layer}_bias_{gate}",
                np.full(cells, _FORGET_BIAS if gate == "forget" else 0.0, np.float32),
            )
            for gate in _GATES
        ]
        states = [writer.state(f"{layer}_{kind}", (1, cells)) for kind in ("h", "c")]
        omitted = [_OMITTED] * 3  # peepholes; projection has two of its own below
        inputs = [
            *(self._tensor, *of_input, *of_output, *omitted, *biases),
            *(_OMITTED, _OMITTED, *states, *[_OMITTED] * len(_GATES)),
        ]
        options = self._schema.LSTMOptionsT(
            fusedActivationFunction=self._schema.ActivationFunctionType.TANH
        )
        result = self._float(layer, cells)
        writer.operator("LSTM", inputs, result, options)
        self._tensor, self._width = result, cells

    def _weights(self, name: str, rows: int, columns: int, gain: float) -> int:
        deviation = gain / float(np.sqrt(columns))
        return self._writer.weights(name, (rows, columns), None, deviation)

    def _float(self, name: str, width: int) -> int:
        return self._writer.tensor(name, (1, width), (0.0, 0))
