"""Stages as users describe them, and where every input of every stage comes from.

An input is put with the frame, or is the output of an earlier stage, or state of the
same stage. Types and shapes are checked before anything is allocated.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
from numpy.typing import ArrayLike

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import TensorInfo, has_fixed_shape
from asyncnn.runtime.prepared import PreparedModel


class Stage(msgspec.Struct, frozen=True, eq=False):
    """One model that every frame runs through. All its shapes must be fixed.

    ``state`` names outputs, each with the input that takes it in the next frame. The
    first frame takes the array of ``initial``, by name of the input, or zeros. With
    ``state_on``, the device that the model is on, state that no other stage takes stays
    in its driver.

    A stage that ``keeps_state`` has in ``state`` what a session would keep, too: each
    of ``model.states`` by its name, from its first value on.

    ``inputs`` says for inputs by name what they take: ``"STAGE.OUTPUT"`` of a stage
    before, or ``"put.NAME"``, something that is put. The others take, in order, the
    outputs of the stage before that are not state; in the first stage, what is put
    under their own names.
    """

    name: str
    model: PreparedModel
    inputs: Mapping[str, str] = {}
    state: Mapping[str, str] = {}
    initial: Mapping[str, ArrayLike] = {}
    state_on: Device | None = None
    keeps_state: bool = False

    def opened(self) -> "Stage":
        """Return the same stage, of a model that has no state of its own to keep."""
        if not self.keeps_state:
            return self
        model, kept, first = self.model.with_open_states()
        return msgspec.structs.replace(
            self,
            model=model,
            state={**self.state, **kept},
            initial={**first, **self.initial},
            keeps_state=False,
        )


PUT = "put"
"""Stands for a stage of that name in what `Stage.inputs` says."""


class FromPut(msgspec.Struct, frozen=True):
    """Input ``position`` of what is put."""

    position: int


class FromStage(msgspec.Struct, frozen=True):
    """Output ``position`` of stage ``stage``, of the same frame."""

    stage: int
    position: int


class FromState(msgspec.Struct, frozen=True):
    """Output ``position`` of the stage itself, of the frame before."""

    position: int


Source: TypeAlias = FromPut | FromStage | FromState


class Wiring(msgspec.Struct, frozen=True):
    """For each stage, the sources of its inputs in order; and what is put.

    ``feeds`` has the stages whose outputs of the same frame each stage takes, and
    ``taken`` the names of the outputs that others take of each.
    """

    sources: tuple[tuple[Source, ...], ...]
    feeds: tuple[tuple[int, ...], ...]
    taken: tuple[frozenset[str], ...]
    put: tuple[TensorInfo, ...]


def wire(stages: Sequence[Stage]) -> Wiring:
    """Connect ``stages``.

    :raises InvalidArgumentError: if there is none, a name is unknown or used twice, a
        shape is open, or an input has no source or one that does not fit.
    """
    names = [stage.name for stage in stages]
    if not stages or len({PUT, *names}) != len(names) + 1:
        raise InvalidArgumentError(f"stages need names of their own, not {names}")
    wirer = _Wirer(stages)
    sources = tuple(tuple(wirer.sources(index)) for index in range(len(stages)))
    feeds = tuple(
        tuple(sorted({s.stage for s in inputs if isinstance(s, FromStage)}))
        for inputs in sources
    )
    used = {s for inputs in sources for s in inputs if isinstance(s, FromStage)}
    taken = tuple(
        frozenset(
            stage.model.outputs[s.position].name for s in used if s.stage == index
        )
        for index, stage in enumerate(stages)
    )
    return Wiring(sources, feeds, taken, tuple(wirer.put))


class _Wirer:
    def __init__(self, stages: Sequence[Stage]) -> None:
        self._stages = stages
        self.put: list[TensorInfo] = []

    def sources(self, index: int) -> Iterator[Source]:
        """Yield the sources of a stage's inputs in order."""
        stage = self._stages[index]
        _check_names(stage)
        fed_back = {taken: given for given, taken in stage.state.items()}
        following = self._following(index)
        for info in stage.model.inputs:
            if info.name in fed_back:
                position = _position(stage, fed_back[info.name])
                source: Source = FromState(position)
            elif info.name in stage.inputs:
                source = self._named(index, info, stage.inputs[info.name])
            elif index == 0:
                source = self._from_put(info, info.name)
            else:
                source = next(following, None) or _missing(stage, info)
            self._check(stage, info, source, index)
            yield source
        if not stage.inputs and next(following, None) is not None:
            raise InvalidArgumentError(
                f"stage {stage.name} takes fewer inputs than the stage before gives",
                hint="say in inputs which it takes",
            )

    def _following(self, index: int) -> Iterator[Source]:
        """Yield the outputs of the stage before that are not state."""
        if index:
            before = self._stages[index - 1]
            for position, info in enumerate(before.model.outputs):
                if info.name not in before.state:
                    yield FromStage(index - 1, position)

    def _named(self, index: int, info: TensorInfo, path: str) -> Source:
        name, dot, output = path.partition(".")
        if name == PUT and dot:
            return self._from_put(info, output)
        for number, stage in enumerate(self._stages[:index]):
            if stage.name == name and dot:
                return FromStage(number, _position(stage, output))
        raise InvalidArgumentError(
            f"stage {self._stages[index].name} cannot take {path!r}",
            hint=f"STAGE.OUTPUT of a stage before, or {PUT}.NAME",
        )

    def _from_put(self, info: TensorInfo, name: str) -> FromPut:
        for position, known in enumerate(self.put):
            if known.name == name:
                return FromPut(position)
        self.put.append(msgspec.structs.replace(info, name=name))
        return FromPut(len(self.put) - 1)

    def _check(
        self, stage: Stage, info: TensorInfo, source: Source, index: int
    ) -> None:
        """Check that ``source`` is what the input takes."""
        match source:
            case FromPut(position):
                given = self.put[position]
            case FromStage(other, position):
                given = self._stages[other].model.outputs[position]
            case FromState(position):
                given = stage.model.outputs[position]
        if _described(given) != _described(info):
            raise InvalidArgumentError(
                f"input {info.name} of stage {stage.name} takes {_described(info)}, "
                f"but {given.name} is {_described(given)}"
            )


def _check_names(stage: Stage) -> None:
    """Check that everything a stage names is there, and every shape is fixed."""
    inputs = {info.name for info in stage.model.inputs}
    taken = [*stage.inputs, *stage.state.values()]
    unknown = [name for name in (*taken, *stage.initial) if name not in inputs]
    if unknown or len(set(taken)) != len(taken):
        raise InvalidArgumentError(
            f"stage {stage.name} has no input {', '.join(unknown)}"
            if unknown
            else f"an input of stage {stage.name} is named twice"
        )
    stateless = [name for name in stage.initial if name not in stage.state.values()]
    if stateless:
        raise InvalidArgumentError(
            f"input {stateless[0]} of stage {stage.name} is initial, but no state"
        )
    for info in (*stage.model.inputs, *stage.model.outputs):
        if not has_fixed_shape(info):
            raise InvalidArgumentError(
                f"{info.name} of stage {stage.name} has no fixed shape"
            )


def _position(stage: Stage, output: str) -> int:
    for position, info in enumerate(stage.model.outputs):
        if info.name == output:
            return position
    raise InvalidArgumentError(f"stage {stage.name} has no output {output!r}")


def _missing(stage: Stage, info: TensorInfo) -> Source:
    raise InvalidArgumentError(
        f"nothing is left for input {info.name} of stage {stage.name}",
        hint="the stage before gives too few outputs; say in inputs what it takes",
    )


def _described(info: TensorInfo) -> str:
    plain = f"{info.dtype} {list(info.dimensions)}"
    if not info.scale:
        return plain
    return f"{plain} of scale {info.scale:.9g}, zero point {info.zero_point}"
