from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import asyncnn
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.processes import python
from tests.runtime.onnx.files import (
    imported,
    model,
    operations,
    results,
    tensor,
    written,
)

node = helper.make_node
RNG = np.random.default_rng(17)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def small_network(lengths: Any = ("batch", 3, "height", "width")) -> Any:
    """A convolution, its activation, a pool and a softmax."""
    return written(
        f"float[{', '.join(map(str, lengths))}] x => float[] y",
        "c = Conv<pads=[1, 1, 1, 1]>(x, w, b); r = Relu(c); p = GlobalAveragePool(r);"
        "f = Flatten(p); y = Softmax<axis=-1>(f)",
        {"w": floats(4, 3, 3, 3), "b": floats(4)},
    )


def reference(proto: Any, **inputs: Any) -> list[Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return list(session.run(None, inputs))


class TestLoading:
    async def test_the_content_tells_the_format(self, tmp_path: Path) -> None:
        path = tmp_path / "model.bin"
        path.write_bytes(small_network((1, 3, 8, 8)).SerializeToString())
        named = asyncnn.load(path)
        x = floats(1, 3, 8, 8)
        found = await results(named, x=x)
        np.testing.assert_allclose(
            found["y"], reference(small_network_of(path), x=x)[0], rtol=1e-5
        )

    def test_a_file_of_another_format_takes_no_constants(self) -> None:
        file = b"\x1c\0\0\0TFL3" + bytes(40)
        with pytest.raises(InvalidArgumentError, match="cannot be given for TFLite"):
            asyncnn.load(file, constants={"x": 1})

    def test_without_the_package_one_error_says_what_to_install(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "model.onnx"
        path.write_bytes(small_network().SerializeToString())
        script = (
            "import sys; sys.modules['onnx'] = None\n"
            "import asyncnn\n"
            "try: asyncnn.load(sys.argv[1])\n"
            "except asyncnn.GeneralFailureError as error: print(error.hint)\n"
        )
        done = python("-c", script, path, check=True)
        assert "asyncnn[onnx]" in done.stdout

    def test_importing_the_project_does_not_import_the_package(self) -> None:
        script = "import asyncnn, sys; asyncnn.load; print('onnx' in sys.modules)"
        done = python("-c", script, check=True)
        assert done.stdout.strip() == "False"


def small_network_of(path: Path) -> Any:
    return onnx.load(path)


class TestOpenAxes:
    async def test_axes_stay_open_where_the_model_can_have_them_open(self) -> None:
        proto = small_network()
        named = imported(proto)
        assert named.inputs[0].dimensions == (0, 3, 0, 0)
        for shape in ((1, 3, 8, 8), (2, 3, 5, 11)):
            x = floats(*shape)
            found = await results(named, x=x)
            np.testing.assert_allclose(found["y"], reference(proto, x=x)[0], rtol=1e-5)

    @pytest.mark.parametrize(
        "shapes", [[(2, 3, 6, 7)], {"x": (2, 3, 6, 7)}, {"x": (0, 3, 6, 7)}]
    )
    def test_shapes_may_be_given(self, shapes: Any) -> None:
        given = shapes["x"] if isinstance(shapes, dict) else shapes[0]
        named = imported(small_network(), input_shapes=shapes)
        assert named.inputs[0].dimensions == given

    @pytest.mark.parametrize(
        ("shapes", "message"),
        [
            ({"z": (1,)}, "there is no input 'z'"),
            ([(1, 3, 4, 4)] * 2, "2 shapes are given for 1 inputs"),
            ([(1, 4, 4, 4)], "does not fit"),
            ([(1, 3, 4)], "does not fit"),
            ([(1, 3, -4, 4)], "does not fit"),
            ((1, 3, 4, 4), "is one shape, not the shapes of all inputs"),
            ({"x": (1, 3, 4.5, 4)}, "is no shape of input 'x'"),
            ({"x": 4}, "4 is no shape of input 'x'"),
        ],
    )
    def test_shapes_that_do_not_fit_are_refused(
        self, shapes: Any, message: str
    ) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            imported(small_network(), input_shapes=shapes)

    def test_where_a_length_decides_the_error_says_what_to_give(self) -> None:
        proto = model(
            [
                node("ReduceSum", ["x"], ["s"]),
                node("Tile", ["x", "n"], ["y"]),
                node("Shape", ["x"], ["n"]),
            ][::-1],
            [tensor("x", ("n",))],
            ["y"],
        )
        with pytest.raises(InvalidArgumentError, match="lengths of open axes") as found:
            imported(proto)
        shown = "input_shapes={'x': (1,)}, or --input-shape x=1"
        assert shown in found.value.hint
        assert imported(proto, input_shapes=[(3,)]).outputs[0].dimensions == (9,)

    @pytest.mark.parametrize(
        ("end", "axis"), [("nine", 0), ("least", 0), ("half", 0), ("half", 1)]
    )
    def test_what_is_cut_somewhere_depends_on_them(self, end: str, axis: int) -> None:
        nodes = [
            node("Shape", ["x"], ["s"]),
            node("Gather", ["s", "axis"], ["n"]),
            node("Min", ["n", "nine"], ["least"]),
            node("Div", ["n", "two"], ["half"]),
            node("Slice", ["x", "none", end, "axis"], ["y"]),
        ]
        numbers = {"none": 0, "two": 2, "nine": 9, "axis": axis}
        weights = {name: np.int64([n]) for name, n in numbers.items()}
        proto = model(nodes, [tensor("x", ("n", "m"))], ["y"], weights)
        with pytest.raises(InvalidArgumentError, match="open axes"):
            imported(proto)

    def test_axes_of_one_name_have_one_length(self) -> None:
        proto = written("float[n, 2] x, float[n, 2] y => float[] z", "z = Add(x, y)")
        named = imported(proto, input_shapes={"x": (5, 2)})
        assert [info.dimensions for info in named.inputs] == [(5, 2), (5, 2)]


class TestConstants:
    async def test_an_input_may_be_fixed(self) -> None:
        proto = written(
            "float[2, 6] x, int64[2] shape => float[] y", "y = Reshape(x, shape)"
        )
        named = imported(proto, constants={"shape": [3, -1]})
        assert [info.name for info in named.inputs] == ["x"]
        assert named.outputs[0].dimensions == (3, 4)

    def test_an_unknown_one_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="there is no input 'w9'"):
            imported(small_network(), constants={"w9": 1})

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("a", "'a' is no constant for input 'x' of float32"),
            ([[1.0]], r"of shape \[1, 1\] does not fit input 'x'"),
        ],
    )
    def test_one_that_does_not_fit_is_refused(self, value: Any, message: str) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            imported(small_network(), constants={"x": value})

    def test_values_beyond_32_bits_are_refused(self) -> None:
        proto = written(
            "int64[2] x => int64[2] y", "y = Max(x, w)", {"w": np.int64([1, 1 << 40])}
        )
        with pytest.raises(InvalidArgumentError, match="beyond 32 bits"):
            imported(proto)

    @pytest.mark.parametrize(
        ("operator", "read", "given", "good"),
        [
            ("Mul", "xx", [1 << 17, 2], [3, 2]),
            ("ReduceProd", "x", [1 << 17, 1 << 17], [3, 2]),
            ("Gather", "wx", [1, 0], [0, 0]),
        ],
    )
    async def test_results_beyond_32_bits_are_errors(
        self, operator: str, read: str, given: list[int], good: list[int]
    ) -> None:
        proto = model(
            [node(operator, list(read), ["y"])],
            [tensor("x", (2,), np.int64)],
            [tensor("y", None, np.int64)],
            {"w": np.int64([1, 1 << 40])},
        )
        named = imported(proto)
        (y,) = reference(proto, x=np.int64(good))
        assert (await results(named, x=np.int32(good)))["y"].tolist() == y.tolist()
        with pytest.raises(GeneralFailureError, match="beyond 32 bits"):
            await results(named, x=np.int32(given))


class TestRefusals:
    def test_all_unsupported_operators_are_named_at_once(self) -> None:
        proto = written(
            "float[2, 3, 3] x => float[] y, float[] n",
            "d = RandomNormalLike(x); r = Relu(x); e = RandomNormalLike(r); "
            "n = Bernoulli(x); y = Add(d, e)",
        )
        with pytest.raises(UnsupportedOperatorError) as found:
            imported(proto)
        text = str(found.value)
        assert "3 operators cannot be imported" in text
        for part in ("node 0 (RandomNormalLike)", "(Bernoulli)"):
            assert part in text

    @pytest.mark.parametrize(
        ("proto", "message"),
        [
            (written("double[2] x => double[2] y", "y = Abs(x)"), "float64"),
            (
                written("float[2] x => float[] y", "y = Abs(x)", opset=5),
                "operator set 5",
            ),
            (
                written("float[2] x => float[] y", "y = com.example.Abs(x)"),
                "com.example.Abs",
            ),
        ],
    )
    def test_what_is_refused_is_named(self, proto: Any, message: str) -> None:
        with pytest.raises(UnsupportedOperatorError, match=message):
            imported(proto)

    def test_all_that_read_text_are_named(self) -> None:
        text = helper.make_tensor_value_info("t", onnx.TensorProto.STRING, (2,))
        proto = model(
            [
                node("StringJoin", ["t"], ["u"], domain="com.example"),
                node("Identity", ["t"], ["y"]),
            ],
            [text],
            ["u", "y"],
        )
        with pytest.raises(UnsupportedOperatorError) as found:
            imported(proto)
        names = [each.name for each in found.value.operators]
        assert names == ["com.example.StringJoin", "Identity"]
        for part in ("node 0", "node 1", "input 't' has elements of type STRING"):
            assert part in str(found.value)

    async def test_a_constant_too_large_to_be_folded_is_filled(self) -> None:
        proto = written(
            "float[2, 3000] x => float[] y",
            "w = ConstantOfShape<value = float[1] {0.5}>(s); y = MatMul(x, w)",
            {"s": np.int64([3000, 1500])},
        )
        x = np.random.default_rng(3).standard_normal((2, 3000)).astype(np.float32)
        found = await results(imported(proto), x=x)
        wanted = np.broadcast_to(x.sum(1, keepdims=True) / 2, (2, 1500))
        np.testing.assert_allclose(found["y"], wanted, rtol=1e-3, atol=1e-3)

    def test_a_constant_too_large_to_be_filled_is_an_error(self) -> None:
        proto = written(
            "float[1] x => float[] y",
            "y = ConstantOfShape(s)",
            {"s": np.int64([1 << 20, 1 << 20])},
        )
        with pytest.raises(InvalidArgumentError, match="too large"):
            imported(proto)

    def test_a_window_that_is_longer_than_a_volume_is_refused(self) -> None:
        proto = written(
            "float[1, 1, 2, 2, 2] x => float[] y",
            "y = Conv(x, w)",
            {"w": floats(1, 1, 3, 1, 1)},
        )
        with pytest.raises(UnsupportedOperatorError):
            imported(proto)

    def test_bfloat16_is_refused_by_name(self) -> None:
        proto = small_network((1, 3, 4, 4))
        info = proto.graph.input[0].type.tensor_type
        info.elem_type = onnx.TensorProto.BFLOAT16
        with pytest.raises(UnsupportedOperatorError, match="BFLOAT16"):
            imported(proto)


class TestGraphs:
    def test_transposes_that_meet_vanish(self) -> None:
        proto = written(
            "float[2, 3, 4, 5] x => float[] y",
            "a = Transpose<perm=[0, 2, 3, 1]>(x); b = Identity(a); "
            "c = Transpose<perm=[0, 3, 1, 2]>(b); y = Relu(c)",
        )
        assert operations(imported(proto)) == ["RELU"]

    def test_images_keep_their_layout(self) -> None:
        found = operations(imported(small_network((1, 3, 8, 8))))
        assert found == ["CONV_2D", "RELU", "MEAN", "RESHAPE", "SOFTMAX"]

    @pytest.mark.parametrize("flag", [True, False])
    async def test_a_branch_is_chosen_when_the_model_runs(self, flag: bool) -> None:
        branches = {
            name: helper.make_graph(
                [node(type_, ["x"], [name])], name, [], [tensor(name, (3,))]
            )
            for name, type_ in (("then_branch", "Abs"), ("else_branch", "Neg"))
        }
        proto = model(
            [node("If", ["flag"], ["y"], **branches)],
            [tensor("x", (3,)), tensor("flag", (1,), np.bool_)],
            ["y"],
        )
        x = np.float32([-1, 2, -3])
        found = await results(imported(proto), x=x, flag=np.array([flag]))
        np.testing.assert_array_equal(found["y"], abs(x) if flag else -x)
        fixed = imported(proto, constants={"flag": [flag]})
        assert operations(fixed) == ["ABS" if flag else "NEG"]

    async def test_functions_of_the_model_are_put_in_place(self) -> None:
        function = helper.make_function(
            "com.example",
            "Twice",
            ["a"],
            ["b"],
            [node("Add", ["a", "a"], ["b"])],
            [helper.make_opsetid("", 17)],
        )
        proto = written(
            "float[2] x => float[] y",
            "t = com.example.Twice(x); y = com.example.Twice(t)",
            functions=[function],
        )
        found = await results(imported(proto), x=np.float32([1, 2]))
        np.testing.assert_array_equal(found["y"], [4, 8])

    async def test_an_input_or_constant_may_be_an_output(self) -> None:
        proto = written(
            "float[2] x => float[] y, float[] z",
            "y = Identity(x); z = Identity(w)",
            {"w": np.float32([7])},
        )
        found = await results(imported(proto), x=np.float32([1, 2]))
        np.testing.assert_array_equal(found["y"], [1, 2])
        np.testing.assert_array_equal(found["z"], [7])

    async def test_ranks_above_four_are_merged(self) -> None:
        proto = written(
            "float[4, 6, 4] x => float[] y",
            "d = Reshape(x, deep); t = Transpose<perm=[5, 3, 1, 4, 2, 0]>(d); "
            "y = ReduceMax<axes=[1, 4], keepdims=0>(t)",
            {"deep": np.int64([2, 2, 2, 3, 2, 2])},
        )
        x = floats(4, 6, 4)
        found = await results(imported(proto), x=x)
        np.testing.assert_array_equal(found["y"], reference(proto, x=x)[0])


class TestExternalData:
    def saved(self, folder: Path, **changes: str) -> Path:
        proto = written(
            "float[64] x => float[] y",
            "y = Add(x, w)",
            {"w": np.arange(64, dtype=np.float32)},
        )
        path = folder / "model.onnx"
        onnx.save(
            proto,
            path,
            save_as_external_data=True,
            location="weights.bin",
            size_threshold=0,
        )
        changed = onnx.load(path, load_external_data=False)
        for entry in changed.graph.initializer[0].external_data:
            entry.value = changes.get(entry.key, entry.value)
        path.write_bytes(changed.SerializeToString())
        return path

    async def test_weights_of_another_file_are_read(self, tmp_path: Path) -> None:
        named = asyncnn.load(self.saved(tmp_path))
        found = await results(named, x=np.zeros(64, np.float32))
        np.testing.assert_array_equal(found["y"], np.arange(64))

    @pytest.mark.parametrize(
        "changes",
        [
            {"location": "../weights.bin"},
            {"location": "/etc/passwd"},
            {"location": ""},
            {"location": "none.bin"},
            {"location": "weights.bin\0"},
            {"offset": "4"},
            {"offset": "-4"},
            {"offset": "9" * 30},
            {"length": "255"},
            {"length": "99999999999"},
            {"length": "0x10"},
        ],
        ids=str,
    )
    def test_lies_about_it_are_errors(
        self, tmp_path: Path, changes: dict[str, str]
    ) -> None:
        with pytest.raises(InvalidArgumentError, match="tensor 'w'"):
            asyncnn.load(self.saved(tmp_path, **changes))

    def test_a_link_does_not_lead_out_of_the_folder(self, tmp_path: Path) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        path = self.saved(inner)
        (inner / "weights.bin").rename(tmp_path / "weights.bin")
        (inner / "weights.bin").symlink_to(tmp_path / "weights.bin")
        with pytest.raises(InvalidArgumentError, match="outside"):
            asyncnn.load(path)

    def test_bytes_alone_have_no_other_files(self, tmp_path: Path) -> None:
        content = self.saved(tmp_path).read_bytes()
        with pytest.raises(InvalidArgumentError, match="another file"):
            imported(content)


def test_errors_are_of_one_family() -> None:
    assert issubclass(UnsupportedOperatorError, GeneralFailureError)
