"""The program of examples/cluster, on what it is told; a cluster has its own tests."""

import asyncio
import sys
from pathlib import Path

import pytest

from tests.local_ray import require_ray

FOLDER = Path(__file__).parents[2] / "examples" / "cluster"


async def output_of(where: str) -> str:
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        "app.py",
        where,
        cwd=FOLDER,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await run.communicate()
    assert run.returncode == 0, error.decode()
    return out.decode()


@pytest.mark.parametrize(
    "where", ["driver", pytest.param("ray://local", marks=pytest.mark.exhaustive)]
)
async def test_one_argument_says_where_it_runs(where: str) -> None:
    if where.startswith("ray"):
        import ray  # noqa: F401 - whoever has none skips this

        require_ray()

    share, _, rest = (await output_of(where)).partition("% of ")
    assert float(share) > 97
    assert rest == "360 right\n"
