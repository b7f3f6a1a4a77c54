"""``asyncnn graph``: a model file as Graphviz text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import anyio
import typer

from asyncnn.cli.extending import ExtensionOption, load_extended
from asyncnn.extensions import Extension
from asyncnn.runtime.device import open_device
from asyncnn.runtime.dot import dot
from asyncnn.runtime.explain import Explanation, explain
from asyncnn.runtime.model import NamedModel


def graph(
    model: Annotated[Path, typer.Argument(help="A .tflite or .asyncnn file.")],
    device: Annotated[
        str, typer.Option(help="Device whose support is marked.")
    ] = "reference",
    extension: ExtensionOption = None,
) -> None:
    """Print the Graphviz text of a model, with types, shapes and the device's support.

    Draw it with: asyncnn graph MODEL | dot -Tsvg -o model.svg
    """
    loaded, extensions = load_extended(model, extension or ())
    explanation = anyio.run(_explanation, loaded, device, extensions)
    typer.echo(dot(loaded, explanation), nl=False)


async def _explanation(
    model: NamedModel, name: str, extensions: Sequence[Extension]
) -> Explanation:
    async with open_device(name, extensions=extensions) as device:
        return await explain(device, model, extensions=extensions)
