"""Sessions are shared while they are in use, and never found while they go."""

import threading

import numpy as np
import pytest

from asyncnn.devices.onnxruntime import found
from asyncnn.devices.onnxruntime.runtime_api import OnnxRuntimeLibrary
from asyncnn.devices.onnxruntime.runtime_trial import chain
from asyncnn.devices.onnxruntime.sessions import (
    RegionSession,
    RegionSessions,
    digest_of,
)
from asyncnn.hal.errors import GeneralFailureError

CONTENT = chain(1, 4)


@pytest.fixture(scope="module")
def library() -> OnnxRuntimeLibrary:
    return OnnxRuntimeLibrary(found()[0])


def region_of(library: OnnxRuntimeLibrary) -> RegionSessions:
    return RegionSessions(library, digest_of(CONTENT))


def test_each_class_and_number_of_threads_has_its_own(
    library: OnnxRuntimeLibrary,
) -> None:
    region = region_of(library)
    first = region.session(CONTENT)
    assert region.session(CONTENT) is first
    others = [
        region.session(CONTENT, 2),
        region.session(CONTENT, makes_way=True),
        region.session(CONTENT, 2, makes_way=True),
    ]
    assert len({id(each) for each in (first, *others)}) == 4


def test_one_that_is_released_is_found_by_nobody(
    library: OnnxRuntimeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    region = region_of(library)
    held = [region.session(CONTENT)]
    begun, go_on = threading.Event(), threading.Event()
    release = library.release

    def slowly(kind: str, made: int) -> None:
        if kind == "Session":
            begun.set()
            go_on.wait(30)
        release(kind, made)

    monkeypatch.setattr(library, "release", slowly)
    handle = held[0].handle
    thread = threading.Thread(target=held.clear)
    thread.start()
    assert begun.wait(30)
    other: RegionSession = region.session(CONTENT)
    assert other.handle != handle
    go_on.set()
    thread.join()


def test_a_file_that_has_changed_is_refused(library: OnnxRuntimeLibrary) -> None:
    changed = np.frombuffer(chain(2, 4), np.uint8)
    with pytest.raises(GeneralFailureError, match="has changed since"):
        region_of(library).session(changed, 2)
