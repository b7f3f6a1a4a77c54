import numpy as np
import pytest

from asyncnn.hal.types import OperandType
from asyncnn.runtime.model import TensorInfo
from asyncnn.runtime.model_file import load
from asyncnn.tools.demo import (
    CLASSES,
    MODEL_KINDS,
    ModelKind,
    encode,
    load_digits_test,
    model_path,
)


def test_the_held_out_images_are_many_and_labelled_one_by_one() -> None:
    images, labels = load_digits_test()
    assert images.shape == (len(labels), 8, 8)
    assert len(labels) >= 350
    assert images.dtype == np.uint8
    assert 0 <= images.min() < images.max() <= 16


def test_every_digit_is_held_out_about_equally_often() -> None:
    _, labels = load_digits_test()
    counts = np.bincount(labels)
    assert len(counts) == CLASSES
    assert counts.min() >= 0.9 * len(labels) / CLASSES


def test_no_image_is_held_out_twice() -> None:
    images, _ = load_digits_test()
    assert len(np.unique(images, axis=0)) == len(images)


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_a_model_turns_an_image_into_a_probability_for_each_digit(
    kind: ModelKind,
) -> None:
    model = load(model_path(kind))
    ((image,), (probabilities,)) = model.inputs, model.outputs
    assert (image.name, image.dimensions) == ("image", (1, 8, 8, 1))
    assert (probabilities.name, probabilities.dimensions) == ("probabilities", (1, 10))


@pytest.mark.parametrize("kind", MODEL_KINDS)
def test_the_lowest_and_the_highest_grey_level_survive_encoding(
    kind: ModelKind,
) -> None:
    (info,) = load(model_path(kind)).inputs
    stored = encode(np.array([[[0, 16]]], np.uint8), info)
    assert stored.dtype == info.dtype
    scale = info.scale or 1.0
    assert (scale * (stored.ravel() - float(info.zero_point))).tolist() == [0.0, 1.0]


def test_encoding_saturates_where_the_input_cannot_hold_a_grey_level() -> None:
    narrow = TensorInfo(
        "image",
        OperandType.TENSOR_QUANT8_ASYMM_SIGNED,
        (1, 1, 2, 1),
        scale=1 / 256,
        zero_point=-100,
    )
    stored = encode(np.array([[[0, 16]]], np.uint8), narrow)
    assert stored.shape == (1, 1, 1, 2, 1)
    assert stored.ravel().tolist() == [-100, 127]
