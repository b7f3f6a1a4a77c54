"""Plain requests that are executed again and again.

Whoever makes such a request says so (`RepeatedRequests.expect`). From then on, what is
found out about it is looked up by its identity: whether it is correct, and its arrays,
which take as long to make as all else that is done for it. The request is not kept
alive, and nothing of it stays when it goes.
"""

import weakref
from collections.abc import Callable

from asyncnn.engine.arguments import Layout
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Request


class RepeatedRequest:
    """What is known of one request; ``is_checked`` tells whether it was found correct.

    Thread-safe.
    """

    __slots__ = ("_bound", "_reference", "is_checked")

    def __init__(
        self, request: Request, gone: Callable[[weakref.ref[Request]], object]
    ) -> None:
        self._reference = weakref.ref(request, gone)
        # In one piece, as another thread may bind it to another layout.
        self._bound: tuple[Layout | None, list[Array] | None] = None, None
        self.is_checked = False

    def is_of(self, request: Request) -> bool:
        """Tell whether it is of this request, rather than of one that is gone."""
        return self._reference() is request

    def arrays(self, layout: Layout, request: Request) -> list[Array] | None:
        """Return what `Layout.arrays` does, the same for as long as the layout is."""
        known, arrays = self._bound
        if known is not layout:
            arrays = layout.arrays(request)
            self._bound = layout, arrays
        return arrays


class RepeatedRequests:
    """The requests of one model that are expected again. Thread-safe."""

    def __init__(self) -> None:
        self._expected: dict[int, RepeatedRequest] = {}

    def __len__(self) -> int:
        return len(self._expected)

    def expect(self, request: Request) -> None:
        """Know ``request`` when it comes, for as long as it exists."""
        if type(request.pools) is not tuple:  # a list may hold others the next time
            return
        number, expected = id(request), self._expected
        expected[number] = RepeatedRequest(
            request, lambda _: expected.pop(number, None)
        )

    def find(self, request: Request) -> RepeatedRequest | None:
        """Return what is known of ``request``; None if it is not expected."""
        found = self._expected.get(id(request))
        if found is None or found.is_of(request):
            return found
        # Another request was there, whose end went unheard: memory had run out, maybe.
        self._expected.pop(id(request), None)
        return None
