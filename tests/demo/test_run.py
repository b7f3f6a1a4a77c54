import io

import pytest
from rich.console import Console

from asyncnn.demo.run import PATHS, DemoResult, run_demo


def quiet_console() -> Console:
    return Console(file=io.StringIO(), width=100)


@pytest.fixture(scope="module")
async def shown() -> tuple[DemoResult, str]:
    console = quiet_console()
    result = await run_demo(console)
    return result, console.file.getvalue()


pytestmark = [pytest.mark.slow]


class TestDemo:
    def test_both_models_reach_their_floor_on_every_path(
        self, shown: tuple[DemoResult, str]
    ) -> None:
        result, _ = shown
        floors = {"float": 0.97, "int8": 0.96}
        assert {model.model for model in result.models} == floors.keys()
        for model in result.models:
            assert tuple(path.path for path in model.paths) == PATHS
            assert all(p.accuracy >= floors[model.model] for p in model.paths)
        assert result.passed
