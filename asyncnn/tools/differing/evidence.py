"""Keeps what repeats the error of an operation: a model of it alone, and inputs."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from asyncnn.hal.errors import AsyncnnError
from asyncnn.runtime.container import SUFFIX, save
from asyncnn.tools.differing.extracts import Extract, compacted
from asyncnn.tools.differing.finding import PlacedOperation
from asyncnn.tools.differing.levels import Level
from asyncnn.tools.differing.sides import DeviceSide, Tensors
from asyncnn.tools.samples import named_arrays, save_arrays


class Evidence(msgspec.Struct, frozen=True):
    """Files with an operation and its inputs, and the command that runs them.

    ``inputs`` has what the operation read where the models diverged, and as outputs
    what the other side made of it. ``repeats`` says whether it diverges by itself too,
    None if it has not diverged.
    """

    place: str
    model: str
    against: str
    inputs: str
    command: str
    repeats: bool | None


def model_files(path: Path) -> tuple[Path, Path]:
    """Return where the models of an operation go whose inputs go to ``path``."""
    return path.with_suffix(SUFFIX), path.with_suffix(f".against{SUFFIX}")


async def keep(
    entry: PlacedOperation, path: Path, between: Sequence[str], options: Sequence[str]
) -> Evidence:
    """Write an operation, for another model its twin, and the inputs to ``path``.

    The models get its name with another suffix. The command has ``options``, of
    tolerance and of extensions.

    :raises GeneralFailureError: if a model cannot be written.
    :raises OSError: if the inputs cannot be.
    """
    level, position = entry.level, entry.position
    sample = level.worst.get(position, 0)
    extract = level.alone(position)
    if not extract.inputs:
        extract = level.alone(position, is_constant=False)
    twin = _twin(level, position, extract)
    feed = {index: level.value(index, sample) for index in extract.inputs}
    outputs = [level.value(index, sample) for index in extract.outputs]
    arrays = named_arrays("input", extract.named.inputs, feed.values())
    arrays |= named_arrays("output", extract.named.outputs, outputs)
    save_arrays(path, arrays)
    model, other = model_files(path)
    save(compacted(extract.named), model)
    against = ""
    files = [str(model)]
    if twin is not None and not level.pairing.is_same:
        save(compacted(twin.named), other)
        against = str(other)
        files.append(against)
    given = ["--input", str(path)] if extract.inputs else []
    if isinstance(level.other, DeviceSide) and twin is not None:
        words = ["diff", *files, *given, "--between", ",".join(between), *options]
    else:
        check = ["--check", str(path), "--device", level.device.title]
        words = ["run", str(model), *given, *check, *options]
    return Evidence(
        entry.place,
        str(model),
        against,
        str(path),
        shlex.join(["asyncnn", *words]),
        await _repeats(level, position, extract, twin, feed, sample),
    )


def _twin(level: Level, position: int, extract: Extract) -> Extract | None:
    """Return what computes the same in the other model, if it reads the same."""
    if level.pairing.is_same:
        return extract
    pairs, graph = level.pairing.tensors, level.other.graph
    outputs = [pairs[index] for index in extract.outputs]
    shown = {pairs[i]: i for i in level.graph.writers if level.is_shown(i)}
    given = {
        index: level.there[0][index] if index in graph.folded else None
        for index in shown
        if index in graph.writers
    }
    if any(index not in graph.writers for index in outputs):
        return None
    chosen = {
        each for index in outputs for each in graph.needed(graph.writers[index], given)
    }
    twin = graph.extract(chosen, given, outputs)
    same = list(twin.inputs) == [pairs.get(index) for index in extract.inputs]
    return twin if same else None


async def _repeats(
    level: Level,
    position: int,
    extract: Extract,
    twin: Extract | None,
    feed: Tensors,
    sample: int,
) -> bool | None:
    if not level.diverges(position):
        return None
    try:
        (mine,) = await level.device.run(extract, [feed])
        theirs = await _made_by_other(level, twin, feed, sample)
    except AsyncnnError:
        return False
    return not all(level.distance(i, mine[i], theirs).passed for i in extract.outputs)


async def _made_by_other(
    level: Level, twin: Extract | None, feed: Tensors, sample: int
) -> Tensors:
    """Return what the other side computes, or has computed if it is no device."""
    there = level.there[sample]
    if twin is None or not isinstance(level.other, DeviceSide):
        return there
    if level.pairing.is_same:
        given = feed
    else:
        given = {index: there[index] for index in twin.inputs}
    (computed,) = await level.other.run(twin, [given])
    return computed
