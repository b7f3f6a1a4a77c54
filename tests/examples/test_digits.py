import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import asyncnn
from asyncnn import OperationType
from asyncnn.tools.demo import MODEL_KINDS, model_path
from tests.processes import python

FOLDER = Path(__file__).parents[2] / "examples" / "digits"
SCRIPTS = ("network", "quantize")


@pytest.fixture(autouse=True)
def scripts_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for name in SCRIPTS:
        sys.modules.pop(name, None)


@pytest.fixture
def network() -> ModuleType:
    return importlib.import_module("network")


@pytest.fixture
def quantize() -> ModuleType:
    return importlib.import_module("quantize")


@pytest.mark.exhaustive
def test_a_quick_training_writes_models_and_data_that_run(tmp_path: Path) -> None:
    done = python(FOLDER / "train.py", "--quick", "--output", tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [*MODEL_KINDS]
    for kind in MODEL_KINDS:
        assert asyncnn.load(model_path(kind, tmp_path)).inputs[0].name == "image"
    with np.load(tmp_path / "digits_test.npz") as arrays:
        assert len(arrays["images"]) == len(arrays["labels"])


def test_gradients_agree_with_finite_differences(network: ModuleType) -> None:
    rng = np.random.default_rng(0)
    layers = [
        # Random biases, because with zeros much lies on the edge of relu6.
        layer._replace(
            parameters=tuple(rng.normal(0, 0.5, a.shape) for a in layer.parameters)
        )
        for layer in network.new_network(rng)
    ]
    images, labels = rng.uniform(0, 1, (4, 8, 8, 1)), np.array([0, 3, 3, 9])

    def loss() -> float:
        *_, logits = network.activations(layers, images)
        of_labels = logits[np.arange(4), labels]
        return float(np.mean(np.log(np.exp(logits).sum(1)) - of_labels))

    parameters = [array for layer in layers for array in layer.parameters]
    gradients = network.gradients(layers, images, labels)
    for array, gradient in zip(parameters, gradients, strict=True):
        at = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
        step = 1e-6
        array[at] += step
        above = loss()
        array[at] -= 2 * step
        below = loss()
        array[at] += step
        assert gradient[at] == pytest.approx((above - below) / (2 * step), rel=1e-4)


class TestWeights:
    weights = np.random.default_rng(1).normal(0, 1, (4, 3, 3, 2)).astype(np.float32)

    @pytest.mark.parametrize(("axis", "scales"), [(0, 4), (3, 2), (None, 1)])
    def test_they_are_off_by_half_a_step_at_most(
        self, quantize: ModuleType, axis: int | None, scales: int
    ) -> None:
        codes, found = quantize.quantize_weights(self.weights, axis)
        shape = [1] * 4 if axis is None else [-1 if a == axis else 1 for a in range(4)]
        error = np.abs(codes * found.reshape(shape) - self.weights)
        assert len(found) == scales
        assert (error <= 0.5001 * found.reshape(shape)).all()

    def test_each_channel_uses_the_whole_range(self, quantize: ModuleType) -> None:
        codes, _ = quantize.quantize_weights(self.weights, 0)
        assert (np.abs(codes).max((1, 2, 3)) == 127).all()

    def test_a_channel_of_zeros_stays_zero(self, quantize: ModuleType) -> None:
        codes, scales = quantize.quantize_weights(np.zeros((1, 1, 1, 2), np.float32), 3)
        assert not codes.any()
        assert (scales > 0).all()


class TestCalibration:
    def test_every_activation_fits_and_pools_keep_their_codes(
        self, network: ModuleType, quantize: ModuleType
    ) -> None:
        rng = np.random.default_rng(2)
        layers = network.new_network(rng)
        images = rng.uniform(0, 1, (8, 8, 8, 1)).astype(np.float32)
        found = quantize.calibrate(layers, images)
        outputs = network.activations(layers, images)
        for output, (scale, zero_point) in zip(outputs, found, strict=True):
            codes = np.rint(output / scale) + zero_point
            assert codes.min() >= -128
            assert codes.max() <= 127
        pools = [
            index
            for index, layer in enumerate(layers)
            if layer.operation
            in (OperationType.MAX_POOL_2D, OperationType.AVERAGE_POOL_2D)
        ]
        assert all(found[index] == found[index - 1] for index in pools)
