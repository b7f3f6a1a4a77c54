"""Floor 6: the framework on the application's side.

What applications use is in `asyncnn` itself; docs/architecture.md says which file is
for what. Imports every floor below.
"""
