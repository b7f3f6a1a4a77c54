"""Operators as ONNX defines them by others: bodies of functions, in place of a call.

A model has functions of its own; the `onnx` package has those for operators that its
specification composes of simpler ones. What has no converter is imported by its body.
"""

from collections.abc import Callable, Mapping
from typing import Any

from asyncnn.runtime.drafting import Value
from asyncnn.runtime.onnx.node import OnnxNode
from asyncnn.runtime.onnx.schema import DOMAINS, onnx_package
from asyncnn.runtime.onnx.tensors import NUMBERS


def body_of(node: OnnxNode, own: Any | None) -> Any | None:
    """Return the function that ``node`` calls, None if it calls none.

    :param own: the model's function of that name, which goes before all others.
    """
    if own is not None or node.proto.domain not in DOMAINS:
        return own
    onnx = onnx_package()
    try:
        schema = onnx.defs.get_schema(node.name, node.opset, "")
    except onnx.defs.SchemaError:
        return None
    if schema.has_context_dependent_function:
        versions = schema.context_dependent_function_opset_versions
        version = max((v for v in versions if v <= node.opset), default=None)
        if version is None:
            return None
        given = node.given_inputs[: len(node.proto.input)]
        types = [_type(onnx, value).SerializeToString() for value in given]
        text = schema.get_context_dependent_function_with_opset_version(
            version, node.proto.SerializeToString(), types
        )
        return onnx.FunctionProto.FromString(text) if text else None
    versions = schema.function_opset_versions
    version = max((v for v in versions if v <= node.opset), default=None)
    if version is None:
        return None
    text = schema.get_function_with_opset_version(version)
    return text if not isinstance(text, bytes) else onnx.FunctionProto.FromString(text)


def is_function(name: str) -> bool:
    """Return whether ONNX defines an operator by others."""
    defs = onnx_package().defs
    if not defs.has(name):
        return False
    schema = defs.get_schema(name)
    return bool(schema.has_function or schema.has_context_dependent_function)


def _type(onnx: Any, value: Value | None) -> Any:
    if value is None:
        return onnx.TypeProto()
    number = NUMBERS[value.dtype]
    return onnx.helper.make_tensor_type_proto(number, value.shape)


def instantiated(
    body: Any, call: Any, names: Mapping[str, Value], visit: Callable[[int], None]
) -> list[Any]:
    """Return the nodes of ``body`` as ``call`` means them.

    Attributes that refer to the call's have their values, and inputs that the
    call leaves out are left out. ``names`` are the inputs that it has. ``visit`` is
    given the number of nodes before they are copied.
    """
    given = _defaults(call)
    given.update((attribute.name, attribute) for attribute in body.attribute_proto)
    given.update((attribute.name, attribute) for attribute in call.attribute)
    absent = {name for name in body.input if name not in names}
    visit(len(body.node))
    return [_instantiated(node, given, absent, visit) for node in body.node]


def _defaults(call: Any) -> dict[str, Any]:
    """Return what the standard says of attributes that a call leaves out."""
    onnx = onnx_package()
    if call.domain not in DOMAINS or not onnx.defs.has(call.op_type):
        return {}
    attributes = onnx.defs.get_schema(call.op_type).attributes
    return {
        name: attribute.default_value
        for name, attribute in attributes.items()
        if attribute.default_value.type
    }


def _instantiated(
    node: Any, given: Mapping[str, Any], absent: set[str], visit: Callable[[int], None]
) -> Any:
    copy = type(node)()
    copy.CopyFrom(node)
    for index, name in enumerate(copy.input):
        if name in absent:
            copy.input[index] = ""
    for index in reversed(range(len(copy.attribute))):
        attribute = copy.attribute[index]
        if attribute.HasField("g"):
            visit(len(attribute.g.node))
            for position, inner in enumerate(attribute.g.node):
                changed = _instantiated(inner, given, absent, visit)
                attribute.g.node[position].CopyFrom(changed)
        if not attribute.ref_attr_name:
            continue
        value = given.get(attribute.ref_attr_name)
        if value is None:
            del copy.attribute[index]
        else:
            name = attribute.name
            attribute.CopyFrom(value)
            attribute.name = name
    return copy
