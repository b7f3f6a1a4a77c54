"""The public names and their signatures: a change of them is deliberate.

After such a change write the list anew: ``python -m tests.test_public_api``.
"""

import ast
import difflib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import msgspec

from asyncnn.fmq.ring import PythonRing, Ring
from asyncnn.turn import End, PythonEnd

PACKAGES = (
    "asyncnn",
    "asyncnn.burst",
    "asyncnn.callbacks",
    "asyncnn.cluster",
    "asyncnn.devices",
    "asyncnn.extensions",
    "asyncnn.fences",
    "asyncnn.fmq",
    "asyncnn.hal",
    "asyncnn.hal.operations",
    "asyncnn.hal.validate",
    "asyncnn.hal.versions",
    "asyncnn.kernels",
    "asyncnn.memory",
    "asyncnn.metrics",
    "asyncnn.oip",
    "asyncnn.pipeline",
    "asyncnn.qos",
    "asyncnn.service",
    "asyncnn.tracing",
    "asyncnn.web",
)

LIST = Path(__file__).with_name("public_api.txt")

SHARED = {"Extension"}
"""Names of several public classes: the HAL's record of an extension has the name there,
and what packages declare one by has it here. No other name is to be added.
"""


STATEMENTS = {
    "__aenter__",
    "__aiter__",
    "__await__",
    "__call__",
    "__enter__",
    "__iter__",
    "__len__",
}
"""Methods by which objects take part in statements: their names are public as well."""


class _Text(str):
    """Stands in a signature as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class _Written(msgspec.Struct, frozen=True):
    """Annotations and defaults of a definition, as its file has them.

    Evaluated, they would tell what NumPy and typing are on this machine, and where
    objects lie in memory.
    """

    annotations: Mapping[str, str]
    defaults: Mapping[str, str]
    returned: str = ""


@cache
def _definitions(file: str) -> dict[str, ast.stmt]:
    """Return functions and classes of a file by qualified name; the last one counts."""
    found: dict[str, ast.stmt] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found[f"{prefix}{node.name}"] = node
            elif isinstance(node, ast.ClassDef):
                found[f"{prefix}{node.name}"] = node
                collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If):
                collect([*node.body, *node.orelse], prefix)

    collect(ast.parse(Path(file).read_text()).body, "")
    return found


def _of_function(function: Callable[..., object]) -> _Written:
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return _Written({}, {})
    node = _definitions(code.co_filename).get(function.__qualname__)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return _Written({}, {})
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    every = [*positional, given.vararg, *given.kwonlyargs, given.kwarg]
    first_default = len(positional) - len(given.defaults)
    defaults = [
        *zip(positional[first_default:], given.defaults, strict=True),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return _Written(
        {each.arg: _source(each.annotation) for each in every if each is not None},
        {each.arg: _source(default) for each, default in defaults},
        _source(node.returns),
    )


def _of_struct(class_: type) -> _Written:
    annotations: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for base in reversed(class_.__mro__):
        if not base.__module__.startswith("asyncnn"):
            continue
        node = _definitions(str(inspect.getsourcefile(base)))[base.__qualname__]
        assert isinstance(node, ast.ClassDef)
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        annotations |= {ast.unparse(f.target): _source(f.annotation) for f in fields}
        defaults |= {ast.unparse(f.target): _source(f.value) for f in fields if f.value}
    return _Written(annotations, defaults)


def _source(node: ast.expr | None) -> str:
    """Return an expression as it is written, without the quotes of a forward name."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return ast.unparse(ast.parse(node.value, mode="eval"))
        except SyntaxError:
            return ast.unparse(node)
    return ast.unparse(node)


def _signature(value: Any) -> str:
    if get_origin(value):  # an alias; since Python 3.13 it has that of its origin
        return ""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    if not isinstance(value, type):
        written = _of_function(value)
    elif issubclass(value, msgspec.Struct):
        written = _of_struct(value)
    else:
        written = _of_function(value.__init__)
    parameters = [_plain(each, written) for each in signature.parameters.values()]
    signature = signature.replace(
        parameters=parameters, return_annotation=inspect.Signature.empty
    )
    has_result = written.returned and not isinstance(value, type)
    return f"{signature} -> {written.returned}" if has_result else str(signature)


def _function(name: str, function: Any) -> str:
    awaited = "async " if inspect.iscoroutinefunction(function) else ""
    return f"{awaited}{name}{_signature(function)}"


def _plain(parameter: inspect.Parameter, written: _Written) -> inspect.Parameter:
    annotation = written.annotations.get(parameter.name)
    if annotation:
        parameter = parameter.replace(annotation=_Text(annotation))
    # What is not a literal is told as it is written.
    if parameter.default is not parameter.empty and "<" in repr(parameter.default):
        default = written.defaults.get(parameter.name, "...")
        parameter = parameter.replace(default=_Text(default))
    return parameter


def _members(class_: type) -> Iterator[str]:
    if issubclass(class_, Enum):
        yield from (f"{k} = {each.value!r}" for k, each in class_.__members__.items())
    for name in sorted(each for each in dir(class_) if _is_public(each)):
        member = inspect.getattr_static(class_, name)
        # What is compiled has no signatures, and does what its twin does.
        for compiled, twin in ((Ring, PythonRing), (End, PythonEnd)):
            if issubclass(class_, compiled) and inspect.ismethoddescriptor(member):
                member = inspect.getattr_static(twin, name, member)
        if isinstance(member, (property, cached_property)):
            getter: Any = member.fget if isinstance(member, property) else member.func
            if _is_ours(getter):
                yield f"{name}: {_of_function(getter).returned}"
        elif isinstance(member, (staticmethod, classmethod)):
            if _is_ours(member.__func__):
                yield _function(name, getattr(class_, name))
        elif inspect.isfunction(member) and _is_ours(member):
            yield _function(name, member)


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name in STATEMENTS


def _is_ours(function: Callable[..., object]) -> bool:
    """Return whether a member is not merely inherited from elsewhere."""
    return str(getattr(function, "__module__", "")).startswith("asyncnn")


def _class(name: str, class_: type) -> Iterator[str]:
    bases = ", ".join(each.__name__ for each in class_.__bases__ if each is not object)
    yield f"class {name}({bases})" if bases else f"class {name}"
    is_protocol = getattr(class_, "_is_protocol", False)
    made = "" if is_protocol or issubclass(class_, Enum) else _signature(class_)
    if made:
        yield f"    {class_.__name__}{made}"
    yield from (f"    {member}" for member in _members(class_))


def _described(module: ModuleType, told: dict[int, str]) -> Iterator[str]:
    for name in sorted(module.__all__):
        value = getattr(module, name)
        full = f"{module.__name__}.{name}"
        if not callable(value):
            yield f"{full}: {type(value).__name__}"
        elif id(value) in told:
            yield f"{full} = {told[id(value)]}"
        else:
            told[id(value)] = full
            is_class = isinstance(value, type)
            yield from _class(full, value) if is_class else [_function(full, value)]


def public_api() -> str:
    """Return the list: a line for each name, and for each member of a class.

    What several packages have is told with the first of them.
    """
    modules = map(importlib.import_module, PACKAGES)
    told: dict[int, str] = {}
    return "".join(
        f"{line}\n" for module in modules for line in _described(module, told)
    )


def test_public_names_and_signatures_are_as_listed() -> None:
    wanted, found = LIST.read_text(), public_api()
    difference = "\n".join(
        difflib.unified_diff(
            wanted.splitlines(), found.splitlines(), "listed", "found", lineterm="", n=0
        )
    )
    assert not difference, f"{difference}\n\nwrite it anew: {__doc__}"


def test_no_two_public_classes_share_a_name() -> None:
    modules = [importlib.import_module(name) for name in PACKAGES]
    classes: dict[str, set[type]] = {}
    for module in modules:
        for name in module.__all__:
            if isinstance(value := getattr(module, name), type):
                classes.setdefault(name, set()).add(value)
    assert len(classes) > 100
    assert {name for name, found in classes.items() if len(found) > 1} == SHARED


def test_the_list_has_no_facts_of_this_machine() -> None:
    text = LIST.read_text()
    assert " at 0x" not in text
    assert str(Path(__file__).parent.parent) not in text


if __name__ == "__main__":
    LIST.write_text(public_api())
