"""Damaged files: one clear error each, never a crash, a hang or a large allocation."""

import random
import resource
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.runtime.file_kinds import kind_of
from tests.runtime.onnx.files import imported, written

node = helper.make_node
RNG = np.random.default_rng(3)


def network() -> Any:
    """A model with weights, shapes, a branch, a loop and quantised parts."""
    body = (
        "body (int64 i, bool go, float[1, 2] s) => (bool go_on, float[1, 2] t)"
        " { go_on = Identity(go) t = Add(s, one) }"
    )
    return written(
        "float[1, 2, 4, 4] x, float[3, 1, 2] seq"
        " => float[] padded, float[] l, float[] big",
        "c = Conv<pads=[1, 1, 1, 1]>(x, w); n = Shape(c); first = Gather(n, zero);"
        "batch = Unsqueeze(first, zeros); shape = Concat<axis=0>(batch, rest);"
        "r = Reshape(c, shape); p = MatMul(r, m); l = LSTM<hidden_size=2>(seq, lw, lr);"
        f'q = Loop<body = {body}>(count, "", p); padded = Pad(q, pads);'
        'big = Resize<mode="linear">(x, "", scales)',
        {
            "w": RNG.standard_normal((3, 2, 3, 3)).astype(np.float32),
            "m": RNG.standard_normal((48, 2)).astype(np.float32),
            "lw": RNG.standard_normal((1, 8, 2)).astype(np.float32),
            "lr": RNG.standard_normal((1, 8, 2)).astype(np.float32),
            "zero": np.int64(0),
            "zeros": np.int64([0]),
            "rest": np.int64([-1]),
            "count": np.int64(3),
            "one": np.float32([1]),
            "pads": np.int64([0, 1, 0, 1]),
            "scales": np.float32([1, 1, 2, 2]),
        },
    )


def attempt(content: bytes) -> bool:
    """Import bytes; return whether that went well. Other errors pass."""
    try:
        imported(content)
    except AsyncnnError:
        return False
    return True


def damaged(content: bytes, seed: int) -> bytes:
    """Change, cut out or repeat a few bytes."""
    chosen = random.Random(seed)
    data = bytearray(content)
    for _ in range(chosen.randint(1, 3)):
        place = chosen.randrange(len(data))
        match chosen.randrange(5):
            case 0:
                data[place] = chosen.randrange(256)
            case 1:
                data[place] ^= 1 << chosen.randrange(8)
            case 2:
                del data[place : place + chosen.randint(1, 20)]
            case 3:
                data[place:place] = data[place : place + chosen.randint(1, 20)]
            case _:
                data[place] = chosen.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(data)


def grown_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def mutate(count: int, first: int) -> None:
    content = network().SerializeToString()
    assert attempt(content)
    before = grown_bytes()
    good = sum(attempt(damaged(content, first + seed)) for seed in range(count))
    assert good < count
    assert grown_bytes() - before < 1 << 29


@pytest.mark.unrecorded
def test_damaged_files_are_errors() -> None:
    mutate(600, first=0)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_many_damaged_files_are_errors() -> None:
    mutate(20_000, first=1_000_000)


def test_each_file_that_is_cut_short_is_an_error() -> None:
    content = network().SerializeToString()
    for end in range(0, len(content), 37):
        assert not attempt(content[:end])


@pytest.mark.parametrize("content", [b"", b"\x08", b"\x08\x07"])
def test_what_does_not_begin_like_onnx_is_no_such_file(content: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="neither"):
        kind_of(memoryview(content))


def test_a_cycle_is_an_error() -> None:
    proto = written("float[2] x => float[] b", "a = Add(x, b); b = Abs(a)")
    with pytest.raises(InvalidArgumentError, match="'b' is not computed before"):
        imported(proto)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.node[0].input.__setitem__(0, "nowhere"), "'nowhere' is not"),
        (lambda g: g.output[0].__setattr__("name", "gone"), "'gone' is not computed"),
        (lambda g: g.output.__delitem__(slice(None)), "no outputs"),
        (lambda g: g.initializer.append(g.initializer[0]), "two initializers"),
        (lambda g: g.initializer[0].dims.append(9), "needs 864 bytes but has 96"),
        (lambda g: g.initializer[0].dims.__setitem__(0, -4), "has shape"),
        (lambda g: g.initializer[0].dims.__setitem__(0, 1 << 62), "has shape"),
        (lambda g: g.initializer[0].ClearField("raw_data"), "has 0 elements"),
        (lambda g: g.node[0].ClearField("attribute"), "equired attribute"),
        (lambda g: g.node.append(g.node[0]), "again"),
    ],
)
def test_a_graph_that_contradicts_itself_is_an_error(change: Any, message: str) -> None:
    proto = written(
        "float[4, 2, 3] x => float[] y",
        "y = Concat<axis=0>(x, w)",
        {"w": np.ones((4, 2, 3), np.float32)},
    )
    change(proto.graph)
    with pytest.raises(InvalidArgumentError, match=message):
        imported(proto)


FLOATS, NUMBERS = "=> float[] y", "=> int64[] y"
SIDES = {"a": (1 << 16, 1), "b": (1, 1 << 16)}


@pytest.mark.parametrize(
    ("ends", "nodes", "weights"),
    [
        (FLOATS, "y = ConstantOfShape(n)", {"n": np.int64([1 << 20, 1 << 20])}),
        (FLOATS, "y = Expand(w, n)", {"w": np.float32([1]), "n": np.int64([1 << 31])}),
        (FLOATS, "y = Tile(w, n)", {"w": np.float32([1]), "n": np.int64([1 << 40])}),
        (
            NUMBERS,
            "y = Range(a, b, c)",
            dict(zip("abc", np.int64([0, 1 << 60, 1]), strict=True)),
        ),
        (
            FLOATS,
            "y = Range(a, b, c)",
            dict(zip("abc", np.float32([0, 1e30, 1e-30]), strict=True)),
        ),
        (
            f"float[9] x {FLOATS}",
            "y = OneHot(x, n, v)",
            {"n": np.int64(1 << 50), "v": np.float32([0, 1])},
        ),
        (
            f"float[1, 1, 4, 4] x {FLOATS}",
            'y = Resize<mode="cubic">(x, "", "", n)',
            {"n": np.int64([1, 1, 1 << 40, 4])},
        ),
        (
            f"float[4] x {FLOATS}",
            'y = Pad<mode="edge">(x, n)',
            {"n": np.int64([1 << 50, 0])},
        ),
        (f"float[1, 1, 4] x {FLOATS}", f"y = MaxPool<kernel_shape=[{1 << 40}]>(x)", {}),
        (
            f"float[1, 1, 4] x {FLOATS}",
            f"y = Conv<pads=[{1 << 40}, 0]>(x, w)",
            {"w": np.ones((1, 1, 3), np.float32)},
        ),
        (
            FLOATS,
            "y = Mul(a, b)",
            {name: np.ones(n, np.float32) for name, n in SIDES.items()},
        ),
        (
            FLOATS,
            "y = OneHot(x, n, v)",
            {"x": np.int64([1]), "n": np.int64(1 << 40), "v": np.float32([0, 1])},
        ),
    ],
    ids=lambda value: value.replace(" ", "") if isinstance(value, str) else "",
)
def test_a_few_bytes_cannot_ask_for_much(ends: str, nodes: str, weights: Any) -> None:
    proto = written(ends, nodes, weights)
    before = grown_bytes()
    with pytest.raises(AsyncnnError):
        imported(proto)
    assert grown_bytes() - before < 1 << 28


@pytest.mark.parametrize(
    ("step", "count", "weights"),
    [("Abs", '""', {}), ("Exp", "many", {"many": np.int64(2**40)})],
    ids=["endless", "of too many steps"],
)
def test_a_loop_without_an_end_is_refused(step: str, count: str, weights: Any) -> None:
    body = (
        "g (int64 i, bool go, float[1] s) => (bool on, float[1] t)"
        f" {{ on = Identity(go) t = {step}(s) }}"
    )
    loop = f'y = Loop<body = {body}>({count}, "", x)'
    with pytest.raises(AsyncnnError, match="time steps"):
        imported(written("float[1] x => float[] y", loop, weights))


def test_functions_that_call_themselves_are_refused() -> None:
    call = node("Again", ["a"], ["b"], domain="own")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Again", ["a"], ["b"], [call], opsets)
    proto = written("float[1] x => float[] y", "y = own.Again(x)", functions=[function])
    with pytest.raises(AsyncnnError, match="nested too deeply"):
        imported(proto)


def test_functions_that_multiply_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncnn.runtime.onnx.importer.MAX_NODES", 2000)
    # Each calls the next one twice: the nodes would be 2 to the power of the depth.
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function(
            "own",
            f"F{i}",
            ["a"],
            ["c"],
            [
                node(f"F{i + 1}", ["a"], ["b"], domain="own"),
                node(f"F{i + 1}", ["b"], ["c"], domain="own"),
            ],
            opsets,
        )
        for i in range(25)
    ]
    last = helper.make_function(
        "own", "F25", ["a"], ["b"], [node("Abs", ["a"], ["b"])], opsets
    )
    proto = written(
        "float[1] x => float[] y", "y = own.F0(x)", functions=[*functions, last]
    )
    with pytest.raises(AsyncnnError, match="nodes"):
        imported(proto)


def test_a_type_that_is_unknown_is_named() -> None:
    proto = network()
    proto.graph.initializer[0].data_type = 99
    with pytest.raises(AsyncnnError, match="type 99"):
        imported(proto)
    assert onnx.TensorProto.FLOAT == 1
