"""Floor 6: the framework on the application's side.

Owns model building and model files, the discovery of devices, partitioning and the
awaitable API. Imports every floor below.
"""
