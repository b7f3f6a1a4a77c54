"""What preparing a model yields, from its graph or from its cache."""

import msgspec

from asyncnn.engine import Program
from asyncnn.hal.types import ExecutionPreference, Priority


class Compiled(msgspec.Struct, frozen=True, eq=False):
    """A program, and how its client wants it to be executed."""

    program: Program
    preference: ExecutionPreference
    priority: Priority
