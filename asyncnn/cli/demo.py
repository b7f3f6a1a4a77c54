"""``asyncnn demo``: the main job end to end, on the bundled models and data."""

import typer

from asyncnn.cli.options import JsonOption, console, print_json


def demo(json: JsonOption = False) -> None:
    """Classify handwritten digits with a float and a quantised model.

    Prints accuracy, a confusion picture and latency for every path; fails if the
    accuracy is below its floor.
    """
    import anyio

    from asyncnn.tools.demo import run_demo

    result = anyio.run(run_demo, console(), json)
    if json:
        print_json(result)
    if not result.passed:
        raise typer.Exit(1)
