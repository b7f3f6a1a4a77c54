"""Draws a page as one HTML file, and reads such a file again.

The file refers to nothing outside, and its content security policy admits no script
but the page's own: a name that were taken for markup would still not run. What the
page is made of stands in it as JSON.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from importlib import resources
from typing import Any

import msgspec

from asyncnn.tools import pages
from asyncnn.tools.pages import graphs, plots
from asyncnn.tools.pages.scales import DASH, figure

_DATA = re.compile(
    r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL
)
_SHORT = 24
"""Characters of a text that a table keeps on one line."""

_MET = {True: "met", False: "missed"}


def draw(page: pages.Page) -> str:
    """Return the HTML text of a page.

    :raises ValueError: if a graph has edges in a circle or to nodes that are not
        there, or a row of a table has more or fewer cells than there are columns.
    """
    return "\n".join(_lines(page)) + "\n"


def load_page(html: str) -> pages.Page:
    """Return the page of which `draw` made a text.

    :raises ValueError: if `draw` did not make it.
    """
    found = _DATA.search(html)
    if found is None:
        raise ValueError("the file is no page of asyncnn: it has no data")
    return msgspec.json.decode(found[1], type=pages.Page)


@cache
def asset(name: str) -> str:
    """Return the style sheet ``page.css`` or the script ``page.js``."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _lines(page: pages.Page) -> Iterator[str]:
    script = "\n" + asset("page.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'"
    )
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<title>{escape(page.title)}</title>\n<link rel="icon" href="data:,">'
    yield f"<style>\n{asset('page.css')}</style>\n</head>\n<body>\n<main>"
    yield f"<h1>{escape(page.title)}</h1>"
    yield from _contents(page.parts)
    for number, part in enumerate(page.parts):
        yield from _part(number, part)
    if page.circumstances:
        yield "<footer>"
        yield from (f"<p>{escape(line)}</p>" for line in page.circumstances)
        yield "</footer>"
    yield "</main>"
    data = plots.script_data(page)
    yield f'<script type="application/json" id="data">{data}</script>'
    yield f"<script>{script}</script>\n</body>\n</html>"


def _contents(parts: Sequence[pages.Part]) -> Iterator[str]:
    titled = [
        (n, p.title) for n, p in enumerate(parts) if not isinstance(p, pages.Text)
    ]
    if len(titled) < 3:
        return
    yield '<nav aria-label="Contents"><ul>'
    for number, title in titled:
        yield f'<li><a href="#part-{number}">{escape(title)}</a></li>'
    yield "</ul></nav>"


def _part(number: int, part: pages.Part) -> Iterator[str]:
    if isinstance(part, pages.Text):
        for paragraph in re.split(r"\n\s*\n", part.text.strip()):
            yield f"<p>{escape(paragraph)}</p>"
        return
    yield f'<section id="part-{number}" data-part="{number}">'
    yield f"<h2>{escape(part.title)}</h2>"
    if part.note:
        yield f'<p class="note">{escape(part.note)}</p>'
    yield from _DRAWN[type(part)](part)
    yield "</section>"


def _table(table: pages.SortableTable) -> Iterator[str]:
    yield '<p class="tools"><span class="controls" hidden>'
    yield '<input type="search" placeholder="Filter rows" '
    yield f'aria-label="Filter rows of {escape(table.title)}"> '
    yield '<output aria-live="polite"></output></span></p>'
    yield '<div class="scroll"><table class="sortable"><thead><tr>'
    for place, column in enumerate(table.columns):
        below = (row[place] for row in table.rows if place < len(row))
        has_numbers = any(not isinstance(cell, str | None) for cell in below)
        yield _heading(column, has_numbers and place > 0)
    yield "</tr></thead><tbody>"
    for row in table.rows:
        cells = zip(row, table.columns, strict=True)
        drawn = (_cell(cell, column, n) for n, (cell, column) in enumerate(cells))
        yield f"<tr>{''.join(drawn)}</tr>"
    yield "</tbody></table></div>"


def _heading(column: pages.Column, has_numbers: bool) -> str:
    number = ' class="number"' if has_numbers else ""
    unit = f" <small>{escape(column.unit)}</small>" if column.unit else ""
    title = f' title="{escape(column.help)}"' if column.help else ""
    return f'<th scope="col"{number}{title}>{escape(column.heading)}{unit}</th>'


def _cell(cell: pages.Value, column: pages.Column, place: int) -> str:
    kind = "th" if place == 0 else "td"
    attributes = ' scope="row"' if place == 0 else ""
    number = ' class="number"' if place else ""  # the first names the row
    if isinstance(cell, pages.Judged):
        text = escape(cell.text)
        if cell.met is not None:
            word = _MET[cell.met]
            if cell.is_verdict:
                text = f'<span class="{word}">{text}</span>'
            else:
                text += f' <span class="{word}">{word}</span>'
        attributes += number
    elif isinstance(cell, str):
        text = plots.broken(cell) if place == 0 else escape(cell)
        if place:
            attributes += f' class="{"short" if len(cell) <= _SHORT else "long"}"'
    else:
        text = figure(cell, column.digits)
        attributes += ' class="none"' if text == DASH else number
    return f"<{kind}{attributes}>{text}</{kind}>"


_DRAWN: Mapping[type, Callable[[Any], Iterator[str]]] = {
    pages.SortableTable: _table,
    pages.Distributions: plots.distributions,
    pages.Bars: plots.bars,
    pages.History: plots.history,
    pages.DrawnGraph: graphs.graph,
}
