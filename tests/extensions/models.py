"""Models with operations of the extension."""

from msgspec.structs import replace

from asyncnn.hal.types import Operand
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests.extensions.vendor import COMPLEX, F32, MAGNITUDE


def magnitude(x: Operand | None = None, type_: int = MAGNITUDE) -> NamedModel:
    """``y = |x|``."""
    builder = ModelBuilder()
    source = builder.input("x", COMPLEX, (3,))
    builder.output(builder.operation(type_, [source], Operand(F32, (3,))), "y")
    named = builder.build()
    if x is None:
        return named
    main = named.model.main
    prefixed = replace(x, type=main.operands[0].type, lifetime=1, number_of_consumers=1)
    main = replace(main, operands=(prefixed, *main.operands[1:]))
    return NamedModel.of(replace(named.model, main=main), ["x"], ["y"])
