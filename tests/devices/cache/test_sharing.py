"""Clients that load a model from the same files share what is loaded."""

import shutil
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncnn.devices import caching
from asyncnn.hal.types import Model
from tests.devices.cache.client import CacheClient, outputs_of
from tests.devices.cache.folder import Folder
from tests.devices.cache.models import INPUTS, dense, image


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Model]:
    """The models that were read from files by then."""
    models: list[Model] = []
    decode = caching.joined

    def counted(*arguments: Any, **named: Any) -> Model:
        models.append(decode(*arguments, **named))
        return models[-1]

    monkeypatch.setattr(caching, "joined", counted)
    return models


@pytest.mark.parametrize("quantized", [False, True], ids=["f32", "q8"])
async def test_it_is_there_once(
    client: CacheClient, loaded: list[Model], quantized: bool
) -> None:
    named, x = dense(quantized), image(quantized)
    await client.save_file(named)
    expected = await outputs_of(named, await client.prepare(named.model), x)
    kept = [await client.load_file() for _ in range(3)]
    assert len(loaded) == 1
    for _, prepared in kept:
        assert prepared is not None
        np.testing.assert_array_equal(await outputs_of(named, prepared, x), expected)


async def test_it_goes_by_the_file_and_not_by_what_is_in_it(
    client: CacheClient, loaded: list[Model]
) -> None:
    await client.save_file(dense(False))
    kept = [await client.load_file()]
    copy = client.data_file.with_suffix(".copy")
    shutil.copyfile(client.data_file, copy)
    copy.replace(client.data_file)
    kept.append(await client.load_file())
    assert len(loaded) == 2


async def test_another_compilation_in_the_same_file_is_loaded(
    client: CacheClient, loaded: list[Model]
) -> None:
    x = image(False)
    await client.save_file(dense(False))
    _, first = await client.load_file()
    assert first is not None
    before = await outputs_of(dense(False), first, x)
    await client.save_file(dense(False, seed=1))
    _, second = await client.load_file()
    assert second is not None
    assert len(loaded) == 2
    assert (await outputs_of(dense(False), second, x) != before).any()


def test_what_nobody_uses_any_more_is_loaded_again(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.save(dense(False).model)
    first, second = folder.load(), folder.load()
    assert first.program is second.program
    shared = weakref.ref(first.program)
    del first, second
    assert shared() is None
    assert folder.load().program.plan(((1, INPUTS),)).steps
