"""Regions on ONNX Runtime, an inference engine: graphs of ONNX as they are in a file.

A region is an operation REGION of the extension ``org.asyncnn.onnx`` (see
`asyncnn.extensions.regions`); nothing is translated. The files, from below:

`runtime_api.py`
    ONNX Runtime's C API
`region_checks.py`
    what a graph may have before ONNX Runtime sees it
`sessions.py`
    graphs that are ready to run, shared by all who run the same one
`region_kernels.py`
    regions as kernels, which are stopped but never paused
`loading.py`
    finds the library, and has it tried in a process of its own first
`trial.py`
    that test
`onnx_device.py`
    the device ``onnxruntime``
"""
