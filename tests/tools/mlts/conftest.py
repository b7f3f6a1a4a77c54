"""Small models with expected outputs, and reports that nothing is measured for."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.hal.operations.bound import Array
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.mlts.suite_records import (
    FORMAT,
    Accuracy,
    JudgedModel,
    Latency,
    Preparation,
    SuiteReport,
    SuiteRow,
)

SHAPE = (1, 3)


def write_model(folder: Path, name: str = "absolute") -> Path:
    """Write a model that gives absolute values, and return its file."""
    builder = asyncnn.ModelBuilder()
    floats = asyncnn.hal.Operand(asyncnn.OperandType.TENSOR_FLOAT32, SHAPE)
    x = builder.input("x", floats.type, floats.dimensions)
    builder.output(builder.operation(asyncnn.OperationType.ABS, [x], floats), "y")
    path = folder / f"{name}.asyncnn"
    asyncnn.save(builder.build(), path)
    return path


def write_golden(model: Path, off_by: float = 0.0, **more: Array) -> Path:
    """Write two samples beside a model of `write_model`, expected to be off."""
    rng = np.random.default_rng(0)
    inputs = {f"input_{k}": rng.normal(0, 1, SHAPE).astype("f4") for k in range(2)}
    outputs = {
        f"output_{k}": np.abs(inputs[f"input_{k}"]) + np.float32(off_by)
        for k in range(2)
    }
    path = model.with_suffix(".npz")
    np.savez(path, allow_pickle=False, **{**inputs, **outputs, **more})
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one model and what is expected of it."""
    made = tmp_path / "models"
    made.mkdir()
    write_golden(write_model(made))
    return made


def row(system: str = "reference", **changed: object) -> SuiteRow:
    """Return a row of a model called net, as if it were measured."""
    fields: dict[str, object] = {
        "model": "net",
        "system": system,
        "transport": "inprocess",
        "path": "async",
        "latency": Latency.of([100.0, 120.0, 140.0, 410.0]),
        "preparation": Preparation((900.0, 800.0), 300.0, (950.0,), (200.0,), 4096, 64),
        "accuracy": Accuracy("golden", 2, {"elements": 6.0, "differing": 0.0}, (), 0.5),
    }
    return SuiteRow(**{**fields, **changed})  # type: ignore[arg-type]


def report(*rows: SuiteRow, hour: int = 9) -> SuiteReport:
    """Return a report of rows, as if measured at an hour of one day."""
    names = dict.fromkeys(each.model for each in rows)
    models = [
        JudgedModel(name, f"{name}.tflite", 3, 4000, 0, 2, "golden") for name in names
    ]
    return SuiteReport(
        format=FORMAT,
        made_at=datetime(2026, 3, 4, hour, 5, 6, tzinfo=UTC),
        environment=describe_environment(),
        settings="4 runs",
        models=tuple(models),
        rows=rows,
        notes=("energy: not said",),
    )
