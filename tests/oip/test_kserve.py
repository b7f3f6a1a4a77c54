"""KServe's client, as it is published, finds all that it expects of a server.

It is in a process of its own, as its messages have the names of tritonclient's.
"""

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from asyncnn.oip import Address, Repository, rest_served, rpc_served

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(find_spec("kserve") is None, reason="kserve is not there"),
]

CALLS = """
import asyncio, sys
import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, RESTConfig
from kserve import InferInput, InferRequest

X, Y = np.float32([1, 2]), np.float32([10, 20])


def request(binary, **parameters):
    inputs = [InferInput(name, [2], "FP32") for name in "xy"]
    for each, array in zip(inputs, (X, Y)):
        each.set_data_from_numpy(array, binary_data=binary)
    asked = dict(request_id="seven", parameters=parameters, model_version="1")
    return InferRequest("sum", inputs, **asked)


async def judge(client, error, *place):
    assert await client.is_server_live(*place)
    assert await client.is_server_ready(*place)
    assert await client.is_model_ready(*place, "sum")
    for binary in (False, True):
        asked = request(binary, priority=1, timeout=30_000_000)
        named = {"model_name": "sum"} if place else {}
        told = await client.infer(*place, asked, **named)
        assert (told.id, told.model_name) == ("seven", "sum")
        assert told.outputs[0].as_numpy().tolist() == [11, 22]
    try:
        await client.infer(*place, request(True, priority=7), **named)
    except error as raised:
        told = getattr(raised, "response", None)
        assert "priority is 7" in (str(raised) if told is None else told.text)
    else:
        raise AssertionError("it is refused")
    await client.close()


async def main(http, rpc):
    import grpc, httpx

    rest = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    await judge(rest, httpx.HTTPStatusError, f"http://{http}")
    await judge(InferenceGRPCClient(rpc, retries=0), grpc.RpcError)


asyncio.run(main(*sys.argv[1:]))
print("done")
"""


async def test_all_its_calls_work_by_http_and_grpc(
    repository: Repository, tmp_path: Path
) -> None:
    anywhere = Address.of(":0")
    async with (
        rest_served(repository, anywhere) as http,
        rpc_served(repository, anywhere) as rpc,
    ):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CALLS, str(http), str(rpc)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=tmp_path,
        )
        out, err = await process.communicate()
    assert out == b"done\n", err.decode()
