"""``asyncnn bench kernels``: single operations beside LiteRT's kernels.

Each operation is written as a TFLite file that LiteRT and the importer both read, and
is run as one step of a plan, with neither request nor event loop around it.
"""
