"""The option of commands that use extensions, and models that have them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from asyncnn.extensions import Extension, installed_extensions, load_extension
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import is_opaque_type
from asyncnn.runtime.container import load
from asyncnn.runtime.model import NamedModel

ExtensionOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--extension",
        metavar="MODULE:ATTRIBUTE|NAME",
        help="An Extension to import, or an installed one to use; repeatable.",
    ),
]


def load_extended(
    path: Path, places: Sequence[str]
) -> tuple[NamedModel, tuple[Extension, ...]]:
    """Load a model and its extensions: those at ``places``, or that are installed.

    An installed one is imported if the model uses it. Of one that is neither, nothing
    is known but what the model says.

    :raises AsyncnnError: if the file is bad, or there is no extension at a place.
    """
    model = load(path)
    extensions = [load_extension(place) for place in places]
    given = {extension.name for extension in extensions}
    used = {entry.name for entry in model.model.extension_name_to_prefix}
    if used - given:
        installed = sorted((used - given).intersection(installed_extensions()))
        extensions += [load_extension(name) for name in installed]
    return model.knowing(extensions), tuple(extensions)


def check_known(model: NamedModel) -> None:
    """Check that arrays can be made for all inputs and outputs of a model.

    :raises InvalidArgumentError: if one is of an extension's type that is not known.
    """
    for info in (*model.inputs, *model.outputs):
        if is_opaque_type(info.type):
            name = model.vocabulary.operand_type(info.type)
            raise InvalidArgumentError(
                f"{info.name} is of the type {name}, which is not known here",
                hint="install its extension, or give it with --extension",
            )
