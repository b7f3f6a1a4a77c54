"""Floor 7: the main job end to end, on models and data that come with the package.

`digits` finds the bundled files, `run` streams them through a device, `report` turns
results into numbers and pictures. The files are made by ``examples/digits``.
"""
