"""The generated MobileNet is a real one for LiteRT and for the importer."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from asyncnn.memory.pools import from_buffer
from asyncnn.tools.mobilenets import CLASSES, mobilenet_v1, mobilenet_v2
from asyncnn.tools.other_runtimes import LiteRt
from tests.runtime.tflite.importing import import_tflite

pytest.importorskip("ai_edge_litert")

SIZE = 32
IMAGE = np.random.default_rng(0).random((1, SIZE, SIZE, 3), np.float32)
QUANTIZED_IMAGE = (np.rint(IMAGE * 255) - 128).astype(np.int8)

OPERATIONS = {
    OperationType.CONV_2D: 15,
    OperationType.DEPTHWISE_CONV_2D: 13,
    OperationType.AVERAGE_POOL_2D: 1,
    OperationType.RESHAPE: 1,
    OperationType.SOFTMAX: 1,
}


def small(*, quantized: bool) -> bytes:
    return mobilenet_v1(quantized=quantized, size=SIZE, width=0.25)


def probabilities(folder: Path, *, quantized: bool, reference: bool) -> np.ndarray:
    path = folder / f"small_{quantized}.tflite"
    path.write_bytes(small(quantized=quantized))
    peer = LiteRt(path, reference=reference)
    peer.set_inputs([QUANTIZED_IMAGE if quantized else IMAGE])
    (output,) = peer.first_outputs()
    return output


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize(("quantized", "dtype"), [(False, "float32"), (True, "int8")])
def test_litert_runs_it(
    tmp_path: Path, quantized: bool, dtype: str, reference: bool
) -> None:
    output = probabilities(tmp_path, quantized=quantized, reference=reference)
    assert output.shape == (1, CLASSES)
    assert output.dtype == dtype


def test_its_probabilities_add_up_and_prefer_some_classes(tmp_path: Path) -> None:
    output = probabilities(tmp_path, quantized=False, reference=True)
    assert output.sum() == pytest.approx(1, abs=1e-4)
    assert output.max() > 10 / CLASSES


@pytest.mark.parametrize("quantized", [False, True])
def test_the_importer_finds_the_same_operations(quantized: bool) -> None:
    model = import_tflite(from_buffer(small(quantized=quantized))).model
    assert Counter(operation.type for operation in model.main.operations) == OPERATIONS


def test_every_stride_halves_the_image() -> None:
    model = import_tflite(from_buffer(small(quantized=False))).model
    sizes = [
        model.main.operands[operation.outputs[0]].dimensions[1]
        for operation in model.main.operations
        if operation.type == OperationType.DEPTHWISE_CONV_2D
    ]
    assert sizes == [16, 8, 8, 4, 4, 2, 2, 2, 2, 2, 2, 1, 1]


def test_the_quantised_variant_rounds_the_weights_of_the_other() -> None:
    exact = import_tflite(from_buffer(small(quantized=False))).model
    rounded = import_tflite(from_buffer(small(quantized=True))).model
    shapes = [
        [
            model.main.operands[operation.inputs[1]].dimensions
            for operation in model.main.operations[:-3]
        ]
        for model in (exact, rounded)
    ]
    assert shapes[0] == shapes[1]


def test_the_seed_decides_the_weights() -> None:
    assert small(quantized=True) == small(quantized=True)
    other = mobilenet_v1(quantized=True, size=SIZE, width=0.25, seed=1)
    assert other != small(quantized=True)


INVERTED_OPERATIONS = {
    OperationType.CONV_2D: 36,
    OperationType.DEPTHWISE_CONV_2D: 17,
    OperationType.ADD: 10,
    OperationType.AVERAGE_POOL_2D: 1,
    OperationType.RESHAPE: 1,
    OperationType.SOFTMAX: 1,
}


@pytest.mark.parametrize("quantized", [False, True])
def test_version_2_has_inverted_residuals(tmp_path: Path, quantized: bool) -> None:
    file = mobilenet_v2(quantized=quantized, size=SIZE, width=0.5)
    model = import_tflite(from_buffer(file)).model
    counted = Counter(operation.type for operation in model.main.operations)
    assert counted == INVERTED_OPERATIONS
    path = tmp_path / "small.tflite"
    path.write_bytes(file)
    image = QUANTIZED_IMAGE if quantized else IMAGE
    results = []
    for reference in (False, True):
        peer = LiteRt(path, reference=reference)
        peer.set_inputs([image])
        (output,) = peer.first_outputs()
        results.append(output.astype(np.float64))
    assert np.ptp(results[0]) > 0  # neither vanished nor saturated on the way
    np.testing.assert_allclose(*results, atol=8 if quantized else 1e-4)
