"""What saving and loading do to files, whatever befalls these."""

import fcntl
import os
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices.cache_files import TAG_BYTES
from asyncnn.devices.cache_format import CacheRecord, Compiled, unsealed
from asyncnn.devices.cache_saving import saving
from asyncnn.engine import Program
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.slices import joined
from asyncnn.hal.types import ExecutionPreference, Priority
from asyncnn.pacing import completed
from asyncnn.runtime.model_file import load as load_model
from tests.devices.cache.client import TOKEN
from tests.devices.cache.folder import Folder, plans_of
from tests.devices.cache.models import INPUTS, dense, folding
from tests.engine.test_control_flow import if_model


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


MODELS = {
    "float": lambda: dense(False).model,
    "quantised": lambda: dense(True).model,
    "folded": lambda: folding().model,
    "open": lambda: dense(False, batch=0).model,
    "control flow": lambda: if_model((3,)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("may_map", [True, False], ids=["mapped", "copied"])
def test_a_loaded_plan_is_the_one_that_was_saved(
    folder: Folder, name: str, may_map: bool
) -> None:
    saved = folder.save(MODELS[name](), Priority.LOW)
    loaded = folder.load(may_map=may_map)
    assert plans_of(loaded.program) == plans_of(saved)
    assert loaded.priority is Priority.LOW
    assert loaded.preference is ExecutionPreference.SUSTAINED_SPEED


def test_trained_models_have_the_plans_that_were_saved(
    folder: Folder, shared: Path
) -> None:
    for path in sorted((shared / "models").glob("*.tflite")):
        saved = folder.save(load_model(path, strict=True).model)
        assert plans_of(folder.load().program) == plans_of(saved), path.name


def test_weights_are_mapped_and_not_copied(folder: Folder) -> None:
    folder.save(dense(False).model)
    (step,) = folder.load().program.plan(((1, INPUTS),)).steps
    weights = step.operation.packed["lowered"][0]
    before = weights[0, 0]
    place = folder.data.read_bytes().find(weights.tobytes())
    with folder.data.open("r+b") as file:
        file.seek(place)
        file.write(np.float32(before + 1).tobytes())
    assert weights[0, 0] == before + 1
    assert not weights.flags.writeable


def resident_kib(path: Path) -> list[int]:
    """KiB that this process has in memory of each of its mappings of a file."""
    sizes = []
    is_wanted = False
    for line in Path("/proc/self/smaps").read_text("ascii").splitlines():
        first, *rest = line.split()
        if not first.endswith(":"):
            is_wanted = rest[-1] == str(path)
        elif is_wanted and first == "Rss:":
            sizes.append(int(rest[0]))
    return sizes


def test_loading_touches_no_weights(folder: Folder) -> None:
    folder.save(dense(False).model)
    program = folder.load().program
    assert resident_kib(folder.data) == [0]
    (step,) = program.plan(((1, INPUTS),)).steps
    assert resident_kib(folder.data) == [0]
    step.operation.packed["lowered"][0].sum()
    assert resident_kib(folder.data) > [0]


def test_what_is_not_to_be_mapped_is_copied(folder: Folder) -> None:
    folder.save(dense(False).model)
    program = folder.load(may_map=False).program
    os.truncate(folder.data, 0)
    (step,) = program.plan(((1, INPUTS),)).steps
    assert step.operation.packed["lowered"][0].any()


def test_files_that_others_may_write_are_copied(folder: Folder) -> None:
    folder.save(dense(False).model)
    folder.data.chmod(0o666)
    program = folder.load().program
    os.truncate(folder.data, 0)
    (step,) = program.plan(((1, INPUTS),)).steps
    assert step.operation.packed["lowered"][0].any()


def test_a_copy_is_of_one_compilation_whoever_writes_meanwhile(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save(dense(False).model)
    preadv = os.preadv

    def read_some_and_be_overtaken(
        fd: int, buffers: Sequence[memoryview], offset: int, *flags: int
    ) -> int:
        if flags or not os.path.samestat(os.fstat(fd), folder.data.stat()):
            return preadv(fd, buffers, offset, *flags)
        count = preadv(fd, [buffers[0][:64]], offset)
        if not offset:
            folder.save(dense(False).model)
        return count

    monkeypatch.setattr(os, "preadv", read_some_and_be_overtaken)
    with pytest.raises(GeneralFailureError, match="another compilation"):
        folder.load(may_map=False)


def test_nothing_is_written_over_a_file_that_is_mapped(folder: Folder) -> None:
    folder.save(dense(False).model)
    before = folder.model.read_bytes(), folder.data.read_bytes()
    program = folder.load().program
    with pytest.raises(GeneralFailureError, match="in use"):
        folder.save(dense(False, seed=1).model)
    assert (folder.model.read_bytes(), folder.data.read_bytes()) == before
    del program
    folder.save(dense(False, seed=1).model)
    assert folder.data.read_bytes() != before[1]


def test_files_hold_one_compilation_whoever_else_is_writing(folder: Folder) -> None:
    with folder.files(writable=True) as files, folder.files(writable=True) as others:
        compiled = Compiled(
            Program(dense(False).model), ExecutionPreference(1), Priority(1)
        )
        fcntl.flock(others.data.fd, fcntl.LOCK_EX)
        with pytest.raises(GeneralFailureError, match="in use"):
            completed(saving(compiled, files, folder.key))
        fcntl.flock(others.data.fd, fcntl.LOCK_UN)
    folder.save(dense(False).model)
    folder.load()


@pytest.mark.parametrize("room", [0, 100, 20_000, 40_000])
def test_what_does_not_fit_on_the_disk_is_not_left_there(
    folder: Folder, room: int
) -> None:
    folder.save(dense(False, seed=1).model)
    model = dense(False).model
    needed = folder.data.stat().st_size
    assert room < needed
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(GeneralFailureError, match="not cached"):
            folder.save(model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert folder.model.stat().st_size == folder.data.stat().st_size == 0
    with pytest.raises(GeneralFailureError):
        folder.load()


def test_another_version_of_the_driver_prepares_anew(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.save(dense(False).model)
    monkeypatch.setattr("asyncnn.devices.cache_format.PACKING_VERSION", -1)
    with pytest.raises(GeneralFailureError, match="version"):
        folder.load()


def test_another_key_reads_nothing(folder: Folder) -> None:
    folder.save(dense(False).model)
    (folder.model.parent / "key").unlink()  # another one is made
    with pytest.raises(GeneralFailureError, match="not as this driver wrote it"):
        folder.load()


def test_only_numbers_lie_outside_of_what_is_sealed(folder: Folder) -> None:
    folder.save(dense(True).model)
    content = memoryview(folder.model.read_bytes())
    record, slices = unsealed(CacheRecord, content, TOKEN, folder.key)
    model = joined(record.model, slices[: record.model_bytes])
    weights, bias, scalar = (
        operand for operand in model.main.operands if operand.location.length
    )
    sealed = model.operand_values
    assert weights.location.length > len(sealed)
    for operand in (bias, scalar):
        at = operand.location
        assert at.offset + at.length <= len(sealed)
    assert len(folder.model.read_bytes()) > TAG_BYTES + len(sealed)
