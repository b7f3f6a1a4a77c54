"""Tensors lie in shared memory of a client, which may do to it what it likes."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException
from tritonclient.utils import shared_memory as of_clients

from asyncnn.memory.posix_memory import OwnedObject, own_name
from asyncnn.oip.repository import Repository
from tests.oip.conftest import KINDS, Client, loaded, talking

X, Y = np.float32([1, 2]), np.float32([10, 20])
KEY = f"/oip-{os.getpid()}"


@pytest.fixture
async def sharing(files: dict[str, Path]) -> AsyncIterator[Repository]:
    limits: dict[str, Any] = {"max_regions": 2, "max_request_bytes": 4000}
    async with loaded(files, shares_memory=True, **limits) as opened:
        yield opened


@pytest.fixture(params=KINDS)
async def client(
    request: pytest.FixtureRequest, sharing: Repository
) -> AsyncIterator[Client]:
    async with talking(request.param, sharing) as made:
        yield made


@pytest.fixture
def memory() -> Iterator[Any]:
    """Inputs x and y, and room for z, at 0, 8 and 16."""
    handle = of_clients.create_shared_memory_region("region", KEY, 8192)
    of_clients.set_shared_memory_region(handle, [X, Y])
    yield handle
    of_clients.destroy_shared_memory_region(handle)


async def infer(client: Client, *places: tuple[str, int, int], out: Any = None) -> Any:
    """Run ``sum`` on inputs in the region; each has a name, a size and an offset."""
    inputs = []
    for name, size, offset in places:
        given = client.module.InferInput(name, [2], "FP32")
        given.set_shared_memory("region", size, offset)
        inputs.append(given)
    outputs = []
    if out is not None:
        outputs = [client.module.InferRequestedOutput("z")]
        outputs[0].set_shared_memory("region", *out)
    return await client.own.infer("sum", inputs, outputs=outputs)


async def test_inputs_and_outputs_are_there(client: Client, memory: Any) -> None:
    await client.own.register_system_shared_memory("region", KEY, 4096, 0)
    result = await infer(client, ("x", 8, 0), ("y", 8, 8), out=(100, 16))
    z = of_clients.get_contents_as_numpy(memory, np.float32, [2], offset=16)
    np.testing.assert_array_equal(z, [11, 22])
    told = result.get_output("z")
    shape = told["shape"] if isinstance(told, dict) else told.shape
    assert [*shape] == [2]
    # One that comes with the request, and one that does not; the answer does.
    given = client.module.InferInput("x", [2], "FP32")
    given.set_shared_memory("region", 8, 8)
    result = await client.own.infer("sum", [given, client.input("y", X)])
    np.testing.assert_array_equal(result.as_numpy("z"), [11, 22])


async def test_regions_are_known_until_they_are_forgotten(
    client: Client, memory: Any
) -> None:
    async def names(*which: str) -> set[str]:
        told = await client.told("get_system_shared_memory_status", *which)
        records = told if isinstance(told, list) else told.get("regions", {}).values()
        assert all(int(each["byte_size"]) == 64 for each in records)
        return {each["name"] for each in records}

    own = client.own
    for name, offset in (("a", 0), ("b", 64)):
        await own.register_system_shared_memory(name, KEY, 64, offset)
    assert await names() == {"a", "b"}
    assert await names("b") == {"b"}
    with pytest.raises(InferenceServerException, match="max_regions"):
        await own.register_system_shared_memory("c", KEY, 64, 0)
    await own.unregister_system_shared_memory("a")
    assert await names() == {"b"}
    with pytest.raises(InferenceServerException, match="no region 'a'"):
        await names("a")
    await own.unregister_system_shared_memory()
    assert await names() == set()


@pytest.mark.parametrize(
    ("key", "size", "offset", "words"),
    [
        ("{KEY}", 8193, 0, "not within"),
        ("{KEY}", 8192, 1, "not within"),
        ("{KEY}", 0, 0, "not within"),
        ("/nothing-there", 8, 0, "no shared memory"),
        ("../etc", 8, 0, "no name of shared memory"),
        (own_name("secret"), 8, 0, "asyncnn's own"),
    ],
)
async def test_what_is_no_region_is_refused(
    client: Client, memory: Any, key: str, size: int, offset: int, words: str
) -> None:
    place = "region", key.format(KEY=KEY), size, offset
    with (
        closing(OwnedObject(own_name("secret"), 8)),
        pytest.raises(InferenceServerException, match=words),
    ):
        await client.own.register_system_shared_memory(*place)


async def test_a_name_is_short_as_it_is_kept(client: Client, memory: Any) -> None:
    with pytest.raises(InferenceServerException, match="has 257 characters"):
        await client.own.register_system_shared_memory("r" * 257, KEY, 8, 0)


async def test_what_others_may_access_is_refused(client: Client, memory: Any) -> None:
    os.chmod(f"/dev/shm{KEY}", 0o666)
    with pytest.raises(InferenceServerException, match="others than its user"):
        await client.own.register_system_shared_memory("region", KEY, 8, 0)


@pytest.mark.parametrize(
    ("place", "out", "words"),
    [
        ((8, 4089), None, "not within region"),
        ((8, 1 << 40), None, "not within region"),
        ((12, 0), None, "has 12 bytes in region"),
        ((8, 0), (4, 16), "output 'z' has 8 bytes"),
        ((8, 0), (8, 4090), "not within region"),
    ],
)
async def test_what_is_not_within_a_region_is_refused(
    client: Client, memory: Any, place: tuple[int, int], out: Any, words: str
) -> None:
    await client.own.register_system_shared_memory("region", KEY, 4096, 0)
    with pytest.raises(InferenceServerException, match=words):
        await infer(client, ("x", *place), ("y", 8, 8), out=out)


async def test_one_that_is_cut_short_harms_nobody(client: Client, memory: Any) -> None:
    await client.own.register_system_shared_memory("region", KEY, 4096, 0)
    for size in (12, 16):  # before the second input, and before the output
        os.truncate(f"/dev/shm{KEY}", size)
        with pytest.raises(InferenceServerException, match="was cut short"):
            await infer(client, ("x", 8, 0), ("y", 8, 8), out=(8, 16))
        assert os.stat(f"/dev/shm{KEY}").st_size == size
    os.truncate(f"/dev/shm{KEY}", 8192)
    await infer(client, ("x", 8, 0), ("y", 8, 8), out=(8, 16))


async def test_its_bytes_are_those_of_a_request(client: Client, memory: Any) -> None:
    await client.own.register_system_shared_memory("region", KEY, 8192, 0)
    given = client.module.InferInput("x", [2000], "FP32")
    given.set_shared_memory("region", 8000, 0)
    with pytest.raises(InferenceServerException, match="max_request_bytes is 4000"):
        await client.own.infer("sum", [given])


async def test_there_are_none_unless_the_server_is_to_have_them(
    repository: Repository, memory: Any
) -> None:
    for kind in KINDS:
        async with talking(kind, repository) as client:
            with pytest.raises(InferenceServerException, match="--shared-memory"):
                await client.own.register_system_shared_memory("r", KEY, 8, 0)
