"""Mutants of conformance vectors are refused by devices, and nothing is started."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from asyncnn.callbacks import IExecutionCallback, IPreparedModelCallback
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    HalVersion,
    Model,
    OutputShape,
    Timing,
)
from asyncnn.qos import Scheduler
from asyncnn.service import RemoteDevice, Server
from asyncnn.service.process import driver_process
from asyncnn.tools.conformance.mutations import refusing, trial
from asyncnn.tools.conformance.mutations.bare import bare_client
from asyncnn.tools.conformance.mutations.model_rows import MODEL_ROWS, cyclic_mutant
from asyncnn.tools.conformance.mutations.mutant import (
    Mutant,
    MutationRow,
    RequestMutant,
    RequestRow,
    sample,
)
from asyncnn.tools.conformance.mutations.refusing import (
    PreparedWay,
    Way,
    judge_model,
    judge_request,
)
from asyncnn.tools.conformance.mutations.request_rows import REQUEST_ROWS
from asyncnn.tools.conformance.mutations.trial import (
    ITSELF,
    WORDS,
    CaseTrial,
    MutantPlan,
    run_mutants,
)
from asyncnn.tools.conformance.vectors import Case, find_specs, load_cases
from tests.hal.validate.samples import float_model, float_request, q8_model

EVERY = 80
"""Of so many files of vectors, sorted by release and name, one is in the sample."""

LEAST_OF_ALL = 20_000
LEAST_OF_SAMPLE = 200
INVALID, GENERAL = ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE
NONE = ErrorStatus.NONE


@pytest.mark.parametrize(
    "transport", ["inprocess", pytest.param("remote", marks=pytest.mark.exhaustive)]
)
def test_mutants_of_a_sample_are_refused(shared: Path, transport: str) -> None:
    passed = refused(find_specs(shared / "vts")[::EVERY], transport)
    assert passed.total() >= LEAST_OF_SAMPLE


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("transport", ["inprocess", "remote"])
def test_mutants_of_every_vector_are_refused(shared: Path, transport: str) -> None:
    specs = find_specs(shared / "vts")
    # What a client and a driver look at is what a device does; they add the way there.
    some = specs if transport == "inprocess" else list(of_all(specs))
    passed = refused(some, transport)
    assert passed.total() >= LEAST_OF_ALL
    assert {row for row, count in passed.items() if count} == WORDS.keys() - {ITSELF}


def of_all(specs: Sequence[Path]) -> Iterator[Path]:
    """Yield files that have all operations: the first of each."""
    had: set[int] = set()
    for spec in specs:
        models = [case.model for case in load_cases(spec)]
        graphs = [graph for each in models for graph in (each.main, *each.referenced)]
        types = {operation.type for graph in graphs for operation in graph.operations}
        if not types <= had:
            had |= types
            yield spec


def refused(specs: Sequence[Path], transport: str) -> Counter[str]:
    """Check that each mutant is refused; return how many there were of each row."""
    with driver_process() if transport == "remote" else nullcontext() as driver:
        plan = MutantPlan(limit=1, socket=str(driver.path) if driver else None)
        results = [result for batch in run_mutants(specs, plan) for result in batch]
    assert [problem for result in results for problem in result.problems] == []
    assert {result.transport for result in results} == {transport}
    passed = Counter[str]()
    for result in results:
        passed[result.row] += result.passed
    return passed


@pytest.fixture
def case(shared: Path) -> Case:
    """An IF of a subgraph that is one operation."""
    return load_cases(shared / "vts" / "V1_3" / "if_same_branch_model.json.gz")[0]


@pytest.fixture(params=["device", "client", "driver"])
async def way(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Way]:
    async with ReferenceDevice() as device:
        if request.param == "device":
            yield Way("device", device)
            return
        path = tmp_path / "driver.sock"
        async with Server(device, path):
            if request.param == "client":
                async with RemoteDevice(path) as remote:
                    yield Way("client", remote)
            else:
                async with bare_client(path) as bare:
                    yield Way("driver", bare, is_bare=True)


async def test_nothing_is_started_for_any_mutant(
    way: Way, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    submit = Scheduler.submit

    def submit_seen(self: Scheduler, work: Any, *rest: Any) -> None:
        started.append(work)
        submit(self, work, *rest)

    monkeypatch.setattr(Scheduler, "submit", submit_seen)
    monkeypatch.setattr(trial, "BURST_ROWS", ())  # valid packets
    results = await CaseTrial(case, [way], MutantPlan(limit=2)).run()
    assert [problem for result in results for problem in result.problems] == []
    assert sum(result.passed for result in results) > 2 * len(MODEL_ROWS)
    # That is the preparation of the case itself, whose requests are mutated.
    assert len(started) == 1


NEED_TWO_OPERATIONS = {"VM1", "VM2", "VM15"}


@pytest.mark.parametrize("row", MODEL_ROWS, ids=lambda row: row.number)
def test_referenced_subgraphs_are_mutated_too(row: MutationRow, case: Case) -> None:
    model = case.model
    mutants = list(row.mutants(model, HalVersion.V1_3))
    nested = [m.model for m in mutants if "referenced subgraph 0" in m.label]
    mutable = row.changes_subgraph and row.number not in NEED_TWO_OPERATIONS
    assert bool(nested) == mutable
    for mutant in nested:
        assert mutant.main == model.main
        assert mutant.referenced != model.referenced
        assert len(mutant.referenced) == len(model.referenced)


def test_the_same_mutants_are_chosen_every_time() -> None:
    (row,) = (row for row in MODEL_ROWS if row.number == "VM11")

    def chosen(seed: str) -> list[str]:
        mutants = row.mutants(q8_model(), HalVersion.V1_3)
        return [mutant.label for mutant in sample(mutants, 5, seed).tried]

    assert len(chosen("one")) == 5
    assert chosen("one") == chosen("one")
    assert chosen("one") != chosen("two")


def test_what_may_be_legal_is_not_tried_and_told_why() -> None:
    mutants = [
        Mutant("wrong", float_model(2)),
        Mutant("maybe", float_model(2), may_pass="it fits"),
    ]
    chosen = sample(iter(mutants), None, "")
    assert [mutant.label for mutant in chosen.tried] == ["wrong"]
    assert chosen.exempt == ["it fits"]


class Faulty:
    """A device that answers as it is told to, right or wrong."""

    def __init__(
        self,
        supported: tuple[ErrorStatus, tuple[bool, ...]] = (INVALID, ()),
        launch: ErrorStatus = INVALID,
        notified: tuple[ErrorStatus, ...] = (INVALID,),
    ) -> None:
        self._supported = supported
        self._launch = launch
        self._notified = notified

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        return self._supported

    def prepare_model_1_3(self, *arguments: Any) -> ErrorStatus:
        callback = arguments[-1]
        assert isinstance(callback, IPreparedModelCallback)
        for status in self._notified:
            callback.notify_1_3(status, None)
        return self._launch


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        (Faulty(supported=(NONE, (True,))), "supported operations: "),
        (Faulty(supported=(GENERAL, ())), "supported operations: "),
        (Faulty(launch=NONE), "launch: "),
        (Faulty(notified=(GENERAL,)), "notification: "),
        (Faulty(notified=(INVALID, INVALID)), "notifications: 2"),
        (Faulty(notified=()), "no answer"),
    ],
)
async def test_wrong_answers_to_a_model_are_found(
    device: Faulty, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusing, "TIMEOUT_S", 0.01)
    found = await judge_model(cyclic_mutant(), None, Way("device", device))
    assert any(problem in each for each in found), found


async def test_right_answers_to_a_model_are_no_problem() -> None:
    assert await judge_model(cyclic_mutant(), None, Way("device", Faulty())) == []


async def test_a_device_that_never_answers_is_found(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusing, "TIMEOUT_S", 0.01)
    silent = Faulty(supported=(NONE, (True,)), notified=())
    *_, last = await CaseTrial(case, [Way("device", silent)], MutantPlan()).run()
    assert last.row == ITSELF
    assert last.failed == 1
    assert "no answer" in last.problems[0]


async def test_a_case_that_is_refused_itself_has_no_mutants(case: Case) -> None:
    (result,) = await CaseTrial(case, [Way("device", Faulty())], MutantPlan()).run()
    assert (result.row, result.failed) == (ITSELF, 1)
    assert "the device refuses the case" in result.problems[0]


async def test_a_case_that_a_driver_may_refuse_is_skipped(case: Case) -> None:
    free = replace(case, folder="V1_3_cts_only")
    (result,) = await CaseTrial(free, [Way("device", Faulty())], MutantPlan()).run()
    assert result.failed == 0
    assert sum(result.skipped.values()) == 1


SHAPES = (OutputShape((2,), True),)
REFUSED = (INVALID, (), NO_TIMING)


class FaultyPrepared:
    """A prepared model that answers as it is told to, right or wrong."""

    def __init__(
        self,
        launch: ErrorStatus = INVALID,
        notified: tuple[Any, ...] = REFUSED,
        answer: tuple[Any, ...] = REFUSED,
        fenced: tuple[Any, ...] = (INVALID, None, None),
    ) -> None:
        self.execute_fenced = lambda *arguments: fenced
        self._launch = launch
        self._notified = notified
        self._answer = answer

    def execute_1_3(self, *arguments: Any) -> ErrorStatus:
        callback = arguments[-1]
        assert isinstance(callback, IExecutionCallback)
        callback.notify_1_3(*self._notified)
        return self._launch

    async def execute_synchronously_1_3(self, *arguments: Any) -> tuple[Any, ...]:
        return self._answer


@pytest.mark.parametrize(
    ("prepared", "problem"),
    [
        (FaultyPrepared(launch=GENERAL), "launch: "),
        (FaultyPrepared(notified=(NONE, SHAPES, NO_TIMING)), "notification: "),
        (FaultyPrepared(notified=(INVALID, SHAPES, NO_TIMING)), "notification: "),
        (FaultyPrepared(notified=(INVALID, (), Timing(1, 2))), "notification: "),
        (FaultyPrepared(answer=(INVALID, (), Timing(1, 2))), "synchronously: "),
        (FaultyPrepared(answer=(GENERAL, (), NO_TIMING)), "synchronously: "),
        (FaultyPrepared(fenced=(GENERAL, None, None)), "fenced: "),
    ],
)
async def test_wrong_answers_to_a_request_are_found(
    prepared: FaultyPrepared, problem: str
) -> None:
    mutant = RequestMutant("wrong", float_request(2))
    target = PreparedWay(Way("device", Faulty()), prepared)
    found = await judge_request(mutant, target, by_burst=True)
    assert any(problem in each for each in found), found


async def test_wrong_fences_are_of_fenced_executions_alone() -> None:
    mutant = RequestMutant("no fence", float_request(2), wait_for=(None,))
    accepting = FaultyPrepared(NONE, (NONE, SHAPES, NO_TIMING), (NONE, (), NO_TIMING))
    target = PreparedWay(Way("device", Faulty()), accepting)
    assert await judge_request(mutant, target, by_burst=False) == []


@pytest.mark.parametrize("row", REQUEST_ROWS, ids=lambda row: row.number)
def test_every_kind_of_mutant_of_a_request_differs_from_it(row: RequestRow) -> None:
    request = float_request(2)
    mutants = list(row.mutate(request, float_model(2)))
    assert mutants
    changed = [(mutant.request, mutant.wait_for) for mutant in mutants]
    assert (request, ()) not in changed
