"""A device behind the protocol's ports, and clients of strangers for them.

What may not be installed is imported when it is used.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import asyncnn
from asyncnn import oip
from tests.networks import addition, counting_up
from tests.runtime.stateful import counting

ANY = ":0"
KINDS = ("http", "grpc")


class Client:
    """tritonclient's for one of both ports, whose calls are nearly the same."""

    def __init__(self, kind: str, address: object, **options: Any) -> None:
        self.kind, self.address = kind, str(address)
        self.module: Any = import_module(f"tritonclient.{kind}")
        self.own = import_module(f"tritonclient.{kind}.aio").InferenceServerClient(
            self.address, **options
        )

    def input(self, name: str, array: Any) -> Any:
        array = np.asarray(array)
        to_datatype = import_module("tritonclient.utils").np_to_triton_dtype
        given = self.module.InferInput(name, array.shape, to_datatype(array.dtype))
        given.set_data_from_numpy(array)
        return given

    async def infer(self, model: str, arrays: dict[str, Any], **options: Any) -> Any:
        inputs = [self.input(*each) for each in arrays.items()]
        return await self.own.infer(model, inputs, **options)

    async def told(self, method: str, *given: Any, **options: Any) -> Any:
        """What a method tells, as JSON has it, where numbers of 64 bits are texts."""
        as_json = {"as_json": True} if self.kind == "grpc" else {}
        return await getattr(self.own, method)(*given, **options, **as_json)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    models = {"sum": addition(2), "endless": counting_up(), "counter": counting()}
    for name, model in models.items():
        asyncnn.save(model, folder / f"{name}.asyncnn")
    return {name: folder / f"{name}.asyncnn" for name in models}


@asynccontextmanager
async def loaded(
    files: dict[str, Path], *, shares_memory: bool = False, **limits: Any
) -> AsyncIterator["oip.Repository"]:
    async with asyncnn.open_device() as device:
        named = [oip.NamedFile(name, "1", path) for name, path in files.items()]
        repository = oip.Repository(
            device, named, oip.OipLimits(**limits), shares_memory=shares_memory
        )
        await repository.load_all()
        yield repository
        repository.close()


@asynccontextmanager
async def talking(
    kind: str, repository: "oip.Repository", *security: "oip.Security", **options: Any
) -> AsyncIterator[Client]:
    """Serve a repository, and have a client of that server."""
    serve = {"http": oip.rest_served, "grpc": oip.rpc_served}[kind]
    async with serve(repository, oip.Address.of(ANY), *security) as address:
        made = Client(kind, address, **options)
        yield made
        await made.own.close()


@pytest.fixture
async def repository(files: dict[str, Path]) -> AsyncIterator["oip.Repository"]:
    async with loaded(files) as opened:
        yield opened


@pytest.fixture(params=KINDS)
async def client(
    request: pytest.FixtureRequest, repository: "oip.Repository"
) -> AsyncIterator[Client]:
    async with talking(request.param, repository) as made:
        yield made


@pytest.fixture
async def grpc_address(repository: "oip.Repository") -> AsyncIterator["oip.Address"]:
    async with oip.rpc_served(repository, oip.Address.of(ANY)) as address:
        yield address


@pytest.fixture
async def rest(repository: "oip.Repository") -> AsyncIterator[httpx.AsyncClient]:
    """Calls by HTTP that need no port."""
    from asyncnn.oip.rest import rest_application
    from asyncnn.oip.under_way import Door

    application = rest_application(Door(repository), oip.Tokens(), {})
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as made:
        yield made
