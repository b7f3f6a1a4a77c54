"""The two sides of a difference: devices, and the runtimes that files are made for.

A side gives, for a series of samples, the outputs of its model as it is, and all
tensors that it shows by the operands of the model that they are. A device shows them by
running the model with temporaries as outputs, which keeps it from fusing operations;
LiteRT by keeping all tensors, which rules its XNNPACK delegate out; ONNX Runtime by a
model with more outputs.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import StateTensor
from asyncnn.tools.differing.extracts import Extract, ModelGraph
from asyncnn.tools.other_runtimes import (
    LiteRt,
    OnnxFile,
    litert_version,
    onnx_runtime_version,
    open_file,
    taken,
)
from asyncnn.tools.samples import Sample

Tensors: TypeAlias = dict[int, Array]
"""Arrays by the operands of the main subgraph, inputs included."""

PEERS = ("litert", "onnxruntime")
"""Names of sides that are no devices."""


class Side(Protocol):
    """Something that runs a model; ``title`` and ``version`` say what."""

    title: str
    version: str
    graph: ModelGraph

    async def outputs(self, samples: Sequence[Sample]) -> list[list[Array]]:
        """Return the outputs of the model as it is, by sample, states after them."""
        ...

    async def tensors(self, samples: Sequence[Sample]) -> list[Tensors]:
        """Return all tensors that it shows, by sample; states go on from each."""
        ...


class DeviceSide:
    """A model on a device."""

    def __init__(
        self,
        title: str,
        device: Device,
        graph: ModelGraph,
        states: Sequence[StateTensor],
    ) -> None:
        self.title = title
        self.version = device.version
        self.graph = graph
        self._device = device
        self._states = tuple(states)

    def with_graph(self, graph: ModelGraph) -> "DeviceSide":
        """Return another model, without state, on the same device."""
        return DeviceSide(self.title, self._device, graph, ())

    async def outputs(self, samples: Sequence[Sample]) -> list[list[Array]]:
        """See `Side`."""
        main = self.graph.main
        whole = Extract(self.graph.named, (), main.input_indexes, main.output_indexes)
        shown = await self._run_series(whole, samples)
        return [[tensors[index] for index in main.output_indexes] for tensors in shown]

    async def tensors(self, samples: Sequence[Sample]) -> list[Tensors]:
        """See `Side`."""
        results: list[Tensors] = [{} for _ in samples]
        for extract in self.graph.shown():
            shown = await self._run_series(extract, samples)
            for known, more in zip(results, shown, strict=True):
                known.update(more)
        return results

    async def run(
        self, extract: Extract, feeds: Sequence[Mapping[int, Array]]
    ) -> list[Tensors]:
        """Return the outputs of a part of the model for each set of given operands.

        :raises AsyncnnError: if the device refuses the part, or fails.
        """
        prepared = await self._device.prepare(extract.named)
        results: list[Tensors] = []
        for feed in feeds:
            given = [feed[index] for index in extract.inputs]
            outputs = (await prepared.run(given)).values()
            results.append(dict(zip(extract.outputs, outputs, strict=True)))
        return results

    async def _run_series(
        self, extract: Extract, samples: Sequence[Sample]
    ) -> list[Tensors]:
        """Run the whole model, step by step if it has state; inputs are shown too."""
        main = self.graph.main
        infos = self.graph.named.inputs
        prepared = await self._device.prepare(extract.named)
        held = [state.first_value() for state in self._states]
        count = len(held)
        last = main.output_indexes[len(main.output_indexes) - count :]
        results: list[Tensors] = []
        for sample in samples:
            arrays = [sample[info.name] for info in infos[: len(infos) - count]]
            feed = dict(zip(main.input_indexes, [*arrays, *held], strict=True))
            given = [feed[index] for index in extract.inputs]
            outputs = (await prepared.run(given)).values()
            shown = dict(zip(extract.outputs, outputs, strict=True))
            held = [shown[index] for index in last]
            results.append({**feed, **shown})
        return results


class PeerSide:
    """A model file in LiteRT or ONNX Runtime; ``graph`` is what it is here.

    What it keeps from one sample to the next it does not show, but what a step computes
    of it is what the next step finds.
    """

    def __init__(
        self,
        title: str,
        graph: ModelGraph,
        states: Sequence[StateTensor],
        path: Path,
        **options: Any,
    ) -> None:
        self.title = title
        self.graph = graph
        self._states = tuple(states)
        self._path = path
        self._options = options
        is_litert = title == "litert"
        self.version = litert_version() if is_litert else onnx_runtime_version()

    async def outputs(self, samples: Sequence[Sample]) -> list[list[Array]]:
        """See `Side`; what its file keeps in variables is not among them."""
        return [given for _, _, given in self._runs(samples, shows_all=False)]

    async def tensors(self, samples: Sequence[Sample]) -> list[Tensors]:
        """See `Side`."""
        named, main = self.graph.named, self.graph.main
        known = {
            name: index
            for index, name in enumerate(named.operand_names)
            if name and index in self.graph.writers
        }
        count = len(self._states)
        before = main.input_indexes[len(main.input_indexes) - count :]
        after = main.output_indexes[len(main.output_indexes) - count :]
        held = [state.first_value() for state in self._states]
        kept: Tensors = dict(zip(before, held, strict=True))
        results: list[Tensors] = []
        for sample, peer, outputs in self._runs(samples, shows_all=True):
            computed = peer.tensors(known).items()
            shown = {known[name]: array for name, array in computed}
            for index, array in zip(main.output_indexes, outputs, strict=False):
                shown.setdefault(index, array)
            inputs = zip(
                main.input_indexes, named.inputs, peer.input_kinds(), strict=False
            )
            shown |= {index: sample[info.name] for index, info, _ in inputs}
            here = {i: self._as_here(i, array) for i, array in shown.items()}
            results.append({**kept, **here})
            kept = {
                first: here[last]
                for first, last in zip(before, after, strict=True)
                if last in here
            }
        return results

    def _runs(
        self, samples: Sequence[Sample], *, shows_all: bool
    ) -> Iterator[tuple[Sample, LiteRt | OnnxFile, list[Array]]]:
        """Yield each sample with the runtime that has run it, and its outputs."""
        infos = self.graph.named.inputs
        peer = open_file(
            self._path,
            infos,
            samples[0],
            is_litert=self.title == "litert",
            shows_all=shows_all,
            **self._options,
        )
        feed = taken(peer, self.title, infos, may_take_fewer=True)
        for sample in samples:
            if not self._states:
                peer.reset()
            yield sample, peer, peer.run(feed(sample))

    def _as_here(self, index: int, array: Array) -> Array:
        """Return a tensor in the rank and dtype that its operand has."""
        declared = self.graph.main.operands[index].dimensions
        if array.size == 1 and array.ndim != len(declared) and declared:
            array = array.reshape((1,) * len(declared))
        return array.astype(np.int32) if array.dtype == np.int64 else array
