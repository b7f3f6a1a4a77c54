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
from tests.runtime.onnx.files import imported, model, tensor

node = helper.make_node
RNG = np.random.default_rng(3)


def network() -> Any:
    """A model with weights, shapes, a branch, a loop and quantised parts."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Add", ["s", "one"], ["t"])],
        "body",
        [tensor("i", (), np.int64), tensor("go", (), np.bool_), tensor("s", (1, 2))],
        [tensor("go_on", (), np.bool_), tensor("t", (1, 2))],
    )
    return model(
        [
            node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            node("Shape", ["c"], ["n"]),
            node("Gather", ["n", "zero"], ["first"]),
            node("Unsqueeze", ["first", "zeros"], ["batch"]),
            node("Concat", ["batch", "rest"], ["shape"], axis=0),
            node("Reshape", ["c", "shape"], ["r"]),
            node("MatMul", ["r", "m"], ["p"]),
            node("LSTM", ["seq", "lw", "lr"], ["l"], hidden_size=2),
            node("Loop", ["count", "", "p"], ["q"], body=body),
            node("Pad", ["q", "pads"], ["padded"]),
            node("Resize", ["x", "", "scales"], ["big"], mode="linear"),
        ],
        [tensor("x", (1, 2, 4, 4)), tensor("seq", (3, 1, 2))],
        ["padded", "l", "big"],
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


@pytest.mark.no_cover
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
    proto = model(
        [node("Add", ["x", "b"], ["a"]), node("Abs", ["a"], ["b"])],
        [tensor("x", (2,))],
        ["b"],
    )
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
    proto = model(
        [node("Concat", ["x", "w"], ["y"], axis=0)],
        [tensor("x", (4, 2, 3))],
        ["y"],
        {"w": np.ones((4, 2, 3), np.float32)},
    )
    change(proto.graph)
    with pytest.raises(InvalidArgumentError, match=message):
        imported(proto)


@pytest.mark.parametrize(
    "made",
    [
        model(
            [node("ConstantOfShape", ["n"], ["y"])], [], ["y"],
            {"n": np.int64([1 << 20, 1 << 20])},
        ),
        model(
            [node("Expand", ["w", "n"], ["y"])], [], ["y"],
            {"w": np.float32([1]), "n": np.int64([1 << 31])},
        ),
        model(
            [node("Tile", ["w", "n"], ["y"])], [], ["y"],
            {"w": np.float32([1]), "n": np.int64([1 << 40])},
        ),
        model(
            [node("Range", ["a", "b", "c"], ["y"])], [], [tensor("y", None, np.int64)],
            {"a": np.int64(0), "b": np.int64(1 << 60), "c": np.int64(1)},
        ),
        model(
            [node("Range", ["a", "b", "c"], ["y"])], [], ["y"],
            {"a": np.float32(0), "b": np.float32(1e30), "c": np.float32(1e-30)},
        ),
        model(
            [node("OneHot", ["x", "n", "v"], ["y"])], [tensor("x", (9,))], ["y"],
            {"n": np.int64(1 << 50), "v": np.float32([0, 1])},
        ),
        model(
            [node("Resize", ["x", "", "", "n"], ["y"], mode="cubic")],
            [tensor("x", (1, 1, 4, 4))], ["y"],
            {"n": np.int64([1, 1, 1 << 40, 4])},
        ),
        model(
            [node("Pad", ["x", "n"], ["y"], mode="edge")], [tensor("x", (4,))], ["y"],
            {"n": np.int64([1 << 50, 0])},
        ),
        model(
            [node("MaxPool", ["x"], ["y"], kernel_shape=[1 << 40])],
            [tensor("x", (1, 1, 4))], ["y"],
        ),
        model(
            [node("Conv", ["x", "w"], ["y"], pads=[1 << 40, 0])],
            [tensor("x", (1, 1, 4))], ["y"], {"w": np.ones((1, 1, 3), np.float32)},
        ),
        model(
            [node("Mul", ["a", "b"], ["y"])], [], ["y"],
            {"a": np.ones((1 << 16, 1), np.float32),
             "b": np.ones((1, 1 << 16), np.float32)},
        ),
        model(
            [node("OneHot", ["x", "n", "v"], ["y"])], [], [tensor("y", None)],
            {"x": np.int64([1]), "n": np.int64(1 << 40), "v": np.float32([0, 1])},
        ),
    ],
)  # fmt: skip
def test_a_few_bytes_cannot_ask_for_much(made: Any) -> None:
    before = grown_bytes()
    with pytest.raises(AsyncnnError):
        imported(made)
    assert grown_bytes() - before < 1 << 28


def test_an_endless_loop_is_refused() -> None:
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Abs", ["s"], ["t"])],
        "body",
        [tensor("i", (), np.int64), tensor("go", (), np.bool_), tensor("s", (1,))],
        [tensor("on", (), np.bool_), tensor("t", (1,))],
    )
    proto = model(
        [node("Loop", ["", "", "x"], ["y"], body=body)], [tensor("x", (1,))], ["y"]
    )
    with pytest.raises(AsyncnnError, match="time steps"):
        imported(proto)


def test_a_loop_of_too_many_steps_is_refused() -> None:
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Exp", ["s"], ["t"])],
        "body",
        [tensor("i", (), np.int64), tensor("go", (), np.bool_), tensor("s", (1,))],
        [tensor("on", (), np.bool_), tensor("t", (1,))],
    )
    proto = model(
        [node("Loop", ["many", "", "x"], ["y"], body=body)],
        [tensor("x", (1,))],
        ["y"],
        {"many": np.int64(2**40)},
    )
    with pytest.raises(AsyncnnError, match="time steps"):
        imported(proto)


def test_functions_that_call_themselves_are_refused() -> None:
    call = node("Again", ["a"], ["b"], domain="own")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "Again", ["a"], ["b"], [call], opsets)
    proto = model(
        [node("Again", ["x"], ["y"], domain="own")],
        [tensor("x", (1,))],
        ["y"],
        functions=[function],
    )
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
    proto = model(
        [node("F0", ["x"], ["y"], domain="own")],
        [tensor("x", (1,))],
        ["y"],
        functions=[*functions, last],
    )
    with pytest.raises(AsyncnnError, match="nodes"):
        imported(proto)


def test_a_type_that_is_unknown_is_named() -> None:
    proto = network()
    proto.graph.initializer[0].data_type = 99
    with pytest.raises(AsyncnnError, match="type 99"):
        imported(proto)
    assert onnx.TensorProto.FLOAT == 1
