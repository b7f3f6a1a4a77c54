"""Explores every execution of a few short programs under x86-TSO.

Each process has a store buffer, which is first in, first out: its own loads look there
first, and its oldest store reaches memory at any time. A fence waits until it is empty.
System calls are fences too, as the kernel takes locks; the bell is a count that only
they change. See Owens, Sarkar and Sewell, "A Better x86 Memory Model: x86-TSO" (2009).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

Registers = tuple[int, ...]
Memory = tuple[int, ...]


class Process(NamedTuple):
    """Where a process is, what it knows, and its stores that nobody has seen yet."""

    at: int = 0
    registers: Registers = (0, 0)
    buffer: tuple[tuple[int, int], ...] = ()

    def sees(self, memory: Memory, word: int) -> int:
        own = [value for stored, value in self.buffer if stored == word]
        return own[-1] if own else memory[word]


class State(NamedTuple):
    memory: Memory
    bell: int
    processes: tuple[Process, ...]

    def stepped(
        self, number: int, process: Process, *, bell: int | None = None
    ) -> "State":
        processes = list(self.processes)
        processes[number] = process
        bell = self.bell if bell is None else bell
        return State(self.memory, bell, tuple(processes))


class Step(NamedTuple):
    """``run`` returns the state after an instruction, or None if it has to wait."""

    name: str
    run: Callable[[State, int, Process], State | None]


def store(word: int, value: Callable[[Registers], int]) -> Step:
    def run(state: State, number: int, process: Process) -> State:
        buffer = (*process.buffer, (word, value(process.registers)))
        return state.stepped(number, process._replace(buffer=buffer))

    return Step("store", run)


def load(register: int, word: int) -> Step:
    def run(state: State, number: int, process: Process) -> State:
        registers = list(process.registers)
        registers[register] = process.sees(state.memory, word)
        return state.stepped(number, process._replace(registers=tuple(registers)))

    return Step("load", run)


def compute(register: int, value: Callable[[Registers], int]) -> Step:
    def run(state: State, number: int, process: Process) -> State:
        registers = list(process.registers)
        registers[register] = value(process.registers)
        return state.stepped(number, process._replace(registers=tuple(registers)))

    return Step("compute", run)


class Jump(NamedTuple):
    """Go on at ``label`` if the condition holds."""

    label: str
    condition: Callable[[Registers], bool]

    def to(self, target: int) -> Step:
        def run(state: State, number: int, process: Process) -> State:
            if not self.condition(process.registers):
                return state
            return state.stepped(number, process._replace(at=target - 1))

        return Step("jump", run)


def assembled(program: Sequence[Step | Jump | str]) -> list[Step]:
    """Return the steps of a program in which strings are labels."""
    labels: dict[str, int] = {}
    steps: list[Step | Jump] = []
    for item in program:
        if isinstance(item, str):
            labels[item] = len(steps)
        else:
            steps.append(item)
    return [s.to(labels[s.label]) if isinstance(s, Jump) else s for s in steps]


def system_call(name: str, bell: Callable[[int], int | None]) -> Step:
    """Change the bell, or wait as long as ``bell`` returns None for it."""

    def run(state: State, number: int, process: Process) -> State | None:
        if process.buffer:
            return None
        after = bell(state.bell)
        return None if after is None else state.stepped(number, process, bell=after)

    return Step(name, run)


fence = Step("fence", lambda state, _, process: None if process.buffer else state)
ring = system_call("ring", lambda bell: bell + 1)
sleep = system_call("sleep", lambda bell: bell or None)
silence = system_call("silence", lambda bell: 0)


def stuck_states(programs: tuple[list[Step], ...], words: int) -> Iterator[State]:
    """Yield each state that can be reached and in which nothing can happen any more."""
    start = State((0,) * words, 0, (Process(),) * len(programs))
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        following = list(successors(state, programs))
        if not following:
            yield state
        for successor in following:
            if successor not in seen:
                seen.add(successor)
                todo.append(successor)


def successors(state: State, programs: tuple[list[Step], ...]) -> Iterator[State]:
    for number, process in enumerate(state.processes):
        if process.buffer:
            (word, value), *rest = process.buffer
            memory = list(state.memory)
            memory[word] = value
            drained = process._replace(buffer=tuple(rest))
            yield state.stepped(number, drained)._replace(memory=tuple(memory))
        if process.at < len(programs[number]):
            after = programs[number][process.at].run(state, number, process)
            if after is not None:
                moved = after.processes[number]
                yield after.stepped(number, moved._replace(at=moved.at + 1))
