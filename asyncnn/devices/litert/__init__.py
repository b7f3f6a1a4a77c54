"""Segments of plans on LiteRT, an inference engine with XNNPACK.

`claims`
    tells which operations it computes, `refusal` says why not
`write_graph`
    writes a segment as a TFLite file, in memory
"""

from asyncnn.devices.litert.claims import claims, refusal
from asyncnn.devices.litert.writer import write_graph

__all__ = ("claims", "refusal", "write_graph")
