"""What both ways of running LiteRT are: engines that compile TFLite files."""

from abc import ABC, abstractmethod
from typing import TypeAlias

from asyncnn.devices.compiled_graph import CompiledGraph
from asyncnn.devices.litert.cuts import USUAL, Speeds
from asyncnn.devices.litert.graph_file import GraphFile
from asyncnn.devices.litert.weights import PackedWeights

Source: TypeAlias = bytes | bytearray | memoryview | GraphFile
"""What is compiled: a TFLite file."""


class Engine(ABC):
    """Compiles flatbuffers that asyncnn has written; others may end the process."""

    name: str
    version: str
    speeds: Speeds = USUAL
    """How fast it was measured to be."""

    @abstractmethod
    def compile(
        self,
        model: Source,
        *,
        threads: int = 1,
        weights: PackedWeights | None = None,
    ) -> CompiledGraph:
        """Return the graph of a TFLite flatbuffer, which is kept as long as needed.

        An open dimension counts as 1. ``weights`` keeps packed weights of this very
        model, of what lies apart too; engines that have no use for it ignore it.

        :raises GeneralFailureError: if it cannot be compiled.
        :raises ForkedError: in a child of the process that loaded the engine.
        """
