"""What the code of pages takes for granted, as code that is typed before theirs."""

_OPEN = """\
import asyncio
from contextlib import AsyncExitStack
import asyncnn
import numpy as np
stack = AsyncExitStack()
close = stack.aclose
device = await stack.enter_async_context(asyncnn.open_device())
"""

_SUMS = """\
import asyncnn
import numpy as np
def sums(inputs, outputs, shape=(1, 4)):
    builder = asyncnn.ModelBuilder()
    tensor = asyncnn.hal.Operand(asyncnn.OperandType.TENSOR_FLOAT32, shape)
    values = [builder.input(name, tensor.type, shape) for name in inputs]
    for name in outputs:
        total = builder.operation(asyncnn.OperationType.ABS, [values[0]], tensor)
        for value in values[1:]:
            terms = [total, value, builder.scalar(0)]
            total = builder.operation(asyncnn.OperationType.ADD, terms, tensor)
        builder.output(total, name)
    return builder.build()

"""

_SPECTRAL = """\
import shutil
import sys
from pathlib import Path
import asyncnn
import walk
examples = Path(walk.__file__).parents[1] / "examples" / "extension"
copied = [shutil.copy(examples / name, ".") for name in ("app.py", "spectral.py")]
installed = Path("example-1.dist-info")
installed.mkdir()
points = '[asyncnn.extensions]\\ncom.example.spectral = spectral:spectral\\n'
written = (installed / "entry_points.txt").write_text(points)
import app
asyncnn.save(app.pitch_model(), "pitch.asyncnn")
"""

_ONNX = """\
from onnx import TensorProto, helper, save
def value(name, *shape, type_=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, type_, shape)

def write(file, nodes, inputs, outputs):
    graph = helper.make_graph(nodes, "graph", inputs, outputs)
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    save(model, file)

images, boxes = value("images", "n", 3, "h", "w"), value("boxes", "n", 3, "h", "w")
nodes = [helper.make_node("Relu", ["images"], ["boxes"])]
write("detector.onnx", nodes, [images], [boxes])
sound, state = value("input", "n", "samples"), value("state", 2, "n", 128)
rate = value("sr", type_=TensorProto.INT64)
nodes = [
    helper.make_node("Cast", ["sr"], ["rate"], to=TensorProto.FLOAT),
    helper.make_node("Div", ["input", "rate"], ["output"]),
    helper.make_node("Relu", ["state"], ["stateN"]),
]
outputs = [value("output", "n", "samples"), value("stateN", 2, "n", 128)]
write("vad.onnx", nodes, [sound, state, rate], outputs)
"""

_SPOTTER = """\
nodes = [helper.make_node("Add", ["x", "left"], ["right"])]
nodes += [helper.make_node("Abs", ["right"], ["y"])]
names = [[value(name, 1, 4) for name in two] for two in (("x", "left"), ("right", "y"))]
write("spotter.onnx", nodes, *names)
import asyncnn
"""

GIVEN = {
    "README.md": f"""\
{_OPEN}
model = asyncnn.load("model.tflite")
prepared = await device.prepare(model)
image = asyncnn.shared_array((1, 8, 8, 1))
{_SUMS}
boxes = asyncnn.shared_array((1, 8, 8, 1))
detector = await device.prepare(sums(["image"], ["boxes"], image.shape))
classifier = prepared
""",
    "docs/buffers.md": f"""\
{_SUMS}
asyncnn.save(sums(["x", "h"], ["y", "h_out"], (1, 64)), "recurrent.tflite")
""",
    "docs/caching.md": "import asyncnn",
    "docs/extensions.md": _SPECTRAL,
    "docs/onnx.md": _ONNX,
    "docs/sessions.md": _ONNX + _SPOTTER,
    "docs/fences.md": f"""\
{_OPEN}
{_SUMS}
asyncnn.save(sums(["x"], ["between"]), "first.tflite")
asyncnn.save(sums(["between"], ["y"]), "second.tflite")
features = await device.prepare(sums(["sound"], ["powers"]))
recurrent = await device.prepare(
    sums(["powers", "memory_in"], ["heard", "memory_out"])
)
decide = await device.prepare(sums(["heard"], ["digit"]))
microphone = [np.ones((1, 4), np.float32)] * 6
""",
}
"""By page."""
