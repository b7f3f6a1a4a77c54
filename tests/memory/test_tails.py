"""Behind each mapping there are bytes that vectorised kernels may read."""

import ctypes
import mmap
from pathlib import Path

import numpy as np
import pytest

from asyncnn.memory.pages import TAIL_BYTES
from asyncnn.memory.pools import map_file


@pytest.mark.parametrize("offset", [0, 100, mmap.PAGESIZE])
@pytest.mark.parametrize("missing", [0, 1, TAIL_BYTES - 1, TAIL_BYTES, TAIL_BYTES + 1])
def test_behind_each_mapping_there_is_a_tail(
    missing: int, offset: int, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (4 * mmap.PAGESIZE - missing))
    data = map_file(path, offset, 3 * mmap.PAGESIZE - missing - offset).buffer
    assert data is not None
    array = np.frombuffer(data, np.uint8)
    assert bytes(array) == b"x" * array.size
    with_tail = array.size + TAIL_BYTES
    assert len(ctypes.string_at(array.ctypes.data, with_tail)) == with_tail
