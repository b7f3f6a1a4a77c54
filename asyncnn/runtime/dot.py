"""Draws models as Graphviz text: types, shapes, and what a device makes of them.

Operations are boxes, operands ellipses, both numbered as in the model. Inputs and
outputs of the model are white on black; operations that the device does not support
are red, with the reason as a tooltip. Referenced subgraphs are clusters of their own.

Source: graphDump of the HAL's runtime (GraphDump.h).
"""

import sys
from collections.abc import Iterator
from itertools import cycle
from typing import TextIO

from asyncnn.deadlines import format_duration
from asyncnn.extensions import Vocabulary, names_in, numbered
from asyncnn.hal.errors import in_one_line
from asyncnn.hal.types import Model, OperandLifeTime
from asyncnn.logs import MODEL
from asyncnn.runtime.dot_subgraphs import (
    FoldedDrawing,
    Reports,
    WholeDrawing,
    operand_node,
    operation_node,
    place_of,
    quoted,
)
from asyncnn.runtime.explain import Explanation
from asyncnn.runtime.model import NamedModel, TensorInfo

_COLORS = ("lightblue", "palegreen", "khaki", "plum", "lightgray", "orange")
"""Of the devices that a model is divided among, in the order of their names."""


def dot(
    model: NamedModel | Model,
    explanation: Explanation | None = None,
    *,
    folded: bool = False,
) -> str:
    """Return the Graphviz text of a model, marked with what a device says of it.

    A bare `Model` has no names for its inputs and outputs. With ``folded``, scalars
    are attributes of their operation, which also shows types and shapes of its
    weights: large models can be read so.
    """
    reports: Reports = {}
    colors: dict[str, str] = {}
    device, places = "", set()
    if explanation is not None:
        device = explanation.device
        reports = {(r.subgraph, r.index): r for r in explanation.operations}
        devices = sorted({each.device for each in explanation.partitions})
        colors = dict(zip(devices, cycle(_COLORS), strict=False))
        places = {place_of(r, device) for r in explanation.operations if r.is_supported}
    names, words = _border_names(model), _vocabulary(model)
    bare = model.model if isinstance(model, NamedModel) else model
    lines = ["digraph model {", "  compound=true;", "  node [fontname=monospace];"]
    if folded:
        lines.append("  edge [fontname=monospace fontsize=10];")
    is_device_known = folded and len(places) == 1
    title = _title(explanation) if explanation is not None else []
    if is_device_known and not title:
        title = [f"on {places.pop()}"]
    if title:
        lines.append(f"  label={quoted(chr(10).join(title))};")
    kind = FoldedDrawing if folded else WholeDrawing
    subgraphs = range(len(bare.referenced))
    main, *referenced = (
        kind(
            model=bare,
            number=number,
            names=names if number is None else {},
            words=words,
            reports=reports,
            device=device,
            colors=colors,
            is_device_known=is_device_known,
        )
        for number in (None, *subgraphs)
    )
    lines += [f"  {line}" for line in main.lines()]
    for number, drawing in enumerate(referenced):
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f"    label={quoted(f'referenced subgraph {number}')};")
        lines += [f"    {line}" for line in drawing.lines()]
        lines.append("  }")
    lines += [f"  {line}" for line in _references(bare, folded)]
    return "\n".join([*lines, "}", ""])


def graph_dump(name: str, model: Model, to: TextIO | None = None) -> None:
    """Write the Graphviz text of a model to a stream, under a ``name``.

    Without one it goes to the log: under the tag ``model`` where ``ASYNCNN_VLOG`` has
    it on, else standard error. The HAL's ``graphDump``.
    """
    text = f"// {in_one_line(name)}\n{dot(model)}"
    if to is None and MODEL.is_on:
        MODEL(text)
    else:
        print(text, end="", file=sys.stderr if to is None else to)


def _title(explanation: Explanation) -> list[str]:
    if explanation.problem:
        return [explanation.problem]
    steps = [
        f"{number}: {each.device}, {len(each.operations)} operations, "
        f"about {format_duration(each.expected_us)}"
        for number, each in enumerate(explanation.partitions)
    ]
    return steps + [
        f"{each.device}: {each.engine}, {len(each.operations)} operations, "
        f"about {format_duration(each.expected_us)}"
        for each in explanation.segments
    ]


def _references(model: Model, folded: bool) -> Iterator[str]:
    """Yield a dashed edge to each subgraph from what refers to it.

    That is an operand, or the operation that it is folded into.
    """
    for place, subgraph in enumerate((model.main, *model.referenced), -1):
        number = None if place < 0 else place
        targets = {
            index: operand.location.offset
            for index, operand in enumerate(subgraph.operands)
            if operand.lifetime == OperandLifeTime.SUBGRAPH
        }
        pairs = [(operand_node(number, index), to) for index, to in targets.items()]
        if folded:
            pairs = [
                (operation_node(number, index), targets[operand])
                for index, operation in enumerate(subgraph.operations)
                for operand in operation.inputs
                if operand in targets
            ]
        for source, target in pairs:
            yield (
                f"{source} -> {operation_node(target, 0)} "
                f"[style=dashed lhead=cluster_{target}];"
            )


def _vocabulary(model: NamedModel | Model) -> Vocabulary:
    if isinstance(model, NamedModel):
        return model.vocabulary
    return Vocabulary(numbered(model), names_in(model))


def _border_names(model: NamedModel | Model) -> dict[int, str]:
    if isinstance(model, Model):
        return {}
    main = model.model.main
    kept = [state.info for state in model.states]
    ends: list[tuple[int, TensorInfo]] = [
        *zip(main.input_indexes, [*model.inputs, *kept], strict=True),
        *zip(main.output_indexes, [*model.outputs, *kept], strict=True),
    ]
    return {index: info.name for index, info in ends}
