"""Whether a model is refused for the lengths that it is given."""

from collections.abc import Iterator
from itertools import islice, product

from msgspec.structs import replace

from asyncnn.engine.plan import (
    CONSTANT_LIFETIMES,
    bound_operand,
    constant_array,
    operation_type,
)
from asyncnn.engine.program import InputShapes, declared_shapes
from asyncnn.hal.operands import has_unknown_dimensions, is_scalar
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    BoundOperand,
    BoundOperation,
    OperationFailedError,
    ValueNeededError,
)
from asyncnn.hal.types import Model, OperandLifeTime

_DIVISIBLE = 5040
"""A length that many others divide."""

_MOST_TRIED = 4096


def refuses_lengths(model: Model, shapes: InputShapes | None = None) -> bool:
    """Return whether an operation refuses the lengths that it gets, and takes others.

    They follow from the main graph's inputs: ``shapes``, or the declared ones.
    """
    main = model.main
    given = declared_shapes(main) if shapes is None else shapes
    known = {
        index: () if is_scalar(operand.type) else operand.dimensions
        for index, operand in enumerate(main.operands)
        if is_scalar(operand.type) or not has_unknown_dimensions(operand)
    }
    known |= {
        index: shape
        for index, shape in zip(main.input_indexes, given or (), strict=False)
        if shape is not None
    }

    def bound(index: int) -> BoundOperand:
        operand = main.operands[index]
        is_constant = operand.lifetime in CONSTANT_LIFETIMES
        value = constant_array(model, operand) if is_constant else None
        return bound_operand(operand, known.get(index), value)

    for operation in main.operations:
        try:
            whole = BoundOperation(
                operation_type(operation.type),
                tuple(
                    bound(index)
                    if main.operands[index].lifetime != OperandLifeTime.NO_VALUE
                    else None
                    for index in operation.inputs
                ),
                tuple(map(bound, operation.outputs)),
            )
            inferred = infer_shapes(whole)
        except OperationFailedError:
            return _takes_others(whole)
        except Exception:  # only a run shows it, or it is of an unknown extension
            continue
        for index, shape in zip(operation.outputs, inferred, strict=True):
            if shape is not None:
                known[index] = shape
    return False


def _takes_others(operation: BoundOperation) -> bool:
    """Return whether shapes can be inferred with other lengths of what is not constant.

    Tried are a long one, and the other inputs' where a length is 1.
    """
    inputs = operation.inputs
    known = {n for each in inputs if each is not None for n in each.shape or ()}
    long = _DIVISIBLE * (1 + max(known, default=0) // _DIVISIBLE)

    def variants(operand: BoundOperand | None) -> Iterator[BoundOperand | None]:
        yield operand
        if operand is not None and operand.value is None and operand.shape:
            lengths = [{n, long, *(known if n == 1 else ())} for n in operand.shape]
            yield from (replace(operand, shape=each) for each in product(*lengths))

    for tried in islice(product(*map(variants, inputs)), _MOST_TRIED):
        try:
            infer_shapes(replace(operation, inputs=tried))
        except ValueNeededError:
            return True
        except Exception:  # an extension's rule raises anything
            continue
        return True
    return False
