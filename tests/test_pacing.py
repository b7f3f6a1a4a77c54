"""Long work makes way for executions."""

import threading

import pytest

from asyncnn.pacing import LINGER_S, PROMPT_S, REST, SLICE_S, Pace


class Executions:
    """Some that are under way, or not."""

    is_busy = True


class Machine:
    """A clock that goes on while somebody works or sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.worked_s = 0.0
        self.slept_s = 0.0
        self.executions = Executions()
        self.pace = Pace(lambda: self.now_s, lambda: self.worked_s, self.sleep)
        self.pace.watch(self.executions)

    def work(self, for_s: float) -> None:
        self.now_s += for_s
        self.worked_s += for_s
        self.pace.make_way()

    def sleep(self, for_s: float) -> None:
        assert for_s > 0
        self.now_s += for_s
        self.slept_s += for_s


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_long_work_takes_its_share_beside_executions(machine: Machine) -> None:
    with machine.pace.long_work():
        for _ in range(1000):
            machine.work(SLICE_S / 7)
    share = machine.worked_s / (machine.worked_s + machine.slept_s)
    assert share == pytest.approx(1 / (1 + REST), rel=0.02)


def test_long_work_does_not_rest_when_there_are_no_executions(machine: Machine) -> None:
    machine.executions.is_busy = False
    with machine.pace.long_work():
        for _ in range(100):
            machine.work(SLICE_S)
    assert not machine.slept_s


def test_executions_count_for_a_while_after_their_end(machine: Machine) -> None:
    with machine.pace.long_work():
        machine.work(SLICE_S)
        machine.executions.is_busy = False
        slept_s = machine.slept_s
        machine.work(SLICE_S)
        assert machine.slept_s > slept_s
        machine.now_s += LINGER_S
        slept_s = machine.slept_s
        machine.work(SLICE_S)
        assert machine.slept_s == slept_s


def test_what_an_execution_waits_for_rests_beside_others_alone(
    machine: Machine,
) -> None:
    itself = Executions()
    machine.pace.watch(itself, are_awaited=True)
    with machine.pace.long_work(is_awaited=True):
        machine.work(SLICE_S)
        assert machine.slept_s == pytest.approx(SLICE_S * REST)
        machine.executions.is_busy = False
        machine.work(SLICE_S)
        assert machine.slept_s == pytest.approx(SLICE_S * REST)
        slept_s = machine.slept_s
        machine.work(PROMPT_S)
        assert machine.slept_s > slept_s


def test_a_rest_ends_when_the_executions_do(machine: Machine) -> None:
    with machine.pace.long_work():
        machine.work(1.0)
        assert machine.slept_s == pytest.approx(REST)
        machine.executions.is_busy = False
        machine.slept_s = 0.0
        machine.work(1.0)
    assert machine.slept_s <= LINGER_S


def test_a_rest_ends_when_the_work_is_to_stop(machine: Machine) -> None:
    with machine.pace.long_work(lambda: machine.slept_s > 0.01):
        machine.work(1.0)
        assert machine.slept_s < 0.02


def test_a_rest_that_ended_early_is_made_up_for(machine: Machine) -> None:
    with machine.pace.long_work(lambda: True):
        machine.work(1.0)
    assert not machine.slept_s
    with machine.pace.long_work():
        machine.work(SLICE_S)
    assert machine.slept_s >= REST


def test_other_threads_and_short_work_never_rest(machine: Machine) -> None:
    machine.work(1.0)
    with machine.pace.long_work():
        machine.work(SLICE_S / 2)
    machine.work(1.0)
    assert not machine.slept_s


def test_what_waited_for_something_has_not_worked_meanwhile(machine: Machine) -> None:
    with machine.pace.long_work():
        machine.now_s += 1.0
        machine.work(SLICE_S)
    assert machine.slept_s == pytest.approx(SLICE_S * REST)


def test_executions_that_are_gone_no_longer_count(machine: Machine) -> None:
    del machine.executions
    with machine.pace.long_work():
        machine.work(1.0)
    assert not machine.slept_s


def test_all_threads_share_one_share(machine: Machine) -> None:
    """Each finds the turns of the others taken, and waits until after them."""

    def work() -> None:
        with machine.pace.long_work():
            machine.work(SLICE_S)

    rests: list[float] = []
    for _ in range(3):
        # Nobody has slept yet when the next one comes: the clock stands still.
        now_s, machine.slept_s = machine.now_s, 0.0
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(5)
        rests.append(machine.slept_s)
        machine.now_s = now_s
    turn_s = SLICE_S * (1 + REST)
    assert rests == pytest.approx([SLICE_S * REST + n * turn_s for n in range(3)])


def test_a_forked_child_has_no_executions(machine: Machine) -> None:
    machine.pace.renew()
    with machine.pace.long_work():
        machine.work(1.0)
    assert not machine.slept_s
