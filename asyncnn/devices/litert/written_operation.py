"""One operation in a graph of its own, as it is when it has been claimed.

To write it again in the graph of its segment takes as long as claiming it. So what was
written is added there as it is, where the operands have the forms that it was written
for: those in which the HAL stores them.
"""

from collections.abc import Sequence

from asyncnn.devices.litert.operand_tensors import OperandTensors
from asyncnn.devices.litert.tflite_graph import Graph, Tensor
from asyncnn.hal.operations.bound import BoundOperation


class WrittenOperation:
    """``operation`` in ``graph``, where ``inputs`` and ``outputs`` are its operands."""

    def __init__(self, operation: BoundOperation) -> None:
        self.graph = Graph()
        self.values = OperandTensors(self.graph)
        count = len(operation.inputs)
        self.inputs = range(count)
        self.outputs = range(count, count + len(operation.outputs))
        for index, operand in enumerate(operation.inputs):
            if operand is not None and operand.value is None:
                self.values.add_input(index, operand)

    def add_to(
        self,
        graph: Graph,
        values: OperandTensors,
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> bool:
        """Add it to ``graph``; ``inputs`` and ``outputs`` number its operands there.

        False if that would not be what writing it there gives: an operand has another
        form, or more than one.
        """
        known: dict[int, Tensor] = {}
        made: list[tuple[int, Tensor]] = []
        for index in self.values.known():
            form = self.values.only_form(index)
            if form is None:
                return False
            if index in self.outputs:
                made.append((outputs[index - len(self.inputs)], form))
                continue
            there = values.only_form(inputs[index])
            if there is None or there.type != form.type:
                return False
            known[form.number] = there
        tensors = graph.append(self.graph, known)
        for index, form in made:
            values.put(index, tensors[form.number])
        return True
