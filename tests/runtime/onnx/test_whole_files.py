"""ONNX files as one region: what a model of one says of itself, whatever is inside."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import helper, numpy_helper

import asyncnn
from asyncnn import InvalidArgumentError
from asyncnn.extensions.regions import ONNX, region_model, region_of, type_of
from asyncnn.hal.types import OperationType
from asyncnn.memory.pools import view
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from tests.runtime.onnx.files import classifier, model, tensor, written

node = helper.make_node
Types = onnx.TensorProto


def loaded(proto: Any, **options: Any) -> NamedModel:
    return asyncnn.load(proto.SerializeToString(), **options)


def of_type(number: int, shape: Any = (2,)) -> Any:
    """Return a file that passes on a tensor of an element type."""
    ends = [helper.make_tensor_value_info(name, number, shape) for name in "xy"]
    graph = helper.make_graph([node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


def is_region(named: NamedModel) -> bool:
    region = region_of(named.model)
    return region is not None and region.extension == ONNX


def operations(named: NamedModel) -> list[int]:
    return [operation.type for operation in named.model.main.operations]


class TestTypes:
    @pytest.mark.parametrize(
        ("number", "name"),
        [
            (Types.FLOAT, "float32"),
            (Types.FLOAT16, "float16"),
            (Types.DOUBLE, "float64"),
            (Types.BOOL, "bool"),
            (Types.INT8, "int8"),
            (Types.INT16, "int16"),
            (Types.INT32, "int32"),
            (Types.INT64, "int64"),
            (Types.UINT8, "uint8"),
            (Types.UINT16, "uint16"),
            (Types.UINT32, "uint32"),
            (Types.UINT64, "uint64"),
            (Types.BFLOAT16, "void16"),
        ],
    )
    def test_are_those_of_the_file(self, number: int, name: str) -> None:
        named = loaded(of_type(number))
        assert is_region(named)
        ends = *named.inputs, *named.outputs
        assert [info.dtype.name for info in ends] == [name, name]
        assert [info.dimensions for info in ends] == [(2,), (2,)]

    @pytest.mark.parametrize("number", [Types.STRING, Types.COMPLEX64, Types.INT4])
    def test_that_no_region_has_are_left_to_the_translation(self, number: int) -> None:
        with pytest.raises(UnsupportedOperatorError, match="elements of type"):
            loaded(of_type(number))

    @pytest.mark.parametrize("operator", ["SequenceConstruct", "Optional"])
    def test_what_is_no_tensor_is_refused(self, operator: str) -> None:
        kinds = {
            "SequenceConstruct": helper.make_sequence_type_proto,
            "Optional": helper.make_optional_type_proto,
        }
        inner = helper.make_tensor_type_proto(Types.FLOAT, (2,))
        y = helper.make_value_info("y", kinds[operator](inner))
        made = node(operator, ["x"], ["y"])
        graph = helper.make_graph([made], "g", [tensor("x", (2,))], [y])
        with pytest.raises(UnsupportedOperatorError, match=operator):
            loaded(helper.make_model(graph, ir_version=8))

    def test_a_region_has_no_others(self) -> None:
        with pytest.raises(InvalidArgumentError, match="no tensors of complex64"):
            type_of(ONNX, np.dtype(np.complex64))

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            (helper.make_sequence_type_proto, "a sequence, not a tensor"),
            (helper.make_optional_type_proto, "an optional, not a tensor"),
        ],
    )
    def test_that_are_no_tensors_are_refused_by_name(
        self, kind: Any, words: str
    ) -> None:
        proto = of_type(Types.FLOAT)
        inner = helper.make_tensor_type_proto(Types.FLOAT, None)
        proto.graph.node[0].op_type = "SequenceConstruct"
        proto.graph.output[0].type.CopyFrom(kind(inner))
        with pytest.raises(UnsupportedOperatorError, match=words) as error:
            loaded(proto)
        assert "translated: node 0 (SequenceConstruct)" in error.value.message

    def test_that_are_other_maps_are_refused_with_a_way_out(self) -> None:
        proto = of_type(Types.FLOAT)
        inner = helper.make_tensor_type_proto(Types.FLOAT, None)
        maps = helper.make_map_type_proto(Types.INT64, inner)
        kind = helper.make_sequence_type_proto(maps)
        proto.graph.output[0].type.CopyFrom(kind)
        proto.graph.node[0].op_type = "CastMap"
        with pytest.raises(UnsupportedOperatorError, match="sequence of maps") as error:
            loaded(proto)
        assert "zipmap=False" in error.value.hint


class TestClassifiers:
    @pytest.mark.parametrize(
        ("proto", "labels"),
        [
            (classifier([3, 1, 7]), ("3", "1", "7")),
            (classifier(["b", "a", "é"]), ("b", "a", "é")),
            (classifier(["b", "a"], version=3), ("b", "a")),
            (
                classifier(
                    ["b", "a"], node("Identity", ["own"], ["output_label"]), label="own"
                ),
                ("b", "a"),
            ),
        ],
    )
    async def test_give_tensors_for_dictionaries_and_texts(
        self, proto: Any, labels: tuple[str, ...]
    ) -> None:
        content = proto.SerializeToString()
        session = onnxruntime.InferenceSession(content)
        named = asyncnn.load(content)
        assert is_region(named)
        assert named.metadata is not None
        (_, texts), (_, classes) = [(e.name, e.labels) for e in named.metadata.outputs]
        assert (texts, classes) == (labels if labels[0] == "b" else (), labels)
        rng = np.random.default_rng(1)
        async with asyncnn.open_device("auto") as device:
            prepared = await device.prepare(named)
            for count in (1, 5):
                x = rng.standard_normal((count, 4)).astype(np.float32)
                wanted, maps = session.run(None, {"x": x})
                result = await prepared.run({"x": x})
                found = result["output_label"].tolist()
                assert [texts[at] if texts else at for at in found] == [*wanted]
                told = {str(key): [each[key] for each in maps] for key in maps[0]}
                columns = zip(classes, result["output_probability"].T, strict=True)
                for name, column in columns:
                    np.testing.assert_allclose(column, told.pop(name), rtol=1e-6)
                assert not told

    async def test_give_places_among_texts_of_any_part_of_the_file(self) -> None:
        ends = [helper.make_tensor_value_info("x", Types.INT64, ["n"])]
        ends += [helper.make_tensor_value_info("y", Types.STRING, ["n"])]
        made = node("Gather", ["names", "x"], ["y"])
        names = helper.make_tensor("names", Types.STRING, [3], [b"b", b"a", b"b"])
        graph = helper.make_graph([made], "g", ends[:1], ends[1:], [names])
        opset = helper.make_opsetid("", 17)
        named = loaded(helper.make_model(graph, opset_imports=[opset], ir_version=8))
        assert named.metadata is not None
        assert named.metadata.outputs[0].labels == ("b", "a")
        async with asyncnn.open_device("auto") as device:
            prepared = await device.prepare(named)
            result = await prepared.run({"x": np.array([2, 1, 0, 1])})
        assert result["y"].tolist() == [0, 1, 0, 1]

    def test_texts_that_the_file_does_not_list_are_refused(self) -> None:
        proto = of_type(Types.FLOAT)
        proto.graph.node[0].CopyFrom(node("Cast", ["x"], ["y"], to=Types.STRING))
        proto.graph.output[0].type.tensor_type.elem_type = Types.STRING
        with pytest.raises(UnsupportedOperatorError, match="elements of type STRING"):
            loaded(proto)


class TestAxes:
    def test_keep_their_names(self) -> None:
        ends = [tensor("x", ("n", None, 3)), tensor("y", ("n", None, 3))]
        named = loaded(model([node("Neg", ["x"], ["y"])], ends[:1], ends[1:]))
        (x,), (y,) = named.inputs, named.outputs
        assert (x.dimensions, x.axes) == ((0, 0, 3), ("n", "?", ""))
        assert (y.dimensions, y.axes) == ((0, 0, 3), ("n", "?", ""))

    @pytest.mark.parametrize("nameless", ["", "-1", "None", "unk"])
    def test_without_a_real_name_have_none(self, nameless: str) -> None:
        named = loaded(of_type(Types.FLOAT, (nameless, 2)))
        assert named.inputs[0].axes == ("?", "")

    def test_of_one_name_are_given_one_length(self) -> None:
        ends = [tensor(name, ("n", 3)) for name in ("x", "y", "z")]
        proto = model([node("Add", ["x", "y"], ["z"])], ends[:2], ends[2:])
        named = loaded(proto, input_shapes={"x": (4, 0)})
        assert [info.dimensions for info in named.inputs] == [(4, 3), (4, 3)]
        assert named.outputs[0].dimensions == (4, 3)
        for shapes in ({"x": (4, 3), "y": (5, 3)}, {"x": (4, 2)}, {"x": (4,)}):
            with pytest.raises(InvalidArgumentError, match="does not fit"):
                loaded(proto, input_shapes=shapes)
        with pytest.raises(InvalidArgumentError, match="no input 'w'"):
            loaded(proto, input_shapes={"w": (4, 3)})

    def test_of_outputs_follow_from_those_given(self) -> None:
        concat = node("Concat", ["x", "y"], ["z"], axis=0)
        inputs = [tensor("x", ("n", 3)), tensor("y", ("m", 3))]
        proto = model([concat], inputs, [tensor("z", ("both", 3))])
        assert loaded(proto).outputs[0].dimensions == (0, 3)
        named = loaded(proto, input_shapes=[(4, 3), (5, 3)])
        assert named.outputs[0].dimensions == (9, 3)

    @pytest.mark.parametrize("wrong", [(3, 2), (2, 4), (6,)])
    async def test_of_outputs_that_the_file_has_wrong_a_run_shows(
        self, wrong: tuple[int, ...]
    ) -> None:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        ends = [tensor("x", (2, 3))], [tensor("y", wrong)]
        named = loaded(model([node("Neg", ["x"], ["y"])], *ends))
        async with asyncnn.open_device("onnxruntime") as device:
            prepared = await device.prepare(named, timeout=30)
            for _ in range(2):
                outputs = await prepared.run({"x": x}, timeout=30)
                np.testing.assert_array_equal(outputs["y"], -x)

    @pytest.mark.parametrize("of_output", [None, (2, 3), ("n", 3), (3, 2)], ids=str)
    @pytest.mark.parametrize("of_input", [(2, 3), ("n", 3)], ids=str)
    @pytest.mark.parametrize("wrong", [(3, 2), (6,), ()], ids=str)
    async def test_inside_that_the_file_has_wrong_count_nothing(
        self, wrong: Any, of_input: Any, of_output: Any
    ) -> None:
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        nodes = [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])]
        proto = model(nodes, [tensor("x", of_input)], [tensor("y", of_output)])
        proto.graph.value_info.append(tensor("a", wrong))
        async with asyncnn.open_device("onnxruntime") as device:
            prepared = await device.prepare(loaded(proto), timeout=30)
            for _ in range(2):
                outputs = await prepared.run({"x": x}, timeout=30)
                np.testing.assert_array_equal(outputs["y"], -x)

    @pytest.mark.parametrize("is_strict", [False, True])
    def test_of_a_repeated_output_are_the_same(self, is_strict: bool) -> None:
        x, *ys = (tensor(name, (2,)) for name in "xyyy")
        proto = model([node("Neg", ["x"], ["y"])], [x], ys)
        outputs = loaded(proto, strict=is_strict).outputs
        assert [info.name for info in outputs] == ["y", "y_1", "y_2"]
        assert [info.dimensions for info in outputs] == [(2,)] * 3

    def test_of_outputs_follow_from_constants(self) -> None:
        inputs = [tensor("x", (6,)), tensor("shape", (2,), np.int64)]
        proto = model([node("Reshape", ["x", "shape"], ["y"])], inputs, ["y"])
        named = loaded(proto, constants={"shape": [2, 3]})
        assert [info.name for info in named.inputs] == ["x"]
        assert named.outputs[0].dimensions == (2, 3)

    def test_that_are_not_there_are_one(self) -> None:
        named = loaded(of_type(Types.FLOAT, ()))
        assert named.inputs[0].dimensions == named.outputs[0].dimensions == (1,)
        for shape in ((), (1,)):
            given = loaded(of_type(Types.FLOAT, ()), input_shapes={"x": shape})
            assert given.inputs[0].dimensions == (1,)

    def test_of_a_tensor_of_any_rank_are_open_or_given(self) -> None:
        proto = written("float[] x => float[] y", "y = Neg(x)")
        assert loaded(proto).inputs[0].dimensions == ()
        named = loaded(proto, input_shapes={"x": (2, 0)})
        assert (named.inputs[0].dimensions, named.inputs[0].axes) == ((2, 0), ("", "?"))
        settled = loaded(proto, input_shapes={"x": (2, 3)})
        assert settled.outputs[0].dimensions == (2, 3)
        strict = loaded(proto, input_shapes={"x": (2, 3)}, strict=True)
        assert strict.outputs[0].dimensions == (2, 3)
        with pytest.raises(InvalidArgumentError, match=r"cannot have shape \[-2\]"):
            loaded(proto, input_shapes={"x": (-2,)})


class TestStates:
    def test_of_an_output_without_axes_has_those_before_the_step(self) -> None:
        nodes = [node("Add", ["x", "h"], ["hn"]), node("Neg", ["hn"], ["y"])]
        inputs = [tensor("x", (1, 4)), tensor("h", ("batch", 4))]
        named = loaded(model(nodes, inputs, ["hn", "y"]))
        assert named.pairs == (("h", "hn"),)
        assert named.outputs[0].axes == ("batch", "")

    def test_that_may_have_any_rank_is_none(self) -> None:
        nodes = [node("Add", ["x", "h"], ["hn"]), node("Neg", ["hn"], ["y"])]
        inputs = [tensor("x", (1, 4)), tensor("h", None)]
        named = loaded(model(nodes, inputs, ["hn", "y"]))
        assert named.pairs == ()
        assert [info.dimensions for info in named.outputs] == [(), ()]


class TestConstants:
    def test_are_no_inputs(self) -> None:
        inputs = [tensor("x", (2,)), tensor("rate", (), np.int64)]
        cast = node("Cast", ["rate"], ["real"], to=Types.FLOAT)
        proto = model([cast, node("Mul", ["x", "real"], ["y"])], inputs, ["y"])
        for value in (16000, [16000], np.int32(16000)):
            named = loaded(proto, constants={"rate": value})
            assert [info.name for info in named.inputs] == ["x"]
            region = region_of(named.model)
            assert region is not None
            assert region.inputs[0] == (2,)
            np.testing.assert_array_equal(region.inputs[1], [16000])
        with pytest.raises(InvalidArgumentError, match="no input 'tempo'"):
            loaded(proto, constants={"tempo": 1})
        with pytest.raises(InvalidArgumentError, match="does not fit"):
            loaded(proto, constants={"rate": [1, 2]})

    def test_weights_that_are_inputs_as_well_are_none(self) -> None:
        w = np.ones(2, np.float32)
        inputs = [tensor("x", (2,)), tensor("w", (2,))]
        named = loaded(model([node("Add", ["x", "w"], ["y"])], inputs, ["y"], {"w": w}))
        assert [info.name for info in named.inputs] == ["x"]


class TestBytes:
    def test_of_the_file_are_the_graph(self, tmp_path: Path) -> None:
        content = of_type(Types.FLOAT).SerializeToString()
        region = region_of(asyncnn.load(content).model)
        assert region is not None
        assert bytes(view(region.graph)) == content

    def test_of_external_files_are_in_it(self, tmp_path: Path) -> None:
        w = np.arange(4096, dtype=np.float32)
        proto = written("float[4096] x => float[] y", "y = Add(x, w)")
        proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
        path = tmp_path / "model.onnx"
        onnx.save(proto, path, save_as_external_data=True, location="w.bin")
        region = region_of(asyncnn.load(path).model)
        (tmp_path / "w.bin").unlink()
        assert region is not None
        whole = onnx.load_model_from_string(bytes(view(region.graph)))
        (weight,) = whole.graph.initializer
        np.testing.assert_array_equal(numpy_helper.to_array(weight), w)
        with pytest.raises(InvalidArgumentError, match="a file that is not there"):
            asyncnn.load(path)

    @pytest.mark.parametrize("is_inside", [False, True])
    @pytest.mark.parametrize(
        "type_", [Types.INT4, Types.UINT4, Types.FLOAT8E4M3FN, Types.FLOAT8E5M2]
    )
    async def test_of_external_files_may_have_any_type(
        self, tmp_path: Path, type_: int, is_inside: bool
    ) -> None:
        count = 15 if type_ in (Types.FLOAT8E4M3FN, Types.FLOAT8E5M2) else 8
        w = helper.make_tensor("w", type_, [3, 5], bytes(range(17, 17 + count)), True)
        wide = node("DequantizeLinear", ["w", "scale"], ["wide"])
        if is_inside:
            wide = node("Identity", ["v"], ["wide"])
        made = [wide, node("MatMul", ["x", "wide"], ["y"])]
        if is_inside:
            held = helper.make_tensor_value_info("v", Types.FLOAT, [3, 5])
            linear = node("DequantizeLinear", ["w", "scale"], ["v"])
            branch = helper.make_graph([linear], "branch", [], [held], [w])
            made.insert(
                0, node("If", ["is"], ["v"], then_branch=branch, else_branch=branch)
            )
        weights = {"scale": np.float32(0.5), "is": np.bool_(True)}
        proto = model(made, [tensor("x", (2, 3))], ["y"], weights, opset=21)
        proto.ir_version = 10
        if not is_inside:
            proto.graph.initializer.append(w)
        path = tmp_path / "model.onnx"
        onnx.save(
            proto, path, save_as_external_data=True, location="w", size_threshold=0
        )
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        content = onnx.load(path).SerializeToString()
        (expected,) = onnxruntime.InferenceSession(content).run(None, {"x": x})
        async with asyncnn.open_device("onnxruntime") as device:
            prepared = await device.prepare(asyncnn.load(path))
            np.testing.assert_array_equal((await prepared.run([x]))["y"], expected)

    def test_weights_of_external_files_are_not_there_twice(
        self, tmp_path: Path
    ) -> None:
        w = np.ones(1 << 23, np.float32)
        proto = model([node("Add", ["x", "w"], ["y"])], [tensor("x", w.shape)], ["y"])
        proto.graph.initializer.append(numpy_helper.from_array(w, "w"))
        path = tmp_path / "model.onnx"
        onnx.save(proto, path, save_as_external_data=True, location="w.bin")
        tracemalloc.start()
        try:
            named = asyncnn.load(path)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 1.5 * w.nbytes
        assert region_of(named.model) is not None

    def test_that_are_damaged_are_refused(self) -> None:
        content = of_type(Types.FLOAT).SerializeToString()
        for damaged in (content[:-3], content[:-1], content + b"\x0a"):
            with pytest.raises(InvalidArgumentError, match="damaged ONNX file"):
                asyncnn.load(damaged)

    def test_metadata_are_read(self) -> None:
        proto = of_type(Types.FLOAT)
        proto.doc_string = "passes it on"
        metadata = loaded(proto).metadata
        assert metadata is not None
        assert metadata.description == "passes it on"


class TestStrict:
    def test_translates_at_once(self) -> None:
        proto = written("float[2] x => float[] y", "y = Neg(x)")
        assert operations(loaded(proto, strict=True)) == [OperationType.NEG]

    async def test_refuses_what_has_no_form_in_the_hal(self) -> None:
        proto = written("float[2, 2] x => float[] y", "y = Det(x)")
        assert is_region(loaded(proto))
        content = proto.SerializeToString()
        with pytest.raises(UnsupportedOperatorError, match="Det"):
            asyncnn.load(content, strict=True)
        with pytest.raises(UnsupportedOperatorError, match="Det"):
            await asyncnn.load_model(content, strict=True)


class TestRegionsOfModels:
    def test_are_of_those_with_one_operation_of_the_extension(self) -> None:
        strict = written("float[2] x => float[] y", "y = Neg(x)")
        assert region_of(loaded(strict, strict=True).model) is None

    def test_that_break_a_rule_are_refused(self) -> None:
        good = loaded(of_type(Types.FLOAT))
        region = region_of(good.model)
        assert region is not None
        value = np.arange(3, dtype=np.int64)
        port = type_of(ONNX, np.dtype(np.float32)), (2,), 0.0, 0
        whole = region_model(ONNX, region.graph, [port, value], [port])
        numbered = NamedModel.of(whole, ["x"], ["y"]).model
        assert region_of(numbered) is not None
        operands = list(numbered.main.operands)
        place = operands[2].location
        shorter = replace(place, length=place.length - 8)
        operands[2] = replace(operands[2], location=shorter)
        for bad in (
            replace(numbered.main, operands=tuple(operands)),
            replace(numbered.main, operations=(cut(numbered.main.operations[0]),)),
        ):
            with pytest.raises(InvalidArgumentError):
                region_of(replace(numbered, main=bad))


def cut(operation: Any) -> Any:
    """Return an operation that reads an operand which is not there."""
    return replace(operation, inputs=(*operation.inputs[:-1], 99))


def test_inputs_that_are_omitted_at_the_end_do_not_end_the_process() -> None:
    ends = [
        helper.make_tensor_value_info("x", Types.FLOAT, [16, 2]),
        *(helper.make_tensor_value_info(y, Types.FLOAT, ["n", 2]) for y in "yz"),
    ]
    split = node("Split", ["x", ""], ["y", "z"], num_outputs=2)
    graph = helper.make_graph([split], "g", ends[:1], ends[1:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    assert [each.shape for each in loaded(proto).outputs] == [(8, 2), (8, 2)]
