"""Execution providers: what ONNX Runtime computes on instead of the CPU.

One is named as ONNX Runtime names it, in lower case and without its last words:
``cuda`` is its CUDAExecutionProvider. Nodes that a provider has no kernel for are
computed on the CPU, by ONNX Runtime itself.
"""

import msgspec

from asyncnn.hal.types import DeviceType

SUFFIX = "ExecutionProvider"

NO_PROVIDERS = frozenset({"cpu", "azure"})
"""The CPU, which ``onnxruntime`` is on, and what asks a server elsewhere."""

_GPUS = frozenset(
    {"cuda", "migraphx", "nvtensorrtrtx", "openvino", "rocm", "tensorrt", "webgpu"}
)

_OPTIONS = {
    "cuda": (("use_tf32", "0"),),
    "openvino": (("device_type", "GPU"), ("precision", "FP32")),
}
"""Which of several devices it is, and that float32 is computed in float32."""


class ExecutionProvider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A provider, the kind of hardware that it is declared to be, and its options.

    These are keys and values as ONNX Runtime documents them for the provider.
    """

    name: str
    type: DeviceType = DeviceType.ACCELERATOR
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def usual(cls, name: str) -> "ExecutionProvider":
        """Return the provider of a name with its usual options.

        What is not known to be a GPU is declared an ACCELERATOR.
        """
        type_ = DeviceType.GPU if name in _GPUS else DeviceType.ACCELERATOR
        return cls(name, type_, _OPTIONS.get(name, ()))

    def __str__(self) -> str:
        """Distinguish it: what was prepared for one is not for another."""
        options = [f"{key}={value}" for key, value in self.options]
        return " ".join((self.name, *options))
