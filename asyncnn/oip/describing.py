"""What clients are told of a server, its models and their use, in the protocol's words.

Both faces send these records: as JSON, and as messages of the same fields.
"""

from collections.abc import Iterable
from typing import Any, TypedDict

import asyncnn
from asyncnn.oip.datatypes import datatype_of
from asyncnn.oip.repository import Repository, ServedModel, Tally
from asyncnn.runtime.model import TensorInfo

EXTENSIONS = ("binary_tensor_data", "model_repository", "statistics", "sequence")
OF_REGIONS = "system_shared_memory"


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


class CountRecord(TypedDict):
    """How often something was done, and for how many nanoseconds in all."""

    count: int
    ns: int


class StatisticsRecord(TypedDict):
    """What became of the requests for a version of a model."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: dict[str, CountRecord]


def server_metadata(*, has_regions: bool) -> ServerRecord:
    """Return what the server is, and which extensions it has."""
    extensions = [*EXTENSIONS, *([OF_REGIONS] if has_regions else [])]
    return {"name": "asyncnn", "version": asyncnn.__version__, "extensions": extensions}


def model_metadata(repository: Repository, served: ServedModel) -> ServedRecord:
    """Return what a request for a model has to have; -1 is an open length."""
    return {
        "name": served.name,
        "versions": [*repository.versions(served.name)],
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


def index(repository: Repository, *, ready: bool = False) -> list[IndexRecord]:
    """Return the state of all models, or of those that are ready."""
    return [
        {
            "name": served.name,
            "version": served.version,
            "state": "READY" if served.ready else "UNAVAILABLE",
            "reason": served.reason,
        }
        for served in repository
        if served.ready or not ready
    ]


def statistics(
    repository: Repository, name: str = "", version: str = ""
) -> dict[str, Any]:
    """Return what became of requests for all models, or for one, or for a version.

    :raises UnknownNameError: if there is none of that name.
    """
    if version:
        asked: Iterable[ServedModel] = [repository.find(name, version)]
    else:
        asked = repository.versions(name).values() if name else repository
    return {"model_stats": [_statistics(served) for served in asked]}


def _statistics(served: ServedModel) -> StatisticsRecord:
    tallies = served.tallies
    return {
        "name": served.name,
        "version": served.version,
        "last_inference": tallies.last_ms,
        "inference_count": tallies.success.count,
        "execution_count": tallies.success.count,
        "inference_stats": {
            name: {"count": tally.count, "ns": tally.ns}
            for name, tally in vars(tallies).items()
            if isinstance(tally, Tally)
        },
    }
