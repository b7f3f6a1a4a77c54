"""What a frame has become."""

from collections.abc import Iterable

from asyncnn.hal.operations.bound import Array


class FrameResult(dict[str, Array]):
    """Outputs of the last stage by name, without its state; the arrays are copies.

    ``number`` counts the frames that were put, from 0, dropped ones included.
    ``latency_us`` is the time since then, in microseconds.
    """

    __slots__ = ("latency_us", "number")

    def __init__(
        self, number: int, latency_us: int, outputs: Iterable[tuple[str, Array]]
    ) -> None:
        super().__init__(outputs)
        self.number = number
        self.latency_us = latency_us

    def __repr__(self) -> str:
        return f"<FrameResult {self.number} {list(self)} {self.latency_us} us>"
