"""The live view: a keypad that lights up, and what the camera sees."""

import numpy as np
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from camera import ENLARGED, PIECE, PLACES, SIDE
from framing import Floats
from lookout import Lookout
from switchboard import Switchboard
from synthesis import KEYS

_SHADES = " .:-=+*#%@"
_QUIETEST_DB = -60
_METER_LENGTH = 24
_KEYS_SHOWN = 32


class View:
    """Renders the present state each time that it is drawn."""

    def __init__(self, line: Switchboard, camera: Lookout | None) -> None:
        self._line = line
        self._camera = camera

    def __rich__(self) -> RenderableType:
        panels = [Panel(_line(self._line), title="line", width=44)]
        if self._camera is not None:
            panels.append(Panel(_camera(self._camera), title="camera", width=44))
        return Columns(panels)


def _line(line: Switchboard) -> RenderableType:
    pad = Table.grid(padding=(0, 2))
    for row in range(0, len(KEYS), 4):
        pad.add_row(*(_key(key, line.held) for key in KEYS[row : row + 4]))
    return Group(
        pad,
        Text(_meter(line.loudness_db), "green"),
        Text(line.keys[-_KEYS_SHOWN:] or " ", "bold"),
        Text(str(line.timing())),
    )


def _key(key: str, held: str | None) -> Text:
    return Text(f" {key} ", "bold black on yellow" if key == held else "cyan")


def _meter(loudness_db: float) -> str:
    share = 1 - max(loudness_db, _QUIETEST_DB) / _QUIETEST_DB
    full = round(min(share, 1) * _METER_LENGTH)
    return "#" * full + "." * (_METER_LENGTH - full) + f" {loudness_db:4.0f} dB"


def _camera(camera: Lookout) -> RenderableType:
    found = f"found {camera.frames}, read {camera.read}, skipped {camera.skipped}"
    return Group(
        _picture(camera.image, camera.place),
        Text(f"{found}: {camera.digit if camera.digit is not None else ' '}", "bold"),
        Text(str(camera.finder_timing())),
    )


def _picture(image: Floats, place: int) -> Text:
    """Draw 16 by 16 pixels, two characters wide; those of the piece are bright."""
    small = image.reshape(SIDE // ENLARGED, ENLARGED, SIDE // ENLARGED, ENLARGED)
    shades = np.clip(small.mean((1, 3)) * len(_SHADES), 0, len(_SHADES) - 1)
    top, left = divmod(place, PLACES)
    picture = Text()
    for y, row in enumerate(shades.astype(int)):
        for x, shade in enumerate(row):
            inside = (
                top <= y * ENLARGED < top + PIECE
                and left <= x * ENLARGED < left + PIECE
            )
            picture.append(_SHADES[shade] * 2, "bold yellow" if inside else "dim")
        picture.append("\n")
    picture.rstrip()
    return picture
