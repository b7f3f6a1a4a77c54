"""A device for some operations on floats, which computes with NumPy on a thread.

It is a class that a framework opens by name: see pyproject.toml, and README.md.
"""

import asyncio
import math

import numpy as np

from asyncnn.callbacks import OneShot, SynchronousByCallback
from asyncnn.hal.errors import AsyncnnError, failure_of
from asyncnn.hal.performance import uniform_performance
from asyncnn.hal.refusals import NoCachesNorDomains, NoFencesNorBursts
from asyncnn.hal.types import (
    NO_TIMING,
    Capabilities,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    OperandType,
    OperationType,
    OutputShape,
    PerformanceInfo,
)
from asyncnn.hal.validate import RequestRules, validate_model
from asyncnn.memory import view

T = OperationType
FUNCTIONS = {T.ABS: np.abs, T.NEG: np.negative, T.SQRT: np.sqrt, T.EXP: np.exp}
FIGURES = PerformanceInfo(exec_time=0.5, power_usage=0.9)  # half the CPU's time


class UnaryDevice(NoCachesNorDomains):
    """Opened as ``unary``; gets the settings of `asyncnn.open_device`."""

    def __init__(self, settings):
        self.tasks = set()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        if self.tasks:  # their memory is the clients'
            await asyncio.wait(self.tasks)

    def get_status(self):
        return DeviceStatus.AVAILABLE

    def get_version_string(self):
        return ErrorStatus.NONE, "unary 1.0"

    def get_type(self):
        return ErrorStatus.NONE, DeviceType.ACCELERATOR

    def get_capabilities_1_3(self):
        table = uniform_performance(FIGURES)
        return ErrorStatus.NONE, Capabilities(FIGURES, FIGURES, table, FIGURES, FIGURES)

    def get_supported_extensions(self):
        return ErrorStatus.NONE, ()

    async def get_supported_operations_1_3(self, model):
        operands = model.main.operands
        supports = [
            operation.type in FUNCTIONS
            and operands[operation.inputs[0]].type == OperandType.TENSOR_FLOAT32
            and 0 not in (operands[operation.inputs[0]].dimensions or (0,))
            for operation in model.main.operations
        ]
        return ErrorStatus.NONE, tuple(supports)

    def prepare_model_1_3(
        self, model, preference, priority, deadline, models, data, token, callback
    ):
        notify = OneShot(callback.notify_1_3)
        try:
            validate_model(model)
        except AsyncnnError as error:
            notify(error.status, None)
            return error.status
        asyncio.get_running_loop().call_soon(
            notify, ErrorStatus.NONE, Unary(self, model)
        )
        return ErrorStatus.NONE


class Unary(SynchronousByCallback, NoFencesNorBursts):
    """A prepared model: executed by callback, which the synchronous call is made of."""

    def __init__(self, device, model):
        self.device, self.main, self.rules = device, model.main, RequestRules(model)

    def execute_1_3(self, request, measure, deadline, loop_timeout, callback):
        notify = OneShot(callback.notify_1_3)
        try:
            self.rules.check(request)
        except AsyncnnError as error:
            notify(error.status, (), NO_TIMING)
            return error.status

        def done(task):
            self.device.tasks.discard(task)
            failed = task.exception()
            status = failure_of(failed).status if failed else ErrorStatus.NONE
            notify(status, () if failed else task.result(), NO_TIMING)

        task = asyncio.ensure_future(asyncio.to_thread(self.compute, request))
        self.device.tasks.add(task)
        task.add_done_callback(done)
        return ErrorStatus.NONE

    def compute(self, request):
        main, arrays = self.main, {}
        for index, argument in (
            *zip(main.input_indexes, request.inputs, strict=True),
            *zip(main.output_indexes, request.outputs, strict=True),
        ):
            at, shape = argument.location, main.operands[index].dimensions
            memory = view(request.pools[at.pool_index])
            flat = np.frombuffer(memory, np.float32, math.prod(shape), at.offset)
            arrays[index] = flat.reshape(shape)
        for operation in main.operations:
            (x,), (y,) = operation.inputs, operation.outputs
            arrays[y] = FUNCTIONS[operation.type](arrays[x], out=arrays.get(y))
        shapes = [main.operands[index].dimensions for index in main.output_indexes]
        return tuple(OutputShape(shape, True) for shape in shapes)
