"""The ring in C was built, and the one in Python does the same."""

import gc
import importlib.util
import os
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from asyncnn.fmq import IS_COMPILED, spin
from asyncnn.fmq.layout import (
    READER_SLEEPS,
    WRITTEN,
    Geometry,
    Pages,
    create_pages,
    map_pages,
)
from asyncnn.fmq.ring import PythonRing, Ring
from asyncnn.hal.errors import InvalidArgumentError
from tests.fmq.conftest import COUNT, QUANTUM, Ends, elements

GEOMETRY = Geometry(QUANTUM, COUNT)
BUILT = importlib.util.find_spec("asyncnn.fmq._ring") is not None
needs_compiled = pytest.mark.skipif(not IS_COMPILED, reason="there is no compiled ring")


def fresh_pages() -> Pages:
    fd = create_pages(GEOMETRY)
    try:
        return map_pages(fd, GEOMETRY)
    finally:
        os.close(fd)


def compiled(
    *, geometry: Geometry = GEOMETRY, wake_peer: Callable[[], None] = lambda: None
) -> Any:
    return importlib.import_module("asyncnn.fmq._ring").Ring(
        geometry, fresh_pages(), wake_peer
    )


class Told:
    """A spinner that writes down what it is told."""

    looks, hits = 1, 0

    def __init__(self) -> None:
        self.notes: list[str] = []

    def may_yield(self) -> bool:
        return True

    def yielded(self, took_ns: int) -> bool:
        return took_ns <= spin.SLOW_YIELD_NS

    def note_late(self, took_ns: int) -> None:
        assert took_ns > spin.SLOW_YIELD_NS
        self.notes.append("late")

    def note_miss(self) -> None:
        self.notes.append("miss")


@pytest.mark.parametrize("kind", [*dict.fromkeys([PythonRing, Ring])])
def test_what_spins_in_vain_says_so_once(kind: type[Any]) -> None:
    ring, told = kind(GEOMETRY, fresh_pages(), lambda: None), Told()
    assert ring._read_spinning(told, 2) is None
    assert told.notes in (["miss"], ["late"])
    assert ring.write_nowait(elements(2))
    assert ring._read_spinning(told, 2) == elements(2)
    assert len(told.notes) == 1


@needs_compiled
class TestCompiled:
    """What only a mistake of ours could do to it, and the other cannot suffer."""

    def test_one_that_was_not_initialised_is_closed(self) -> None:
        kind = importlib.import_module("asyncnn.fmq._ring").Ring
        ring = kind.__new__(kind)
        assert ring.is_closed
        for use in (ring.read_nowait, ring.available_to_write):
            with pytest.raises(ValueError, match="initialised"):
                use()

    @pytest.mark.parametrize("geometry", [Geometry(QUANTUM, 1), Geometry(0, 0)])
    def test_pages_of_another_size_are_refused(self, geometry: Geometry) -> None:
        with pytest.raises(ValueError, match="geometry"):
            compiled(geometry=geometry)

    @pytest.mark.parametrize("word", [64, 1 << 40, 1 << 80, -1])
    def test_no_word_lies_elsewhere(self, word: int) -> None:
        ring = compiled()
        for use in (
            lambda: ring._word(word),
            lambda: ring._withdraw(word),
            lambda: ring._has_moved(word, 0, 1),
            lambda: ring._announce(word, WRITTEN, 0),
            lambda: ring._announce(READER_SLEEPS, word, 0),
        ):
            with pytest.raises((IndexError, OverflowError)):
                use()

    def test_what_it_returns_is_counted_by_every_interpreter(self) -> None:
        ring = compiled()
        before = [sys.getrefcount(value) for value in (True, False, None)]
        for _ in range(1000):
            ring.write_nowait(elements(1))
            ring.write_nowait(elements(COUNT))
            ring.read_nowait()
            ring.read_nowait()
            ring._announce(READER_SLEEPS, WRITTEN, 0)
            ring._withdraw(READER_SLEEPS)
        after = [sys.getrefcount(value) for value in (True, False, None)]
        assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True))

    def test_an_error_of_the_bell_arrives(self) -> None:
        def break_bell() -> None:
            raise ZeroDivisionError

        ring = compiled(wake_peer=break_bell)
        assert ring._announce(READER_SLEEPS, WRITTEN, 0)
        with pytest.raises(ZeroDivisionError):
            ring.write_nowait(elements(1))

    def test_one_without_a_bell_says_so(self) -> None:
        ring = compiled()
        del ring._wake_peer
        assert ring._announce(READER_SLEEPS, WRITTEN, 0)
        with pytest.raises(AttributeError):
            ring.write_nowait(elements(1))

    @pytest.mark.parametrize("arguments", [(1, 2, 3), ("1",), (None, "2")])
    def test_wrong_arguments_are_type_errors(
        self, arguments: tuple[object, ...]
    ) -> None:
        ring = compiled()
        with pytest.raises(TypeError):
            ring.read_nowait(*arguments)
        with pytest.raises(TypeError):
            ring.write_nowait("text")

    def test_spinning_goes_by_the_numbers_of_the_one_in_python(self) -> None:
        built = importlib.import_module("asyncnn.fmq._ring")
        for name in ("FEW_LOOKS", "BUDGET_NS", "SHARED_YIELD_NS", "SLOW_YIELD_NS"):
            assert getattr(built, name) == getattr(spin, name)

    def test_an_error_of_its_spinner_arrives(self) -> None:
        ring = compiled()
        assert ring.write_nowait(elements(1))
        assert ring._read_spinning(object(), 1) == elements(1)
        with pytest.raises(AttributeError):
            ring._read_spinning(object(), 1)

    def test_it_can_be_initialised_again(self) -> None:
        ring = compiled()
        assert ring.write_nowait(elements(3))
        ring.__init__(GEOMETRY, fresh_pages(), lambda: None)
        assert ring.available_to_write() == COUNT

    def test_a_cycle_through_its_bell_is_collected(self) -> None:
        class Bell:
            def __call__(self) -> None: ...

        bell = Bell()
        bell.ring = compiled(wake_peer=bell)
        gone = weakref.ref(bell)
        del bell
        gc.collect()
        assert gone() is None


@needs_compiled
def test_each_interpreter_has_errors_of_its_own(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.import_module("asyncnn.fmq._ring").__spec__
    foreign: Any = ModuleType("asyncnn.hal.errors")
    foreign.InvalidArgumentError = type("InvalidArgumentError", (Exception,), {})
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "asyncnn.hal.errors", foreign)
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    with pytest.raises(InvalidArgumentError):
        ends.writer.write_nowait(b"1")
