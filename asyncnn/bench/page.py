"""Draws the report of ``asyncnn bench models`` as one self-contained HTML page."""

import math
from html import escape

from asyncnn.bench.goals import LITERT, LITERT_REF, Verdict
from asyncnn.bench.models import AWAITED, DEVICE, ModelReport, ModelsReport

_SERIES = {
    DEVICE: "asyncnn, on the device",
    AWAITED: "asyncnn, awaited",
    LITERT: "LiteRT (XNNPACK)",
    LITERT_REF: "LiteRT reference kernels",
}

_LEFT = 190
_WIDTH = 860
_RIGHT = 60
_BAR = 12
_GAP = 16
_TOP = 24

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<title>asyncnn bench models</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 14px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; }}
svg {{ width: 100%; height: auto; }}
svg text {{ font-size: 12px; fill: currentColor; }}
.grid {{ stroke: currentColor; stroke-opacity: 0.2; }}
.{DEVICE}, .{DEVICE} rect {{ fill: #2a78d6; color: #2a78d6; }}
</style>
</html>
"""
