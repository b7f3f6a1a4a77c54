"""What both ways of running LiteRT are: engines that compile TFLite files."""

import logging
from abc import ABC, abstractmethod

from asyncnn.devices.compiled_graph import CompiledGraph
from asyncnn.devices.litert.graph_file import Source, for_want_of_room
from asyncnn.devices.litert.weights import PackedWeights
from asyncnn.engine.costs import USUAL, Speeds
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.interpreter_hooks import disown_in_children, forked_error

logger = logging.getLogger(__name__)


class Engine(ABC):
    """Compiles TFLite files asyncnn wrote or checked; others may end the process."""

    name: str
    speeds: Speeds = USUAL
    """How fast it was measured to be."""
    computes_float16: bool = False
    """Whether it can be asked to compute float32 as float16."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._is_forked = False
        disown_in_children(self)

    def disown(self) -> None:
        """Refuse all use: this is a forked child of the process that loaded it."""
        self._is_forked = True

    def compile(
        self,
        model: Source,
        *,
        threads: int = 1,
        weights: PackedWeights | None = None,
        float16: bool = False,
    ) -> CompiledGraph:
        """Return the graph of a TFLite flatbuffer, which is kept as long as needed.

        An open dimension counts as 1. ``weights`` keeps packed weights of this very
        model, of what lies apart too. With ``float16``, float32 is computed as that
        where the CPU can. Engines that have no use for either ignore it.

        :raises GeneralFailureError: if it cannot be compiled.
        :raises ResourceExhaustedError: if memory or descriptors have run out.
        :raises ForkedError: in a child of the process that loaded the engine.
        """
        if self._is_forked:
            raise forked_error("an engine")
        with for_want_of_room(model):
            if float16 and self.computes_float16:
                try:
                    return self._compile(model, threads, weights, True)
                except GeneralFailureError as error:  # the CPU has no such kernels
                    logger.info("%s computes no float16: %s", self.name, error)
            return self._compile(model, threads, weights, False)

    @abstractmethod
    def _compile(
        self, model: Source, threads: int, weights: PackedWeights | None, float16: bool
    ) -> CompiledGraph:
        """Do it, where there is room."""
