"""Floor 6: the framework on the application's side.

What applications use is in `asyncnn` itself. Models: `builder`, `model`, `model_file`,
`tflite`, and `explain` and `dot` to look at one. Devices and runs: `device`,
`opening_devices`, `prepared`, `reusable`, `burst`, `fenced`, on `requests` and
`execution_options`. Memory and files: `buffers` in the driver, `named_arrays` between
processes, `model_cache` for compilation caching. Imports every floor below.
"""
