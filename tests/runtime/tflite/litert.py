"""Runs TFLite files in LiteRT."""

from collections.abc import Sequence

import numpy as np


def run_litert(
    file: bytes, inputs: Sequence[np.ndarray], *, reference: bool = False
) -> list[np.ndarray]:
    """Return the outputs, with state from zero, of optimised or reference kernels."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    resolvers = OpResolverType
    interpreter = Interpreter(
        model_content=file,
        num_threads=1,
        experimental_op_resolver_type=resolvers.BUILTIN_REF
        if reference
        else resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    interpreter.reset_all_variables()
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return [
        interpreter.get_tensor(detail["index"])
        for detail in interpreter.get_output_details()
    ]
