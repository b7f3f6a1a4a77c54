"""``asyncnn diff``."""

import json
import shlex
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from playwright.async_api import Page

import asyncnn
from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.tools.pages import SortableTable
from asyncnn.tools.pages.drawing import load_page
from tests.browser import browsing
from tests.cli.conftest import Ran
from tests.networks import addition, chain
from tests.tools.test_comparison import addition_in_onnx

Command = Callable[..., Ran]

F32 = OperandType.TENSOR_FLOAT32
Q8 = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
SAME = ("--between", "reference,reference")


def network(path: Path, amount: float, *, scale: float = 0.0) -> Path:
    """Write ``y = tanh(abs(x) * amount + x)``, in codes of a scale if there is one."""
    type_ = Q8 if scale else F32
    like = Operand(type_, (2, 4), scale=scale)
    builder = ModelBuilder()
    x = builder.input("x", type_, (2, 4), scale=scale)
    none = builder.scalar(FusedActivationFunc.NONE)
    factor = np.float32([amount])
    if scale:
        codes = np.int8(np.rint(factor / scale))
        constant = builder.constant(codes, type_, scale=scale)
    else:
        constant = builder.constant(factor)
    # RELU, as ABS has no quantised form.
    size = builder.operation(OperationType.RELU, [x], like)
    product = builder.operation(OperationType.MUL, [size, constant, none], like)
    wide = Operand(type_, (2, 4), scale=2 * scale)
    total = builder.operation(OperationType.ADD, [product, x, none], wide)
    last = Operand(type_, (2, 4), scale=1 / 128) if scale else like
    builder.output(builder.operation(OperationType.TANH, [total], last), "y")
    asyncnn.save(builder.build(), path)
    return path


def ran_again(command: Command, ran: Ran) -> Ran:
    """Run the command that an output ends with."""
    (line,) = (line for line in ran.out.splitlines() if line.startswith("repeat it"))
    return command(*shlex.split(line.partition(": ")[2])[1:])


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two networks that differ in the constant of operation 1."""
    return (
        network(tmp_path / "one.asyncnn", 1.0),
        network(tmp_path / "other.asyncnn", 1.5),
    )


def test_devices_that_agree(asyncnn_command: Command, shared: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    model = shared / "models" / "hello_world_int8.tflite"
    ran = asyncnn_command("diff", model)
    assert ran.status == 0, ran.out + ran.err
    assert "3 samples, 3 tensors compared" in ran.out
    assert "no operation diverges" in ran.out
    assert "does not fuse" in ran.out


def test_the_operation_is_named_kept_and_repeated(
    asyncnn_command: Command, two: tuple[Path, Path], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.npz"
    ran = asyncnn_command("diff", *two, "--save", kept)
    assert ran.status == 1, ran.out + ran.err
    assert "first to diverge: operation 1 (MUL), by " in ran.out
    assert "adds most error: operation 1 (MUL), by " in ran.out
    assert "it diverges by itself, too" in " ".join(ran.out.split())
    assert all(len(line) <= 80 for line in ran.out.splitlines() if "│" in line)
    again = ran_again(asyncnn_command, ran)
    assert again.status == 1, again.out + again.err
    assert "1 sample, 1 tensor compared" in again.out
    assert "first to diverge: operation 0 (MUL)" in again.out
    alone = asyncnn.load(tmp_path / "kept.asyncnn").model.main
    assert [each.type for each in alone.operations] == [OperationType.MUL]


def test_tolerances_are_kept_for_the_command(
    asyncnn_command: Command, two: tuple[Path, Path], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.npz"
    ran = asyncnn_command("diff", *two, "--atol", 100, "--save", kept)
    assert ran.status == 0, ran.out + ran.err
    assert "adds most error: operation 1 (MUL)" in ran.out
    assert "within tolerance" in ran.out
    assert ran_again(asyncnn_command, ran).status == 0


def test_what_litert_makes_of_an_operation_is_kept(
    asyncnn_command: Command, shared: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ai_edge_litert")
    model = shared / "models" / "kws_ref_model_float32.tflite"  # of int8 weights
    kept = tmp_path / "kept.npz"
    ran = asyncnn_command(
        "diff", model, "--between", "reference,litert", "--save", kept
    )
    assert ran.status == 1, ran.out + ran.err
    assert "first to diverge: operation 1 (CONV_2D)" in ran.out
    again = ran_again(asyncnn_command, ran)
    assert again.status == 1
    assert "OUT OF TOLERANCE" in again.out


def test_all_tensors_of_onnx_runtime_are_compared(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    model = tmp_path / "sum.onnx"
    model.write_bytes(addition_in_onnx())
    ran = asyncnn_command(
        "diff", model, "--between", "onnxruntime,reference", "--input-shape", "x=3,2"
    )
    assert ran.status == 0, ran.out + ran.err
    assert "1 tensor compared" in ran.out


def test_a_float_and_a_quantised_network_are_compared_in_steps(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    one = network(tmp_path / "float.asyncnn", 0.5)
    fine = network(tmp_path / "int8.asyncnn", 0.5, scale=1 / 32)
    for models in ((one, fine), (fine, one)):
        ran = asyncnn_command("diff", *models, "--lsb", 5)
        assert ran.status == 0, ran.out + ran.err
        assert "4 tensors compared" in ran.out
        assert "LSB" in ran.out
    wrong = network(tmp_path / "wrong.asyncnn", 0.75, scale=1 / 32)
    kept = tmp_path / "kept.npz"
    ran = asyncnn_command("diff", one, wrong, "--lsb", 5, "--save", kept)
    assert ran.status == 1, ran.out + ran.err
    assert "first to diverge: operation 1 (MUL)" in ran.out
    assert ran_again(asyncnn_command, ran).status == 1


def test_given_inputs_are_used(
    asyncnn_command: Command, two: tuple[Path, Path], tmp_path: Path
) -> None:
    file = tmp_path / "in.npz"
    zeros = np.zeros((2, 4), np.float32)
    np.savez(file, input_0=zeros, input_1=zeros)
    ran = asyncnn_command("diff", *two, "--input", file)
    assert ran.status == 0, ran.out + ran.err
    assert "2 samples" in ran.out
    np.savez(file, input_0=zeros, input_1=zeros + 1)
    assert asyncnn_command("diff", *two, "--input", file).status == 1


def test_several_inputs(asyncnn_command: Command, tmp_path: Path) -> None:
    model = tmp_path / "sum.asyncnn"
    asyncnn.save(addition(2, 3), model)
    file = tmp_path / "in.npz"
    x = np.ones((2, 3), np.float32)
    np.savez(file, **{"input_0.x": x, "input_0.y": 2 * x})
    ran = asyncnn_command("diff", model, *SAME, "--input", file)
    assert ran.status == 0, ran.out + ran.err


def test_the_json_names_places(
    asyncnn_command: Command, two: tuple[Path, Path], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.npz"
    ran = asyncnn_command("diff", *two, "--json", "--save", kept)
    assert ran.status == 1
    report = json.loads(ran.out)
    assert (report["first"], report["most"], report["behind"]) == ("1", "1", "1")
    assert report["passed"] is False
    assert [side["name"] for side in report["sides"]] == ["reference"] * 2
    places = {each["place"]: each for each in report["operations"]}
    assert places["1"]["diverges"]
    assert places["1"]["own"]["differing"] > 0
    assert places["2"]["error"]["differing"] > 0
    assert places["2"]["own"]["largest"] == 0
    assert report["evidence"]["repeats"] is True
    assert report["evidence"]["command"].startswith("asyncnn diff ")


@browsing
async def test_a_page_shows_operations_by_error(
    asyncnn_command: Command, two: tuple[Path, Path], tmp_path: Path, page: Page
) -> None:
    file = tmp_path / "diff.html"
    with ThreadPoolExecutor() as thread:  # the command has an event loop of its own
        options = ("diff", *two, "--html", file)
        assert thread.submit(asyncnn_command, *options).result().status == 1
    await page.goto(file.as_uri())
    node = page.locator('[data-node="1"]')
    assert "MUL" in (await node.text_content() or "")
    await node.click()
    assert await page.get_by_text("diverges").count() >= 2
    assert await page.locator("tbody tr").count() == 4
    await page.get_by_role("button", name="own error").click()
    assert "first to diverge: operation 1 (MUL)" in await page.content()


def test_a_report_is_drawn_again_from_its_json(
    asyncnn_command: Command, two: tuple[Path, Path], tmp_path: Path
) -> None:
    pages = [tmp_path / "one.html", tmp_path / "again.html"]
    ran = asyncnn_command("diff", *two, "--json", "--html", pages[0])
    report = tmp_path / "report.json"
    # A report may have distances that JSON has no numbers for.
    document = json.loads(ran.out)
    document["operations"][0]["own"]["largest"] = None
    report.write_text(json.dumps(document))
    assert "inf" in asyncnn_command("diff", report, "--all").out
    report.write_text(ran.out)
    again = asyncnn_command("diff", report, "--json", "--html", pages[1])
    assert (again.status, again.out) == (ran.status, ran.out)
    assert pages[0].read_bytes() == pages[1].read_bytes()
    report.write_text("{}")
    refused = asyncnn_command("diff", report)
    assert refused.status == 2
    assert "is no report of asyncnn diff" in refused.err


def test_counts_and_whole_steps_stand_in_full(
    asyncnn_command: Command, tmp_path: Path
) -> None:
    models = [
        network(tmp_path / f"{constant}.asyncnn", constant, scale=1 / 64)
        for constant in (1.0, 1.5)
    ]
    file = tmp_path / "diff.html"
    assert asyncnn_command("diff", *models, "--html", file).status == 1
    (table,) = (
        part
        for part in load_page(file.read_text()).parts
        if isinstance(part, SortableTable)
    )
    for place, *_, error, own, units, differing, _ in table.rows:
        numbers = [each for each in (error, own, units, differing) if each is not None]
        assert numbers, place
        assert all(isinstance(each, int) for each in numbers)


def test_a_page_that_cannot_be_written(
    asyncnn_command: Command, two: tuple[Path, Path], tmp_path: Path
) -> None:
    ran = asyncnn_command("diff", *two, "--html", tmp_path / "nowhere" / "diff.html")
    assert ran.status == 2
    assert "diff.html: No such file or directory" in ran.err


def test_long_tables_are_cut(asyncnn_command: Command, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    model = tmp_path / "chain.asyncnn"
    asyncnn.save(chain(40, 3), model)
    ran = asyncnn_command("diff", model, *SAME)
    assert "│" not in ran.out
    whole = asyncnn_command("diff", model, *SAME, "--all")
    assert whole.out.count("│ ADD ") == 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--between", "reference"), "does not name two sides"),
        (("--between", "reference,"), "does not name two sides"),
        (("--between", "reference,nowhere"), "nowhere"),
        (("--between", "reference,litert"), "litert reads TFLite files, and this is"),
        (("--between", "onnxruntime,reference"), "onnxruntime reads ONNX files"),
        (("--save", "kept.txt"), "is no .npz file"),
        (("--input", "absent.npz"), "absent.npz"),
        (("absent.tflite",), "absent.tflite"),
    ],
)
def test_bad_input_is_one_line(
    asyncnn_command: Command,
    two: tuple[Path, Path],
    arguments: tuple[str, ...],
    said: str,
) -> None:
    ran = asyncnn_command("diff", two[0], *arguments)
    assert ran.status == 2
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_models_that_are_compared_are_not_overwritten(
    asyncnn_command: Command, two: tuple[Path, Path]
) -> None:
    before = two[0].read_bytes()
    ran = asyncnn_command("diff", two[0], "--save", two[0].with_suffix(".npz"))
    assert ran.status == 2
    assert f"would overwrite {two[0]}" in ran.err
    assert two[0].read_bytes() == before


def test_other_networks_are_refused(
    asyncnn_command: Command, two: tuple[Path, Path], tmp_path: Path
) -> None:
    other = tmp_path / "sum.asyncnn"
    asyncnn.save(addition(2, 4), other)
    ran = asyncnn_command("diff", two[0], other)
    assert ran.status == 2
    assert "one model has 1 inputs and the other 2" in ran.err
    asyncnn.save(chain(2, 3, 4), other)
    ran = asyncnn_command("diff", two[0], other)
    assert ran.status == 2
    assert "has another shape than" in ran.err
