"""Runs models step by step: states by hand in the engine, or by LiteRT."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncnn.engine import PlanExecution, Program
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.model import NamedModel
from tests.runtime.tflite.importing import import_tflite


class Steps:
    """A model whose states after a step are those before the next."""

    def __init__(self, model: NamedModel | bytes) -> None:
        if isinstance(model, bytes):
            model = import_tflite(from_buffer(model))
        self.named = model
        self._program = Program(model.model)
        self.reset()

    def reset(self) -> None:
        self.states = [state.first_value() for state in self.named.states]

    def step(self, *inputs: Any) -> list[np.ndarray]:
        """Return the outputs, states left out."""
        arrays = [
            np.asarray(value, info.dtype).reshape(info.dimensions)
            for value, info in zip(inputs, self.named.inputs, strict=True)
        ]
        arrays += self.states
        plan = self._program.plan(tuple(array.shape for array in arrays))
        count = len(self.named.outputs) + len(self.states)
        execution = PlanExecution(self._program, plan, arrays, [None] * count)
        assert execution.advance()
        outputs = [array.copy() for array in execution.outputs]
        self.states = outputs[len(self.named.outputs) :]
        return outputs[: len(self.named.outputs)]


class LiteRtSteps:
    """LiteRT's interpreter on the same file, with optimised or reference kernels."""

    def __init__(
        self,
        file: bytes,
        *,
        reference: bool = True,
        shapes: Sequence[Sequence[int]] = (),
    ) -> None:
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        resolvers = OpResolverType
        self._interpreter = Interpreter(
            model_content=file,
            num_threads=1,
            experimental_op_resolver_type=resolvers.BUILTIN_REF
            if reference
            else resolvers.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
        details = self._interpreter.get_input_details()
        for detail, shape in zip(details, shapes, strict=False):
            self._interpreter.resize_tensor_input(detail["index"], shape)
        self._interpreter.allocate_tensors()

    def step(self, *inputs: Any) -> list[np.ndarray]:
        details = self._interpreter.get_input_details()
        for detail, value in zip(details, inputs, strict=True):
            array = np.asarray(value, detail["dtype"]).reshape(detail["shape"])
            self._interpreter.set_tensor(detail["index"], array)
        self._interpreter.invoke()
        return [
            self._interpreter.get_tensor(detail["index"])
            for detail in self._interpreter.get_output_details()
        ]


def assert_steps_agree(
    file: bytes,
    samples: Sequence[Sequence[Any]],
    *,
    tolerance: float = 1e-5,
    reference: bool = True,
) -> Steps:
    """Check each step's outputs: bits if they are not floats; return what stepped."""
    steps, expected = Steps(file), LiteRtSteps(file, reference=reference)
    for number, inputs in enumerate(samples):
        pairs = zip(steps.step(*inputs), expected.step(*inputs), strict=True)
        for actual, wanted in pairs:
            where = f"step {number}"
            shape = wanted.shape or (1,)
            assert actual.shape == shape, where
            if wanted.dtype == np.float32:
                np.testing.assert_allclose(
                    actual, wanted.reshape(shape), tolerance, tolerance, err_msg=where
                )
            else:
                np.testing.assert_array_equal(actual, wanted.reshape(shape), where)
    return steps
