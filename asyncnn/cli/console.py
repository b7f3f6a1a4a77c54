"""How commands print: progress and pictures on a terminal, plain lines in a pipe."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import typer

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


def console(*, stderr: bool = False) -> "Console":
    """Return the console of standard output, or of standard error."""
    from rich.console import Console

    return Console(stderr=stderr)


def progress(items: Iterable[T], description: str, total: int) -> Iterable[T]:
    """Iterate with a progress bar on standard error, if that is a terminal."""
    from rich.progress import track

    stderr = console(stderr=True)
    return track(
        items,
        description,
        total=total,
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )


def announced(items: Sequence[str]) -> Iterator[str]:
    """Iterate and name each item on standard error, if that is a terminal.

    No thread draws meanwhile, as one does for `progress`.
    """
    stderr = console(stderr=True)
    for number, item in enumerate(items, 1):
        if stderr.is_terminal:
            stderr.print(f"{number} of {len(items)}: {item}")
        yield item


def print_json(record: Any) -> None:
    """Print a struct as one JSON document."""
    document = msgspec.json.format(msgspec.json.encode(record), indent=2)
    typer.echo(document.decode())
