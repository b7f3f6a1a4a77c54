"""Makes mutants of what decides in the package: one place of a function is changed.

What may be changed, and into what, is mutmut's to say; a seed draws the place first,
then one of its changes. Left out is what no test by behaviour can tell: annotations,
``if TYPE_CHECKING``, casts, log records, ``__repr__``, texts with blanks in them and
arguments that are such, ``strict`` of `zip`, None for False where that is assigned
(True is tried there), and what the compiler makes the same code of. What runs when a
module is imported, such as constants, defaults and fields of records, is left out as
well, as it is by mutmut.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import libcst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

import asyncnn

ROOT = Path(asyncnn.__file__).parent

PARTS: Mapping[str, tuple[str, ...]] = {
    "fmq": ("fmq/*.py",),
    "fences": ("fences/*.py",),
    "qos": ("qos/*.py",),
    "callbacks": ("callbacks.py", "turn.py"),
    "runs": (
        *("execution.py", "fenced_run.py", "devices/executable.py", "devices/run.py"),
        *("devices/fenced.py", "devices/prepared.py"),
    ),
    "service": (
        *("service/limits.py", "service/decoding.py", "service/wire.py"),
        *("service/driver/quotas.py", "service/driver/session.py"),
        *("service/driver/executions.py", "service/driver/fenced.py"),
        *("service/driver/pools.py", "service/driver/turns.py"),
    ),
    "engine": (
        *("engine/plan.py", "engine/plan_execution.py", "engine/delegation.py"),
        *("engine/workspace.py", "engine/job.py", "engine/control_flow.py"),
    ),
}
"""Files that are mutated, by the part of the package that they are counted for."""

_UNSEEN_CALLS = {"cast", "debug", "info", "warning", "error", "exception"}


class Place(NamedTuple):
    """A node of a function's body, and what may stand there instead."""

    path: tuple[libcst.CSTNode, ...]
    """Of the module, down to the function."""
    node: libcst.CSTNode
    changed: Sequence[libcst.CSTNode]
    at: str
    """Line and column."""
    lines: range
    """Of the statement that the node is in, if that has no others within."""


class Mutant(NamedTuple):
    """One change, and the code that functions have by it."""

    part: str
    file: str
    """Below the folder of the package."""
    path: str
    at: str
    lines: range
    before: str
    after: str
    codes: Sequence[tuple[CodeType, CodeType]]
    """Of each function that differs: as it is, and as it is to be."""

    @property
    def name(self) -> str:
        where = f"{self.file}:{self.at} {self.codes[0][0].co_qualname}"
        return f"{where}: {self.before} -> {self.after}"


class Source:
    """A file, and where it can be changed."""

    def __init__(self, part: str, path: Path, root: Path = ROOT) -> None:
        self.part, self.path = part, path
        self.file = path.relative_to(root).as_posix()

    @cached_property
    def _text(self) -> str:
        return self.path.read_text()

    @cached_property
    def _tree(self) -> MetadataWrapper:
        return MetadataWrapper(libcst.parse_module(self._text))

    @cached_property
    def _functions(self) -> list[CodeType]:
        return list(functions_of(compile(self._text, str(self.path), "exec")))

    @property
    def places(self) -> list[Place]:
        found = _Places(self._tree.resolve(PositionProvider))
        self._tree.module.visit(found)
        return found.places

    def mutant(self, place: Place, changed: libcst.CSTNode) -> Mutant | None:
        """Return the mutant; None if functions cannot have its code, or have it now."""
        module = self._tree.module
        text = _with(module, place.path, place.node, changed).code
        try:
            mutated = compile(text, str(self.path), "exec")
        except SyntaxError:
            return None
        both = zip(self._functions, functions_of(mutated), strict=True)
        codes = [pair for pair in both if pair[0] != pair[1]]
        if not codes or any(old.co_freevars != new.co_freevars for old, new in codes):
            return None
        shown = (
            " ".join(module.code_for_node(each).split())
            for each in (place.node, changed)
        )
        return Mutant(
            self.part, self.file, str(self.path), place.at, place.lines, *shown, codes
        )


class _Places(libcst.CSTVisitor):
    def __init__(self, positions: Mapping[libcst.CSTNode, Any]) -> None:
        self.places: list[Place] = []
        self._positions = positions
        self._path: list[libcst.CSTNode] = []
        self._functions = 0
        self._statement: range | None = None

    def on_visit(self, node: libcst.CSTNode) -> bool:
        if _is_left_out(node):
            return False
        if isinstance(node, libcst.FunctionDef):  # neither its defaults nor decorators
            self._functions += 1
            if self._functions == 1:
                self._path.append(node)
            node.body.visit(self)
            self._functions -= 1
            if not self._functions:
                self._path.pop()
            return False
        if isinstance(node, libcst.SimpleStatementLine):
            self._statement = self._lines(node)
        if not self._functions:
            self._path.append(node)
        else:
            changed = list(_changed(node))
            if changed:
                lines = self._statement or self._lines(node)
                start = self._positions[node].start
                at = f"{start.line}:{start.column}"
                self.places.append(Place((*self._path,), node, changed, at, lines))
        return True

    def on_leave(self, node: libcst.CSTNode) -> None:
        if isinstance(node, libcst.SimpleStatementLine):
            self._statement = None
        if not self._functions and self._path[-1:] == [node]:
            self._path.pop()

    def _lines(self, node: libcst.CSTNode) -> range:
        where = self._positions[node]
        return range(where.start.line, where.end.line + 1)


def _with(
    module: libcst.Module,
    path: Sequence[libcst.CSTNode],
    node: libcst.CSTNode,
    changed: libcst.CSTNode,
) -> Any:
    """Return the module with a node of a function changed.

    What is not on the path to the function is not looked at, which takes long.
    """
    function = path[-1]
    new: Any = function.deep_replace(node, changed)
    for within, part in zip(path[-2::-1], path[:0:-1], strict=True):
        body: Any = within
        if part is body.body:
            new = body.with_changes(body=new)
        else:
            new = body.with_changes(
                body=[new if each is part else each for each in body.body]
            )
    return new


def _is_left_out(node: libcst.CSTNode) -> bool:
    match node:
        case libcst.Annotation() | libcst.Arg(keyword=libcst.Name("strict")):
            return True
        case libcst.If(test=libcst.Name("TYPE_CHECKING")):
            return True
        case libcst.FunctionDef(name=libcst.Name("__repr__")):
            return True
        case libcst.Call(
            func=libcst.Name(name) | libcst.Attribute(attr=libcst.Name(name))
        ):
            return name in _UNSEEN_CALLS
    return False


def _changed(node: libcst.CSTNode) -> Iterator[libcst.CSTNode]:
    if _is_text(node) or _is_none_for_false(node):
        return
    for kind, operator in mutation_operators:
        if isinstance(node, kind):
            for changed in operator(node):
                if not isinstance(node, libcst.Call) or _takes_sense(node, changed):
                    yield changed


def _is_none_for_false(node: libcst.CSTNode) -> bool:
    """Return whether assigning `None` instead would be as good as what there is."""
    match node:
        case libcst.Assign(value=libcst.Name("False")):
            return True
        case libcst.AnnAssign(value=libcst.Name("False")):
            return True
    return False


def _is_text(node: libcst.CSTNode) -> bool:
    match node:
        case libcst.FormattedString() | libcst.ConcatenatedString():
            return True
        case libcst.SimpleString(value):
            return " " in value
    return False


def _takes_sense(call: libcst.Call, changed: Any) -> bool:
    """Return whether a change of a call takes none of texts and ``strict``."""
    kept = {id(argument) for argument in changed.args}
    taken = [argument for argument in call.args if id(argument) not in kept]
    return not any(
        _is_text(argument.value)
        or (argument.keyword is not None and argument.keyword.value == "strict")
        for argument in taken
    )


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of functions of a module, and of its classes, in their order."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & CO_OPTIMIZED:
                yield each
            else:
                yield from functions_of(each)


def sources() -> list[Source]:
    """Return the files of `PARTS`.

    :raises ValueError: if there are none by a name.
    """
    found = []
    for part, patterns in PARTS.items():
        for pattern in patterns:
            paths = sorted(ROOT.glob(pattern))
            if not paths:
                raise ValueError(f"there is no {pattern}")
            found += [Source(part, path) for path in paths]
    return found


def sample(count: int, seed: int, of: Sequence[Source]) -> list[Mutant]:
    """Draw mutants of different places, which all are as likely, by a seed."""
    chance = random.Random(seed)
    places = [(source, place) for source in of for place in source.places]
    chance.shuffle(places)
    drawn: list[Mutant] = []
    for source, place in places:
        mutant = source.mutant(place, chance.choice(place.changed))
        if mutant is not None:
            drawn.append(mutant)
        if len(drawn) == count:
            break
    return drawn
