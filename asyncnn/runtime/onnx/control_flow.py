"""If, without control flow in the HAL: a condition that is known picks its branch.

Both branches of one that is not are computed, and their results selected.
"""

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.runtime.onnx.emitter import Value
from asyncnn.runtime.onnx.node import Converter, Node


def _if(node: Node) -> list[Value]:
    condition, draft = node.input(0), node.draft
    names = ("then_branch", "else_branch")
    graphs = [node.attribute(name) for name in names]
    if condition.data is not None:
        if condition.data.size != 1:
            raise InvalidArgumentError("a condition of several elements")
        return node.run(graphs[0 if condition.data.reshape(()) else 1])
    results = [node.run(graph) for graph in graphs]
    found = []
    for if_true, if_false in zip(*results, strict=True):
        if if_true.shape != if_false.shape or if_true.dtype != if_false.dtype:
            raise node.refuse(
                "a condition that is computed, with branches of different shapes or "
                f"types: {list(if_true.shape)} and {list(if_false.shape)}"
            )
        flag = draft.reshape(condition, ())
        found.append(draft.select(flag, if_true, if_false))
    return found


CONVERTERS: dict[str, Converter] = {"If": _if}
