"""Floor 2: operand and operation types beyond the HAL's.

`Extension`
    declares types of a vendor, with `Extension.tensor_type`, `Extension.operation`
`Argument`, `row`, `stateless`
    the words of a declaration: an operand, a row of types, a kernel without buffers
`load_extension`
    finds an extension that is named in a command or a file of settings

An extension is declared once, by vendor and application alike, as a module-level
object. Its types stand for themselves wherever the HAL's own do. A device has the
extensions that it is opened with, and computes with their kernels: see
`asyncnn.open_device`. Name and numbers are what drivers and applications agree on, and
never change; raise ``version`` when a kernel computes something else.

A kernel runs on a worker thread of the device, or on its event loop if it is short, and
one run at a time in each workspace. It must not write to its inputs, which may be
read-only and of any alignment, nor keep its outputs. One that takes milliseconds should
be a `TiledRun`, which can make way for other work between tiles. Buffers come from a
`Scratch`.

In models the types are numbers, to which each model gives its own meaning: `numbered`
writes them so, and `Extensions.resolved` reads them. `check_extended` checks what only
the extension knows; a `Vocabulary` has words for the types of one model.

A declaration that contradicts itself raises `InvalidArgumentError` at once, and so does
preparing a model that breaks a rule of the extension. A model with types that the
device does not have fails with `GeneralFailureError`. A shape rule or a kernel raises
`OperationFailedError` for values that it cannot work with. `ValueNeededError` says that
a value comes only with the execution, when preparing is tried again.

>>> import asyncio
>>> import numpy as np
>>> from asyncnn import ModelBuilder, OperandType, hal, open_device
>>> from asyncnn.extensions import Argument, Extension, stateless
>>> spectral = Extension("com.example.spectral")
>>> COMPLEX = spectral.tensor_type("TENSOR_COMPLEX64", 0, np.complex64)
>>> MAGNITUDE = spectral.operation(
...     "MAGNITUDE",
...     0,
...     inputs=[Argument("spectrum", COMPLEX)],
...     outputs=[Argument("magnitude", OperandType.TENSOR_FLOAT32)],
...     shape=lambda operation: (operation.shape(0),),
...     prepare=lambda operation: stateless(
...         lambda inputs, outputs: np.abs(inputs[0], out=outputs[0])
...     ),
... )
>>> builder = ModelBuilder()
>>> spectrum = builder.input("spectrum", COMPLEX, (2,))
>>> magnitude = hal.Operand(OperandType.TENSOR_FLOAT32, (2,))
>>> builder.output(builder.operation(MAGNITUDE, [spectrum], magnitude), "magnitude")
>>> async def main():
...     async with open_device(extensions=[spectral]) as device:
...         model = await device.prepare(builder.build())
...         outputs = await model.run({"spectrum": np.complex64([3 + 4j, 1j])})
...         return outputs["magnitude"].tolist()
>>> asyncio.run(main())
[5.0, 1.0]
"""

from asyncnn.extensions.custom import CustomOperators as CustomOperators
from asyncnn.extensions.custom import FlexOptions as FlexOptions
from asyncnn.extensions.custom import packed_integers as packed_integers
from asyncnn.extensions.extension import CustomOperator as CustomOperator
from asyncnn.extensions.extension import Extension as Extension
from asyncnn.extensions.extension import installed_extensions as installed_extensions
from asyncnn.extensions.extension import load_extension as load_extension
from asyncnn.extensions.extension import load_extensions as load_extensions
from asyncnn.extensions.names import ExtensionNames as ExtensionNames
from asyncnn.extensions.names import Vocabulary as Vocabulary
from asyncnn.extensions.names import joined as joined
from asyncnn.extensions.names import names_in as names_in
from asyncnn.extensions.names import numbered as numbered
from asyncnn.extensions.resolution import NO_EXTENSIONS as NO_EXTENSIONS
from asyncnn.extensions.resolution import Extensions as Extensions
from asyncnn.extensions.resolution import check_extended as check_extended
from asyncnn.extensions.resolution import (
    check_extended_operation as check_extended_operation,
)
from asyncnn.hal.operations.bound import BoundOperation as BoundOperation
from asyncnn.hal.operations.bound import OperationFailedError as OperationFailedError
from asyncnn.hal.operations.bound import ValueNeededError as ValueNeededError
from asyncnn.hal.operations.signature import V1_2 as V1_2
from asyncnn.hal.operations.signature import Argument as Argument
from asyncnn.hal.operations.signature import TypeRow as TypeRow
from asyncnn.hal.operations.signature import Usage as Usage
from asyncnn.hal.operations.signature import row as row
from asyncnn.kernels.kernel import Scratch as Scratch
from asyncnn.kernels.kernel import TiledRun as TiledRun
from asyncnn.kernels.kernel import stateless as stateless
from asyncnn.lazy import exported as _exported

__all__ = _exported(__name__)
