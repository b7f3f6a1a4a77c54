"""Files that are changed in place: what was loaded from them stays what it was."""

import gc
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx as package
import pytest

import asyncnn
from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import Memory
from asyncnn.memory import Mapper, MappingPolicy, shareable, view
from asyncnn.memory.handles import FIXED_CONTENTS, create_file, seal, seals_of
from asyncnn.runtime.model import NamedModel
from tests.processes import python
from tests.runtime import file_changes
from tests.runtime.file_changes import KINDS, WAYS, WEIGHTS, external, tflite

ROOT = Path(__file__).parents[2]

each_kind = pytest.mark.parametrize("kind", KINDS)


def _cases() -> list[object]:
    usual = {("models", kind, "in process") for kind in KINDS}
    usual |= {("models", "tflite", "driver"), ("models", "external", "driver")}
    usual |= {("caches", "tflite", "in process"), ("caches", "tflite", "driver")}
    every = [("models", kind, way) for kind in KINDS for way in WAYS]
    every += [("caches", "tflite", way) for way in WAYS]
    return [
        pytest.param(*case, marks=[] if case in usual else [pytest.mark.exhaustive])
        for case in every
    ]


@pytest.mark.parametrize(("scene", "kind", "way"), _cases())
def test_no_change_of_a_file_reaches_what_was_loaded_from_it(
    tmp_path: Path, scene: str, kind: str, way: str
) -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    ended = python("-m", file_changes.__name__, scene, kind, way, tmp_path, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout[-200:] + ended.stderr[-2000:]
    assert ended.stdout.endswith("done\n")


def shorten(path: Path) -> None:
    os.truncate(path, 100)


def rewrite(path: Path) -> None:
    path.write_bytes(path.read_bytes()[::-1])


def extend(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("change", [shorten, rewrite, extend])
@each_kind
def test_a_change_during_the_reading_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    change: Callable[[Path], None],
) -> None:
    path, *beside = KINDS[kind](tmp_path)
    changed = beside[0] if beside else path
    os.utime(changed, (1, 1))
    pages = changed.stat().st_size // 2
    preadv = os.preadv

    def read_some_and_be_overtaken(
        fd: int, buffers: Sequence[memoryview], offset: int
    ) -> int:
        is_last = os.path.samestat(os.fstat(fd), changed.stat()) and offset > pages
        count = preadv(fd, [buffers[0][: mmap.PAGESIZE]], offset)
        if is_last and changed.stat().st_mtime == 1:
            change(changed)
        return count

    monkeypatch.setattr(os, "preadv", read_some_and_be_overtaken)
    with pytest.raises(GeneralFailureError, match="changed while it was read") as error:
        asyncnn.load(path)
    assert "renaming" in error.value.hint
    assert str(changed) in str(error.value)


@each_kind
def test_to_replace_a_file_during_the_reading_is_no_change_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path, *beside = KINDS[kind](tmp_path)
    wanted = contents(asyncnn.load(path))
    changed = beside[0] if beside else path
    preadv = os.preadv

    def read_and_be_replaced(
        fd: int, buffers: Sequence[memoryview], offset: int
    ) -> int:
        if os.path.samestat(os.fstat(fd), changed.stat()):
            other = tmp_path / "other"
            other.write_bytes(b"other")
            other.replace(changed)
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", read_and_be_replaced)
    assert contents(asyncnn.load(path)) == wanted


def contents(named: NamedModel) -> list[bytes]:
    return [bytes(view(pool)) for pool in named.model.pools]


@each_kind
def test_a_driver_maps_what_the_client_has_read(tmp_path: Path, kind: str) -> None:
    named = asyncnn.load(KINDS[kind](tmp_path)[0])
    with Mapper(MappingPolicy(max_copied_bytes=0)) as mapper:
        for pool in map(shareable, named.model.pools):
            there = mapper.map(Memory(pool.name, pool.size, pool.handle))
            assert view(there) == view(pool)
            assert seals_of(pool.handle.fds[0]) & FIXED_CONTENTS == FIXED_CONTENTS


@each_kind
def test_nothing_but_the_pools_of_a_model_stays(tmp_path: Path, kind: str) -> None:
    path = KINDS[kind](tmp_path)[0]
    gc.collect()
    before = pools_here(), len(os.listdir("/proc/self/fd"))
    gc.disable()
    try:
        named = asyncnn.load(path)
        count = len({pool.handle.fds for pool in named.model.pools} - {()})
        assert pools_here() == before[0] + count
        needed = sum(weights.nbytes for weights in WEIGHTS)
        assert needed <= sum(pool.size for pool in named.model.pools) < 1.1 * needed
        del named
        assert (pools_here(), len(os.listdir("/proc/self/fd"))) == before
    finally:
        gc.enable()


def pools_here() -> int:
    """Return how many files of constants this process has mapped."""
    return Path("/proc/self/maps").read_text().count("asyncnn-constants")


def test_a_file_in_memory_that_is_sealed_is_not_copied(tmp_path: Path) -> None:
    (path,) = tflite(tmp_path)
    fd = create_file("model")
    os.write(fd, path.read_bytes())
    seal(fd, FIXED_CONTENTS)
    named = asyncnn.load(f"/proc/self/fd/{fd}")
    assert os.path.sameopenfile(named.model.pools[0].handle.fds[0], fd)
    os.close(fd)
    assert contents(named) == contents(asyncnn.load(path))


@pytest.mark.parametrize("head", [b"a film", b"", b"\x08\x08"])
def test_what_is_no_model_is_not_copied(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "large"
    path.write_bytes(head)
    os.truncate(path, 2**42)
    with pytest.raises(InvalidArgumentError, match="neither a TFLite, an ONNX"):
        asyncnn.load(path)


@pytest.mark.parametrize("head", [b"\0\0\0\0TFL3", b"ASYNCNN\0"])
def test_a_file_of_more_than_all_memory_is_an_error(
    tmp_path: Path, head: bytes
) -> None:
    path = tmp_path / "large"
    path.write_bytes(head)
    os.truncate(path, 2**42)
    with pytest.raises(ResourceExhaustedTransientError, match="allocate memory"):
        asyncnn.load(path)


class TestExternalFiles:
    def test_only_what_tensors_have_of_one_is_read(self, tmp_path: Path) -> None:
        path, beside = external(tmp_path)
        wanted = contents(asyncnn.load(path))
        os.truncate(beside, 2**42)
        assert contents(asyncnn.load(path)) == wanted

    def test_tensors_may_be_the_same_bytes_but_not_parts_of_others(
        self, tmp_path: Path
    ) -> None:
        path, beside = external(tmp_path)
        whole = package.load(path, load_external_data=False)
        first, second = whole.graph.initializer
        del second.external_data[:]
        second.external_data.extend(first.external_data)
        path.write_bytes(whole.SerializeToString())
        (pool,) = asyncnn.load(path, strict=True).model.pools
        same = np.frombuffer(view(pool), np.float32)[: WEIGHTS[0].size]
        np.testing.assert_array_equal(same, WEIGHTS[0].reshape(-1))
        os.truncate(beside, WEIGHTS[0].nbytes + 4)
        for entry in second.external_data:
            if entry.key == "offset":
                entry.value = "4"
        path.write_bytes(whole.SerializeToString())
        for strict in (False, True):
            with pytest.raises(InvalidArgumentError, match="overlaps others"):
                asyncnn.load(path, strict=strict)
