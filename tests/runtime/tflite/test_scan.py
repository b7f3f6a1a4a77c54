"""The scan in C takes no file that Python would not, and says the same of it."""

import importlib.util
import re
import struct
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import tflite
from msgspec.structs import replace

from asyncnn.engine.costs import estimated_of_graph_ns
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import HalVersion, Model
from asyncnn.hal.validate import validate_model
from asyncnn.hal.validate.model import is_known
from asyncnn.memory.pools import from_buffer
from asyncnn.pacing import completed
from asyncnn.runtime.model_file import load
from asyncnn.runtime.tflite.region import is_hybrid, region_of_graph
from asyncnn.tflite import scan
from asyncnn.tools.fuzz.twins import by_python, by_scan, same_file, same_graphs
from tests.runtime.tflite.cases import const, f32, i8, ramp
from tests.runtime.tflite.files import Op, Signature, T, write
from tests.runtime.tflite.graphs import conv_2d
from tests.runtime.tflite.layer_cases import CASES, TYPED_CASES
from tests.runtime.tflite.mutating import fields_of, mutant
from tests.runtime.tflite.region_cases import FILES
from tests.runtime.tflite.test_heads import headed, wide_file

NAME = "asyncnn.tflite._scan"
SOURCE = Path(scan.__file__).with_name("_scan.c")
BUILT = importlib.util.find_spec(NAME) is not None
needs_compiled = pytest.mark.skipif(not BUILT, reason="no scan was compiled")

UNUSUAL = ("loop", "volumes", "float64", "uint32")
DAMAGED = (InvalidArgumentError, ValueError, struct.error)


def is_taken(data: bytes) -> bool:
    return scan.scanned(data) is not None


def broken_rule(model: Model) -> str:
    """Return which rule a model breaks; empty if none."""
    try:
        validate_model(model)
    except InvalidArgumentError as error:
        return error.message
    return ""


def check_alike(data: bytes) -> None:
    """Check what is said of a file that the scan takes."""
    assert same_file(data)
    found, quick = by_python(data), by_scan(data)
    assert quick is not None
    assert is_hybrid(quick.graphs[0]) == is_hybrid(found.graphs[0])
    steps = region_of_graph(quick, quick.graphs[0], from_buffer(data), None)
    with suppress(InvalidArgumentError):  # of signatures
        model = completed(steps).model
        assert is_known(model, HalVersion.AIDL_V4)
        again = replace(model)
        assert not is_known(again, HalVersion.AIDL_V4)
        assert not broken_rule(again)


def layers() -> bytes:
    """Return a file of a few layers, with all that the scan looks at."""
    x, hidden, y = i8(1, 4, 4, 2), i8(1, 4, 4, 4), i8(1, 64)
    weights = ramp((4, 1, 1, 2), np.int8, scale=(0.5, 0.25, 0.1, 0.2))
    # Some files say so of a bias, which has one axis.
    bias = ramp((4,), np.int32, scale=(0.025, 0.0125, 0.005, 0.01), axis=3)
    shape = Op("RESHAPE", [hidden, const([1, 64])], [y], "ReshapeOptions")
    padded = Op("PAD", [y, const([[0, 0], [1, 1]])], [i8(1, 66)], "PadOptions")
    return write(
        [conv_2d(x, weights, bias, hidden), shape, padded],
        [x],
        padded.outputs,
        signatures=[Signature("serve", {"in": x}, {"out": padded.outputs[0]})],
    )


def long_chain() -> bytes:
    """Return a file that is long enough to have barriers."""
    values = [f32(64, 512) for _ in range(8)]
    weights = ramp((512, 512))
    operators = [
        Op("FULLY_CONNECTED", [a, weights], [b], "FullyConnectedOptions")
        for a, b in pairwise(values)
    ]
    return write(operators, values[:1], values[-1:])


def calls_of(function: Callable[[], object]) -> int:
    """Return how many functions of Python a call goes through."""
    events = Counter[str]()

    def see(frame: FrameType, event: str, argument: object) -> None:
        events[event] += 1

    sys.setprofile(see)
    try:
        function()
    finally:
        sys.setprofile(None)
    return events["call"]


def made(name: str) -> bytes:
    """Return one of the files that cannot be translated."""
    make: Callable[[], bytes] = FILES[name]
    return make()


@cache
def taken() -> dict[str, bytes]:
    """Return files that the scan takes."""
    files = {each.name: each.file() for each in (*CASES, *TYPED_CASES)}
    files |= {name: made(name) for name in FILES}
    return {name: data for name, data in files.items() if is_taken(data)}


@needs_compiled
class TestFiles:
    def test_most_are_taken_and_said_to_be_what_they_are(self) -> None:
        assert len(taken()) > 300
        for data in taken().values():
            check_alike(data)

    @pytest.mark.parametrize("name", UNUSUAL)
    def test_unusual_ones_are_left_to_python(self, name: str) -> None:
        assert not is_taken(made(name))

    @pytest.mark.parametrize("make", [layers, long_chain, wide_file])
    def test_litert_gets_the_same(self, make: Callable[[], bytes]) -> None:
        data = bytes(make())
        quick = by_scan(data)
        assert quick is not None
        heads = [headed(by_python(data)), headed(quick)]
        one, other = (by_python(head) for head in heads)
        assert len(one.graphs[0].operators) >= len(quick.graphs[0].operators)
        same_graphs(other, one)

    @pytest.mark.parametrize(("make", "most"), [(layers, 150), (long_chain, 200)])
    def test_heads_are_made_of_what_was_reported(
        self, make: Callable[[], bytes], most: int
    ) -> None:
        quick = by_scan(make())
        assert quick is not None
        headed(quick)
        assert calls_of(lambda: headed(quick)) <= most

    def test_loading_reads_little_again(self) -> None:
        data = layers()
        load(data)
        assert calls_of(lambda: load(data)) <= 330

    def test_what_may_change_is_read_whole(self) -> None:
        steps = scan.reading_checked(memoryview(layers()), is_final=False)
        assert completed(steps).graphs[0].survey is None

    def test_records_are_a_sequence(self) -> None:
        found = by_scan(layers())
        assert found is not None
        tensors = found.graphs[0].tensors
        assert tensors[-1] is tensors[len(tensors) - 1]
        assert [*reversed(tensors[1:3])] == [tensors[2], tensors[1]]
        with pytest.raises(IndexError):
            tensors[len(tensors)]

    def test_references_are_counted(self) -> None:
        data = layers()
        before = sys.getrefcount(data), sys.getrefcount(None)
        for _ in range(300):
            assert is_taken(data)
            assert not is_taken(data[:64])
        after = sys.getrefcount(data), sys.getrefcount(None)
        assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True))
        assert not re.findall(r"\bPy_RETURN_\w+;", SOURCE.read_text())

    def test_rules_of_another_size_are_refused(self) -> None:
        with pytest.raises(ValueError, match="rules of 1 bytes"):
            scan._built.scan(layers(), b"x", *[None] * 5)


def check_mutants(data: bytes, seed: int, count: int) -> int:
    """Check changed files; return how many the scan took."""
    places, found = fields_of(data), 0
    for number in range(count):
        changed = mutant(data, places, np.random.default_rng((seed, number)))
        if not is_taken(changed):
            continue
        found += 1
        try:
            completed(scan.reading_checked(memoryview(changed), is_final=True))
        except DAMAGED:
            # Of signatures, which both read alike.
            with pytest.raises(DAMAGED):
                by_python(changed)
        else:
            check_alike(changed)
    return found


@needs_compiled
@pytest.mark.parametrize("seed", range(2))
def test_what_it_takes_of_changed_files_is_sound(seed: int) -> None:
    assert check_mutants(layers(), seed, 1500) > 50


@needs_compiled
@pytest.mark.parametrize("size", [0, 7, 8, 64, 200])
def test_what_is_cut_short_is_left_to_python(size: int) -> None:
    assert not is_taken(layers()[:size])


@needs_compiled
@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.unrecorded
def test_what_it_takes_of_many_changed_files_is_sound() -> None:
    for seed, data in enumerate(taken().values()):
        check_mutants(data, seed, 200)


@needs_compiled
def test_the_bias_of_a_transposed_convolution_is_not_its_image() -> None:
    image, made, shape = f32(1, 8, 8, 16), f32(1, 16, 16, 32), const([1, 16, 16, 32])
    read = [shape, ramp((32, 3, 3, 16)), image]
    options = {"Padding": 0, "StrideW": 2, "StrideH": 2}
    found = []
    for more in ([], [ramp((32,))]):
        kind = "TransposeConvOptions"
        upsampling = Op("TRANSPOSE_CONV", read + more, [made], kind, options)
        data = write([upsampling], [image], [made])
        check_alike(data)
        found += estimated_of_graph_ns(by_python(data).graphs[0])
    assert found[0] <= found[1] <= 1.01 * found[0]


@needs_compiled
@pytest.mark.parametrize("is_name", [False, True], ids=["other bytes", "a name"])
def test_what_lies_within_bytes_of_a_buffer_is_left_to_python(is_name: bool) -> None:
    x, between, made = f32(8), f32(8), f32(8)
    # These could be a vector of 32 bytes, and text of none.
    within = np.array([0, 0, 32, 0, 0, 0, 0, 0], np.int32).view(np.float32)
    read = [T.constant(each, np.float32) for each in (within, np.ones(8))]
    steps = [Op("ADD", [x, read[0]], [between], "AddOptions")]
    steps += [Op("ADD", [between, read[1]], [made], "AddOptions")]
    data = bytearray(write(steps, [x], [made]))
    assert is_taken(bytes(data))
    model = tflite.Model.GetRootAs(data, 0)
    main = model.Subgraphs(0)
    first, second = [
        model.Buffers(main.Tensors(main.Operators(number).Inputs(1)).Buffer())
        for number in range(2)
    ]
    table, slot = (main.Tensors(0), 3) if is_name else (second, 0)
    place = table._tab.Pos + table._tab.Offset(4 + 2 * slot)
    start = first._tab.Vector(first._tab.Offset(4))
    target = start + (12 if is_name else 8)
    struct.pack_into("<I", data, place, target - place)
    assert by_python(bytes(data))
    assert not is_taken(bytes(data))


@needs_compiled
@pytest.mark.parametrize("hole", [1, 254, 255, 256])
def test_inputs_that_are_left_out_are_left_to_python(hole: int) -> None:
    x, made = f32(1, 2), f32(1, 2)
    read: list[Any] = [x] * 300
    assert is_taken(write([Op("ADD_N", read, [made], "AddNOptions")], [x], [made]))
    read[hole] = None
    assert not is_taken(write([Op("ADD_N", read, [made], "AddNOptions")], [x], [made]))
