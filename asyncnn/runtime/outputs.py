"""What a run gives."""

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Timing


class Outputs(dict[str, Array]):
    """Output arrays by name, in the model's order; ``timing`` if it was measured."""

    __slots__ = ("timing",)

    timing: Timing
