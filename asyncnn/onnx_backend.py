"""The backend interface of the `onnx` package: models run on a device, and block.

It is what other packages of ONNX know runtimes by, and what ONNX's own tests run on::

    import asyncnn.onnx_backend as backend

    prepared = backend.prepare(onnx.load("model.onnx"))
    (result,) = prepared.run([image])

All models run on one device of this process, the one that `open_device` opens without a
name (the environment variable ``ASYNCNN_DEVICE`` names another), on an event loop in a
thread of its own. Applications of asyncio await `PreparedModel.run` instead.
"""

import atexit
import math
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import anyio.from_thread
import numpy as np
import onnx.shape_inference
from anyio.from_thread import BlockingPortal
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.device import Device
from asyncnn.runtime.model_file import load_model
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.prepared import PreparedModel


class _Home:
    """The device that all models run on, and the thread of its event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._opened: tuple[BlockingPortal, Device] | None = None

    def opened(self) -> tuple[BlockingPortal, Device]:
        """Return the loop and the device, which the first call opens."""
        with self._lock:
            if self._opened is None:
                portal = self._stack.enter_context(
                    anyio.from_thread.start_blocking_portal()
                )
                opening = portal.wrap_async_context_manager(open_device())
                self._opened = portal, self._stack.enter_context(opening)
            return self._opened

    def close(self) -> None:
        """Close the device, and end its thread; the next call opens another."""
        with self._lock:
            self._opened = None
            self._stack.close()


_home = _Home()
atexit.register(_home.close)
close = _home.close


class AsyncnnRep(BackendRep):
    """A model that is prepared: `run` it any number of times, from any thread."""

    def __init__(
        self, portal: BlockingPortal, prepared: PreparedModel, graph: Any
    ) -> None:
        self._portal = portal
        self._prepared = prepared
        self._outputs = [output.name for output in graph.output]
        self._dtypes = {
            output.name: helper.tensor_dtype_to_np_dtype(
                output.type.tensor_type.elem_type
            )
            for output in graph.output
        }
        self._shapes = {
            each.name: tuple(axis.dim_value for axis in each.type.tensor_type.shape.dim)
            for each in graph.output
            if each.type.tensor_type.HasField("shape")
        }

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs of one run, also by their names.

        ``inputs`` are arrays in the order of the graph, by name, or the only one.

        :raises AsyncnnError: as `PreparedModel.run`.
        """
        if isinstance(inputs, np.ndarray) or not isinstance(inputs, Sequence | dict):
            inputs = [inputs]
        found = self._portal.call(self._prepared.run, inputs)
        results = [self._result(name, found[name]) for name in self._outputs]
        named: tuple[Any, ...] = namedtupledict("Outputs", self._outputs)(*results)
        return named

    def _result(self, name: str, array: Array) -> Array:
        dtype = self._dtypes[name]
        if array.dtype == np.int32 and dtype == np.int64:  # of a translation
            array = array.astype(dtype)
        elif array.dtype.kind == "V":
            array = array.view(dtype)
        shape = self._shapes.get(name, array.shape)
        # A translation has merged axes.
        return array.reshape(shape) if math.prod(shape) == array.size else array


class AsyncnnBackend(Backend):
    """See the module; its functions are methods of this class."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> Any:
        """Load ``model`` and prepare it on the device.

        :raises AsyncnnError: if it cannot be loaded, or is not supported.
        """
        super().prepare(model, device, **kwargs)
        portal, opened = _home.opened()
        loaded = portal.call(load_model, model.SerializeToString())
        prepared = portal.call(opened.prepare, loaded)
        return AsyncnnRep(portal, prepared, model.graph)

    @classmethod
    def run_model(
        cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        """Prepare ``model`` and run it once.

        :raises AsyncnnError: as `prepare` and `AsyncnnRep.run`.
        """
        outputs: tuple[Any, ...] = cls.prepare(model, device, **kwargs).run(inputs)
        return outputs

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run one node, of the newest operator set or ``opset_version``.

        :raises AsyncnnError: as `run_model`.
        """
        super().run_node(node, inputs, device, outputs_info, **kwargs)
        arrays = [np.asarray(each) for each in inputs]
        names = [name for name in node.input if name]
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        graph = helper.make_graph(
            [node],
            "node",
            [_info(*each) for each in zip(names, arrays, strict=True)],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", version)]
        )
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether models run on a device of ONNX's: on the CPU alone."""
        return device == "CPU"


def _info(name: str, array: Array) -> onnx.ValueInfoProto:
    number = helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, number, array.shape)


prepare = AsyncnnBackend.prepare
run_model = AsyncnnBackend.run_model
run_node = AsyncnnBackend.run_node
is_compatible = AsyncnnBackend.is_compatible
supports_device = AsyncnnBackend.supports_device
