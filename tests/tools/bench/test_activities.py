"""What the benchmark of responsiveness makes loops run: models and inputs."""

import numpy as np
import pytest

from asyncnn.memory.slabs import place_of
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.bench.activities import LAYOUTS, Sizes, large_input
from asyncnn.tools.bench.made_models import long_model, long_models_input, wide_model

SHAPE = (3, 4096)


async def test_a_long_model_has_as_many_operations_as_asked_for_and_runs() -> None:
    model = long_model(11, 0)
    assert len(model.model.main.operations) == 11
    async with open_device() as device:
        prepared = await device.prepare(model)
        outputs = await prepared.run([long_models_input()])
    assert np.isfinite(outputs["y"]).all()


def test_models_are_equal_if_their_numbers_are() -> None:
    first, again, other = (long_model(4, number).model for number in (1, 1, 2))
    assert first == again
    assert first.operand_values != other.operand_values


def test_large_inputs_have_the_size_asked_for() -> None:
    rows, columns = Sizes().input_shape
    assert 4 * rows * columns == Sizes().input_bytes == 64 * 2**20


def test_layouts_are_what_they_are_called() -> None:
    made = {layout: large_input(layout, SHAPE) for layout in LAYOUTS}
    assert all(array.shape == SHAPE for array in made.values())
    assert all(array.dtype == np.float32 for array in made.values())
    assert all((array == 1).all() for array in made.values())
    assert made["contiguous"].flags.c_contiguous
    assert made["fortran"].flags.f_contiguous
    assert not made["strided"].flags.contiguous
    assert not made["strided"].flags.f_contiguous
    assert not made["unaligned"].flags.aligned
    assert place_of(made["shared"]) is not None


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_inputs_of_each_layout_run(layout: str) -> None:
    x = large_input(layout, SHAPE)
    async with open_device() as device:
        prepared = await device.prepare(wide_model(SHAPE))
        outputs = await prepared.run([x])
    assert np.array_equal(outputs["y"], x)
