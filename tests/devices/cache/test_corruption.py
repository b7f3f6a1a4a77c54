"""Random damage to cache files: never a crash, never another plan.

``ASYNCNN_FUZZ`` is the number of damages to try, 100,000 in a thorough run.
"""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices.cache_format import Compiled
from asyncnn.engine import PlanExecution
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.runtime.model_file import load as load_model
from tests.devices.cache.folder import Folder, shape_of_plans
from tests.devices.cache.models import dense

COUNT = int(os.environ.get("ASYNCNN_FUZZ", "2000"))


class Damage:
    """Changes a file in one place, and undoes it."""

    def __init__(self, path: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._path = path
        self._whole = path.read_bytes()

    def damaged(self) -> bytes:
        """The file with a byte, a block or its length changed."""
        rng, data = self._random, bytearray(self._whole)
        at = rng.randrange(len(data))
        kind = rng.randrange(5)
        length = rng.randint(1, 512)
        if kind == 0:
            data[at] ^= rng.randint(1, 255)
        elif kind == 1:
            data[at : at + length] = rng.randbytes(len(data[at : at + length]))
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            data += rng.randbytes(length)
        else:
            other = rng.randrange(len(data))
            data[at], data[other] = data[other], data[at]
        return bytes(data)

    def inflict(self) -> bool:
        """Damage the file; return whether it differs."""
        data = self.damaged()
        self._path.write_bytes(data)
        return data != self._whole

    def undo(self) -> None:
        self._path.write_bytes(self._whole)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_no_damage_to_the_model_cache_is_overlooked(folder: Folder) -> None:
    saved = folder.save(dense(True).model)
    damage = Damage(folder.model, seed=1)
    for _ in range(COUNT):
        if damage.inflict():
            with pytest.raises(GeneralFailureError):
                folder.load()
    damage.undo()
    assert shape_of_plans(folder.load().program) == shape_of_plans(saved)


def run(compiled: Compiled) -> None:
    """Execute with zeros, whatever the numbers are that come out."""
    program = compiled.program
    plan = program.plan(program.declared_shapes)
    inputs = [np.zeros(port.shape, port.dtype) for port in plan.inputs]
    outputs = [np.zeros(port.shape, port.dtype) for port in plan.outputs]
    PlanExecution(program, plan, inputs, outputs).advance()


@pytest.mark.parametrize("may_map", [True, False], ids=["mapped", "copied"])
def test_damaged_data_give_wrong_numbers_at_worst(
    folder: Folder, may_map: bool
) -> None:
    saved = shape_of_plans(folder.save(dense(True).model))
    damage = Damage(folder.data, seed=2)
    loaded = 0
    for _ in range(COUNT // 10):
        damage.inflict()
        try:
            compiled = folder.load(may_map=may_map)
        except GeneralFailureError:
            continue
        assert shape_of_plans(compiled.program) == saved
        run(compiled)
        del compiled
        loaded += 1
    assert loaded > COUNT // 50


def test_damaged_weights_of_trained_models_give_wrong_numbers_at_worst(
    folder: Folder, shared: Path
) -> None:
    for path in sorted((shared / "models").glob("*.tflite")):
        saved = shape_of_plans(folder.save(load_model(path, strict=True).model))
        damage = Damage(folder.data, seed=3)
        for _ in range(5):
            damage.inflict()
            try:
                compiled = folder.load()
            except GeneralFailureError:
                continue
            assert shape_of_plans(compiled.program) == saved
            run(compiled)
            del compiled
        damage.undo()
