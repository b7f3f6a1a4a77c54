"""The protocol's calls that run nothing: what each answers, by HTTP as by gRPC.

Each takes the door of its server, and what is asked, of which it reads the fields that
the protocol has for that. It returns the fields of its answer: of a JSON object, or of
a message.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias, TypedDict

import asyncnn
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.oip.datatypes import datatype_of
from asyncnn.oip.repository import ServedModel
from asyncnn.oip.under_way import Door
from asyncnn.runtime.model import TensorInfo

EXTENSIONS = ("binary_tensor_data", "model_repository", "statistics", "sequence")
OF_REGIONS = "system_shared_memory"

Fields: TypeAlias = dict[str, Any]


class ServerRecord(TypedDict):
    """A server, and which extensions of the protocol it has."""

    name: str
    version: str
    extensions: list[str]


class TensorRecord(TypedDict):
    """An input or output; -1 stands for a length that each request chooses."""

    name: str
    datatype: str
    shape: list[int]


class ServedRecord(TypedDict):
    """A model: what a request for it has to have, and what comes back."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorRecord]
    outputs: list[TensorRecord]


class IndexRecord(TypedDict):
    """A version of a model, and whether it can be run."""

    name: str
    version: str
    state: str
    reason: str


async def live(_: Door, __: object) -> Fields:
    """Answer that the server is there."""
    return {"live": True}


async def ready(door: Door, _: object) -> Fields:
    """Answer whether the device can be reached, and requests are let in."""
    return {"ready": door.is_ready}


async def server(door: Door, _: object) -> ServerRecord:
    """Answer what the server is."""
    extensions = [
        *EXTENSIONS,
        *([OF_REGIONS] if door.repository.regions.is_open else []),
    ]
    return {"name": "asyncnn", "version": asyncnn.__version__, "extensions": extensions}


async def model_ready(door: Door, asked: Any) -> Fields:
    """Answer whether a model can be run."""
    served = door.repository.find(asked.name, asked.version)
    return {"name": served.name, "ready": served.ready and door.is_ready}


async def model(door: Door, asked: Any) -> ServedRecord:
    """Answer what a model takes and returns."""
    served = door.repository.usable(asked.name, asked.version)
    return {
        "name": served.name,
        "versions": [*door.repository.versions(served.name)],
        "platform": "asyncnn",
        "inputs": _tensors(served.inputs.values()),
        "outputs": _tensors(served.outputs.values()),
    }


def _tensors(infos: Iterable[TensorInfo]) -> list[TensorRecord]:
    return [
        {
            "name": info.name,
            "datatype": datatype_of(info),
            "shape": [length or -1 for length in info.dimensions],
        }
        for info in infos
    ]


async def statistics(door: Door, asked: Any) -> Fields:
    """Answer how often models were run: all, or one, or a version of it."""
    repository, name = door.repository, asked.name
    if asked.version:
        found: Iterable[ServedModel] = [repository.find(name, asked.version)]
    else:
        found = repository.versions(name).values() if name else repository
    return {"model_stats": [_statistics(served) for served in found]}


def _statistics(served: ServedModel) -> Fields:
    counts = served.tallies.counts
    successes = counts["success"][0]
    return {
        "name": served.name,
        "version": served.version,
        "last_inference": served.tallies.last_ms,
        "inference_count": successes,
        "execution_count": successes,
        "inference_stats": {
            name: {"count": count, "ns": ns} for name, (count, ns) in counts.items()
        },
    }


async def index(door: Door, asked: Any) -> dict[str, list[IndexRecord]]:
    """Answer which models there are, or are ready."""
    models: list[IndexRecord] = [
        {
            "name": served.name,
            "version": served.version,
            "state": "READY" if served.ready else "UNAVAILABLE",
            "reason": served.reason,
        }
        for served in door.repository
        if served.ready or not asked.ready
    ]
    return {"models": models}


async def load(door: Door, asked: Any) -> Fields:
    """Load a model from the file that the server was started with."""
    if asked.parameters:
        raise InvalidArgumentError(
            f"models cannot be loaded with {', '.join(asked.parameters)}"[:200],
            hint="their files are those that the server was started with",
        )
    await door.repository.load(asked.name)
    return {"name": asked.name, "ready": True}


async def unload(door: Door, asked: Any) -> Fields:
    """Let go of a model."""
    door.repository.unload(asked.name)
    return {"name": asked.name, "ready": False}


async def regions(door: Door, asked: Any) -> Fields:
    """Answer which regions of shared memory there are."""
    records = door.repository.regions.records(asked.name)
    return {"regions": {each["name"]: each for each in records}}


async def register(door: Door, asked: Any) -> Fields:
    """Know a region of shared memory."""
    span = asked.key, asked.offset, asked.byte_size
    door.repository.regions.register(asked.name, *span)
    return {}


async def unregister(door: Door, asked: Any) -> Fields:
    """Forget a region of shared memory, or all."""
    door.repository.regions.unregister(asked.name)
    return {}
