"""Whole models with custom operators, beside LiteRT on the parts between these.

A file is cut at each custom operator that LiteRT has no kernel for. It computes the
parts, each a file of its own; plain formulas in float64 compute the operators.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.runtime.explain import explain
from asyncnn.runtime.model import NamedModel
from tests.runtime.tflite.cases import F32
from tests.runtime.tflite.files import Op, T, write
from tests.runtime.tflite.litert import run_litert
from tests.runtime.tflite.mediapipe_layers import Graph
from tests.runtime.tflite.mediapipe_models import GRAPHS

TOLERANCE = 2e-5
"""Of the largest value: some twenty layers in float32, each with sums of up to a
thousand terms, of which each side chooses the order."""

IMAGES = 2


class Parts:
    """Values of a graph's tensors, computed part by part."""

    def __init__(self, graph: Graph, image: np.ndarray) -> None:
        self._graph = graph
        self._values = {graph.image: image}

    def outputs(self) -> list[np.ndarray]:
        part: list[Op] = []
        for operator in self._graph.operators:
            formula = self._graph.formulas.get(operator)
            if formula is None:
                part.append(operator)
                continue
            self._compute(part)
            part = []
            inputs = [self._value(tensor) for tensor in operator.inputs if tensor]
            self._store(operator.outputs, formula(*inputs))
        self._compute(part)
        return [self._values[tensor] for tensor in self._graph.outputs]

    def _value(self, tensor: T) -> np.ndarray:
        value = self._values.get(tensor)
        return np.asarray(tensor.data if value is None else value)

    def _store(self, tensors: Sequence[T], values: Sequence[np.ndarray]) -> None:
        for tensor, value in zip(tensors, values, strict=True):
            assert value.shape == tensor.shape
            self._values[tensor] = value.astype(F32)

    def _compute(self, part: list[Op]) -> None:
        """Have LiteRT compute operators, and give what others or the caller read."""
        if not part:
            return
        read = [tensor for op in part for tensor in op.inputs if tensor]
        inputs = [tensor for tensor in dict.fromkeys(read) if tensor in self._values]
        others = [op for op in self._graph.operators if op not in part]
        wanted = {*self._graph.outputs, *(t for op in others for t in op.inputs)}
        outputs = [t for op in part for t in op.outputs if t in wanted]
        values = [self._values[tensor] for tensor in inputs]
        self._store(outputs, run_litert(write(part, inputs, outputs), values))


def images() -> list[np.ndarray]:
    """Return images of four channels, smooth but for some noise."""
    results = []
    for seed in range(IMAGES):
        rng = np.random.default_rng(seed)
        coarse = rng.uniform(-1, 1, (1, 8, 8, 4)).repeat(8, axis=1).repeat(8, axis=2)
        results.append((coarse + rng.normal(0, 0.2, coarse.shape)).astype(F32))
    return results


@cache
def judged(name: str) -> tuple[bytes, list[np.ndarray], list[list[np.ndarray]]]:
    """Return a model's file, images for it, and what becomes of each."""
    graph = GRAPHS[name]()
    inputs = [image[..., : graph.image.shape[3]] for image in images()]
    return graph.file(), inputs, [Parts(graph, image).outputs() for image in inputs]


def load(name: str, folder: Path) -> NamedModel:
    path = folder / f"{name}.tflite"
    path.write_bytes(judged(name)[0])
    return asyncnn.load(path)


async def assert_agrees(device: asyncnn.Device, model: NamedModel, name: str) -> None:
    _, inputs, expected = judged(name)
    prepared = await device.prepare(model)
    for image, wanted in zip(inputs, expected, strict=True):
        outputs = [*(await prepared.run([image])).values()]
        if name == "detector":
            outputs, wanted = found(outputs), found(wanted)
        for actual, each in zip(outputs, wanted, strict=True):
            limit = TOLERANCE * np.abs(each).max()
            np.testing.assert_allclose(actual, each, 0, limit, err_msg=name)


def found(outputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return a detector's outputs, without the room for more than it found."""
    boxes, classes, scores, number = outputs
    count = int(number[0])
    return [boxes[:, :count], classes[:, :count], scores[:, :count], number]


@pytest.mark.parametrize("name", GRAPHS)
async def test_devices_agree_with_litert_and_formulas(
    name: str, tmp_path: Path
) -> None:
    model = load(name, tmp_path)
    for kind in ("reference", "accelerated"):
        async with asyncnn.open_device(kind) as device:
            await assert_agrees(device, model, name)


async def test_the_engine_computes_all_between_what_is_mediapipe_s(
    tmp_path: Path,
) -> None:
    async with asyncnn.open_device("accelerated") as device:
        model = load("hair segmentation", tmp_path)
        segments = (await explain(device, model)).segments
    own = ["LiteRT", "kernels"]
    assert [segment.engine for segment in segments] == [*own * 4, "LiteRT"]


async def test_one_driver_agrees_on_all_models(tmp_path: Path) -> None:
    async with asyncnn.connect() as device:
        for name in GRAPHS:
            await assert_agrees(device, load(name, tmp_path), name)


@pytest.mark.parametrize("name", GRAPHS)
def test_what_is_compared_depends_on_the_image(name: str) -> None:
    _, _, (first, second) = judged(name)
    for one, other in ((first[0], second[0]), (first[-1], second[-1])):
        # A detector finds at least five boxes; behind those it found is no value.
        one, other = one.reshape(-1)[:20], other.reshape(-1)[:20]
        assert np.abs(one - other).max() > 100 * TOLERANCE * np.abs(one).max()


def test_detections_are_some_of_the_boxes() -> None:
    _, _, expected = judged("detector")
    for outputs in expected:
        assert 5 < int(outputs[3][0]) < outputs[0].shape[1]
