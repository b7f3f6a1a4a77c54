"""Floor 7: the main job end to end, on models and data that come with the package.

`digits` finds the bundled files, `demonstration` streams them through a device and
turns results into numbers and pictures. The files are made by ``examples/digits``.
"""
