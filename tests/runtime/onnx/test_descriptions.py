"""What is known of a model beyond its operations: names of axes, and metadata."""

from typing import Any

from onnx import helper

from tests.runtime.onnx.files import imported, model, tensor, written

node = helper.make_node


def activation() -> Any:
    """Return a model of one operation, whose axes are open."""
    shape = "batch", 3, "height"
    return model([node("Relu", ["x"], ["y"])], [tensor("x", shape)], ["y"])


class TestAxes:
    def test_their_names_are_told_of_inputs_and_outputs(self) -> None:
        proto = written(
            "float[n, length] x, float[?, 3] z"
            " => float[] kept, float[] longer, float[] y",
            "kept = Relu(x); longer = Concat<axis=1>(x, x); y = Add(z, z)",
        )
        named = imported(proto)
        assert [info.axes for info in named.inputs] == [("n", "length"), ("?", "")]
        axes = [("n", "length"), ("n", "?"), ("?", "")]
        assert [info.axes for info in named.outputs] == axes
        assert str(named.inputs[0]) == "x: TENSOR_FLOAT32 [n, length]"
        assert [info.shape for info in named.inputs] == [(None, None), (None, 3)]
        assert [info.dimensions for info in named.inputs] == [(0, 0), (0, 3)]
        given = imported(proto, input_shapes={"x": (2, 0)})
        assert given.inputs[0].axes == ("", "length")
        assert given.inputs[0].shape == (2, None)
        assert imported(proto, input_shapes=[(2, 5), (1, 3)]).inputs[0].axes == ()

    def test_they_are_told_of_a_model_that_knows_extensions(self) -> None:
        named = imported(activation())
        assert named.knowing(()).inputs == named.inputs
        assert named.inputs[0].axes == ("batch", "", "height")


class TestMetadata:
    def test_is_what_the_author_says(self) -> None:
        proto = activation()
        assert imported(proto).metadata is None
        proto.doc_string, proto.model_version = "reads digits", 3
        said = {"model_author": "A", "model_license": "Apache-2.0", "labels": "0\n1"}
        for key, value in said.items():
            entry = proto.metadata_props.add()
            entry.key, entry.value = key, value
        found = imported(proto).metadata
        assert found is not None
        assert (found.description, found.version) == ("reads digits", "3")
        assert (found.author, found.license) == ("A", "Apache-2.0")
        assert found.properties == said

    def test_is_read_up_to_a_bound(self) -> None:
        proto = activation()
        for key in ("first", "second"):
            entry = proto.metadata_props.add()
            entry.key, entry.value = key, "x" * 700_000
        found = imported(proto).metadata
        assert found is not None
        assert list(found.properties) == ["first"]
